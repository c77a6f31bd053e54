"""``vocabforge select-vocab``: choose draft vocabularies from a frequency table."""

from __future__ import annotations

from typing import Any

from ...core.config import ResultOptions
from ...core.console import DataTable
from ...vocab.subset.request import SelectRequest
from ..app import print_json, print_line, stdout_console


def select_vocab(asked: SelectRequest, ending: ResultOptions) -> None:
    """Choose the most frequent tokens as a draft vocabulary (FR-Spec, VocabTrim, EAGLE-3's d2t).

    Selects exactly N unique ids: first the forced ones (always including end tokens and the chat template's
    control tokens), then by count. Ties go to the lower id.

    Examples: `vocabforge select-vocab --counts counts/ --size 8192 --size 32768 --output subsets/`
    and `vocabforge select-vocab --counts counts/ --coverage 0.95 --export fr-spec --output subset/`
    """
    from ...evaluate.acceptance.draft_size import resolve_size
    from ...vocab.subset.run import run_select

    asked, estimated = resolve_size(asked)
    facts = run_select(asked, overwrite=ending.overwrite) | estimated
    if ending.as_json:
        print_json(facts)
    else:
        _print(facts)


def _print(facts: dict[str, Any]) -> None:
    out, made = stdout_console(), facts["subsets"]
    if "auto" in facts:
        _print_sizes(facts["auto"])
    columns = ["size", "share", "coverage", "forced ids", "filled"]
    rows = []
    for subset in made:
        forced = subset["forced"]
        few = ", ".join(map(str, forced[:4])) + (", …" if len(forced) > 4 else "")
        share = None if subset["coverage"] is None else f"{subset['coverage']:.2%}"
        shown = f"{len(forced)} ({few})" if forced else "0"
        rows.append([subset["size"], f"{subset['share']:.1%}", share, shown, subset["filled"]])
    out.print(DataTable("Draft vocabularies", columns, rows))
    if any(subset["coverage"] is not None for subset in made):
        out.print("coverage: share of the counted tokens that the draft vocabulary holds.", style="dim")
    for subset in made:
        print_line(f"Written to {subset['output']}")
        if subset["schedule"]:
            out.print("schedule B(0), B(1), …: " + ", ".join(f"{size:,}" for size in subset["schedule"]))
    if facts["padded_rows"]:
        out.print(
            f"{facts['padded_rows']:,} padded rows: the target's head has {facts['target_rows']:,} rows."
        )


def _print_sizes(estimate: dict[str, Any]) -> None:
    columns = {
        "size": ("size", ","),
        "coverage": ("coverage", ".2%"),
        "accepted_length": ("accepted length", ".3f"),
        "head_ms": ("head, ms", ".2f"),
        "cycle_ms": ("cycle, ms", ".2f"),
        "tokens_per_s": ("tokens/s", ".1f"),
    }
    rows = [[format(row[key], form) for key, (_, form) in columns.items()] for row in estimate["sizes"]]
    note = (
        f"From {estimate['accepted_drafts']:,} accepted drafts in {estimate['verifications']:,} verifications of "
        f"{estimate['method']}, without its prompts. A draft counts if the size holds it and all accepted before it; "
        "the head's time is in proportion to the size."
    )
    strong = [row["size"] for row in estimate["sizes"]].index(estimate["size"])
    names = [name for name, _ in columns.values()]
    stdout_console().print(DataTable("Draft vocabulary sizes, estimated", names, rows, note, strong))
    low, high = estimate["near"]
    print_line(f"Chosen: {estimate['size']:,}. Sizes from {low:,} to {high:,} are within 1% of its tokens/s.")
