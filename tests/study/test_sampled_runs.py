"""Whole runs whose vocabulary losses are estimated on candidates, over a byte tokenizer of 261 ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.train.run_support import make_place, settings
from vocabforge.core.config import parse_config
from vocabforge.core.journal import read_jsonl_log
from vocabforge.study.candidates import CandidateSampler
from vocabforge.train.config import TrainConfig
from vocabforge.train.data import Division, batch_rows, corpus_counts
from vocabforge.train.loop import Window, take_step, train
from vocabforge.train.loss.candidates import Candidates
from vocabforge.train.setup import build_trainer
from vocabforge.train.trainer import Trainer


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_place(tmp_path_factory.mktemp("place"))


def trainer(place: Path, output: str, *, candidates: int | None = 40, **sections: Any) -> Trainer:
    body = settings(
        place,
        output,
        **{
            "heads": {"ranker": {"shortlist": 16}},
            **sections,
            "run": {"live": {"prompts": 0}, "trackers": [], **sections.get("run", {})},
        },
    )
    made = build_trainer(parse_config(TrainConfig, body, source="test"))
    made.identity["memory.candidates"] = candidates
    if candidates is not None:
        sampler = CandidateSampler(corpus_counts(made.data.train, 261), candidates, 261, 0)
        made.sample = lambda step, ids: sampler.draw(step, ids, made.device)
    return made


def rows_of(place: Path, name: str, kind: str) -> list[dict[str, Any]]:
    return [row for row in read_jsonl_log(place / name / "metrics.jsonl") if row["kind"] == kind]


def curve(place: Path, name: str) -> list[float]:
    return [row["ttt_loss"] for row in rows_of(place, name, "train")]


@pytest.fixture(scope="module")
def whole(place: Path) -> Path:
    train(trainer(place, "whole"))
    return place / "whole"


def test_micro_batches_and_processes_are_estimated_on_the_same_tokens(place: Path, whole: Path) -> None:
    train(trainer(place, "micro", optim={"micro_batch_size": 1}))
    assert curve(place, "micro") == pytest.approx(curve(place, "whole"), rel=1e-5)
    one = trainer(place, "ranks")
    assert one.sample is not None
    forward, draw, found, asked = one.strategy.forward, one.sample, [], []

    def watched(*inputs: Any) -> Any:
        found.append(inputs[4])
        return forward(*inputs)

    def drawn(step: int, ids: Tensor) -> Candidates:
        asked.append(ids)
        return draw(step, ids)

    one.strategy.forward, one.sample = watched, drawn  # type: ignore[method-assign]
    for rank in range(3):  # each with a row of its own
        one.division = Division(rank, 3, 1, 1)
        take_step(one, 4, Window(one.steps, one.device))
    assert len(found) == 3
    assert all(torch.equal(found[0].ids, other.ids) for other in found)
    assert all(torch.equal(found[0].offset, other.offset) for other in found)
    data = one.data.train
    tokens = data.input_ids[batch_rows(len(data), 3, 4, 0)]
    assert all(torch.equal(ids, torch.from_numpy(np.asarray(tokens, dtype=np.int64))) for ids in asked)
    assert len(found[0].ids) < 261
