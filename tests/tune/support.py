"""A tiny world to tune in, and candidates whose speed is a formula."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from tests.worlds import byte_tokenizer, tiny_drafter, tiny_target, write_questions
from vocabforge.corpus.tokenizer.tokenizer import load_tokenizer
from vocabforge.decode.spec import MethodSpec
from vocabforge.models.drafters.io import save_drafter
from vocabforge.models.heads.io import HeadOwner, drafter_digest, save_head
from vocabforge.models.heads.scorer import LowRankScorer
from vocabforge.models.target.fingerprint import target_fingerprint
from vocabforge.models.target.hf import HFTarget
from vocabforge.tune.measure import TurnRow, measured
from vocabforge.tune.search import Candidate
from vocabforge.tune.space import chain_of
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
    write_questions(place / "q.jsonl", *([f"Question {n}?", "More?"] for n in range(questions)))
    return place


def row(speedup: float, *, accepted: float = 2.0, new: int = 60, seconds: float = 1.0) -> TurnRow:
    """A group that was decoded so many times as fast as plainly."""
    return TurnRow(
        new_tokens=new,
        seconds=seconds / speedup,
        cycles=max(1, round(new / accepted)),
        committed=new,
        plain_tokens=new,
        plain_seconds=seconds,
    )


class Worlds:
    """Candidates with known speed-ups; counts the groups that are decoded."""

    def __init__(self, speedups: Mapping[str, float], *, noise: Sequence[float] = (1.0,)) -> None:
        self.speedups, self.noise = speedups, noise
        self.decoded: dict[str, int] = {}

    def give(self, candidate: Candidate, groups: int) -> None:
        speedup = self.speedups[candidate.name]
        rows = [row(speedup * self.noise[group % len(self.noise)]) for group in range(groups)]
        candidate.measured = measured(rows)

    def decode(self, candidate: Candidate, groups: int) -> None:
        self.decoded[candidate.name] = groups

    def measure(self, some: Sequence[Candidate], groups: int, left: Callable[[], float] | None) -> None:
        reached = False
        for candidate in some:
            if left is not None and not (reached and left() <= 0):
                self.decode(candidate, groups)
            if done := min(groups, self.decoded.get(candidate.name, 0)):
                self.give(candidate, done)
                reached = True


def chains(count: int, head: str = "full") -> list[Candidate]:
    """Chains of 1 to ``count`` tokens."""
    return [
        Candidate(name=f"{head}+chain{depth + 1}", head=head, method=chain_of(depth))
        for depth in range(count)
    ]


def levels_of(method: MethodSpec) -> int:
    return (method.depth or 0) + 1


def speedups_of(acceptance: float, count: int, head: str = "full", node: float = 0.1) -> dict[str, float]:
    """Of chains whose every draft token is accepted with one probability and costs so much of a plain step."""
    return {
        one.name: sum(acceptance**j for j in range(levels + 1)) / (1 + node * levels)
        for one in chains(count, head)
        for levels in [levels_of(one.method)]
    }
