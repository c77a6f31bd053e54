"""Muon: which parameters it trains, its update, what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from tests.decode.drafting import CASES, make_drafter
from tests.train.run_support import config
from vocabforge.core.distributed import Group
from vocabforge.core.errors import ConfigError, UsageError
from vocabforge.models.target.hf import HFTarget
from vocabforge.train.checkpoint import trained
from vocabforge.train.config import OptimConfig
from vocabforge.train.optim import make_optimizer, set_learning_rate
from vocabforge.train.parallel.strategy import make_strategy
from vocabforge.train.plan import plan

MUON = {"optim": {"name": "muon", "weight_decay": 0.1}}
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
    optimizer = make_optimizer(named, OptimConfig(steps=1, lr=0.5, weight_decay=0.1, name="muon"))
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
    muon = OptimConfig(steps=1, name="muon")
    assert set(moved_by(make_optimizer({"lm_head.weight": table}, muon), {"t": table})) == {
        "step+exp_avg+exp_avg_sq"
    }
    assert set(moved_by(make_optimizer({"fc.weight": matrix}, muon), {"m": matrix})) == {"momentum_buffer"}


def test_what_it_cannot_update_is_refused(place: Path) -> None:
    with pytest.raises(ConfigError, match="muon updates fp32 weights"):
        config(place, "muon-bf16", **MUON, memory={"weights": "bf16"}, run={"mixed_precision": "auto"})
    with pytest.raises(UsageError, match="Muon needs matrices") as error:
        make_strategy(
            "deepspeed", nn.Linear(2, 2), config(place, "muon-zero", **MUON), Group(0, 2), torch.device("cpu")
        )
    assert "FSDP2" in str(error.value)


def test_its_state_is_half_of_adamws(place: Path) -> None:
    adamw, muon = (
        plan(config(place, "run", optim={"name": name}))["trained_state_bytes"] for name in ("adamw", "muon")
    )
    assert muon["weights"] == adamw["weights"]
    assert 0.5 <= muon["moments"] / adamw["moments"] < 0.51, "all but the norms"
    assert muon["total"] == sum(size for name, size in muon.items() if name != "total")
