"""``vocabforge bench``: measure, on this machine, what the documentation claims."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from ..core.config import Positive, StrictModel, TokenizerPath
from ..core.console import DataTable
from ..core.errors import UsageError
from ..core.registry import check_known, load_attribute
from .app import JsonOption, print_json, stdout_console
from .options.groups import option
from .options.texts import TextUnit


def counting_shown(result: dict[str, Any]) -> list[DataTable | str]:
    rows = []
    for method, row in result["methods"].items():
        spread = f"{row['ratio']:.1f}"
        if len(row["ratios"]) > 1:
            spread += f" ({min(row['ratios']):.1f}–{max(row['ratios']):.1f})"
        rates = [f"{row['mb_per_s']:,.1f}", spread, f"{row['seconds']:.2f}", f"{row['start_s']:.1f}"]
        label = f"{method} ({row['engine']})" if row["engine"] else method
        rows.append([label, *rates, f"{row['memory_mb']:,.0f}"])
    title = f"{result['bytes'] / 1e6:,.1f} MB of text, {result['tokens']:,} tokens"
    return [
        DataTable(title, ("method<", "MB/s", "ratio", "seconds", "start, s", "memory, MB"), rows),
        "ratio: to encode_batch, median of the rounds. seconds: reading, tokenizing, counting. start: loading the "
        "tokenizer, choosing and checking the engine. memory: highest resident memory above the loaded "
        "tokenizer's.",
    ]


def training_shown(result: dict[str, Any]) -> list[DataTable | str]:
    # Only a GPU tells how much of it was allocated in all.
    rows = [row for shape in result["shapes"] for row in shape.get("step", shape.get("rivals"))]
    peak = any(row["peak_mb"] is not None for row in rows)
    memory = ("extra MB", "peak MB") if peak else ("extra MB",)

    def cost(row: dict[str, Any]) -> list[str | None]:
        known = [row["seconds"], *(row[key] for key in ("extra_mb", "peak_mb")[: len(memory)])]
        return [None if one is None else f"{one:,.{1 if at else 4}f}" for at, one in enumerate(known)]

    found: list[DataTable | str] = [f"{result['device']}, torch {result['torch']}"]
    for shape in result["shapes"]:
        if "rivals" in shape:
            found += _rivals_shown(shape)
            continue
        steps = []
        for row in shape["step"]:
            label = f"{row['loss']} + {row['attention']}" + (
                " + checkpointing" if row["checkpointing"] else ""
            )
            rate = None if row["tokens_per_s"] is None else f"{row['tokens_per_s']:,.0f}"
            steps.append([label, rate, *cost(row)])
        title = f"{shape['name']}: {shape['batch']} rows of {shape['length']:,} tokens, K = {shape['steps']}"
        found.append(DataTable(title, ("loss + attention<", "tokens/s", "seconds", *memory), steps))
        title = f"{shape['name']}: vocabulary loss alone, {shape['loss_rows']:,} rows, V = {shape['vocab']:,}"
        losses = [[row["impl"], *cost(row)] for row in shape["loss"]]
        found.append(DataTable(title, ("loss<", "seconds", *memory), losses))
    meanings = ["extra MB: highest memory above what was held before, results included."]
    meanings += ["peak MB: all of the device's."] if peak else []
    return [*found, " ".join([*meanings, "–: out of memory. Seconds are medians of the rounds."])]


def _rivals_shown(shape: dict[str, Any]) -> list[DataTable | str]:
    rows = [
        [
            row["library"],
            row["lm_head"],
            *(None if row[key] is None else f"{row[key]:,.0f}" for key in ("tokens_per_s", "extra_mb")),
            f"{row['weights_mb']:,.0f}",
        ]
        for row in shape["rivals"]
    ]
    title = (
        f"{shape['name']}: EAGLE-3 step without the target, {shape['length']:,} tokens, K = {shape['steps']}, "
        f"H = {shape['hidden']:,}, V = {shape['vocab']:,}, R = {shape['draft_vocab']:,}"
    )
    table = DataTable(title, ("library<", "LM head<", "tokens/s", "extra MB", "weights MB"), rows)
    return [table] if shape["missing"] is None else [table, shape["missing"]]


def decoding_shown(result: dict[str, Any]) -> list[DataTable | str]:
    from ..bench.decoding.run import modes_table, remarks

    return [modes_table(result), *remarks(result)]


def load_shown(result: dict[str, Any]) -> list[DataTable | str]:
    from ..bench.decoding.load import load_table

    return [
        load_table(result),
        "requests: side by side. tokens/s: of all requests together, median of the rounds. over plain: to plain "
        "decoding of the same requests side by side. cycles: of the last round, by what was drafted.",
    ]


def kernels_shown(result: dict[str, Any]) -> list[DataTable | str]:
    from ..bench.kernels.table import markdown

    return [markdown(result)]


# name -> "module:attr", and tables and remarks of its result. ``count-freq`` takes (tokenizer, inputs, repeats=,
# workers=, text_unit=), the others (settings, repeats=).
BENCHMARKS: dict[str, tuple[str, Callable[[dict[str, Any]], list[DataTable | str]]]] = {
    "count-freq": ("vocabforge.bench.counting:bench_counting", counting_shown),
    "decoding": ("vocabforge.bench.decoding.run:bench_decoding", decoding_shown),
    "kernels": ("vocabforge.bench.kernels.run:bench_kernels", kernels_shown),
    "load": ("vocabforge.bench.decoding.load:bench_load", load_shown),
    "training": ("vocabforge.bench.training:bench_training", training_shown),
}


MOVED = {
    "drafters": "python recipes/study/drafters.py; see docs/guides/train-drafter.md",
    "draft-heads": "python recipes/study/study.py; see docs/guides/study.md",
}

_SETTINGS = (
    "training: shapes, device, batch, length, steps (K of the training-time test), loss_rows. "
    "Shapes by default: tiny, tiny-long, small, rival-16k, rival-152k on a CPU; qwen3-0.6b, qwen3-8b, llama3-8b, "
    "rival-8b on CUDA. "
    "decoding: keys of a decoding recipe (target, methods.NAME.drafter=DIR, methods.NAME.proposer=..., every option "
    "of eval's methods), prompts (question file), questions, max_new_tokens, temperature, threads, their_threads, "
    "compile, tune_prompts. load: the same recipe, prompts, questions, max_new_tokens, threads; rows (requests side by "
    "side), device. "
    "kernels: device, parts (heads, cycle, ops, drafting, libraries), shapes (llama3-8b, qwen3-8b, small), rows, "
    "ops, only, backend, measure and budget (seconds of one measurement, of everything)."
)


class BenchRequest(StrictModel):
    """What a benchmark reads, and how often everything is measured."""

    settings: tuple[str, ...] = option((), _SETTINGS, "KEY=VALUE", positional=True)
    tokenizer: TokenizerPath | None = option(None, "count-freq: tokenizer folder or tokenizer.json.", "PATH")
    input: tuple[str, ...] = option((), "count-freq: text or JSON files.", "PATH", many=True)
    repeats: Positive = option(3, "Rounds; the methods take turns in each.")
    workers: Positive = option(1, "count-freq: counting processes of VocabForge.")
    text_unit: TextUnit = option("file", "count-freq: what one document of a text file is.")
    output: Path | None = option(None, "Also write the JSON to this file.", "PATH")


def bench(
    name: Annotated[
        str,
        typer.Argument(
            help="Which benchmark: count-freq, training, decoding, load or kernels.",
        ),
    ],
    asked: BenchRequest,
    as_json: JsonOption = False,
) -> None:
    """Benchmark VocabForge against reference implementations, interleaved.

    **count-freq** counts the same files with the tokenizers library and with VocabForge, each measurement in a fresh
    process; the counts must be identical. **training** does whole training steps (target's pass, unroll, loss, backward
    pass, optimiser) with random weights of known shapes, with the fused and the plain vocabulary loss and with
    blockwise and plain attention; beside that of the speculators library, where it is installed, without the target's
    pass. **decoding** continues the same prompts with VocabForge's methods and, if it has the
    same kind of drafting (plain, draft model of either tokenizer, n-gram, early exit), with transformers' `generate`
    at the best settings found; outputs are compared token by token. **load** decodes with 1 to 16 requests side by
    side, and shows what each method's control drafted under each load.
    **kernels** checks and times the ops, the draft heads, drafting and whole cycles beside their byte or operation
    floors, on a GPU at real sizes, on a CPU the same code at small ones.

    Examples: `vocabforge bench count-freq --tokenizer model/ --input corpus/`,
    `vocabforge bench training shapes=[qwen3-0.6b] length=4096` and
    `vocabforge bench decoding target=model/ methods.eagle3.drafter=runs/eagle3/drafter`
    """
    from ..core.files import atomic_write_json, check_output_file

    if name in MOVED:
        raise UsageError(f"`bench {name}` has moved", remedy=f"run {MOVED[name]}")
    check_known(name, BENCHMARKS, "benchmark")
    where, shown = BENCHMARKS[name]
    run, settings, output = load_attribute(where), list(asked.settings), asked.output
    if output is not None:
        check_output_file(output)
    if name == "count-freq":
        if asked.tokenizer is None or not asked.input or settings:
            raise UsageError(
                "count-freq needs a tokenizer and inputs, and takes no key=value settings",
                got=" ".join(settings) or None,
                expected="--tokenizer, --input, --repeats, --workers, --text-unit",
            )
        numbers = {"repeats": asked.repeats, "workers": asked.workers, "text_unit": asked.text_unit}
        result = run(asked.tokenizer, list(asked.input), **numbers)
    elif asked.tokenizer is not None or asked.input:
        raise UsageError(f"{name} takes no tokenizer and no inputs", expected="key=value settings")
    else:
        result = run(settings, repeats=asked.repeats)
    if output is not None:
        atomic_write_json(output, json.loads(json.dumps(result)))
    if as_json:
        print_json(result)
        return
    out = stdout_console(highlight=True)
    for one in shown(result):
        if isinstance(one, str):
            out.print(one, style="dim", markup=False, highlight=False, soft_wrap=name == "kernels")
        else:
            out.print(one)
