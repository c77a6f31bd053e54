"""A tiny world to tune in, and candidates whose speed is a formula."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from tests.worlds import byte_tokenizer, tiny_drafter, tiny_target
from vocabforge.corpus.tokenizer.tokenizer import load_tokenizer
from vocabforge.models.drafters.io import save_drafter
from vocabforge.models.heads.io import HeadOwner, drafter_digest, save_head
from vocabforge.models.heads.scorer import LowRankScorer
from vocabforge.models.target.fingerprint import target_fingerprint
from vocabforge.models.target.hf import HFTarget
from vocabforge.tune.measure import Measured, TurnRow, measured
from vocabforge.tune.space import HeadChoice, TreeSetting, TuneCandidate
from vocabforge.vocab.subset.subset import VocabSubset, save_subset

ROWS = 261


def make_place(place: Path, questions: int = 10) -> Path:
    """``t`` target with tokenizer, ``d`` drafter, ``v`` vocabulary, ``r`` ranker, ``q.jsonl`` questions."""
    tiny_target(place / "t", vocab_size=ROWS)
    byte_tokenizer(place / "t")
    tokenizer, target = load_tokenizer(place / "t").fingerprint, target_fingerprint(place / "t")
    meta = {"target_fingerprint": target, "tokenizer_fingerprint": tokenizer}
    save_drafter(place / "d", tiny_drafter(HFTarget.load(place / "t")), meta)
    ids = np.arange(40, 140, 2, dtype=np.int64)
    save_subset(
        VocabSubset.from_ranked(ids[::-1].copy(), vocab_size=ROWS, fingerprint=tokenizer), place / "v"
    )
    torch.manual_seed(0)
    owner = HeadOwner(drafter_digest(place / "d"), target, tokenizer)
    save_head(place / "r", "ranker", LowRankScorer(32, ROWS, 8), owner)
    rows = [
        {"question_id": n, "category": "qa", "turns": [f"Question {n}?", "More?"]} for n in range(questions)
    ]
    (place / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return place


def row(
    speedup: float, *, accepted: float = 2.0, new: int = 60, seconds: float = 1.0, batch: int = 1
) -> TurnRow:
    """A group that was decoded so many times as fast as plainly."""
    cycles = max(1, round(new / accepted))
    return TurnRow(
        new_tokens=new * batch,
        seconds=seconds / speedup,
        cycles=cycles * batch,
        committed=new * batch,
        plain_tokens=new * batch,
        plain_seconds=seconds,
    )


class Worlds:
    """Candidates with known speed-ups; counts what is decoded.

    Args:
        speedups: by candidate name.
        noise: factor of a group's speed-up, by group.
        batches: speed-up by batch size, from that for one request.
    """

    def __init__(
        self,
        speedups: Mapping[str, float],
        *,
        noise: Sequence[float] = (1.0,),
        batches: Mapping[int, Callable[[TuneCandidate, float], float]] | None = None,
    ) -> None:
        self.speedups, self.noise = speedups, noise
        self.batches = batches or {1: lambda one, speedup: speedup}
        self.decoded: dict[str, int] = {}

    def figures(self, candidate: TuneCandidate, prompts: int) -> dict[int, Measured]:
        found = {}
        for batch, change in self.batches.items():
            speedup = change(candidate, self.speedups[candidate.name])
            rows = [row(speedup * self.noise[group % len(self.noise)]) for group in range(prompts)]
            found[batch] = measured(rows, 1)
        return found

    def groups(self, prompts: int) -> int:
        return prompts * len(self.batches)

    def measure(
        self, some: Sequence[TuneCandidate], prompts: int, left: Callable[[], float] | None
    ) -> list[Mapping[int, Measured]]:
        found: list[Mapping[int, Measured]] = []
        for candidate in some:
            if left is not None and not (any(found) and left() <= 0):
                self.decoded[candidate.name] = prompts
            done = min(prompts, self.decoded.get(candidate.name, 0))
            found.append(self.figures(candidate, done) if done else {})
        return found


def chains(count: int, head: str = "full") -> list[TuneCandidate]:
    """Chains of 1 to ``count`` tokens."""
    return [TuneCandidate(HeadChoice(head), TreeSetting.chain(depth)) for depth in range(count)]


def speedups_of(acceptance: float, count: int, head: str = "full", node: float = 0.1) -> dict[str, float]:
    """Of chains whose every draft token is accepted with one probability and costs so much of a plain step."""
    return {
        one.name: sum(acceptance**j for j in range(one.tree.levels + 1)) / (1 + node * one.tree.levels)
        for one in chains(count, head)
    }
