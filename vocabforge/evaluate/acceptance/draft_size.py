"""The size of a draft vocabulary that commits the most tokens per second, from the record of an evaluation.

A larger draft vocabulary misses fewer of the target's tokens, but its head takes longer (Ben Shoham 2026 weighs
coverage against FLOPs). Here both sides are measured: see docs/methods.md, Static draft vocabularies.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...core.artifact import open_artifact
from ...core.errors import DataError, MismatchError, UsageError
from ...core.values import words_in
from ...vocab.subset.coverage import coverage_at, rank_all, size_ladder
from ...vocab.subset.request import SelectRequest
from ...vocab.subset.run import checked, read_table
from ...vocab.subset.select import Ids
from ..results.answers import read_method
from ..results.schema import read_results

AUTO = "auto"
NEAR = 0.99  # share of the best tokens/s within which sizes are named


@dataclass(frozen=True, eq=False)
class DraftRecord:
    """A method's accepted drafts (target ids) by verification, and its seconds in the draft head and elsewhere.

    ``size`` tokens are scored in a draft step. Prompts are left out.
    """

    method: str
    size: int
    drafts: list[list[int]]
    head_s: float
    other_s: float


def resolve_size(asked: SelectRequest) -> tuple[SelectRequest, dict[str, Any]]:
    """Replace ``--size auto`` by the fastest size, and return it in the request and ``auto``: its estimate."""
    words = words_in(asked.size)
    if (AUTO in words) != (asked.evaluation is not None):
        raise UsageError(
            "--size auto reads the record of an evaluation",
            got=f"--size {AUTO} without --evaluation"
            if AUTO in words
            else "--evaluation without --size auto",
            expected="--size auto --evaluation DIR",
            remedy="evaluate the drafter over its full vocabulary: vocabforge eval --drafter DIR",
        )
    if asked.evaluation is None:
        return asked, {}
    open_artifact(asked.evaluation, "evaluation")
    table, forced, _ = read_table(checked(asked))
    least, most = max(1, len(forced)), len(np.union1d(forced, table.counts.nonzero()[0]))
    if asked.fill == "lowest-id":
        most = table.vocab_size
    record = read_record(asked.evaluation, table.vocab_size, least)
    estimate = estimate_sizes(record, rank_all(table.counts, forced), table.counts, least, most)
    sizes = tuple(str(estimate["size"]) if word == AUTO else word for word in words)
    return asked.model_copy(update={"size": sizes}), {AUTO: estimate}


def read_record(evaluation: Path, vocab_size: int, least: int = 1) -> DraftRecord:
    """Read the method with the largest static draft vocabulary, of ``least`` tokens or more.

    Raises:
        DataError: no evaluation, no such method with the seconds of its head, or no accepted draft.
        MismatchError: it has another vocabulary than ``vocab_size`` ids.
    """
    candidates = [
        (candidate.vocabulary, candidate)
        for candidate in read_results(evaluation).methods
        if candidate.vocabulary is not None
        and candidate.vocabulary.kind in ("full", "static")
        and candidate.vocabulary.size >= least
        and "head" in candidate.summary.time_s
    ]
    drafts: list[list[int]] = []
    if candidates:
        vocabulary, method = max(candidates, key=lambda pair: pair[0].size)
        for rows in read_method(evaluation, method.answers, method.details):
            for turns in (row["choices"][0] for row in rows.details):
                for ids, lengths in zip(turns["token_ids"], turns["accept_lengths"], strict=True):
                    at = len(ids) - sum(lengths)  # the first token comes with the prompt
                    for length in lengths:
                        drafts.append(ids[at : at + length - 1])  # the last one is the target's own
                        at += length
    if not any(drafts):
        raise DataError(
            "the evaluation has no accepted drafts of a static draft head, with its seconds",
            expected=f"a drafter over its full or a static vocabulary of {least:,} tokens or more",
            source=evaluation,
            remedy="evaluate one: vocabforge eval --drafter DIR (on a GPU with --no-graphs)",
        )
    if vocabulary.of < vocab_size or max(map(max, filter(None, drafts))) >= vocab_size:
        raise MismatchError(
            "the evaluation is of another target than the frequency table",
            got=f"an LM head of {vocabulary.of:,} rows",
            expected=f"{vocab_size:,} token ids, and padded rows at most",
            source=evaluation,
        )
    parts = {part: spent for part, spent in method.summary.time_s.items() if part != "prefill"}
    head_s = parts.pop("head")
    return DraftRecord(method.name, vocabulary.size, drafts, head_s, sum(parts.values()))


def estimate_sizes(record: DraftRecord, ranked: Ids, counts: Ids, least: int, most: int) -> dict[str, Any]:
    """Estimate accepted length and speed by size, and choose the fastest; ties go to the smaller.

    Args:
        ranked, counts: (V,) int64 ids in rank order, and counts of the ids.
        least, most: sizes that may be chosen.

    Returns:
        ``size``, ``near`` (smallest and largest size within 1% of its tokens/s), and in ``sizes`` a row per size.
    """
    place = np.empty(len(ranked), np.int64)
    place[ranked] = np.arange(len(ranked))
    # The largest rank up to each draft of its verification: a size above it keeps the draft.
    deepest = np.sort(np.concatenate([np.maximum.accumulate(place[ids]) for ids in record.drafts if ids]))
    sizes = [size for size in size_ladder(len(ranked), [least, record.size]) if least <= size <= record.size]
    kept, cycles = np.searchsorted(deepest, sizes).tolist(), len(record.drafts)
    rows = []
    for size, drafts, share in zip(sizes, kept, coverage_at(ranked, counts, sizes), strict=True):
        head_s = record.head_s * size / record.size / cycles
        length, cycle_s = 1 + drafts / cycles, record.other_s / cycles + head_s
        times = {"head_ms": 1e3 * head_s, "cycle_ms": 1e3 * cycle_s, "tokens_per_s": length / cycle_s}
        rows.append({"size": size, "coverage": share, "accepted_length": length, **times})
    free = [row for row in rows if row["size"] <= most]
    best = max(free, key=lambda row: row["tokens_per_s"])
    near = [row["size"] for row in free if row["tokens_per_s"] >= NEAR * best["tokens_per_s"]]
    estimate = {"method": record.method, "size": best["size"], "near": [near[0], near[-1]], "sizes": rows}
    return {**estimate, "verifications": cycles, "accepted_drafts": len(deepest)}
