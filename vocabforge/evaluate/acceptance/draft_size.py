"""The size of a draft vocabulary that commits the most tokens per second, from the record of an evaluation.

A larger draft vocabulary misses fewer of the target's tokens, but its head takes longer (Ben Shoham 2026 weighs
coverage against FLOPs). Here both sides are measured: see docs/methods.md, Static draft vocabularies.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...core.errors import DataError, MismatchError, UsageError
from ...vocab.subset.coverage import coverage_at, size_ladder
from ...vocab.subset.select import Ids
from ..results.answers import read_method
from ..results.schema import read_results

NEAR = 0.99  # share of the best tokens/s within which sizes are named
_STATIC = ("full", "static")


@dataclass(frozen=True, eq=False)
class DraftRecord:
    """Accepted drafts and seconds of a method that drafts over a static or the full vocabulary.

    Attributes:
        size: tokens that its head scores in a draft step.
        drafts: (n,) int64 target ids of all accepted drafts.
        begins: (n,) bool, true for the first accepted draft of a verification.
        verifications: number of verifications, also of those that accepted nothing.
        head_s, other_s: seconds in the head and elsewhere; prompts are left out.
    """

    method: str
    size: int
    drafts: Ids
    begins: npt.NDArray[np.bool_]
    verifications: int
    head_s: float
    other_s: float

    def deepest(self, ranked: Ids) -> Ids:
        """Return (n,) int64: the largest place in the ranking up to each draft of its verification, from 0."""
        place = np.empty(len(ranked), np.int64)
        place[ranked] = np.arange(len(ranked))
        group = self.begins.cumsum() * len(ranked)  # keeps the maximum within a verification
        return np.maximum.accumulate(place[self.drafts] + group) - group


def read_record(evaluation: Path, vocab_size: int) -> DraftRecord:
    """Read the method with the largest static draft vocabulary of an evaluation; the first of several.

    Raises:
        DataError: no evaluation, no such method, or no seconds of its head.
        MismatchError: its target's head has fewer rows than ``vocab_size``.
    """
    results = read_results(evaluation)
    sizes = {
        number: one.vocabulary.size
        for number, one in enumerate(results.methods)
        if one.vocabulary is not None and one.vocabulary.kind in _STATIC and "head" in one.summary.time_s
    }
    if not sizes:
        drafting = [one.name for one in results.methods if one.vocabulary is not None]
        raise DataError(
            "the evaluation has no seconds of a static draft head",
            got=", ".join(drafting) or "no method with a draft head",
            expected="a drafter over its full or a static vocabulary, drafted step by step",
            source=evaluation,
            remedy="evaluate one: vocabforge eval --drafter DIR (on a GPU with --no-graphs)",
        )
    method = results.methods[max(sizes, key=lambda number: sizes[number])]
    drafts: list[int] = []
    begins: list[bool] = []
    verifications = 0
    for rows in read_method(evaluation, method.answers, method.details):
        for turns in (row["choices"][0] for row in rows.details):
            for ids, lengths in zip(turns["token_ids"], turns["accept_lengths"], strict=True):
                at = len(ids) - sum(lengths)  # the first token comes with the prompt
                verifications += len(lengths)
                for length in lengths:
                    drafts += ids[at : at + length - 1]  # the last one is the target's own
                    begins += [place == 0 for place in range(length - 1)]
                    at += length
    assert method.vocabulary is not None
    if method.vocabulary.of < vocab_size or max(drafts, default=0) >= vocab_size:
        raise MismatchError(
            "the evaluation is of another target than the frequency table",
            got=f"{method.vocabulary.of:,} rows, token ids up to {max(drafts, default=0):,}",
            expected=f"at least {vocab_size:,} rows, ids below",
            source=evaluation,
        )
    if not drafts:
        raise DataError("the evaluation accepted no draft", got=method.name, source=evaluation)
    parts = {part: spent for part, spent in method.summary.time_s.items() if part != "prefill"}
    head_s, size = parts.pop("head"), method.vocabulary.size
    ids, first = np.array(drafts, np.int64), np.array(begins)
    return DraftRecord(method.name, size, ids, first, verifications, head_s, sum(parts.values()))


def auto_size(evaluation: Path, ranked: Ids, counts: Ids, least: int, most: int) -> dict[str, Any]:
    """Read an evaluation and estimate the sizes; see :func:`read_record` and :func:`estimate_sizes`."""
    return estimate_sizes(read_record(evaluation, len(counts)), ranked, counts, least, most)


def estimate_sizes(record: DraftRecord, ranked: Ids, counts: Ids, least: int, most: int) -> dict[str, Any]:
    """Estimate accepted length and speed of each size, and choose the fastest; ties go to the smaller.

    Args:
        record: an evaluation's method.
        ranked: all ids (V,) in rank order.
        counts: (V,) int64.
        least, most: sizes that may be chosen.

    Returns:
        ``size``, ``near`` (smallest and largest size within 1% of its tokens/s), and in ``sizes`` a row per size.

    Raises:
        UsageError: no size may be chosen.
    """
    sizes = [size for size in size_ladder(len(ranked), [least, record.size]) if least <= size <= record.size]
    deepest = np.sort(record.deepest(ranked))
    kept = np.searchsorted(deepest, sizes)  # drafts whose verification used no token behind the size
    cycles, rows = record.verifications, []
    for size, drafts, share in zip(sizes, kept.tolist(), coverage_at(ranked, counts, sizes), strict=True):
        head_s = record.head_s * size / record.size
        length, cycle_s = 1 + drafts / cycles, (record.other_s + head_s) / cycles
        times = {
            "head_ms": 1e3 * head_s / cycles,
            "cycle_ms": 1e3 * cycle_s,
            "tokens_per_s": length / cycle_s,
        }
        rows.append({"size": size, "coverage": share, "accepted_length": length, **times})
    free = [row for row in rows if row["size"] <= most]
    if not free:
        raise UsageError(
            "no size can be chosen",
            got=f"{least:,} forced ids, {most:,} ids with a count or forced, a head of {record.size:,} tokens",
            expected="a head with more tokens than forced ids",
        )
    best = max(free, key=lambda row: row["tokens_per_s"])
    near = [row["size"] for row in free if row["tokens_per_s"] >= NEAR * best["tokens_per_s"]]
    return {
        "method": record.method,
        "size": best["size"],
        "near": [near[0], near[-1]],
        "verifications": record.verifications,
        "accepted_drafts": len(record.drafts),
        "sizes": rows,
    }
