"""Whole runs with ``memory.candidates``, over a byte tokenizer of 261 ids."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.train.run_support import settings, signalled
from vocabforge.core.config import parse_config
from vocabforge.core.errors import ConfigError, MismatchError, UsageError
from vocabforge.core.metrics_log import read_jsonl_log
from vocabforge.corpus.tokenizer import load_tokenizer
from vocabforge.evaluate.tensor_memory import TensorMemory
from vocabforge.train.candidates import Candidates, CandidateSampler
from vocabforge.train.config import TrainConfig
from vocabforge.train.data import Division, batch_rows, corpus_counts
from vocabforge.train.heldout import heldout_figures
from vocabforge.train.loop import Window, take_step, train
from vocabforge.train.plan import plan
from vocabforge.train.setup import build_trainer
from vocabforge.train.trainer import Trainer
from vocabforge.vocab.subset import make_subset, save_subset


def trainer(place: Path, output: str, **sections: Any) -> Trainer:
    body = settings(
        place,
        output,
        **{
            "memory": {"candidates": 40},
            "heads": {"ranker": {"shortlist": 16}},
            **sections,
            "run": {"live": {"prompts": 0}, "trackers": [], **sections.get("run", {})},
        },
    )
    return build_trainer(parse_config(TrainConfig, body, source="test"))


def rows_of(place: Path, name: str, kind: str) -> list[dict[str, Any]]:
    return [row for row in read_jsonl_log(place / name / "metrics.jsonl") if row["kind"] == kind]


def curve(place: Path, name: str) -> list[float]:
    return [row["ttt_loss"] for row in rows_of(place, name, "train")]


@pytest.fixture(scope="module")
def whole(place: Path) -> Path:
    train(trainer(place, "whole"))
    return place / "whole"


def test_it_lowers_the_exact_heldout_loss(place: Path, whole: Path) -> None:
    run = trainer(place, "fresh")
    counts = corpus_counts(run.data.train, 261)
    assert run.sampler is not None
    assert np.array_equal(run.sampler.chances, CandidateSampler(counts, 40, 261, 0).chances)
    assert run.sampler.chances[counts.argmax()] == 1.0
    fresh = heldout_figures(run)
    exact = heldout_figures(trainer(place, "fresh-exact", memory={"candidates": None}))
    assert fresh == exact, "what is held out is not estimated"
    last = rows_of(place, "whole", "heldout")[-1]
    assert last["loss"][0] < 0.9 * fresh["loss"][0]
    assert not math.isnan(last["acceptance"][0])
    logged = rows_of(place, "whole", "train")[-1]
    assert json.loads(json.dumps(logged, allow_nan=False)) == logged
    assert logged["heads"]["ranker"]["loss"] > 0


def test_micro_batches_and_processes_are_estimated_on_the_same_tokens(place: Path, whole: Path) -> None:
    train(trainer(place, "micro", optim={"micro_batch_size": 1}))
    assert curve(place, "micro") == pytest.approx(curve(place, "whole"), rel=1e-5)
    one = trainer(place, "ranks")
    assert one.sampler is not None
    forward, draw, found, asked = one.strategy.forward, one.sampler.draw, [], []

    def watched(*inputs: Any) -> Any:
        found.append(inputs[4])
        return forward(*inputs)

    def drawn(step: int, ids: Tensor, device: torch.device) -> Candidates:
        asked.append(ids)
        return draw(step, ids, device)

    one.strategy.forward, one.sampler.draw = watched, drawn  # type: ignore[method-assign]
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


def test_a_stopped_run_ends_with_the_same_bits(place: Path, whole: Path) -> None:
    run = trainer(place, "cut")
    with pytest.raises(KeyboardInterrupt), signalled(5):
        train(run)
    train(trainer(place, "cut"))
    assert curve(place, "cut") == curve(place, "whole")
    files = (
        "drafter/drafter.safetensors",
        *(str(p.relative_to(whole)) for p in whole.glob("heads/*/*.safetensors")),
    )
    assert len(files) == 2
    for file in files:
        ours, theirs = load_file(place / "cut" / file), load_file(whole / file)
        assert [name for name in theirs if not torch.equal(ours[name], theirs[name])] == []


def test_another_number_of_candidates_is_another_run(place: Path, whole: Path) -> None:
    for other in (41, None):
        with pytest.raises(MismatchError, match=r"memory\.candidates"):
            train(trainer(place, "whole", memory={"candidates": other}))


def test_a_reduced_head_learns_on_what_it_shares_with_the_candidates(place: Path) -> None:
    counted = trainer(place, "counted")
    data = counted.data.train
    assert corpus_counts(data, 261).sum() == int((np.asarray(data.document) > 0).sum())
    seen = counted.capture("train", list(range(len(data))))
    tops = counted.target.logits(seen.hidden[seen.document > 0]).argmax(-1)  # else all rows were outside
    counts = np.bincount(tops.numpy(), minlength=261)
    fingerprint = load_tokenizer(place / "target").fingerprint
    subset = make_subset(counts, 24, {}, fingerprint=fingerprint, fill="lowest-id")
    save_subset(subset, place / "subset")
    drafter = {"head": "own", "vocab": str(place / "subset")}
    run = trainer(place, "reduced", drafter=drafter, memory={"candidates": 150})
    before = heldout_figures(run)
    train(run)
    after = rows_of(place, "reduced", "heldout")[-1]
    assert after["loss"][0] < before["loss"][0]
    assert run.drafter.head_weight.shape[0] == 24


def test_a_step_makes_nothing_of_the_vocabularys_width(place: Path) -> None:
    made = {}
    for candidates in (40, None):
        run = trainer(place, "wide", memory={"candidates": candidates}, heads={"ranker": None})
        window = Window(run.steps, run.device)
        take_step(run, 0, window)  # what is made once is made
        with TensorMemory() as memory:
            take_step(run, 1, window)
        made[candidates] = [shape for shape in memory.shapes if 261 in shape]
    assert made[40] == []
    assert made[None], "the counter must see it where there is one"


def test_more_candidates_than_tokens_are_refused_before_anything_is_made(place: Path) -> None:
    body = settings(place, "many", memory={"candidates": 262})
    config = parse_config(TrainConfig, body, source="test")
    for start in (plan, build_trainer):
        with pytest.raises(UsageError, match=r"(?s)2 to 261.*memory.candidates"):
            start(config)
    assert not (place / "many").exists()
    with pytest.raises(ConfigError, match="candidates"):
        parse_config(TrainConfig, settings(place, "few", memory={"candidates": 1}), source="test")
