"""What a static fallback costs, for manifests, terminals and model cards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..core.markdown import markdown_table
from .acceptance import Accepted
from .fallback import Fallback
from .results import Figure

if TYPE_CHECKING:
    from rich.table import Table

_MEASURED = {"own": "own head", "dynamic": "dynamic head", "static": "static fallback"}


def facts_of(found: Fallback) -> dict[str, Any]:
    """The same for manifests and ``--json``: figures, no token ids."""
    measured = {"own": found.own, "dynamic": found.dynamic, "static": found.static}
    return {
        "size": len(found.subset),
        "rule": found.rule,
        "own_rows": found.own_rows,
        "ranking": found.name,
        "forced": list(found.subset.forced),
        "head": found.head,
        "prompts": dict(zip(("counted", "chosen", "measured"), found.parts)),
        "new_tokens": found.new,
        "dtype": found.dtype,
        "tree": {
            "topk": found.tree.topk,
            "depth": found.tree.depth,
            "total_nodes": found.tree.total_nodes,
        },
        "candidates": [
            {"ranking": one.name, "rows": len(one.ranked), **_figures(one.accepted)}
            for one in found.candidates
        ],
        "measured": {name: _figures(accepted) for name, accepted in measured.items()},
        "of_dynamic": _figure(found.of_dynamic),
        "of_own": _figure(found.of_own),
    }


def _figures(accepted: Accepted) -> dict[str, Any]:
    return {
        "accepted_length": accepted.length.value,
        "low": accepted.length.low,
        "high": accepted.length.high,
        "cycles": sum(accepted.cycles),
        "identical": accepted.identical,
        "prompts": accepted.prompts,
    }


def _figure(figure: Figure) -> dict[str, float | None]:
    return {"value": figure.value, "low": figure.low, "high": figure.high}


def _between(values: Mapping[str, Any], digits: int = 2) -> str:
    """``4.12 [4.01–4.25]``."""
    value = values["accepted_length"] if "accepted_length" in values else values["value"]
    if value is None:
        return "-"
    text = f"{value:.{digits}f}"
    if values["low"] is None:
        return text
    return f"{text} [{values['low']:.{digits}f}–{values['high']:.{digits}f}]"


def verdict(facts: Mapping[str, Any]) -> str:
    """What it costs, in one sentence, from :func:`facts_of`."""
    return (
        f"The static head of {facts['size']:,} tokens keeps {_between(facts['of_dynamic'])} of the dynamic head's "
        f"accepted length and {_between(facts['of_own'])} of the drafter's own head's ({facts['own_rows']:,} tokens), "
        f"on {facts['prompts']['measured']} prompts that decided nothing."
    )


def tables(facts: Mapping[str, Any]) -> list[Table]:
    """The rankings compared, and what was chosen beside the heads that it stands for."""
    from .wide_tables import simple_table

    found = []
    compared = simple_table(f"Static heads on {facts['prompts']['chosen']} prompts")
    compared.add_column("ranked by")
    for one in facts["candidates"]:
        chosen = " (chosen)" if one["ranking"] == facts["ranking"] else ""
        _row(compared, one["ranking"] + chosen, one["rows"], one)
    found.append(compared)
    beside = simple_table(f"The chosen one on {facts['prompts']['measured']} other prompts")
    beside.add_column("head")
    for name, label in _MEASURED.items():
        rows = {"own": facts["own_rows"], "static": facts["size"]}.get(name)
        _row(beside, label, rows, facts["measured"][name])
    found.append(beside)
    return found


def _row(table: Table, label: str, rows: int | None, figures: Mapping[str, Any]) -> None:
    if len(table.columns) == 1:
        for column in ("tokens", "accepted length", "identical"):
            table.add_column(column, justify="right", no_wrap=True)
    same = f"{figures['identical']} of {figures['prompts']}"
    table.add_row(label, "-" if rows is None else f"{rows:,}", _between(figures), same)


def card_section(facts: Mapping[str, Any]) -> str:
    """The section of a model card, in Markdown."""
    tree, prompts = facts["tree"], facts["prompts"]
    sizes = {"own": f"{facts['own_rows']:,}", "static": f"{facts['size']:,}"}
    measured = facts["measured"]
    rows = [(label, sizes.get(name, "–"), _between(measured[name])) for name, label in _MEASURED.items()]
    lines = [
        "## Draft vocabulary in place of a dynamic head",
        "",
        f"The dynamic head of this drafter ({facts['head']}) cannot run in servers with static maps. The static draft "
        f"vocabulary of {facts['size']:,} tokens in its place ({facts['rule']}) was chosen by measured accepted length "
        f"among {len(facts['candidates'])} candidates: tokens ranked by `{facts['ranking']}`, "
        f"{len(facts['forced'])} end and control tokens always inside.",
        "",
        *markdown_table(("head", "tokens", "accepted length (95% interval)"), rows),
        "",
        verdict(facts)
        + f" Greedy, {facts['dtype']}, {facts['new_tokens']} tokens a prompt, dynamic tree of depth {tree['depth']}, "
        f"width {tree['topk']} and {tree['total_nodes']} nodes; other {prompts['counted']} prompts counted tokens, "
        f"other {prompts['chosen']} chose the ranking.",
        "",
        "The dynamic head itself is in `dynamic/`: `dynamic/drafter` with the drafter's own head, `dynamic/head`, and "
        "`dynamic/vocab`, the static draft vocabulary as an artefact. VocabForge decodes with all three:",
        "",
        "```",
        "vocabforge eval --target TARGET --drafter DIR/dynamic/drafter --head DIR/dynamic/head \\",
        "  --vocab DIR/dynamic/vocab --benchmark BENCHMARK --output OUTPUT",
        "```",
        "",
    ]
    return "\n".join(lines)
