"""Parts of a frequency table by domain."""

from __future__ import annotations

from collections.abc import Mapping

from ..core.errors import UsageError, did_you_mean
from .mixing import Part, merge_tables, mix_tables
from .table import FrequencyTable


def choose_domains(table: FrequencyTable, wanted: Mapping[str, float | None]) -> FrequencyTable:
    """A table of some domains of a table: added, or mixed where weights are given.

    Args:
        table: with domains.
        wanted: domain -> weight; None for all of them adds the counts.

    Raises:
        UsageError: a name that is no domain of the table, or weights for some names only.
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
        Part(name, domain_table(table, name), 1.0 if weight is None else weight)
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
        return mix_tables(parts, as_domains=True)
    if table.mode == "mixture" and len(parts) == 1:
        return parts[0].table
    return merge_tables(parts, as_domains=True, allow_repeats=True)


def domain_table(table: FrequencyTable, name: str) -> FrequencyTable:
    """One domain as a table of its own, with the sources of the whole."""
    part = table.domains[name]
    origin = {"made_by": "domain", "domain": name}
    return FrequencyTable(
        part.counts,
        part.documents,
        part.bytes,
        table.mode,
        table.fingerprint,
        table.sources,
        table.special,
        {},
        origin,
    )
