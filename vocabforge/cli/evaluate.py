"""``vocabforge eval``: benchmark a drafter against plain decoding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from . import decode_options as decoding
from .app import JsonOption, OverwriteOption, print_json
from .head_options import (
    BudgetOption,
    DynamicOption,
    HeadOption,
    HeadRowsOption,
    RankerFp8Option,
    ShortlistOption,
    head_request,
)


def evaluate(
    target: Annotated[Path, typer.Option("--target", help="Folder of the target model (safetensors).")],
    benchmark: Annotated[
        str, typer.Option("--benchmark", help="`spec-bench`, or a JSONL file in Spec-Bench format.")
    ],
    output: Annotated[Path, typer.Option("--output", help="Folder to make for answers, figures and report.")],
    drafter: Annotated[
        list[str] | None,
        typer.Option(
            "--drafter",
            help="Trained drafter, or a smaller model of any vocabulary, as DIR or LABEL=DIR. Repeatable.",
        ),
    ] = None,
    proposer: decoding.ProposerOption = None,
    method: Annotated[
        list[str] | None,
        typer.Option("--method", help="Evaluate only these methods (`plain` always runs). Repeatable."),
    ] = None,
    vocab: Annotated[
        list[str] | None,
        typer.Option(
            "--vocab",
            help="Subset artefact, as DIR or LABEL=DIR: also draft with this vocabulary.",
        ),
    ] = None,
    head: HeadOption = None,
    shortlist: ShortlistOption = None,
    budget: BudgetOption = None,
    head_rows: HeadRowsOption = None,
    ranker_fp8: RankerFp8Option = None,
    dynamic: DynamicOption = None,
    limit: Annotated[
        int | None,
        typer.Option("--limit", min=1, help="Only N questions, spread evenly over the benchmark."),
    ] = None,
    temperature: decoding.TemperatureOption = 0.0,
    sampling_top_k: decoding.SamplingTopKOption = 0,
    top_p: decoding.TopPOption = 1.0,
    min_p: decoding.MinPOption = 0.0,
    repetition_penalty: decoding.RepetitionOption = 1.0,
    presence_penalty: decoding.PresenceOption = 0.0,
    frequency_penalty: decoding.FrequencyOption = 0.0,
    seed: decoding.SeedOption = 0,
    max_new_tokens: Annotated[
        int | None,
        typer.Option("--max-new-tokens", min=1, help="Limit of one turn [default: the benchmark's, 1024]."),
    ] = None,
    warmup: Annotated[
        int, typer.Option("--warmup", min=0, help="Unmeasured runs of the first question, per method.")
    ] = 3,
    tokenizer: Annotated[
        Path | None, typer.Option("--tokenizer", help="Tokenizer folder [default: the target's].")
    ] = None,
    prompt_format: Annotated[
        str,
        typer.Option(
            "--prompt-format", help="auto, chat or raw; auto uses the chat template where there is one."
        ),
    ] = "auto",
    tree: decoding.TreeOption = None,
    tree_file: decoding.TreeFileOption = None,
    draft_sampling: decoding.DraftSamplingOption = False,
    depth: decoding.DepthOption = None,
    topk: decoding.TopkOption = None,
    total_nodes: decoding.NodesOption = None,
    exit_layers: decoding.LayersOption = None,
    ngram: decoding.NgramOption = None,
    look_ahead: decoding.LookAheadOption = None,
    single_token: decoding.SingleOption = False,
    overlap: decoding.OverlapOption = None,
    drafter_tokenizer: decoding.DrafterTokenizerOption = None,
    control: decoding.ControlOption = decoding.ControlName.fixed,
    compiled: decoding.CompileOption = False,
    graphs: decoding.GraphsOption = None,
    dtype: Annotated[str, typer.Option("--dtype", help="float32, bfloat16 or float16.")] = "float32",
    device: Annotated[
        str | None, typer.Option("--device", help="cpu, cuda, cuda:1 … [default: cuda where there is one].")
    ] = None,
    as_json: JsonOption = False,
    overwrite: OverwriteOption = False,
) -> None:
    """Measure accepted length and speed-up over plain decoding, and check that the output is the same.

    Every question runs through all methods before the next one begins. Writes answer rows in Spec-Bench's
    format, a side file with token ids and times, `results.json` and a self-contained `report.html`.
    """
    from ..core.artifact import check_output
    from ..corpus.tokenizer import load_tokenizer
    from ..decode.build import build_methods
    from ..decode.build_options import BuildOptions
    from ..decode.request import SamplingParams
    from ..evaluate.benchmarks import load_benchmark
    from ..evaluate.environment import describe_environment
    from ..evaluate.evaluation import Provenance, evaluate_methods
    from ..evaluate.prompts import resolve_format
    from ..evaluate.runner import RunSettings

    _check_something_drafts(drafter or [], proposer or [])
    check_output(output, overwrite=overwrite)
    questions = load_benchmark(benchmark, limit)
    text_tokenizer = load_tokenizer(tokenizer or target)
    settings = RunSettings(
        max_new_tokens=max_new_tokens or questions.max_new_tokens,
        sampling=SamplingParams(
            temperature,
            sampling_top_k,
            top_p,
            min_p,
            repetition_penalty,
            presence_penalty,
            frequency_penalty,
            seed,
        ),
        warmup=warmup,
        prompt_format=resolve_format(text_tokenizer, prompt_format),
    )
    device = device or _default_device()
    draft = decoding.draft_options(
        tree,
        ngram,
        sample=draft_sampling,
        depth=depth,
        topk=topk,
        total_nodes=total_nodes,
        tree_file=tree_file,
        layers=exit_layers,
        look_ahead=look_ahead,
        single=single_token,
    )
    methods = build_methods(
        target,
        drafter or [],
        vocab or [],
        method or [],
        BuildOptions(
            tokenizer=tokenizer,
            device=device,
            dtype=dtype,
            proposers=proposer or [],
            draft=draft,
            heads=head_request(head, shortlist, budget, head_rows, dynamic, ranker_fp8),
            control=control.value,
            wrap=decoding.wrap_for(compiled, graphs, device),
            sampled=temperature > 0,
            overlaps=overlap or [],
            drafter_tokenizer=drafter_tokenizer,
        ),
    )
    provenance = Provenance(
        target=target.resolve().name,
        environment=describe_environment(device=device, dtype=dtype),
        parents=_parents(target, drafter or [], vocab or [], head or [], overlap or []),
        facts={f"drafting of {one.name}": one.description for one in methods[1:]}
        | {f"draft head of {one.name}": one.head for one in methods if one.head is not None}
        | ({"drafter tokenizer": str(drafter_tokenizer)} if drafter_tokenizer else {}),
    )
    results = evaluate_methods(
        output,
        questions,
        methods,
        text_tokenizer,
        settings,
        provenance,
        overwrite=overwrite,
        synchronise=_synchroniser(device),
    )
    if as_json:
        print_json(results)
    else:
        _print_tables(results, output)


def _check_something_drafts(drafters: Sequence[str], proposers: Sequence[str]) -> None:
    from ..core.errors import UsageError
    from ..decode.proposers import ALONE

    if not drafters and not set(proposers) & set(ALONE):
        raise UsageError(
            "there is nothing to compare with plain decoding",
            expected=f"--drafter DIR, or --proposer {' or '.join(ALONE)}",
        )


def _default_device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _synchroniser(device: str) -> Callable[[], None]:
    import torch

    if not device.startswith("cuda"):
        return lambda: None
    return lambda: torch.cuda.synchronize(device)


def _parents(
    target: Path,
    drafters: Sequence[str],
    vocabs: Sequence[str],
    heads: Sequence[str],
    overlaps: Sequence[Path] = (),
) -> dict[str, str]:
    """Hashes of what was measured, by role; folders that are no artefact of ours have none."""
    from ..core.artifact import MANIFEST, open_artifact
    from ..decode.build import is_draft_model
    from ..models.fingerprint import target_fingerprint

    hashes = {"target": target_fingerprint(target)}
    for role, given in (("drafter", drafters), ("vocabulary", vocabs), ("draft head", heads)):
        for text in given:
            label, separator, folder = text.partition("=")
            path = Path(folder if separator and not Path(text).exists() else text)
            key = f"{role} {label if path != Path(text) else path.name}"
            if (path / MANIFEST).is_file():
                hashes[key] = open_artifact(path, verify=False).content_hash
            elif is_draft_model(path):
                hashes[key] = target_fingerprint(path)
    for path in overlaps:
        hashes[f"overlap {path.name}"] = open_artifact(path, verify=False).content_hash
    return hashes


def _print_tables(results: dict, output: Path) -> None:
    from rich.console import Console

    from ..core.progress import console
    from ..evaluate.terminal import category_table, count_lines, divergence_lines, overview_table

    out = Console(highlight=False)
    out.print(overview_table(results))
    if len(results["methods"]) > 1 and len(results["methods"][0]["summary"]["categories"]) > 1:
        out.print(category_table(results))
    for line in count_lines(results):
        out.print(line, soft_wrap=True, markup=False)
    for line in divergence_lines(results):
        console().print(line, style="red", markup=False)
    out.print(f"Report: {output / 'report.html'}", soft_wrap=True, markup=False)
