"""A target's loss on candidate tokens: equal to the exact one over all tokens, and nothing V wide in a step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from vocabforge.corpus.prepared.dataset import TrainingSequence, pack
from vocabforge.demo.target import train as tiny_target_train
from vocabforge.demo.target.train import (
    TextRows,
    WorkFolder,
    batch_loss,
    counted_states,
    heldout_loss,
    spread_rows,
    train_model,
)
from vocabforge.study import target_loss
from vocabforge.study.candidates import CandidateSampler
from vocabforge.study.target_loss import (
    SampledStep,
    StudyTinyTargetConfig,
    candidate_loss,
    make_target_step,
    passes_in_bf16,
)
from vocabforge.train.config import OptimConfig
from vocabforge.train.data import corpus_counts
from vocabforge.train.optim import make_optimizer

V, H, T = 709, 16, 24


def model_of(seed: int = 0) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    settings = LlamaConfig(
        vocab_size=V,
        hidden_size=H,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        initializer_range=0.3,
        tie_word_embeddings=True,
        attn_implementation="sdpa",
    )
    return LlamaForCausalLM(settings)


def rows_of(number: int = 12, seed: int = 0) -> TextRows:
    """Rows of two or three documents each; the tokens are those below 40."""
    random = np.random.default_rng(seed)
    lengths = random.integers(5, 12, size=2 * number)
    sequences = [
        TrainingSequence(random.integers(0, 40, n).tolist(), [0, 0] + [1] * (n - 2)) for n in lengths
    ]
    return TextRows(pack(sequences, T, pad_id=0), "assistant")


def counts_of(rows: TextRows) -> Any:
    return corpus_counts(rows.packed, V)


def sampler_of(rows: TextRows, size: int) -> CandidateSampler:
    return CandidateSampler(counts_of(rows), size, V, 0)


@pytest.mark.parametrize("chunk", [1 << 20, 4 * V * 3])
def test_over_all_tokens_it_is_the_exact_loss(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setitem(target_loss._CHUNK_BYTES, "cpu", chunk)
    model, rows = model_of(), rows_of()
    batch = rows.batch(torch.arange(4))
    exact, count = batch_loss(model, batch)
    exact.backward()
    table = model.get_input_embeddings().weight
    wanted = {name: p.grad.clone() for name, p in model.named_parameters()}
    assert count > 20
    model.zero_grad(set_to_none=True)

    candidates = sampler_of(rows, V).draw(0, batch.input_ids)
    assert len(candidates.ids) == V
    assert not candidates.offset.any()
    gathered = table.detach()[candidates.ids].requires_grad_()
    loss = candidate_loss(model, batch, gathered, candidates, bf16=False)
    loss.backward()
    assert loss.item() == pytest.approx(exact.item(), rel=1e-6)
    assert table.grad is None
    torch.testing.assert_close(gathered.grad, wanted.pop("model.embed_tokens.weight"), rtol=1e-4, atol=1e-6)
    for name, gradient in wanted.items():
        torch.testing.assert_close(model.get_parameter(name).grad, gradient, rtol=1e-4, atol=1e-6)


def test_offsets_correct_the_chance_of_each_candidate() -> None:
    """Over some tokens: the formula of ``study.candidates``, written out, and its gradient by torch."""
    model, rows = model_of(), rows_of()
    batch = rows.batch(torch.arange(4))
    candidates = sampler_of(rows, 90).draw(3, batch.input_ids)
    assert 0 < float((candidates.offset > 0).float().mean()) < 1
    table = model.get_input_embeddings().weight
    gathered = table.detach()[candidates.ids].requires_grad_()
    loss = candidate_loss(model, batch, gathered, candidates, bf16=False)
    (found,) = torch.autograd.grad(loss, gathered)

    own = table.detach()[candidates.ids].requires_grad_()
    places = torch.searchsorted(candidates.ids, batch.input_ids)
    hidden = counted_states(model, batch, own[places])
    logits = hidden @ own.T + candidates.offset
    plain = F.cross_entropy(logits, places[:, 1:][batch.keep])
    (expected,) = torch.autograd.grad(plain, own)
    assert loss.item() == pytest.approx(plain.item(), rel=1e-6)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_a_batch_that_counts_nothing_changes_nothing() -> None:
    model = model_of()
    rows = TextRows(pack([TrainingSequence([1, 2, 3], [0, 0, 0])], T, pad_id=0), "assistant")
    batch = rows.batch(torch.arange(1))
    candidates = sampler_of(rows, 20).draw(0, batch.input_ids)
    gathered = model.get_input_embeddings().weight.detach()[candidates.ids].requires_grad_()
    loss = candidate_loss(model, batch, gathered, candidates, bf16=False)
    loss.backward()
    assert loss.item() == 0.0
    assert not gathered.grad.any()


def test_a_step_is_adamw_on_the_gathered_gradient() -> None:
    """The whole table moves as if its dense gradient had been made, and the kept gradient is clean again."""
    rows, optim = rows_of(), OptimConfig(steps=3, lr=1e-2, clip=0.05, weight_decay=0.1)
    ours, theirs = model_of(), model_of()
    optimizer = make_optimizer(ours.parameters(), optim.model_copy(update={"fused": True}))
    step = SampledStep(ours, optimizer, sampler_of(rows, 60), counts_of(rows), optim.clip, bf16=False)
    plain = make_optimizer(theirs.parameters(), optim)
    never = torch.from_numpy(counts_of(rows) == 0)
    for number in range(3):
        batch = rows.batch(torch.arange(4) + 2 * number)
        _, norm = step(number, batch)
        candidates = sampler_of(rows, 60).draw(number, batch.input_ids)
        table = theirs.get_input_embeddings().weight
        hidden = counted_states(theirs, batch)
        logits = hidden @ table[candidates.ids].T + candidates.offset
        F.cross_entropy(logits, torch.searchsorted(candidates.ids, batch.labels)).backward()
        expected = torch.nn.utils.clip_grad_norm_(theirs.parameters(), optim.clip)
        assert table.grad is not None
        table.grad[never] = table.grad[never].mean(0)  # ids that never occur share their mean
        plain.step()
        plain.zero_grad()
        assert float(norm) == pytest.approx(float(expected), rel=1e-5)
        assert float(norm) > optim.clip
    assert not step._gradient[~never].any()  # the others' is written anew in every step
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter, theirs.get_parameter(name), rtol=2e-3, atol=2e-5)


def test_held_out_loss_is_over_all_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny_target_train, "_EXACT_BYTES", 4 * V * 5)  # five positions at once
    model, rows = model_of(), rows_of(30)
    chosen = spread_rows(len(rows), 7)
    total, count = heldout_loss(model, rows, chosen, batch_size=3)
    loss, expected = batch_loss(model, rows.batch(chosen))
    assert count == expected
    assert total / count == pytest.approx(loss.item(), rel=1e-5)


def config_of(**changes: Any) -> StudyTinyTargetConfig:
    optim = OptimConfig(steps=60, batch_size=4, lr=1e-2, clip=1.0, fused=True)
    return StudyTinyTargetConfig.model_validate(
        {"train": "a", "heldout": "b", "sequence_length": T, "optim": optim, **changes}
    )


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_the_estimate_teaches_what_the_exact_loss_teaches(tmp_path: Any, precision: str) -> None:
    rows = rows_of(8)
    losses = {}
    for size in (None, 80):
        model = model_of()
        config = config_of(candidates=size, mixed_precision=precision)
        train_model(model.train(), rows, config, WorkFolder(tmp_path / f"{size}.jsonl"), {}, make_target_step)
        total, count = heldout_loss(model.eval(), rows, spread_rows(len(rows), None))
        losses[size] = total / count
    before, number = heldout_loss(model_of().eval(), rows, spread_rows(len(rows), None))
    assert losses[None] < 0.6 * before / number
    assert losses[80] == pytest.approx(losses[None], abs=0.15 * before / number)


def test_tokens_that_never_occur_are_unlearnt(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """They share one gradient; alone they would be drawn a few times in a run, and keep their mass."""
    rows = rows_of(8)
    batch = rows.batch(spread_rows(len(rows), None))
    unseen = {}
    for shared in (True, False):
        if not shared:
            monkeypatch.setattr(target_loss.np, "asarray", np.ones_like)
        model = model_of()
        began = model.lm_head.weight[40:].detach().clone()
        train_model(
            model.train(),
            rows,
            config_of(candidates=48),
            WorkFolder(tmp_path / str(shared)),
            {},
            make_target_step,
        )
        with torch.no_grad():
            shares = model(input_ids=batch.input_ids).logits.softmax(-1)
        unseen[shared] = float(shares[..., 40:].sum(-1).mean())
        if shared:  # all of them moved alike
            moved = model.lm_head.weight[40:].detach() - began
            assert torch.allclose(moved, moved[:1].expand_as(moved), atol=1e-4)
    assert unseen[True] < 0.5 * unseen[False]


def test_passes_are_what_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    assert passes_in_bf16("bf16", cpu)
    assert not passes_in_bf16("no", cpu)
    for has in (True, False):
        monkeypatch.setattr(
            target_loss.torch.cpu, "get_capabilities", lambda has=has: {"amx_bf16": has}, raising=False
        )
        assert passes_in_bf16("auto", cpu) is has
