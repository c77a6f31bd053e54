"""Caches of captured states: whose they are, how many, in which files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...capture.cache import cache_key, read_index
from .parts import Request, View, facts_table, json_names, scalars, table_of

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ...core.artifact import Artifact


def view(artifact: Artifact, request: Request) -> View:
    """Target, layers, dtypes, rows and tokens of each split, and the first shards."""
    key = cache_key(artifact)
    shards = read_index(artifact)
    files = artifact.manifest["files"]
    size = sum(files[shard.file]["bytes"] for shard in shards)
    facts: dict[str, Any] = {
        **scalars(artifact.meta),
        "auxiliary layers": list(key.aux_layers),
        "hidden size": key.hidden_size,
        "stored dtype": key.dtype,
        "target dtype": key.target_dtype,
        "bytes a token": key.token_bytes,
        "bytes": size,
    }
    splits = {name: dict(entry) for name, entry in artifact.meta["rows"].items()}
    shown: list[RenderableType] = [
        facts_table(facts, "Captured states"),
        table_of(
            "Rows",
            ("split<", "rows", "tokens"),
            [(name, f"{entry['rows']:,}", f"{entry['tokens']:,}") for name, entry in splits.items()],
        ),
        table_of(
            f"Shards ({len(shards):,})",
            ("file<", "split<", "first row", "rows", "tokens", "bytes"),
            [
                (
                    s.file,
                    s.split,
                    f"{s.first:,}",
                    f"{s.rows:,}",
                    f"{s.tokens:,}",
                    f"{files[s.file]['bytes']:,}",
                )
                for s in shards[: request.top]
            ],
        ),
    ]
    return View({**json_names(facts), "rows": splits, "shard_count": len(shards)}, shown)
