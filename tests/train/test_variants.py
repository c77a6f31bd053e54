"""Every kind of run learns, resumes to the same bits and leaves artefacts that load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.train.run_support import settings, signalled
from vocabforge.core.config import parse_config
from vocabforge.core.errors import ConfigError, UsageError
from vocabforge.core.journal import read_jsonl_log
from vocabforge.models.drafters.io import TargetTensors, load_native, load_target_tensors
from vocabforge.train.config import TrainConfig
from vocabforge.train.loop import train
from vocabforge.train.setup import build_trainer, step_settings

pytestmark = pytest.mark.long

BLOCK = {"num_layers": 1, "block_size": 4}
VARIANTS: dict[str, dict[str, Any]] = {
    "peagle": {"drafter": {"kind": "peagle", **BLOCK}, "ttt": {"anchors": 6}},
    "dflash": {"drafter": {"kind": "dflash", **BLOCK}, "ttt": {"anchors": 6}},
    "dspark": {
        "drafter": {"kind": "dspark", **BLOCK, "markov_rank": 4, "head": "own"},
        "ttt": {"anchors": 6},
        "memory": {"checkpointing": True, "loss": "fused", "chunk_mb": 8},
    },
    "dspark-losses": {
        "drafter": {"kind": "dspark", **BLOCK, "markov_rank": 4},
        "ttt": {"anchors": 6, "loss": {"ce": 0.1, "tv": 1.8}, "weighting": "d-pace"},
    },
    "lk": {"ttt": {"steps": 3, "loss": "lk"}, "memory": {"loss": "fused", "chunk_mb": 32}},
    "eagle1": {"drafter": {"kind": "eagle1"}, "ttt": {"steps": 1}},
    "hass": {"drafter": {"kind": "eagle1", "fc_bias": True}, "ttt": {"steps": 3, "feature_noise": 0.0}},
    "medusa": {"drafter": {"kind": "medusa", "medusa_heads": 2}, "ttt": {"steps": 2}},
    "eagle3.1": {"drafter": {"num_layers": 2, "fc_norm": True, "norm_output": True}},
    "medusa-own": {
        "drafter": {
            "kind": "medusa",
            "medusa_heads": 2,
            "medusa_layers": 2,
            "medusa_own_heads": True,
            "head": "own",
        },
        "ttt": {"steps": 2},
    },
    "lean-memory": {
        "drafter": {"head": "own"},
        "memory": {
            "weights": "bf16",
            "checkpointing": True,
            "loss": "fused",
            "attention": "merged",
            "chunk_mb": 8,
        },
        "run": {"mixed_precision": "bf16"},
    },
    "heads": {"heads": {"ranker": {"shortlist": 16}, "low_rank": {"weight": 0.5, "init": "random"}}},
}


def run(place: Path, name: str, stop_at: int | None = None, **sections: dict[str, Any]) -> Path:
    """Train; with ``stop_at`` a SIGTERM comes in that step."""
    trainer = build_trainer(parse_config(TrainConfig, settings(place, name, **sections), source="test"))
    if stop_at is None:
        return train(trainer)
    with pytest.raises(KeyboardInterrupt), signalled(stop_at):
        train(trainer)
    return place / name


def losses(place: Path, name: str) -> list[float]:
    rows = read_jsonl_log(place / name / "metrics.jsonl")
    assert [row["step"] for row in rows if row["kind"] == "train"] == list(range(1, 13))
    return [row["ttt_loss"] for row in rows if row["kind"] == "train"]


@pytest.mark.parametrize("variant", VARIANTS)
def test_it_learns_resumes_to_the_same_bits_and_loads(place: Path, variant: str) -> None:
    sections = VARIANTS[variant]
    run(place, variant, **sections)
    whole = load_file(place / variant / "drafter" / "drafter.safetensors")
    curve = losses(place, variant)
    assert all(torch.isfinite(torch.tensor(curve)))
    heldout = [r for r in read_jsonl_log(place / variant / "metrics.jsonl") if r["kind"] == "heldout"]
    assert sum(heldout[0]["loss"]) > sum(heldout[-1]["loss"]), heldout
    run(place, f"{variant}-cut", stop_at=5, **sections)
    run(place, f"{variant}-cut", **sections)
    assert losses(place, f"{variant}-cut") == curve, "no row of the log is lost or written twice"
    again = load_file(place / f"{variant}-cut" / "drafter" / "drafter.safetensors")
    assert whole.keys() == again.keys()
    assert [name for name in whole if not torch.equal(whole[name], again[name])] == []
    shared = load_target_tensors(place / "target")
    drafter, artifact = load_native(place / variant / "drafter", TargetTensors(shared.embedding, shared.head))
    assert artifact.meta["steps"] == 12
    assert drafter.kind == sections.get("drafter", {}).get("kind", "eagle3")
    assert all(value.dtype == torch.float32 for value in whole.values() if value.is_floating_point())


def test_heads_alone_leave_the_drafter_as_it_was(place: Path) -> None:
    first = run(place, "base")
    before = load_file(first / "drafter.safetensors")
    sections = {
        "drafter": {"init": str(first), "freeze": True},
        "heads": {"ranker": {"shortlist": 16, "init": "random", "weight": 1.0}},
    }
    path = run(place, "frozen", **sections)
    after = load_file(path / "drafter.safetensors")
    assert all(torch.equal(before[name], after[name]) for name in before)
    rows = [row for row in read_jsonl_log(place / "frozen" / "metrics.jsonl") if row["kind"] == "train"]
    found = [row["heads"]["ranker"]["loss"] for row in rows]
    assert sum(found[-4:]) < sum(found[:4])


def test_going_on_from_a_trained_drafter_starts_where_it_ended(place: Path) -> None:
    first = run(place, "origin", optim={"steps": 40})
    run(place, "further", drafter={"init": str(first)})
    fresh, further = losses_of(place, "origin")[0], losses_of(place, "further")[0]
    assert further < fresh


def losses_of(place: Path, name: str) -> list[float]:
    rows = read_jsonl_log(place / name / "metrics.jsonl")
    return [row["ttt_loss"] for row in rows if row["kind"] == "train"]


def test_what_cannot_be_trained_is_refused(place: Path) -> None:
    first = run(place, "kind")
    with pytest.raises(UsageError, match="nothing to train"):
        step_settings(
            parse_config(
                TrainConfig,
                settings(place, "x", drafter={"init": str(first), "freeze": True}),
                source="test",
            )
        )
    with pytest.raises(ConfigError, match="drafter"):
        parse_config(TrainConfig, settings(place, "x", drafter={"freeze": True}), source="test")
    with pytest.raises(ConfigError, match="bf16"):
        parse_config(
            TrainConfig,
            settings(place, "x", memory={"weights": "bf16"}, run={"mixed_precision": "no"}),
            source="test",
        )


def test_the_kinds_have_their_published_weights(place: Path) -> None:
    def made(kind: str, **ttt: float) -> Any:
        body = settings(place, "x", drafter={"kind": kind}, ttt={"steps": 2, **ttt})
        return step_settings(parse_config(TrainConfig, body, source="test"))

    assert (made("eagle3").token_weight, made("eagle3").feature_weight) == (1.0, 0.0)
    assert (made("eagle1").token_weight, made("eagle1").feature_weight) == (0.1, 1.0)
    assert made("eagle1", feature_weight=0.0, token_weight=2.0).feature_weight == 0.0
