"""What a claim looks at: one figure of the study's table, and its words."""

from __future__ import annotations

from collections.abc import Callable

from .claim_rows import Looked, Table, ratio
from .joined import Row

Look = Callable[[Table], Looked]

# Of the goal: share of the accepted length, share of exact logits, and speed.
KEPT, EXACT, FASTER = 0.985, 0.02, 1.10
DYNASPEC_SHARE = 27_344 / 128_256
NANOSPEC = 3000  # tokens


def share(family: str, size: int, name: str | None = None) -> Look:
    """Share of the full head's accepted length that a row keeps; rows are named as by ``Table.find``."""

    def look(table: Table) -> Looked:
        row = table.find(family, size, name)
        if row is None:
            return Looked(None, f"no {name or family} of {size:,}")
        return Looked(row.share, f"{row.label}: {row.share:.1%} of the full head's {table.length('full')}")

    return look


def lengths(one: tuple[str, int, str | None], other: tuple[str, int, str | None]) -> Look:
    """Accepted length of one row over another's."""

    def look(table: Table) -> Looked:
        return ratio(
            table.find(*one), table.find(*other), lambda row: row.accepted, "tokens a cycle", lengths=True
        )

    return look


def pruned(table: Table) -> Looked:
    """The full drafter cut to the tokens that the reduced one was trained over."""
    reduced = table.first("reduced")
    cut = None if reduced is None else table.find("fr", table.size_of(reduced))
    return ratio(cut, reduced, lambda row: row.accepted, "tokens a cycle", lengths=True)


def trained(table: Table) -> Looked:
    """Accepted length of a ranker over that of the drafter trained over a reduced vocabulary."""
    ranker = table.find("ranker", 2048, "ranker d/8, joint")
    return ratio(ranker, table.first("reduced"), lambda row: row.accepted, "tokens a cycle", lengths=True)


def router(table: Table) -> Looked:
    """The best router with no more of the vocabulary than the paper's."""
    allowed = [row for row in table.of_family("router") if row.exact <= DYNASPEC_SHARE]
    if not allowed:
        return Looked(None, "no router with so few tokens")
    best = max(allowed, key=lambda row: row.share)
    return Looked(best.share, f"{best.label}: {best.share:.1%} with {best.exact:.1%} of the vocabulary")


def router_beside_static(table: Table) -> Looked:
    """Share that the best router with fewer tokens keeps over that of a static vocabulary of 32,768."""
    static = table.find("fr", 32_768)
    allowed = [row for row in table.of_family("router") if static is not None and row.exact < static.exact]
    best = max(allowed, key=lambda row: row.share, default=None)
    return ratio(
        best, static, lambda row: row.share, "of the full head's accepted length", percent=True, lengths=True
    )


def rare(table: Table) -> Looked:
    """Speed-up of the best router over that of the static vocabulary, on rare tokens."""
    scarce = table.on_rare()
    best = scarce.fastest(scarce.of_family("router"))
    return ratio(
        best, scarce.find("fr", 32_768), scarce.speedup, f"times plain decoding, {scarce.column_words}"
    )


def context_speed(table: Table) -> Looked:
    """Speed of the fastest context head with fewer than :data:`NANOSPEC` tokens over the full head's."""
    small = [row for row in table.of_family("context") if (table.tokens(row) or NANOSPEC) < NANOSPEC]
    return table.speeds(table.fastest(small), table.first("full"))


def schedule(table: Table) -> Looked:
    """The best schedule that begins with 32,768 tokens."""
    found = [row for row in table.of_family("pa-fr") if table.size_of(row) == 32_768]
    best = max(found, key=lambda row: row.share, default=None)
    return ratio(best, table.find("fr", 32_768), lambda row: row.accepted, "tokens a cycle", lengths=True)


def low_rank_head(table: Table) -> Looked:
    """Time of the full head in a cycle over that of the low-rank head."""
    return ratio(
        table.first("full"),
        table.first("low-rank"),
        table.head_us,
        f"µs of its head a cycle, {table.column_words}",
    )


def low_rank_speed(table: Table) -> Looked:
    """Speed of the low-rank head over the full head's."""
    return table.speeds(table.first("low-rank"), table.first("full"))


def ranker_speed(table: Table) -> Looked:
    """Speed of the fastest ranker over that of the drafter trained over a reduced vocabulary."""
    return table.speeds(table.fastest(table.of_family("ranker")), table.first("reduced"))


def static_speed(table: Table) -> Looked:
    """Speed of a static vocabulary of 32,768 over the full head's."""
    return table.speeds(table.find("fr", 32_768), table.first("full"))


def frugal(table: Table) -> list[Row]:
    """Dynamic heads that keep :data:`KEPT` with :data:`EXACT` of exact logits at most, the fastest first."""
    found = [row for row in table.dynamic() if row.share >= KEPT and row.exact <= EXACT]
    return sorted(found, key=lambda row: (-(table.speed(row) or 0.0), -row.share))


def own(table: Table) -> Looked:
    """The fastest dynamic head that keeps enough with few exact logits, beside the faster static one of 32,768."""
    found = frugal(table)
    static = table.fastest([row for name in ("fr", "trim") if (row := table.find(name, 32_768)) is not None])
    if static is None:
        return Looked(None, "no static vocabulary of 32,768 with a predicted speed")
    if found:
        return table.speeds(found[0], static)
    near = [row for row in table.dynamic() if row.exact <= EXACT]
    best = max(near, key=lambda row: row.share, default=None)
    if best is None:
        return Looked(None, f"no dynamic head with at most {EXACT:.0%} of exact logits")
    return Looked(
        0.0, f"none keeps {KEPT:.1%}; {best.label} keeps {best.share:.1%} with {best.exact:.2%} of the logits"
    )
