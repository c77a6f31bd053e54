"""Muon: which parameters it trains, its update, exact resumption, what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from tests.decode.drafting import CASES, make_drafter
from tests.shares import by_default
from tests.train.run_support import settings, signalled
from vocabforge.core.config import parse_config
from vocabforge.core.distributed import Group
from vocabforge.core.errors import ConfigError, UsageError
from vocabforge.models.target.hf import HFTarget
from vocabforge.train.checkpoint import list_checkpoints, trained
from vocabforge.train.config import OptimConfig, TrainConfig
from vocabforge.train.loop import train
from vocabforge.train.optim import make_optimizer, set_learning_rate
from vocabforge.train.parallel.strategy import make_strategy
from vocabforge.train.plan import plan
from vocabforge.train.setup import build_trainer

MUON = {"optim": {"name": "muon", "weight_decay": 0.1}, "heads": {"ranker": {"shortlist": 16}}}
TABLES = ("embed_tokens", "lm_head", "markov_w1", "markov_w2", "vocab.weight")


def moved_by(optimizer: torch.optim.Optimizer, named: dict[str, nn.Parameter]) -> dict[str, set[str]]:
    """Names by what their state holds after a step."""
    for parameter in named.values():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    found: dict[str, set[str]] = {}
    for name, parameter in named.items():
        found.setdefault("+".join(optimizer.state[parameter]), set()).add(name)
    return found


@pytest.mark.parametrize("case", CASES)
def test_it_trains_the_matrices_between_states(case: str, folder: Path, target: HFTarget) -> None:
    named = trained(make_drafter(case, folder, target, "reduced").requires_grad_(True))
    optimizer = make_optimizer(named, OptimConfig(steps=1, name="muon"))
    found = moved_by(optimizer, named)
    assert set(found) == {"momentum_buffer", "step+exp_avg+exp_avg_sq"}
    wanted = {
        name
        for name, p in named.items()
        if p.dim() == 2 and 1 not in p.shape and not any(table in name for table in TABLES)
    }
    assert found["momentum_buffer"] == wanted
    assert any("proj" in name or "linear" in name for name in wanted)
    rest = found["step+exp_avg+exp_avg_sq"]
    assert any("norm" in name or "bias" in name for name in rest)
    assert any("lm_head" in name for name in rest)


@pytest.mark.parametrize("shape", [(24, 8), (8, 24), (16, 16)])
def test_its_update_is_orthogonal_and_as_large_as_adamws(shape: tuple[int, int]) -> None:
    """Singular values near one and a root mean square near 0.2; against the iteration in fp64."""
    torch.manual_seed(0)
    matrix = nn.Parameter(torch.randn(shape))
    before = matrix.detach().clone()
    named = {"layers.0.weight": matrix, "lm_head.weight": nn.Parameter(torch.randn(5, 3))}
    config = OptimConfig(steps=1, lr=0.5, weight_decay=0.1, name="muon")
    optimizer = make_optimizer(named, config)
    set_learning_rate(optimizer, 0.01)
    average = torch.zeros(shape, dtype=torch.float64)
    for _ in range(3):
        for p in named.values():
            p.grad = torch.randn_like(p)
        gradient = named["layers.0.weight"].grad.double()  # type: ignore[union-attr]
        average = 0.95 * average + 0.05 * gradient
        x = 0.05 * gradient + 0.95 * average  # Nesterov
        x = x / x.norm()
        for _ in range(5):
            square = x @ x.T
            x = 3.4445 * x + (-4.775 * square + 2.0315 * square @ square) @ x
        update = 0.2 * max(shape) ** 0.5 * x
        expected = before.double() * (1 - 0.01 * 0.1) - 0.01 * update
        optimizer.step()
        error = (matrix.detach().double() - expected).norm() / (0.01 * update).norm()
        assert float(error) < 0.03, "the iteration runs in bf16"
        before = matrix.detach().clone()
        values = torch.linalg.svdvals(x)
        assert 0.6 < float(values.median()) <= float(values.max()) < 1.3
    assert float(update.square().mean().sqrt()) == pytest.approx(0.2, rel=0.35)


def test_without_hidden_matrices_it_is_adamw_and_without_others_muon_alone() -> None:
    table, matrix = nn.Parameter(torch.randn(9, 3)), nn.Parameter(torch.randn(4, 4))
    config = OptimConfig(steps=1, name="muon")
    assert set(moved_by(make_optimizer({"lm_head.weight": table}, config), {"t": table})) == {
        "step+exp_avg+exp_avg_sq"
    }
    assert set(moved_by(make_optimizer({"fc.weight": matrix}, config), {"m": matrix})) == {"momentum_buffer"}


def config_of(place: Path, output: str, **sections: dict[str, Any]) -> TrainConfig:
    return parse_config(TrainConfig, settings(place, output, **sections), source="test")


def ends(folder: Path) -> dict[str, Tensor]:
    last = list_checkpoints(folder / "checkpoints")[-1]
    return load_file(last / "weights.safetensors") | load_file(last / "optimizer.safetensors")


@pytest.mark.long
@pytest.mark.parametrize("fused", by_default([False, True], lambda fused: fused))
def test_a_resumed_run_ends_with_the_same_bits(place: Path, fused: bool) -> None:
    sections = {**MUON, "optim": {**MUON["optim"], "fused": fused}}
    train(build_trainer(config_of(place, f"muon-{fused}", **sections)))
    stopped = config_of(place, f"muon-stopped-{fused}", **sections)
    with pytest.raises(KeyboardInterrupt), signalled(5):
        train(build_trainer(stopped))
    train(build_trainer(stopped))
    whole, resumed = ends(place / f"muon-{fused}"), ends(place / f"muon-stopped-{fused}")
    assert whole.keys() == resumed.keys()
    assert [name for name in whole if not torch.equal(whole[name], resumed[name])] == []
    assert "drafter.fc.weight/momentum_buffer" in whole
    assert "heads.ranker.vocab.weight/exp_avg" in whole


def test_what_it_cannot_update_is_refused(place: Path) -> None:
    with pytest.raises(ConfigError, match="muon updates fp32 weights"):
        config_of(place, "muon-bf16", **MUON, memory={"weights": "bf16"}, run={"mixed_precision": "auto"})
    config = config_of(place, "muon-zero", **MUON)
    with pytest.raises(UsageError, match="Muon needs matrices") as error:
        make_strategy("deepspeed", nn.Linear(2, 2), config, Group(0, 2), torch.device("cpu"))
    assert "FSDP2" in str(error.value)


def test_its_state_is_half_of_adamws(place: Path) -> None:
    adamw, muon = (
        plan(config_of(place, "run", optim={"name": name}))["trained_state_bytes"]
        for name in ("adamw", "muon")
    )
    assert muon["weights"] == adamw["weights"]
    assert 0.5 <= muon["moments"] / adamw["moments"] < 0.51, "all but the norms"
    assert muon["total"] == sum(size for name, size in muon.items() if name != "total")
