"""The training benchmark in small, against speculators where it is installed."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
import training
from command import present
from tensor_memory import TensorMemory
from torch import nn
from training import SHAPES, TrainingShape, bench_training, shown

from vocabforge.core.errors import ConfigError, UsageError
from vocabforge.models.drafters.registry import drafter_sizes, new_drafter
from vocabforge.train.capture.online import CapturedBatch, RowBatch
from vocabforge.train.config import TTTConfig
from vocabforge.train.step import TrainStep
from vocabforge.train.ttt import rows_by_step

SMALL = ["shapes=[least]"]


@pytest.fixture(autouse=True)
def _least(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SHAPES, "least", TrainingShape(32, 8, 4, 2, 300, 50, length=40, steps=2))


@pytest.mark.parametrize("installed", [False, True])
def test_rivals_take_turns(
    monkeypatch: pytest.MonkeyPatch, installed: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if installed and not training.installed():
        pytest.skip("PYTHONPATH lacks .venv/speculators (make test-speculators)")
    monkeypatch.setattr(training, "installed", lambda: installed)
    output = tmp_path / "bench.json"
    present(lambda: bench_training(SMALL, repeats=2), shown, output)
    (shape,) = json.loads(output.read_text())["shapes"]
    assert (shape["vocab"], shape["draft_vocab"], shape["hidden"]) == (300, 50, 32)
    libraries = ("vocabforge", "speculators") if installed else ("vocabforge",)
    assert [row["variant"] for row in shape["rows"]] == [
        f"{library}, LM head {head}" for head in ("trained", "frozen") for library in libraries
    ]
    for row in shape["rows"]:
        assert len(row["all_seconds"]) == 2
        assert row["tokens_per_s"] == pytest.approx(40 / row["seconds"])
        assert row["extra_mb"] > 0
    own = [row for row in shape["rows"] if row["variant"].startswith("vocabforge")]
    assert own[0]["extra_mb"] > own[1]["extra_mb"], "the gradient of the LM head"
    text = capsys.readouterr().out
    assert "extra MB" in text
    assert ("not installed" in text) is (not installed)


@pytest.mark.skipif(
    not training.installed(), reason="PYTHONPATH lacks .venv/speculators (make test-speculators)"
)
def test_the_rival_computes_what_we_compute() -> None:
    """With the same weights its loss, a Kullback-Leibler divergence, is our cross-entropy less the target's entropy."""
    config = dataclasses.replace(SHAPES["rival-16k"], vocab=300, hidden=32).config()
    torch.manual_seed(0)
    ids = torch.randperm(300)[:50].sort().values
    embedding, head = torch.randn(300, 32), torch.randn(300, 32) * 0.01
    head[ids] *= 30  # every argmax is a draft token, so that every row counts
    drafter = new_drafter(
        "eagle3", drafter_sizes("eagle3", config, draft_vocab_size=50), embedding, head, ids
    )
    model = training.speculators_model(drafter, head)
    own = {name.removeprefix("midlayer."): value for name, value in drafter.state_dict().items()}
    own["lm_head.weight"].copy_(head[ids])
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            parameter.data.copy_(own[name.removeprefix("layers.0.")])
    states = torch.nn.functional.rms_norm(torch.randn(1, 40, 32), (32,))
    ones = torch.ones(1, 40, dtype=torch.int64)
    rows = RowBatch(torch.randint(0, 300, (1, 40)), ones.bool(), ones, torch.arange(40)[None])
    batch = CapturedBatch(**vars(rows), features=torch.randn(1, 40, 96), hidden=states)

    step = TrainStep(drafter, nn.ModuleDict(), head, TTTConfig(decay=0.5))
    ours, figures, _ = step(batch, 3, rows_by_step(rows.loss_mask, rows.document, 3))
    assert not any(one.outside for one in figures)
    p = (states[0] @ head[ids].T).log_softmax(-1)
    entropy = -(p.exp() * p).sum(-1)  # (T,)
    expected = ours - sum(0.5**k * entropy[k + 1 : -1].mean() for k in range(3))
    torch.testing.assert_close(
        training.speculators_loss(model, batch, 3, 0.5)(), expected, rtol=1e-4, atol=1e-5
    )


def test_mistakes_are_named() -> None:
    with pytest.raises(UsageError, match="no shape of this name"):
        bench_training(["shapes=[giant]"])
    with pytest.raises(ConfigError, match="unknown key 'lenght'"):
        bench_training(["lenght=3"])
    with pytest.raises(SystemExit, match="unknown key"):
        present(lambda: bench_training(["lenght=3"]), shown, None)


def test_tensor_memory_counts_what_lives() -> None:
    with TensorMemory() as memory:
        a = torch.zeros(1000)
        b = a + 1
        view = b[:10]
        del a
        c = torch.zeros(500)
    assert (memory.live, memory.peak, memory.largest) == (6000, 8000, 4000)
    del b
    assert memory.live == 6000, "a view keeps its storage"
    del view, c
    assert memory.live == 0
    assert memory.operations("aten.add") == 1
