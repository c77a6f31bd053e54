"""EAGLE-1/2 and Medusa against their definitions, and the sizes of every kind."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from tests.decode.drafting import KINDS, OWN_HEADS, make_drafter
from tests.train.ttt_reference import capture, documents, pack, rms, rotate
from vocabforge.core.errors import ConfigError, DataError, MismatchError, UsageError
from vocabforge.models.drafters.dflash import spread_layers
from vocabforge.models.drafters.interface import is_autoregressive
from vocabforge.models.drafters.io import native_sizes, save_drafter
from vocabforge.models.drafters.parallel import is_parallel
from vocabforge.models.drafters.registry import check_wishes, drafter_sizes, new_drafter
from vocabforge.models.drafters.revocab import prune_head, revocab_head
from vocabforge.models.heads.registry import base_of
from vocabforge.models.target.hf import HFTarget
from vocabforge.models.target.load import read_target_config
from vocabforge.train.ttt import unroll
from vocabforge.vocab.subset.subset import VocabSubset


@torch.no_grad()
def test_eagle1_is_its_definition(folder: Path, target: HFTarget) -> None:
    """Row by row: fc([e(x_{t+1}) ; f_t]), a layer without input norm, then the target's head."""
    drafter = make_drafter("eagle1", folder, target, fc_bias=True)
    (document,) = documents(4, [9])
    batch = capture(target, pack([[document]], 9))
    layer, c, ids, steps = drafter.layers[0], drafter.config, document.ids, 3
    attention, mlp, norm = layer.self_attn, layer.mlp, layer.post_attention_layernorm

    def project(token: int, g: torch.Tensor, position: int) -> tuple[torch.Tensor, ...]:
        x = drafter.fc.weight @ torch.cat([target.embedding[token], g]) + drafter.fc.bias
        q = rotate((attention.q_proj.weight @ x).view(c.num_heads, c.head_dim), position)
        k = rotate((attention.k_proj.weight @ x).view(c.num_kv_heads, c.head_dim), position)
        return x, q, k, (attention.v_proj.weight @ x).view(c.num_kv_heads, c.head_dim)

    start = batch.hidden[0]
    step0 = [project(ids[t + 1], start[t], t) for t in range(8)]
    found = [drafter.logits(step.g)[0] for step in unroll(drafter, batch, steps)]
    for t in range(8):
        g, keys, values = start[t], [row[2] for row in step0[: t + 1]], [row[3] for row in step0[: t + 1]]
        for k in range(min(steps, 8 - t)):
            x, q, key, value = project(ids[t + 1 + k], g, t + k)
            if k > 0:
                keys, values = [*keys, key], [*values, value]
            heads = []
            for head in range(c.num_heads):
                group = head // (c.num_heads // c.num_kv_heads)
                scores = torch.stack([q[head] @ one[group] for one in keys]) / c.head_dim**0.5
                weights = scores.softmax(0)
                heads.append(sum(w * one[group] for w, one in zip(weights, values)))
            x = x + attention.o_proj.weight @ torch.cat(heads)
            y = rms(x, norm.weight, c.rms_norm_eps)
            g = x + mlp.down_proj.weight @ (F.silu(mlp.gate_proj.weight @ y) * (mlp.up_proj.weight @ y))
            torch.testing.assert_close(found[k][t], target.head_weight @ g, rtol=1e-4, atol=1e-3)


