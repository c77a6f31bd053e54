"""Views of prepared data and capture caches: rows and tokens of each split, dropped data, lengths, shards."""

from __future__ import annotations

from dataclasses import asdict
from operator import index
from typing import TYPE_CHECKING, Any

from ...corpus.prepared.artifact import load_prepared
from ...train.capture.cache import cache_key, read_index
from .parts import View, ViewRequest, facts_table, rows_table, scalars

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ...core.artifact import Artifact
    from ...corpus.prepared.artifact import PreparedData

_SPLITS = ("train", "heldout")
_CONTENTS = {
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


def prepared_view(artifact: Artifact, request: ViewRequest) -> View:
    """Return splits, contents, dropped data and lengths."""
    prepared = load_prepared(artifact.path, verify=False)
    options = artifact.meta["options"]
    chat = options["sequences"]["chat"]
    facts: dict[str, Any] = {
        "tokens a row": prepared.train.length,
        "longer documents": options["overlong"],
        **{name: chat[name] for name in ("thinking", "tools", "answers")},
        "tokenizer": artifact.meta["tokenizer_fingerprint"],
        "key": prepared.key,
        "digest": prepared.digest(),
    }
    body = {name.replace(" ", "_"): value for name, value in facts.items()}
    return View(
        {**body, **prepared.figures, "options": options}, [facts_table(facts), *data_tables(prepared)]
    )


def data_tables(prepared: PreparedData) -> list[RenderableType]:
    """Return the figures as tables."""
    figures = prepared.figures
    rows = [
        {
            "split": name,
            "sources": figures[name]["documents"],
            "documents": figures[name]["sequences"],
            "rows": len(packed),
            "full": f"{packed.fill:.1%}",
            "tokens": figures[name]["tokens"],
            "learnt": figures[name]["counted"],
            "share": figures[name]["counted"] / max(1, figures[name]["tokens"]),
            "rows counted": figures[name].get("rows_counted", 0),
        }
        for name, packed in zip(_SPLITS, (prepared.train, prepared.heldout), strict=True)
    ]
    over = {
        key: sum(figures[split]["overlong"][key] for split in _SPLITS) for key in figures["train"]["overlong"]
    }
    left_out = {
        "documents longer than a row": over["sequences"],
        "documents made of those": over["pieces"],
        "their tokens that are in no row": over["lost_tokens"],
        "of these to be learnt": over["lost_counted"],
        "parts with nothing to learn": over["unlearnt"],
        "packed rows without a counted position": sum(figures[s].get("rows_without", 0) for s in _SPLITS),
        **dict(sorted(figures["skipped"].items(), key=lambda item: -item[1])),
    }
    contents = {title: figures["facts"].get(name) for name, title in _CONTENTS.items()}
    why = [{"why": reason, "number": count} for reason, count in left_out.items() if count]
    shown: list[RenderableType] = [rows_table("Rows", rows)]
    shown.append(facts_table({name: number for name, number in contents.items() if number}, "Contents"))
    shown += [rows_table("Left out", why)] if why else []
    return shown


def capture_view(artifact: Artifact, request: ViewRequest) -> View:
    """Return target, layers, dtypes, rows and tokens of each split, and the first shards."""
    key, shards, files = cache_key(artifact), read_index(artifact), artifact.manifest["files"]
    return View(
        {
            **scalars(artifact.meta),
            "auxiliary_layers": list(key.aux_layers),
            "hidden_size": key.hidden_size,
            "stored_dtype": key.dtype,
            "target_dtype": key.target_dtype,
            "bytes_a_token": key.token_bytes,
            "bytes": sum(files[shard.file]["bytes"] for shard in shards),
            # index() rejects a number written as a string
            "rows": {
                name: {**entry, **{key: index(entry[key]) for key in ("rows", "tokens")}}
                for name, entry in artifact.meta["rows"].items()
            },
            "shard_count": len(shards),
            "shards": [{**asdict(one), "bytes": files[one.file]["bytes"]} for one in shards[: request.top]],
        }
    )
