"""Addition and weighted mixture of frequency tables."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from ...core.artifact import open_artifact
from ...core.errors import DataError, UsageError, did_you_mean
from ...corpus.tokenizer.special_tokens import SpecialTokens
from ...corpus.tokenizer.tokenizer import check_fingerprint
from .table import KIND, REST, CountMode, FrequencyTable, Tally, load_counts

MIXTURE_TOTAL = 2**53
"""Total of a mixture's counts, still exact in float64."""
_EMPTY = hashlib.sha256(b"").hexdigest()


@dataclass(frozen=True, eq=False)
class TablePart:
    """Table to combine with others: its name (for messages and as a domain) and its weight in a mixture."""

    name: str
    table: FrequencyTable
    weight: float = 1.0
    content_hash: str | None = None

    @classmethod
    def load(cls, name: str, path: Path, weight: float = 1.0) -> TablePart:
        """Load a table from its artefact; raises like :func:`load_counts`."""
        return cls(name, load_counts(path), weight, open_artifact(path, KIND, verify=False).content_hash)


def merge_tables(
    parts: Sequence[TablePart], *, as_domains: bool = False, allow_repeats: bool = False
) -> FrequencyTable:
    """Add the counts of tables, at least one, with the same tokenizer and mode.

    With ``as_domains``, each part becomes a domain with its name, which no other has; otherwise the parts'
    domains are merged by name. With ``allow_repeats``, a source may occur in two tables; its text is then
    counted twice.

    Raises:
        MismatchError: different tokenizers.
        DataError: different modes, a mixture (its counts are not token counts), or one text in two tables.
    """
    _check_tokenizers(parts)
    modes = {part.table.mode for part in parts}
    if "mixture" in modes:
        raise DataError(
            "a mixture cannot be added to other tables: its counts are not token counts",
            got=", ".join(part.name for part in parts if part.table.mode == "mixture"),
            remedy="give every table a weight, or add the tables before mixing them",
        )
    if len(modes) > 1:
        raise DataError(
            "tables of different modes cannot be added",
            got=", ".join(f"{part.name}: {part.table.mode}" for part in parts),
            expected="all counted with the same --mode",
            remedy="give every table a weight to mix them instead",
        )
    if not allow_repeats:
        _check_repeats(parts)
    first, *others = (part.table for part in parts)
    whole = sum(others, Tally(first.counts, first.documents, first.bytes))
    domains: dict[str, Tally] = {}
    if as_domains or any(part.table.domains for part in parts):
        for part in parts:
            own = part.table.domains or {REST: part.table}
            for name, tally in ({part.name: part.table} if as_domains else own).items():
                domains[name] = domains[name] + tally if name in domains else tally
    return _joined(parts, whole, parts[0].table.mode, domains)


