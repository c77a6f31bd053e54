"""Ceilings of acceptance against brute force, and over real distributions of small targets."""

from __future__ import annotations

import itertools

import pytest
import torch

from tests.worlds import byte_tokenizer, tiny_target
from vocabforge.core.errors import DataError
from vocabforge.corpus.tokenizer.tokenizer import load_tokenizer
from vocabforge.evaluate.acceptance import ceilings as module
from vocabforge.evaluate.acceptance.ceilings import ceilings_of, masses, measure_masses, sample_windows
from vocabforge.models.lean.model import load_target

V = 6


@pytest.fixture
def p():
    torch.manual_seed(0)
    return torch.softmax(2 * torch.randn(5, V, dtype=torch.float64), -1)


def test_lemma_2_is_the_best_of_all_subsets(p):
    for k in range(1, V + 1):
        best = [
            max(sum(float(row[v]) for v in some) for some in itertools.combinations(range(V), k)) for row in p
        ]
        for row, most in zip(p, best):
            assert float(masses(row[None])[1][:k].sum()) == pytest.approx(most)
        assert float(masses(p)[1][:k].sum()) == pytest.approx(sum(best))


def test_lemma_1_bounds_every_drafter_and_is_reached(p):
    ranked = torch.tensor([4, 1, 0])
    static = torch.stack([masses(row[None])[0][ranked].cumsum(0)[[0, 2]] for row in p])
    inside = torch.zeros(V, dtype=torch.bool)
    inside[ranked] = True
    assert static[:, 1].tolist() == pytest.approx(p[:, ranked].sum(-1).tolist())
    assert static[:, 0].tolist() == pytest.approx(p[:, 4].tolist())
    for seed in range(20):
        noise = torch.rand(5, V, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * inside
        q = noise / noise.sum(-1, keepdim=True)
        assert (torch.minimum(p, q).sum(-1) <= static[:, 1] + 1e-12).all()  # Leviathan et al. 2023
    restricted = p * inside / (p * inside).sum(-1, keepdim=True)
    assert torch.minimum(p, restricted).sum(-1).tolist() == pytest.approx(static[:, 1].tolist())


def test_the_argmax_is_inside(p):
    ranked = torch.tensor([4, 1, 0])
    found = masses(p)[2][ranked].cumsum(0)
    assert found.tolist() == [sum(int(row.argmax()) in ranked[:k].tolist() for row in p) for k in (1, 2, 3)]


def mistral(folder, window):
    from transformers import MistralConfig, MistralForCausalLM

    torch.manual_seed(1)
    sizes = {"vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    limits = {"max_position_embeddings": 64, "sliding_window": window, "initializer_range": 0.4}
    MistralForCausalLM(MistralConfig(**sizes, **heads, **limits)).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("window", [None, 4])
def test_a_target_against_transformers(tmp_path, monkeypatch, window):
    from transformers import AutoModelForCausalLM

    folder = tiny_target(tmp_path / "m") if window is None else mistral(tmp_path / "m", window)
    windows = [[1, 5, 9, 2, 30, 7, 8], [4, 60, 3], [11, 12, 13, 14, 15, 16]]
    ranked = torch.arange(60, -1, -1)
    monkeypatch.setattr(module, "ROW_BUDGET", 61 * 4)  # slices of four rows
    monkeypatch.setattr(module, "_BATCH_TOKENS", 14)  # two windows at a time
    seen: list[int] = []
    totals, positions = measure_masses(load_target(folder), windows, on_tokens=seen.append)
    found = ceilings_of(totals, positions, ranked, [1, 8, 61, 99])

    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        rows = torch.cat([reference(torch.tensor([ids])).logits[0] for ids in windows]).double().softmax(-1)
    assert (positions, sum(seen), len(rows)) == (16, 16, 16)
    assert [values[3] for values in found.values()] == [None] * 3
    for at, k in enumerate((1, 8, 61)):
        assert found["static"][at] == pytest.approx(float(rows[:, ranked[:k]].sum(-1).mean()), abs=1e-4)
        assert found["oracle"][at] == pytest.approx(
            float(rows.sort(-1, descending=True)[0][:, :k].sum(-1).mean()), abs=1e-4
        )
        inside = torch.isin(rows.argmax(-1), ranked[:k]).double().mean()
        assert found["greedy"][at] == pytest.approx(float(inside))


def test_sampled_windows(tmp_path):
    tokenizer = load_tokenizer(byte_tokenizer(tmp_path / "t"))
    (tmp_path / "a.txt").write_text("".join(chr(97 + n % 26) for n in range(1000)))
    windows = sample_windows(tokenizer, [tmp_path / "a.txt"], tokens=100, context=20, seed=3)
    assert len(windows) == 5
    assert all(len(window) == 20 for window in windows)
    assert windows == sample_windows(tokenizer, [tmp_path / "a.txt"], tokens=100, context=20, seed=3)
    assert windows != sample_windows(tokenizer, [tmp_path / "a.txt"], tokens=100, context=20, seed=4)
    (tmp_path / "short.txt").write_text("abc")
    assert sample_windows(tokenizer, [tmp_path / "short.txt"], tokens=100, context=20) == [
        tokenizer.encode("abc")
    ]
    (tmp_path / "none.txt").write_text("\n")
    with pytest.raises(DataError, match="no tokens"):
        sample_windows(tokenizer, [tmp_path / "none.txt"], tokens=100, context=20)
