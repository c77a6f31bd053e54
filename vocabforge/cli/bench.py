"""``vocabforge bench``: measure, on this machine, what the documentation claims."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..core.errors import UsageError
from ..core.extension import resolve
from .app import JsonOption, echo, print_json
from .option_values import numbers_in, words_in

if TYPE_CHECKING:
    from ..study.draft_heads import HeadBenchOptions

# name -> "module:attr". ``count-freq`` takes (tokenizer, inputs, repeats=, workers=, text_unit=), ``draft-heads``
# (recipe, overrides, options, output), the others (settings, repeats=).
BENCHMARKS: dict[str, str] = {
    "count-freq": "vocabforge.evaluate.bench_counting:bench_counting",
    "decoding": "vocabforge.evaluate.bench_decoding:bench_decoding",
    "draft-heads": "vocabforge.study.draft_heads:bench_draft_heads",
    "kernels": "vocabforge.evaluate.bench_kernels:bench_kernels",
    "training": "vocabforge.evaluate.bench_training:bench_training",
}


SettingsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE",
        help="training: shapes, device, batch, length, steps (K of the training-time test), loss_rows, weights, "
        "chunk_mb, threads. Shapes by default: tiny, tiny-long, small on a CPU; qwen3-0.6b, qwen3-8b, llama3-8b "
        "on CUDA. decoding: target, draft_model, drafter (folders), modes, prompts (question file), questions, "
        "max_new_tokens, dtype, threads, their_threads, compile, draft_tokens, layers, tune_prompts. draft-heads: "
        "keys of the recipe. kernels: device, parts (ops, heads, drafting, cycle), shapes (llama3-8b, qwen3-8b, "
        "small), rows, ops, backend, measure and budget (seconds of one measurement, of everything).",
        show_default=False,
    ),
]


@dataclass(frozen=True, kw_only=True)
class RoundOptions:
    """What count-freq reads, and how often everything is measured."""

    tokenizer: Annotated[
        Path | None, typer.Option(metavar="PATH", help="count-freq: tokenizer folder or tokenizer.json.")
    ] = None
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", metavar="PATH", help="count-freq: text or JSON files; repeatable."),
    ] = None
    repeats: Annotated[int, typer.Option(min=1, help="Rounds; the methods take turns in each.")] = 3
    workers: Annotated[int, typer.Option(min=1, help="count-freq: counting processes of VocabForge.")] = 1
    text_unit: Annotated[str, typer.Option(help="count-freq: file, line or paragraph.")] = "file"


@dataclass(frozen=True, kw_only=True)
class HeadOptions:
    """What draft-heads trains and compares."""

    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="draft-heads: recipe of train-drafter.")
    ] = None
    seeds: Annotated[str, typer.Option(metavar="N,...", help="draft-heads: one drafter each.")] = "0,1,2"
    draft_vocab: Annotated[
        str, typer.Option(metavar="R,...", help="draft-heads: sizes of static draft vocabularies.")
    ] = "128,256"
    shortlist: Annotated[
        str, typer.Option(metavar="K,...", help="draft-heads: candidates of the rankers.")
    ] = "32,64,128"
    clusters: Annotated[int, typer.Option(min=2, help="draft-heads: clusters of the router.")] = 32
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="K,...",
            help="draft-heads: clusters that the router opens, K or LAW:K_MAX:K_MIN "
            "[default: an eighth, a quarter and a half of them].",
        ),
    ] = None
    prompts: Annotated[int, typer.Option(min=1, help="draft-heads: held-out prompts decoded.")] = 24
    max_new_tokens: Annotated[int, typer.Option(min=1, help="draft-heads: tokens decoded a prompt.")] = 64

    def options(self) -> HeadBenchOptions:
        """The same as the benchmark takes it.

        Raises:
            UsageError: a list of numbers that cannot be read.
        """
        from ..study.draft_heads import HeadBenchOptions

        return HeadBenchOptions(
            seeds=numbers_in("--seeds", self.seeds, needed=True),
            draft_vocabs=numbers_in("--draft-vocab", self.draft_vocab, needed=True),
            shortlists=numbers_in("--shortlist", self.shortlist, needed=True),
            clusters=self.clusters,
            budgets=words_in(self.budget),
            prompts=self.prompts,
            max_new_tokens=self.max_new_tokens,
        )


def bench(
    name: Annotated[
        str, typer.Argument(help="Which benchmark: count-freq, training, decoding, draft-heads or kernels.")
    ],
    rounds: RoundOptions,
    heads: HeadOptions,
    settings: SettingsArgument = None,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH", help="Also write the JSON to this file; draft-heads: folder of everything."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure VocabForge against plain ways of doing the same, which take turns with it.

    **count-freq** counts the same files with the tokenizers library and with VocabForge, each measurement in a fresh
    process; the counts must be identical. **training** does whole training steps (target's pass, unroll, loss, backward
    pass, optimiser) with random weights of known shapes, with the fused and the plain vocabulary loss and with
    blockwise and plain attention. **decoding** continues the same prompts with VocabForge and with transformers'
    `generate` (plain, draft model, n-gram, early exit, each with the best settings found), and with EAGLE-3; a draft
    model with another tokenizer (`foreign_drafter=DIR`) drafts by TLI, SLEM and SLRS, against assisted generation;
    outputs are compared token by token. **draft-heads** trains one drafter a seed with every kind of draft head and
    decodes held-out prompts with each; the same command again goes on where it stopped.
    **kernels** checks and times the ops, the draft heads, drafting and whole cycles beside their byte or operation
    floors, on a GPU at real sizes, on a CPU the same code at small ones.

    Examples: `vocabforge bench count-freq --tokenizer model/ --input corpus/` and
    `vocabforge bench training shapes=[qwen3-0.6b] length=4096`,
    `vocabforge bench decoding target=model/ draft_model=small/ drafter=runs/eagle3/drafter`, and
    `vocabforge bench draft-heads --config recipes/tiny/heads.yaml --output heads/`
    """
    from ..core.files import atomic_write_json
    from .bench_tables import PRINTERS

    run = resolve(BENCHMARKS, name, "benchmark")
    if heads.config is not None and name != "draft-heads":
        raise UsageError(
            f"{name} takes no recipe",
            got=f"--config {heads.config}",
            expected="draft-heads, which alone reads one",
            remedy="leave --config out",
        )
    if name == "count-freq":
        result = _run_counting(run, settings or [], rounds)
    elif name == "draft-heads":
        result = _run_heads(run, settings or [], heads, output)
    elif rounds.tokenizer is not None or rounds.inputs:
        raise UsageError(f"{name} takes no tokenizer and no inputs", expected="key=value settings")
    else:
        result = run(settings or [], repeats=rounds.repeats)
    if output is not None and name != "draft-heads":
        atomic_write_json(output, json.loads(json.dumps(result)))
    if as_json:
        print_json(result)
        return
    PRINTERS[name](result)
    if name == "draft-heads":
        echo(f"Written to {output}")


def _run_counting(run: Any, settings: list[str], rounds: RoundOptions) -> Any:
    if rounds.tokenizer is None or not rounds.inputs:
        raise UsageError("count-freq needs a tokenizer and inputs", expected="--tokenizer and --input")
    if settings:
        raise UsageError(
            "count-freq takes options only",
            got=" ".join(settings),
            expected="--tokenizer, --input, --repeats, --workers, --text-unit",
            remedy="leave the key=value settings out",
        )
    if rounds.text_unit not in ("file", "line", "paragraph"):
        raise UsageError("there is no such unit", got=rounds.text_unit, expected="file, line or paragraph")
    return run(
        rounds.tokenizer,
        rounds.inputs,
        repeats=rounds.repeats,
        workers=rounds.workers,
        text_unit=rounds.text_unit,
    )


def _run_heads(run: Any, settings: list[str], heads: HeadOptions, output: Path | None) -> Any:
    if heads.config is None or output is None:
        raise UsageError("draft-heads needs a recipe and a folder", expected="--config and --output")
    return run(heads.config, settings, heads.options(), output)