def mix_tables(parts: Sequence[TablePart]) -> FrequencyTable:
    """Return the weighted mean of normalised frequencies, ``sum_i w_i c_i / T_i``, as integers.

    The result has no domains. It is computed in exact rational arithmetic and rounded once, at a total of
    about :data:`MIXTURE_TOTAL`. Weights are normalised to 1. A weight that would reduce a nonzero count to 0
    is rejected.

    Raises:
        UsageError: a weight is not positive.
        MismatchError: different tokenizers.
        DataError: an empty table, or a weight too small for its table.
    """
    _check_tokenizers(parts)
    weights = _weights(parts)
    scales = []  # contribution of one count of each part
    for part, weight in zip(parts, weights):
        scale = weight * MIXTURE_TOTAL / part.table.tokens
        least = int(part.table.counts[part.table.counts > 0].min())
        if scale * least < 1:
            raise DataError(
                "a weight is too small: rare tokens of its table would fall to a count of 0",
                got=f"{part.name}: weight {float(weight):.3g} of 1, {part.table.tokens:,} tokens",
                remedy="give it a larger weight, or leave it out; mix all tables at once, not mixtures again",
            )
        scales.append(scale)
    common = math.lcm(*(scale.denominator for scale in scales))
    total: Any = np.zeros(parts[0].table.vocab_size, dtype=object)  # numerators; Python integers, hence exact
    for part, scale in zip(parts, scales):
        total = total + part.table.counts.astype(object) * int(scale * common)
    counts = ((2 * total + common) // (2 * common)).astype(np.int64)
    documents, size = (sum(getattr(p.table, name) for p in parts) for name in ("documents", "bytes"))
    return _joined(
        parts, Tally(counts, documents, size), "mixture", {}, [float(weight) for weight in weights]
    )


def _check_tokenizers(parts: Sequence[TablePart]) -> None:
    first = parts[0]
    for part in parts[1:]:
        check_fingerprint(
            first.table.fingerprint,
            part.table.fingerprint,
            expected_from=f"the frequency table {first.name}",
            got_from=f"the frequency table {part.name}",
            remedy="count both with the target's own tokenizer",
        )


def _check_repeats(parts: Sequence[TablePart]) -> None:
    """Check that no text is in two tables, where its tokens would silently count twice."""
    owners: dict[str, tuple[str, str]] = {}
    for part in parts:
        own = {digest: source for source, digest in part.table.sources.items() if digest != _EMPTY}
        for digest, source in own.items():
            if digest in owners:
                other, other_source = owners[digest]
                raise DataError(
                    "the same text is in two of the tables and would be counted twice",
                    got=f"{source} in {part.name}, {other_source} in {other}",
                    source=f"sha256 {digest[:16]}…",
                    remedy="leave one of the tables out, or pass --allow-repeats",
                )
        owners |= {digest: (part.name, source) for digest, source in own.items()}


def _weights(parts: Sequence[TablePart]) -> list[Fraction]:
    for part in parts:
        if not (math.isfinite(part.weight) and part.weight > 0):
            raise UsageError(
                "a weight is not positive", got=f"{part.name}: {part.weight:g}", expected="a number above 0"
            )
        if part.table.tokens == 0:
            raise DataError(
                "a table without tokens cannot be mixed: it has no frequencies",
                got=part.name,
                remedy="leave it out",
            )
    exact = [Fraction(repr(float(part.weight))) for part in parts]  # 0.1 as the decimal 1/10
    return [weight / sum(exact) for weight in exact]


def _joined(
    parts: Sequence[TablePart],
    whole: Tally,
    mode: CountMode,
    domains: Mapping[str, Tally],
    weights: Sequence[float] | None = None,
) -> FrequencyTable:
    entries: list[dict[str, Any]] = [
        {"name": p.name, "content_hash": p.content_hash, "tokens": p.table.tokens, "mode": p.table.mode}
        for p in parts
    ]
    for entry, weight in zip(entries, weights or ()):
        entry["weight"] = weight
    sources: dict[str, str] = {}
    for part in parts:
        for name, digest in part.table.sources.items():
            while sources.get(name, digest) != digest:  # the name of another file in another part
                name += f" (of {part.name})"
            sources[name] = digest

    def union(field: str) -> tuple[int, ...]:  # the files of equal tokenizers can name different end tokens
        return tuple(dict.fromkeys(token for part in parts for token in getattr(part.table.special, field)))

    return FrequencyTable(
        whole.counts,
        whole.documents,
        whole.bytes,
        mode,
        parts[0].table.fingerprint,
        sources,
        SpecialTokens(union("eos"), union("control"), union("tools")),
        domains,
        {"made_by": "addition" if weights is None else "mixture", "parts": entries},
    )


def choose_domains(table: FrequencyTable, wanted: Mapping[str, float | None]) -> FrequencyTable:
    """Return a table of some domains (name -> weight): added, or mixed if weights are given.

    Raises:
        UsageError: a name is not a domain of the table, or only some names have weights.
        DataError: see :func:`merge_tables` and :func:`mix_tables`.
    """
    for name in wanted:
        if name not in table.domains:
            raise UsageError(
                "the frequency table has no domain of this name",
                got=name,
                expected=", ".join(table.domains) or "none: it was counted without domains",
                remedy=did_you_mean(name, table.domains),
            )
    parts = [
        TablePart(name, domain_table(table, name), 1.0 if weight is None else weight)
        for name, weight in wanted.items()
    ]
    weighted = [weight for weight in wanted.values() if weight is not None]
    if weighted and len(weighted) < len(wanted):
        raise UsageError(
            "some domains have a weight and some have none",
            got=", ".join(
                name if weight is None else f"{name}={weight:g}" for name, weight in wanted.items()
            ),
            expected="a weight for each, or for none",
        )
    if weighted:
        return mix_tables(parts)
    return merge_tables(parts, as_domains=True, allow_repeats=True)


def domain_table(table: FrequencyTable, name: str) -> FrequencyTable:
    """Return one domain as a separate table, with the sources of the whole."""
    part = table.domains[name]
    origin = {"made_by": "domain", "domain": name}
    return replace(
        table, counts=part.counts, documents=part.documents, bytes=part.bytes, domains={}, origin=origin
    )
