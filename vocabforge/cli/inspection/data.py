"""Prepared data: rows and tokens of each split, what was left out and why, how long the documents are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...corpus.prepared import load_prepared
from .parts import Request, View, bar, facts_table, json_names, percent, table_of

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ...core.artifact import Artifact
    from ...corpus.prepared import PreparedData

_FACTS = {
    "texts": "plain texts",
    "conversations": "conversations",
    "thinking": "with thinking",
    "tool_list": "with a tool list",
    "tool_calls": "with tool calls",
    "marked": "masked by generation tags",
    "marks_with_header": "whose generation tags include the header of the turn",
    "marks_without_end": "whose generation tags leave out the end of the turn",
    "thinking_turns_left_out": "turns whose thinking the template leaves out",
    "empty_thinking_blocks": "empty thinking blocks of the template, not learnt",
    "thinking_only_turns": "answers of thinking alone, dropped and not learnt",
    "cut_turns": "answers cut: end not learnt",
}


def view(artifact: Artifact, request: Request) -> View:
    """Splits, contents, what was left out, lengths."""
    prepared = load_prepared(artifact.path, verify=False)
    options = artifact.meta["options"]
    chat = options["sequences"]["chat"]
    facts: dict[str, Any] = {
        "tokens a row": prepared.train.length,
        "longer documents": options["overlong"],
        "thinking": chat["thinking"],
        "tools": chat["tools"],
        "answers": chat["answers"],
        "tokenizer": artifact.meta["tokenizer_fingerprint"],
        "key": prepared.key,
        "digest": prepared.digest(),
    }
    short = {name: f"{facts[name][:16]}…" for name in ("tokenizer", "key", "digest")}
    shown = [facts_table({**facts, **short}), *data_tables(prepared)]
    return View({**json_names(facts), **prepared.figures, "options": options}, shown)


def data_tables(prepared: PreparedData) -> list[RenderableType]:
    """The figures as tables."""
    figures = prepared.figures
    splits = (("train", prepared.train), ("heldout", prepared.heldout))
    rows = [
        (
            name,
            f"{figures[name]['documents']:,}",
            f"{figures[name]['sequences']:,}",
            f"{len(packed):,}",
            percent(packed.fill, 1),
            f"{figures[name]['tokens']:,}",
            f"{figures[name]['counted']:,}",
            percent(figures[name]["counted"] / max(1, figures[name]["tokens"]), 1),
            f"{figures[name].get('rows_counted', 0):,}",
        )
        for name, packed in splits
    ]
    columns = ("split<", "sources", "documents", "rows", "full", "tokens", "learnt", "share", "rows counted")
    shown: list[RenderableType] = [table_of("Rows", columns, rows)]
    contents = {title: figures["facts"].get(name, 0) for name, title in _FACTS.items()}
    shown.append(facts_table({name: number for name, number in contents.items() if number}, "Contents"))
    if left_out := _left_out(figures):
        shown.append(table_of("Left out", ("why<", "number"), left_out))
    shown.append(_lengths(figures))
    return shown


def _left_out(figures: Mapping[str, Any]) -> list[tuple[str, str]]:
    over = {
        key: sum(figures[split]["overlong"][key] for split in ("train", "heldout"))
        for key in figures["train"]["overlong"]
    }
    lines = {
        "documents longer than a row": over["sequences"],
        "documents made of those": over["pieces"],
        "their tokens that are in no row": over["lost_tokens"],
        "of these to be learnt": over["lost_counted"],
        "parts with nothing to learn": over["unlearnt"],
        **dict(sorted(figures["skipped"].items(), key=lambda item: -item[1])),
    }
    return [(why, f"{number:,}") for why, number in lines.items() if number]


def _lengths(figures: Mapping[str, Any]) -> RenderableType:
    lengths: dict[str, int] = {}
    for split in ("train", "heldout"):
        for top, number in figures[split]["lengths"].items():
            lengths[top] = lengths.get(top, 0) + number
    largest = max(lengths.values(), default=1)
    rows = [
        (f"{int(top):,}", f"{lengths[top]:,}", bar(lengths[top], largest)) for top in sorted(lengths, key=int)
    ]
    return table_of("Documents by length", ("tokens up to", "documents", "<"), rows)
