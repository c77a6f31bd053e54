"""``vocabforge eval``: benchmark a drafter against plain decoding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from .app import JsonOption, OverwriteOption, print_json
from .head_options import BudgetOption, HeadOption, HeadRowsOption, ShortlistOption, head_request


def evaluate(
    target: Annotated[Path, typer.Option("--target", help="Folder of the target model (safetensors).")],
    drafter: Annotated[
        list[str],
        typer.Option("--drafter", help="Drafter artefact, as DIR or LABEL=DIR. Give it again for several."),
    ],
    benchmark: Annotated[
        str, typer.Option("--benchmark", help="`spec-bench`, or a JSONL file in Spec-Bench format.")
    ],
    output: Annotated[Path, typer.Option("--output", help="Folder to make for answers, figures and report.")],
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
    limit: Annotated[
        int | None,
        typer.Option("--limit", min=1, help="Only N questions, spread evenly over the benchmark."),
    ] = None,
    temperature: Annotated[
        float, typer.Option("--temperature", min=0.0, help="0 is greedy and lets outputs be compared.")
    ] = 0.0,
    seed: Annotated[
        int, typer.Option("--seed", min=0, max=2**63 - 1, help="Start of the random streams.")
    ] = 0,
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
    depth: Annotated[
        int | None, typer.Option("--depth", min=0, help="Rounds of the draft tree after its first.")
    ] = None,
    topk: Annotated[
        int | None, typer.Option("--topk", min=1, help="Children of a node and width of a tree level.")
    ] = None,
    total_nodes: Annotated[
        int | None,
        typer.Option("--total-nodes", min=2, help="Nodes that one verification checks, root included."),
    ] = None,
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
    from dataclasses import asdict

    from ..core.artifact import check_output
    from ..corpus.tokenizer import load_tokenizer
    from ..decode.build import build_methods, tree_settings
    from ..evaluate.benchmarks import load_benchmark
    from ..evaluate.environment import describe_environment
    from ..evaluate.evaluation import Provenance, evaluate_methods
    from ..evaluate.prompts import resolve_format
    from ..evaluate.runner import RunSettings

    check_output(output, overwrite=overwrite)
    questions = load_benchmark(benchmark, limit)
    text_tokenizer = load_tokenizer(tokenizer or target)
    settings = RunSettings(
        max_new_tokens=max_new_tokens or questions.max_new_tokens,
        temperature=temperature,
        seed=seed,
        warmup=warmup,
        prompt_format=resolve_format(text_tokenizer, prompt_format),
    )
    device = device or _default_device()
    methods = build_methods(
        target,
        drafter,
        vocab or [],
        method or [],
        tokenizer=tokenizer,
        device=device,
        dtype=dtype,
        depth=depth,
        topk=topk,
        total_nodes=total_nodes,
        heads=head_request(head, shortlist, budget, head_rows),
    )
    provenance = Provenance(
        target=target.resolve().name,
        environment=describe_environment(device=device, dtype=dtype),
        parents=_parents(target, drafter, vocab or [], head or []),
        facts={
            f"tree {name}": value for name, value in asdict(tree_settings(depth, topk, total_nodes)).items()
        }
        | {f"draft head of {one.name}": one.head for one in methods if one.head is not None},
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


def _default_device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _synchroniser(device: str) -> Callable[[], None]:
    import torch

    if not device.startswith("cuda"):
        return lambda: None
    return lambda: torch.cuda.synchronize(device)


def _parents(
    target: Path, drafters: Sequence[str], vocabs: Sequence[str], heads: Sequence[str]
) -> dict[str, str]:
    """Hashes of what was measured, by role; folders that are no artefact of ours have none."""
    from ..core.artifact import MANIFEST, open_artifact
    from ..models.fingerprint import target_fingerprint

    hashes = {"target": target_fingerprint(target)}
    for role, given in (("drafter", drafters), ("vocabulary", vocabs), ("draft head", heads)):
        for text in given:
            label, separator, folder = text.partition("=")
            path = Path(folder if separator and not Path(text).exists() else text)
            if (path / MANIFEST).is_file():
                key = f"{role} {label if path != Path(text) else path.name}"
                hashes[key] = open_artifact(path, verify=False).content_hash
    return hashes


def _print_tables(results: dict, output: Path) -> None:
    from rich.console import Console

    from ..core.progress import console
    from ..evaluate.terminal import category_table, divergence_lines, overview_table

    out = Console(highlight=False)
    out.print(overview_table(results))
    if len(results["methods"]) > 1 and len(results["methods"][0]["summary"]["categories"]) > 1:
        out.print(category_table(results))
    for line in divergence_lines(results):
        console().print(line, style="red", markup=False)
    out.print(f"Report: {output / 'report.html'}", soft_wrap=True, markup=False)
