"""A tiny world to tune in, and a latency table whose every time is a formula."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import torch

from tests.worlds import byte_tokenizer, tiny_drafter, tiny_target
from vocabforge.corpus.tokenizer.tokenizer import load_tokenizer
from vocabforge.decode.build.models import Models
from vocabforge.evaluate.run.environment import describe_environment
from vocabforge.export.registry import load_drafter
from vocabforge.models.drafters.io import TargetTensors, save_drafter
from vocabforge.models.heads.io import HeadOwner, drafter_digest, save_head
from vocabforge.models.heads.registry import DraftHead
from vocabforge.models.heads.scorer import LowRankScorer
from vocabforge.models.lean.model import load_target
from vocabforge.models.target.fingerprint import target_fingerprint
from vocabforge.models.target.hf import HFTarget
from vocabforge.tune.latency.measure import shapes_of_drafter, shapes_of_target
from vocabforge.tune.latency.records import AXES, MeasuredPart, Point
from vocabforge.tune.latency.table import LatencyTable, head_family
from vocabforge.tune.search.acceptance import PromptRow
from vocabforge.tune.search.predict import Prediction, predict
from vocabforge.tune.search.session import proposer_of
from vocabforge.tune.search.space import HeadChoice, TuneCandidate
from vocabforge.tune.types import CycleSetting, HeadSetting, Seconds, TreeSetting, setting_of
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


@dataclass(frozen=True)
class Formula:
    """A latency table by formula: ``plain`` a step, ``node`` a verified node, ``token`` a scored token and level.

    Attributes:
        off: relative bounds.
    """

    plain_s: float = 1e-2
    node: float = 1e-3
    token: float = 1e-5
    prompt: float = 1e-4
    off: float = 0.0
    by_prefix: float = 0.0

    def _seconds(self, value: float) -> Seconds:
        return Seconds(value, value * (1 - self.off), value * (1 + self.off))

    def cycle(self, setting: CycleSetting) -> Seconds:
        tree = setting.tree
        scored = sum(setting.head.at(step) for step in range(tree.levels))
        value = self.plain_s + self.node * tree.total * setting.batch + self.token * scored
        return self._seconds(value + self.by_prefix * setting.prefix)

    def plain(self, batch: int = 1, prefix: int = 1) -> Seconds:
        return self._seconds(self.plain_s + self.by_prefix * prefix + 0.0 * batch)

    def prefill(self, tokens: int, *, drafting: bool = True) -> Seconds:
        return self._seconds(self.prompt * tokens * (2 if drafting else 1))


FULL = HeadSetting(kind="full", scored=(ROWS,))


def row(new: int, cycles: int, prompt: int = 8, committed: int | None = None) -> PromptRow:
    return PromptRow(
        prompt_tokens=prompt,
        new_tokens=new,
        cycles=cycles,
        committed=new - 1 if committed is None else committed,
    )


class Worlds:
    """Candidates with known acceptance; counts what is decoded.

    Args:
        lengths: accepted length by candidate name.
        noise: of a prompt's accepted length, by prompt.
    """

    def __init__(
        self,
        lengths: Mapping[str, float],
        latency: Formula,
        *,
        new: int = 61,
        noise: Sequence[float] = (0.0,),
        batches: Sequence[int] = (1,),
    ) -> None:
        self.lengths, self.latency, self.new = lengths, latency, new
        self.noise, self.batches = noise, batches
        self.decoded: dict[str, int] = {}

    def rows(self, candidate: TuneCandidate, prompts: int) -> list[PromptRow]:
        most = candidate.tree.levels + 1
        found = []
        for _, noise in zip(range(prompts), itertools.cycle(self.noise)):
            length = min(most, max(1.0, self.lengths[candidate.name] + noise))
            found.append(row(self.new, max(1, round((self.new - 1) / length))))
        return found

    def measure(self, candidate: TuneCandidate, prompts: int) -> list[PromptRow]:
        self.decoded[candidate.name] = prompts
        return self.rows(candidate, prompts)

    def predict(self, candidate: TuneCandidate, rows: Sequence[PromptRow]) -> dict[int, Prediction]:
        return {
            batch: predict(rows, FULL, candidate.tree, self.latency, batch=batch) for batch in self.batches
        }


def chains(count: int, head: str = "full") -> list[TuneCandidate]:
    """Chains of 1 to ``count`` tokens."""
    return [TuneCandidate(HeadChoice(head), TreeSetting.chain(depth)) for depth in range(count)]


def make_table(
    place: Path, heads: Sequence[HeadSetting], *, cost: float = 1e-3, here: bool = False
) -> LatencyTable:
    """A latency table of the tiny world's sizes with made-up times.

    Args:
        cost: seconds that a verified node adds.
        here: it says that it was measured on this machine.
    """
    model = load_target(place / "t")
    drafter, _ = load_drafter(place / "d", TargetTensors(model.embedding, model.lm_head_weight), place / "t")

    def part(name: str, family: str, seconds: float, **slopes: float) -> MeasuredPart:
        low = dict.fromkeys(AXES[name], 1)
        points = [Point(at=low, seconds=seconds, low=seconds, high=seconds, count=9)]
        for axis, slope in slopes.items():
            more = seconds + slope * 1000
            points.append(Point(at={**low, axis: 1001}, seconds=more, low=more, high=more, count=9))
        return MeasuredPart(name=name, family=family, points=tuple(points))

    parts = [part("plain", "", 1e-2), part("start", "", 1e-3)]
    parts += [part("prefill", family, 1e-3) for family in ("plain", "drafting")]
    for kind in ("chain", "dynamic"):
        parts += [part(name, kind, 1e-3) for name in ("layer", "choose", "commit")]
        parts.append(part("verify", kind, 1e-2, nodes=cost))
        parts += [part("grow", f"{kind} {where}", 1e-4) for where in ("first", "further", "last")]
    for head in heads:
        parts += [
            part("head", head_family(head.family, first=first), 1e-4, scored=1e-6) for first in (True, False)
        ]
    return LatencyTable(
        vocabforge="0",
        environment=describe_environment(device="cpu", dtype="float32") if here else {"gpu": "another GPU"},
        dtype="float32",
        graphs=True,
        target=shapes_of_target(model),
        drafter=shapes_of_drafter(drafter),
        parts=tuple(parts),
    )


def settings_of(place: Path, choices: Sequence[HeadChoice]) -> list[HeadSetting]:
    """Sizes of draft heads."""
    models = Models(place / "t", device="cpu")
    made = [TuneCandidate(choice, TreeSetting.chain(1)) for choice in choices]
    return [setting_of(cast("DraftHead", proposer_of(models, place / "d", one).head)) for one in made]
