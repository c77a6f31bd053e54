"""Every kind of run learns, resumes to the same bits and leaves artefacts that load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.train.run_support import (
    add_clusters,
    assert_same,
    config,
    curve,
    log_rows,
    signalled,
    state,
    trainer,
    weights,
)
from vocabforge.core.errors import ConfigError, UsageError
from vocabforge.models.drafters.io import load_native
from vocabforge.models.target.head import TargetTensors, load_target_tensors
from vocabforge.train.config import TTTConfig
from vocabforge.train.loop import train
from vocabforge.train.step import loss_weights

pytestmark = pytest.mark.long

MUON = {"name": "muon", "weight_decay": 0.1}
BLOCK = {"num_layers": 1, "block_size": 4}
VARIANTS: dict[str, dict[str, Any]] = {
    "peagle": {"drafter": {"kind": "peagle", **BLOCK}, "ttt": {"anchors": 6}},
    "dflash": {"drafter": {"kind": "dflash", **BLOCK}, "ttt": {"anchors": 6}},
    "dspark": {
        "drafter": {"kind": "dspark", **BLOCK, "markov_rank": 4, "head": "own"},
        "ttt": {"anchors": 6, "loss": {"ce": 0.1, "tv": 1.8}, "weighting": "d-pace"},
        "memory": {"checkpointing": True, "loss": "fused", "chunk_mb": 8},
    },
    "hass": {"drafter": {"kind": "eagle1", "fc_bias": True}, "ttt": {"steps": 3, "feature_noise": 0.0}},
    "eagle3.1": {
        "drafter": {"num_layers": 2, "fc_norm": True, "norm_output": True},
        "optim": MUON,
        "heads": {"ranker": {"shortlist": 16}, "low_rank": {"weight": 0.5, "init": "random"}},
    },
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
    "lk, muon": {
        "ttt": {"steps": 3, "loss": "lk"},
        "memory": {"loss": "fused", "chunk_mb": 32},
        "optim": {**MUON, "fused": True},
        "heads": {"ranker": {"shortlist": 16}},
    },
    "router": {"heads": {"router": {"top_n": 3}}, "ttt": {"steps": 3, "decay": 0.7}},
}


def run(place: Path, name: str, **sections: Any) -> Path:
    return train(trainer(place, name, **sections))


@pytest.mark.parametrize("variant", VARIANTS)
def test_it_learns_resumes_to_the_same_bits_and_loads(place: Path, variant: str) -> None:
    sections, whole, cut = VARIANTS[variant], place / variant, place / f"{variant}-cut"
    if "router" in sections.get("heads", {}):
        add_clusters(place)
        router = {**sections["heads"]["router"], "clusters": str(place / "clusters")}
        sections = {**sections, "heads": {"router": router}}
    run(place, variant, **sections)
    assert all(torch.isfinite(torch.tensor(curve(whole))))
    heldout = log_rows(whole, "heldout")
    assert sum(heldout[0]["loss"]) > sum(heldout[-1]["loss"]), heldout
    with pytest.raises(KeyboardInterrupt), signalled(5):
        run(place, cut.name, **sections)
    run(place, cut.name, **sections)
    assert curve(cut, "step") == list(range(1, 13)), "no row of the log is lost or written twice"
    assert curve(cut) == curve(whole)
    assert_same(weights(whole), weights(cut))
    assert_same(state(whole), state(cut))
    shared = load_target_tensors(place / "target")
    drafter, artifact = load_native(whole / "drafter", TargetTensors(shared.embedding, shared.head))
    assert artifact.meta["steps"] == 12
    assert drafter.kind == sections.get("drafter", {}).get("kind", "eagle3")
    assert all(value.dtype == torch.float32 for value in weights(whole).values() if value.is_floating_point())


def test_going_on_from_a_trained_drafter_starts_where_it_ended(place: Path) -> None:
    first = run(place, "origin", optim={"steps": 40})
    run(place, "further", drafter={"init": str(first)})
    assert curve(place / "further")[0] < curve(place / "origin")[0]


def test_what_cannot_be_trained_is_refused(place: Path) -> None:
    first = run(place, "kind")
    with pytest.raises(UsageError, match="nothing to train"):
        run(place, "x", drafter={"init": str(first), "freeze": True})
    for sections, word in (
        ({"drafter": {"freeze": True}}, "drafter"),
        ({"memory": {"weights": "bf16"}, "run": {"mixed_precision": "no"}}, "bf16"),
    ):
        with pytest.raises(ConfigError, match=word):
            config(place, "x", **sections)


def test_the_kinds_have_their_published_weights() -> None:
    plain = {"token_weight": 1.0, "feature_weight": 0.0, "feature_noise": 0.0}
    assert loss_weights(TTTConfig(), "eagle3") == plain
    published = {"token_weight": 0.1, "feature_weight": 1.0, "feature_noise": 0.1}
    assert loss_weights(TTTConfig(), "eagle1") == published
    assert loss_weights(TTTConfig(feature_weight=0.0), "eagle1") == {**published, "feature_weight": 0.0}
