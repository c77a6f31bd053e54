"""A frequency table: totals, domains, frequent and rare tokens, special tokens."""

from __future__ import annotations

from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ...vocab.table import FrequencyTable, load_counts
from .parts import Request, View, bar, facts_table, hint, json_names, percent, table_of

if TYPE_CHECKING:
    from ...core.artifact import Artifact
    from .names import TokenNames

Ids = npt.NDArray[np.int64]
_SHARES = (0.5, 0.9, 0.95, 0.99)


def view(artifact: Artifact, request: Request) -> View:
    """Totals, how counts are spread, the ``top`` most frequent and rarest tokens, the special ones."""
    table = load_counts(artifact.path)
    order = np.argsort(-table.counts, kind="stable")[: table.seen]  # ties to the lower id
    frequent = order[: request.top]
    rare = order[::-1][: request.top]
    facts: dict[str, Any] = {
        "mode": table.mode,
        "tokens": table.tokens,
        "documents": table.documents,
        "bytes": table.bytes,
        "bytes per token": round(table.bytes / table.tokens, 3) if table.tokens else None,
        "vocabulary": table.vocab_size,
        "ids with a count": table.seen,
        "tokenizer": table.fingerprint,
        "sources": len(table.sources),
    }
    carried = _carried(table.counts[order], table.tokens)
    most = {f"ids that carry {share}": number for share, number in carried.items()}
    spread = _spread(table.counts)
    special = _special(table)
    lists = {
        "top": _rows(frequent, table, request.names),
        "rare": _rows(rare, table, request.names),
        "special": [
            {**row, "purpose": ", ".join(name for name, ids in special.items() if row["id"] in ids)}
            for row in _rows(np.unique(np.fromiter(chain(*special.values()), np.int64)), table, request.names)
        ],
    }
    domains = {
        name: {"tokens": part.tokens, "documents": part.documents, "bytes": part.bytes}
        for name, part in table.domains.items()
    }
    shown = [facts_table({**facts, "tokenizer": f"{table.fingerprint[:16]}…", **most})]
    if domains:
        shown.append(_domain_table(domains, table.tokens))
    shown.append(_spread_table(spread))
    shown.append(_token_table(f"Most frequent tokens ({len(frequent)})", lists["top"], bars=True))
    shown.append(_token_table(f"Rarest tokens that occur ({len(rare)})", lists["rare"], bars=False))
    if lists["special"]:
        shown.append(_special_table(lists["special"]))
    body = {
        **json_names(facts),
        "ids_that_carry": carried,
        "domains": domains,
        "spread": spread,
        **lists,
        "origin": dict(table.origin),
    }
    return View(body, [*shown, *hint(request.names)])


def _carried(descending: Ids, tokens: int) -> dict[str, int]:
    """How many of the most frequent ids carry a share of all tokens."""
    if not tokens:
        return {}
    reached = np.cumsum(descending)
    return {f"{share:.0%}": int(np.searchsorted(reached, np.ceil(share * tokens))) + 1 for share in _SHARES}


def _spread(counts: Ids) -> dict[str, int]:
    """Number of ids by the size of their counts, decade by decade."""
    edges = [0, 1, 2]
    while edges[-1] <= int(counts.max(initial=0)):
        edges.append(10 ** len(str(edges[-1])))
    found = {}
    for low, high in pairwise(edges):
        name = f"{low:,}" if high == low + 1 else f"{low:,} to {high - 1:,}"
        found[name] = int(np.count_nonzero((counts >= low) & (counts < high)))
    return found


def _special(table: FrequencyTable) -> dict[str, tuple[int, ...]]:
    special = table.special
    seen = tuple(token for token in special.others if table.counts[token])
    return {"end": special.eos, "control": special.control, "tools": special.tools, "other": seen}


def _rows(ids: Ids, table: FrequencyTable, names: TokenNames) -> list[dict[str, Any]]:
    return [
        {
            "id": int(token),
            "text": names.text(int(token)),
            "count": int(table.counts[token]),
            "share": int(table.counts[token]) / table.tokens if table.tokens else None,
        }
        for token in ids
    ]


def _token_table(title: str, rows: list[dict[str, Any]], *, bars: bool) -> Any:
    largest = max((row["count"] for row in rows), default=1)
    cells = [
        [str(row["id"]), row["text"], f"{row['count']:,}", percent(row["share"], 3)]
        + ([bar(row["count"], largest)] if bars else [])
        for row in rows
    ]
    return table_of(title, ("id", "token<", "count", "share", *(("<",) if bars else ())), cells)


def _special_table(rows: list[dict[str, Any]]) -> Any:
    return table_of(
        "Special tokens",
        ("id", "token<", "purpose<", "count"),
        [(str(row["id"]), row["text"], row["purpose"], f"{row['count']:,}") for row in rows],
    )


def _domain_table(domains: dict[str, dict[str, int]], tokens: int) -> Any:
    return table_of(
        "Domains",
        ("domain<", "tokens", "share", "documents", "MB"),
        [
            (
                name,
                f"{part['tokens']:,}",
                percent(part["tokens"] / tokens if tokens else None),
                f"{part['documents']:,}",
                f"{part['bytes'] / 1e6:,.1f}",
            )
            for name, part in domains.items()
        ],
    )


def _spread_table(spread: dict[str, int]) -> Any:
    largest = max((number for name, number in spread.items() if name != "0"), default=1)
    rows = [
        (name, f"{number:,}", bar(number, largest) if name != "0" else "(do not occur)")
        for name, number in spread.items()
    ]
    return table_of("Ids by count", ("count", "ids", "<"), rows)