@torch.no_grad()
def test_medusa_is_its_definition(folder: Path, target: HFTarget) -> None:
    """h + SiLU(W h + b) of the target's last hidden state, whatever token follows."""
    drafter = make_drafter("medusa", folder, target, medusa_heads=3)
    batch = capture(target, pack([documents(4, [9])], 9))
    for step, block in zip(unroll(drafter, batch, 3), drafter.blocks, strict=True):
        inner = batch.hidden @ block.linear.weight.T + block.linear.bias
        expected = batch.hidden + inner * inner.sigmoid()
        torch.testing.assert_close(step.g, expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(drafter.logits(step.g), expected @ target.head_weight.T)


@pytest.mark.parametrize("count", [0, 6])
def test_medusa_has_one_to_five_heads(folder: Path, count: int) -> None:
    with pytest.raises(ConfigError, match=f"{count} Medusa heads"):
        drafter_sizes("medusa", read_target_config(folder), medusa_heads=count)


def test_eagle1_starts_with_both_inputs_equally_strong(folder: Path, target: HFTarget) -> None:
    sizes = drafter_sizes("eagle1", read_target_config(folder), fc_bias=True)
    drafter = new_drafter("eagle1", sizes, target.embedding, target.head_weight)
    hidden = torch.randn(50, 32) * 7
    drafter.init_from_target(hidden, hidden)
    embedded = target.embedding @ drafter.fc.weight[:, :32].T
    read = hidden @ drafter.fc.weight[:, 32:].T
    assert float((embedded.std() / read.std()).detach()) == pytest.approx(1.0, rel=0.25)
    assert not drafter.fc.bias.any()


@pytest.mark.parametrize("kind", KINDS)
def test_medusa_and_block_drafters_are_not_autoregressive(kind: str, folder: Path, target: HFTarget) -> None:
    drafter = make_drafter(kind, folder, target)
    expected = kind != "medusa" and not is_parallel(drafter)
    assert is_autoregressive(drafter) == base_of(drafter).autoregressive == expected


@pytest.mark.parametrize("kind", KINDS)
def test_sizes_are_the_targets_where_nothing_is_wished(kind: str, folder: Path) -> None:
    config = read_target_config(folder)
    sizes = drafter_sizes(kind, config, num_heads=None)
    assert (sizes.hidden_size, sizes.vocab_size, sizes.draft_vocab_size) == (32, 61, None)
    assert sizes.max_position_embeddings == 256
    assert drafter_sizes(kind, config, draft_vocab_size=9).draft_vocab_size == 9
    assert drafter_sizes(kind, {"text_config": config, "model_type": "llava"}) == sizes
    with pytest.raises(ConfigError, match="draft_vocab_size 62"):
        drafter_sizes(kind, config, draft_vocab_size=62)
    with pytest.raises(MismatchError, match="lacks a size"):
        drafter_sizes(kind, {"model_type": "vit"})
    with pytest.raises(DataError, match="does not have this model type"):
        drafter_sizes(kind, {**config, "model_type": "unheard"})
    with pytest.raises(DataError, match="cannot read"):
        drafter_sizes(kind, {**config, "hidden_size": "wide"})


def test_wishes_override_the_targets_sizes(folder: Path) -> None:
    config = read_target_config(folder)
    sizes = drafter_sizes("eagle1", config, intermediate_size=20, num_heads=2, num_kv_heads=1)
    assert (sizes.intermediate_size, sizes.num_heads, sizes.num_kv_heads, sizes.head_dim) == (20, 2, 1, 8)
    with pytest.raises(UsageError, match="no kind of drafter"):
        drafter_sizes("eagle9", config)


@pytest.mark.parametrize(
    ("kind", "wish"),
    [
        ("eagle1", {"aux_layers": (1,)}),
        ("medusa", {"aux_layers": (1,), "num_heads": 2}),
        ("eagle3", {"medusa_heads": 2}),
        ("eagle3", {"fc_bias": False}),
        ("medusa", {"fc_bias": True}),
        ("medusa", {"num_layers": 2, "fc_norm": True}),
        ("eagle1", {"norm_output": False}),
        ("eagle3", {"medusa_layers": 2, "medusa_own_heads": True}),
    ],
)
def test_wishes_that_a_kind_does_not_have_are_refused(kind, wish, folder):
    with pytest.raises(ConfigError, match="does not have these sizes") as error:
        drafter_sizes(kind, read_target_config(folder), **wish)
    overrides = " ".join(f"drafter.{name}=null" for name in wish)
    assert str(error.value).endswith(f"recipe that has them: {overrides}")


@pytest.mark.parametrize("kind", KINDS)
def test_a_trained_drafter_keeps_its_sizes(kind: str, folder: Path, target: HFTarget, tmp_path: Path) -> None:
    drafter = make_drafter(kind, folder, target, "reduced")
    save_drafter(tmp_path / "d", drafter, {})
    sizes = native_sizes(tmp_path / "d")
    assert (sizes.kind, sizes) == (kind, drafter.config)
    check_wishes(sizes, {"draft_vocab_size": 21, "num_heads": None}, source="here")
    with pytest.raises(MismatchError, match=r"different drafter\.draft_vocab_size"):
        check_wishes(sizes, {"draft_vocab_size": 22}, source="here")


@torch.no_grad()
def test_each_medusa_head_reads_its_blocks_and_its_own_rows(folder: Path, target: HFTarget) -> None:
    """The original's form, written down; and everything that needs one LM head is refused by name."""
    drafter = make_drafter(OWN_HEADS, folder, target, "reduced", medusa_heads=3)
    h = torch.randn(5, 32)
    w = drafter.state_dict()
    for head, g in enumerate(drafter.heads(h, 3)):
        x = h
        for block in range(2):
            name = f"blocks.{head}.{block}.linear"
            x = x + torch.nn.functional.silu(x @ w[f"{name}.weight"].T + w[f"{name}.bias"])
        torch.testing.assert_close(g, x)
        torch.testing.assert_close(drafter.logits(g, head), x @ w[f"lm_heads.{head}.weight"].T)
    subset = VocabSubset(
        drafter.target_ids[:4].numpy(), drafter.target_ids[:4].numpy(), target.vocab_size, ""
    )
    for refused in (
        lambda: base_of(drafter),
        lambda: prune_head(drafter, subset, source="test"),
        lambda: revocab_head(drafter, drafter.target_ids[:4]),
    ):
        with pytest.raises(ConfigError, match="an LM head for each of its heads"):
            refused()


@pytest.mark.parametrize("count", range(1, 9))
def test_a_block_drafter_reads_each_layer_once(count: int) -> None:
    """Also of targets that have hardly more layers than it reads."""
    for layers in range(1, 40):
        found = spread_layers(layers, count)
        assert list(found) == sorted(set(found))
        assert len(found) == min(count, layers)
        assert set(found) <= set(range(layers))
    assert spread_layers(36, 5) == (1, 9, 17, 25, 33)
