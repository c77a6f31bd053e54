"""A second ranker beside the first: two heads of one kind, told apart by name everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.train.run_support import config, curve, log_rows
from vocabforge.core.errors import ConfigError, UsageError
from vocabforge.models.heads.io import drafter_digest, load_head, owner_of
from vocabforge.models.heads.scorer import factor_head
from vocabforge.models.target.hf import HFTarget
from vocabforge.train.config import HeadsConfig, TrainConfig
from vocabforge.train.heads.draft_heads import configured, make_heads
from vocabforge.train.loop import train
from vocabforge.train.plan import plan
from vocabforge.train.setup import build_trainer

HEADS: dict[str, Any] = {
    "ranker": {"rank": 8, "shortlist": 20, "weight": 0.2},
    "small_ranker": {"rank": 3, "shortlist": 12, "weight": 0.4},
    "low_rank": {"rank": 4},
}
NAMES = {"ranker": "ranker", "small-ranker": "ranker", "low-rank": "low-rank"}


def heads_config(place: Path, output: str) -> TrainConfig:
    return config(place, output, heads=HEADS, run={"eval_every": 12, "trackers": []})


@pytest.fixture(scope="module")
def trained(place: Path) -> Path:
    """A finished run's drafter."""
    return train(build_trainer(heads_config(place, "run")))


def test_every_head_is_saved_under_its_name(place: Path, trained: Path) -> None:
    assert trained == place / "run" / "drafter"
    assert {one.name for one in (place / "run" / "heads").iterdir()} == set(NAMES)
    ranks = {}
    for name, kind in NAMES.items():
        loaded = load_head(place / "run" / "heads" / name)
        assert loaded.kind == kind
        assert owner_of(loaded.artifact).drafter == drafter_digest(place / "run" / "drafter")
        ranks[name] = (
            loaded.module.rank,
            loaded.artifact.meta.get("shortlist"),
            loaded.artifact.meta["weight"],
        )
    assert ranks == {"ranker": (8, 20, 0.2), "small-ranker": (3, 12, 0.4), "low-rank": (4, None, 0.1)}


def test_both_learn_and_both_are_reported(place: Path, trained: Path) -> None:
    steps = curve(place / "run", "heads")
    assert all(step.keys() == HEADS.keys() for step in steps)
    for key in HEADS:
        losses = [step[key]["loss"] for step in steps]
        assert sum(losses[-3:]) < sum(losses[:3]), key
    (final,) = (row["heads"]["heads"] for row in log_rows(place / "run", "heads"))
    assert final.keys() == {"full", *NAMES}
    sizes = {name: final[name]["overall"]["shortlist"] for name in NAMES}
    assert sizes == {"ranker": 20, "small-ranker": 12, "low-rank": 261}
    assert final["ranker"]["overall"] != final["small-ranker"]["overall"]


def test_the_others_are_the_same_without_it(place: Path) -> None:
    head = torch.randn(30, 16)
    both = make_heads(HeadsConfig.model_validate({**HEADS, "low_rank": None}), head, seed=5)
    alone = make_heads(HeadsConfig.model_validate({"ranker": HEADS["ranker"]}), head, seed=5)
    assert torch.equal(both["ranker"].head_weight, alone["ranker"].head_weight)
    assert list(both) == ["ranker", "small_ranker"]
    found = plan(heads_config(place, "planned"))
    assert found["heads"] == {"ranker": 8 * 293, "small_ranker": 3 * 293, "low_rank": 4 * 293}
    weights = {key: head.weight for key, head in configured(heads_config(place, "planned").heads).items()}
    assert weights == {"ranker": 0.2, "small_ranker": 0.4, "low_rank": 0.1}
    assert list(configured(HeadsConfig())) == []


BOTH = HeadsConfig.model_validate(
    {"ranker": {"rank": 6, "shortlist": 11, "weight": 0.2}, "low_rank": {"init": "random"}}
)
META = {"target_fingerprint": "t" * 64, "tokenizer_fingerprint": "k" * 64, "steps": 3}


def test_heads_are_made_as_configured(target: HFTarget) -> None:
    assert len(make_heads(HeadsConfig(), target.head_weight, seed=0)) == 0
    made = make_heads(BOTH, target.head_weight, seed=4)
    assert list(made) == ["ranker", "low_rank"]
    assert [made[key].rank for key in made] == [6, 32 // 8]
    vocab, down = factor_head(target.head_weight, 6, 4)
    assert torch.equal(made["ranker"].head_weight, vocab)
    assert torch.equal(made["ranker"].down.weight, down)
    assert float(made["low_rank"].head_weight.detach().std()) < 0.03
    again = make_heads(BOTH, target.head_weight, seed=4)
    assert all(torch.equal(a, b) for a, b in zip(made.parameters(), again.parameters()))
    other = make_heads(BOTH, target.head_weight, seed=5)
    assert not torch.equal(other["low_rank"].head_weight, made["low_rank"].head_weight)
    assert all(p.requires_grad and p.dtype == torch.float32 for p in made.parameters())
    with torch.device("meta"):
        sizes = make_heads(BOTH, torch.empty(61, 32, device="meta"), seed=0)
    assert [p.shape for p in sizes.parameters()] == [p.shape for p in made.parameters()]
    with pytest.raises(ConfigError, match="rank"):
        make_heads(HeadsConfig.model_validate({"ranker": {"rank": 99}}), target.head_weight, seed=0)
    for shortlist in (62, 2048):
        asked = HeadsConfig.model_validate({"ranker": {"shortlist": shortlist}})
        with pytest.raises(UsageError, match=r"(?s)than the vocabulary.*at most 61.*heads.ranker.shortlist"):
            make_heads(asked, torch.empty(61, 32, device="meta"), seed=0)
    for ranker in ({"shortlist": 61}, {}):
        make_heads(HeadsConfig.model_validate({"ranker": ranker}), target.head_weight, seed=0)
