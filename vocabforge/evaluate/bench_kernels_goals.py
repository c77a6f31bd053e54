"""The goals of the figures: what was wanted, what was measured, reached or missed; what was not measured is open."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .op_benches.types import LLAMA3_8B, QWEN3_8B, ROWS

Rows = Mapping[str, Mapping[str, Any]]

HEAD_LIMIT = 0.45  # best dynamic head over static 32k
GATHER_RATIO = 6.0  # gather + matmul over indexed_logits
COPY_SHARE = 0.80  # of the measured copy bandwidth
PLAIN_SHARE, CYCLE_SHARE = 0.90, 0.85  # of the byte roofline
SHORTLIST = 2048
VOCABS = (LLAMA3_8B.vocab, QWEN3_8B.vocab)


def goals(parts: Mapping[str, Rows], shapes: Sequence[str], *, real: bool) -> list[dict[str, Any]]:
    """All goals, one row each.

    Args:
        parts: part -> name of a figure -> its row.
        shapes: models of the cycle.
        real: the figures are a GPU's, of real sizes; else every goal is open whatever stands there.

    Returns:
        rows with ``goal``, ``where``, ``relation`` (``at most`` or ``at least``), ``bound``, ``measured`` (None where
        open), ``by`` (what reached the figure), ``state``: ``reached``, ``missed`` or ``open``.
    """
    found: list[dict[str, Any]] = []
    for goal, where, relation, bound, figure in _all(parts, shapes):
        measured, by = figure if real and figure is not None else (None, None)
        state = "open"
        if measured is not None:
            met = measured <= bound if relation == "at most" else measured >= bound
            state = "reached" if met else "missed"
        found.append(
            {
                "goal": goal,
                "where": where,
                "relation": relation,
                "bound": bound,
                "measured": measured,
                "by": by,
                "state": state,
            }
        )
    return found


Figure = tuple[float, str]
_Line = tuple[str, str, str, float, "Figure | None"]


def _all(parts: Mapping[str, Rows], shapes: Sequence[str]) -> Iterator[_Line]:
    heads = [row for row in parts.get("heads", {}).values() if "timing" in row]
    ops = [row for row in parts.get("ops", {}).values() if "timing" in row]
    for vocab in VOCABS:
        for rows in ROWS:
            where = f"V = {vocab:,}, N = {rows}"
            here = [row for row in heads if (row["sizes"]["V"], row["sizes"]["N"]) == (vocab, rows)]
            name = "time of the best dynamic head over static 32k"
            yield name, where, "at most", HEAD_LIMIT, best_dynamic(here, "head")
            name = "time of the best ranker head over static 32k"
            yield name, where, "at most", HEAD_LIMIT, best_dynamic(here, "head ranker")
    for vocab in VOCABS:
        for rows in ROWS:
            where = f"V = {vocab:,}, N = {rows}, k = {SHORTLIST:,}"
            picked = [row for row in ops if _is_indexed(row, vocab, rows)]
            name = "gather + matmul over indexed_logits"
            yield name, where, "at least", GATHER_RATIO, _worst(picked, _gather_ratio)
            name = "indexed_logits, share of the copy bandwidth, each distinct row counted once"
            yield name, where, "at least", COPY_SHARE, _worst(picked, _copy_share)
    cycle = list(parts.get("cycle", {}).values())
    for shape in shapes:
        for kind, goal, bound in (
            ("plain", "plain decoding", PLAIN_SHARE),
            ("cycle", "speculative cycle", CYCLE_SHARE),
        ):
            those = [row for row in cycle if row["name"].startswith(f"{shape}: {kind}")]
            best = min(those, key=_ms, default=None)
            figure = None if best is None else (float(best["share"]), str(best["by"]))
            yield f"{goal}, share of the byte roofline", shape, "at least", bound, figure


def _ms(row: Mapping[str, Any]) -> float:
    return float(row["ms"])


def best_dynamic(rows: Sequence[Mapping[str, Any]], kind: str) -> Figure | None:
    """The smallest time of a dynamic head of this kind over the static head's, in whichever form that is faster.

    A scorer in fp8 does not count: its candidates are others.
    """
    static = [_us(row) for row in rows if row["op"] == "head static"]
    dynamic = [row for row in rows if _counts(row) and row["op"].startswith(kind)]
    if not static or not dynamic:
        return None
    best = min(dynamic, key=_us)
    return _us(best) / min(static), str(best["case"])


def _counts(row: Mapping[str, Any]) -> bool:
    return bool(row["sizes"]["dynamic"]) and not row["sizes"]["fp8"]


def _us(row: Mapping[str, Any]) -> float:
    return float(row["timing"]["us"])


def _is_indexed(row: Mapping[str, Any], vocab: int, rows: int) -> bool:
    sizes = row["sizes"]
    return (
        row["op"] == "indexed_logits"
        and sizes.get("V") == vocab
        and sizes.get("N") == rows
        and sizes.get("k") == SHORTLIST
    )


def _gather_ratio(row: Mapping[str, Any]) -> float | None:
    ratios = [way.get("ratio") for name, way in row["baselines"].items() if "gather" in name]
    return None if not ratios or ratios[0] is None else float(ratios[0])


def _copy_share(row: Mapping[str, Any]) -> float | None:
    return float(row["share"]) if row["bound"] == "bytes" else None


def _worst(rows: Sequence[Mapping[str, Any]], figure: Any) -> Figure | None:
    """The lowest figure of several cases (rows that share candidates, and rows that do not): a goal holds for all."""
    known = [(value, str(row["case"])) for row in rows if (value := figure(row)) is not None]
    return min(known) if known else None
