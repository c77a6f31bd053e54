"""The arithmetic of ``--plan``: operations and bytes, held against the recipes' heads and against hand counts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.support import ROOT
from vocabforge.models.drafters import drafter_sizes, new_drafter
from vocabforge.train.plan_cost import (
    Work,
    count_target,
    flop_a_token,
    loss_workspace,
    share_of_state,
    trained_state,
)

# hidden, layers' sizes and vocabulary of published configurations; P is what their heads say: all minus both ends.
SHAPES = {
    "llama3-8b-instruct": (4096, 14336, 32, 8, 128256, 8.03e9 - 2 * 128256 * 4096),
    "qwen3-0.6b": (1024, 3072, 16, 8, 151936, 0.596e9 - 151936 * 1024),
    "qwen3-8b": (4096, 12288, 32, 8, 151936, 8.19e9 - 2 * 151936 * 4096),
}


def shown(recipe: str, what: str) -> float:
    """A figure of a recipe's head, in GFLOP."""
    head = (ROOT / "recipes" / "models" / f"{recipe}.yaml").read_text("utf-8")
    found = re.search(rf"{re.escape(what)} = ([\d.]+)", " ".join(head.replace("#", " ").split()))
    assert found is not None, what
    return float(found[1])


@pytest.mark.parametrize("recipe", SHAPES)
def test_a_token_costs_what_the_recipe_says(recipe: str) -> None:
    hidden, wide, heads, kv, vocab, below = SHAPES[recipe]
    target = {
        "hidden_size": hidden,
        "intermediate_size": wide,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "vocab_size": vocab,
        "head_dim": 128,
        "num_hidden_layers": 36,
        "max_position_embeddings": 4096,
    }
    meta = torch.empty(vocab, hidden, device="meta")
    with torch.device("meta"):
        drafter = new_drafter("eagle3", drafter_sizes("eagle3", target), meta, meta, None)
    size = sum(p.numel() for p in drafter.parameters())  # type: ignore[attr-defined]
    work = Work(7, 7, hidden, vocab, vocab, own_head=False, freeze=False)
    ranker = {"ranker": hidden // 8 * (vocab + hidden)} if recipe == "qwen3-8b" else {}
    found = flop_a_token(int(below), size, ranker, work)
    assert found["target"] / 1e9 == pytest.approx(shown(recipe, "target 2P"), abs=0.06)
    assert found["drafter"] / 1e9 == pytest.approx(shown(recipe, "drafter 6PK"), abs=0.06)
    assert found["vocabulary"] / 1e9 == pytest.approx(shown(recipe, "vocabulary Vd(4K + 2)"), abs=0.06)
    if ranker:
        assert found["ranker"] / 1e9 == pytest.approx(shown(recipe, "ranker 6PK"), abs=0.06)
    assert found["total"] == sum(size for name, size in found.items() if name != "total")


def test_own_heads_and_frozen_drafters() -> None:
    own = Work(3, 3, 8, 100, 40, own_head=True, freeze=False)
    assert flop_a_token(None, 50, {}, own) == {
        "drafter": 6 * 50 * 3,
        "vocabulary": 8 * (6 * 40 * 3 + 2 * 100),
        "total": 900 + 7360,
    }
    frozen = Work(3, 3, 8, 100, 100, own_head=False, freeze=True)
    assert flop_a_token(10, 50, {"a": 2 * 108}, frozen) == {
        "target": 20,
        "drafter": 2 * 50 * 3,
        "vocabulary": 8 * (2 * 100 * 3 + 2 * 100),
        "a": 6 * 216 * 3,
        "total": 20 + 300 + 6400 + 3888,
    }


def test_a_state_is_divided_as_the_strategy_divides_it() -> None:
    state = trained_state(100, "bf16")  # weights 200, gradients 200, moments 800, masters 400
    assert [share_of_state(state, 4, stage) for stage in (0, 1, 2, 3)] == [1600, 700, 550, 400]
    assert share_of_state(state, 1, 3) == 1600


def test_the_loss_works_in_its_chunk_or_in_less() -> None:
    assert loss_workspace("auto", 1, 10, 100) == 4 * 4 * 10 * 100
    assert loss_workspace("auto", 1, 10_000, 1000) == loss_workspace("fused", 1, 10, 100) == 1 << 20
    assert loss_workspace("naive", 1, 10_000, 1000) == 16 * 10**7


def test_a_target_is_counted_by_its_headers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert count_target(tmp_path) is None
    assert "a run would stop here" in capsys.readouterr().err
    tensors = {
        "model.embed_tokens.weight": torch.zeros(10, 4),
        "lm_head.weight": torch.zeros(10, 4),
        "model.layers.0.w": torch.zeros(4, 4),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    found = count_target(tmp_path)
    assert found is not None
    assert (found.total, found.ends, found.layers) == (96, 80, 16)
    save_file({**tensors, "packed": torch.zeros(4, dtype=torch.uint8)}, tmp_path / "model.safetensors")
    assert count_target(tmp_path) is None
