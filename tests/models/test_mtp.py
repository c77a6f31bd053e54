"""MTP modules: found in a target's checkpoint under its family's names, and computed as Transformers computes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.models.mtp_targets import (
    EXPERTS,
    FAMILY_KEYS,
    make_target,
    module_prefix,
    module_tensors,
    text_keys,
    write_shards,
)
from vocabforge.core.errors import DataError, MismatchError, VocabForgeError
from vocabforge.layouts.registry import load_drafter
from vocabforge.models.kv_cache import CacheView
from vocabforge.models.target.head import load_target_tensors
from vocabforge.models.ttt.attention import TTTState

# What the families' own servers do (vLLM 0.33), written here once more.
PRE_NORM = {"glm4_moe"}
ZERO_FIRST = {"deepseek_v3", "glm4_moe"}


def norm(x: Tensor, weight: Tensor, family: str) -> Tensor:
    scale = weight + 1 if family.startswith("qwen") else weight
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * scale


class Reference:
    """A module computed by a whole model of Transformers with its layer alone, over a sequence at once."""

    def __init__(self, family: str, target: Path, folder: Path, tensors: dict[str, Tensor]) -> None:
        from transformers import AutoModelForCausalLM

        self.family, self.prefix = family, module_prefix(family)
        self.parts = (
            ("eh_proj", "enorm", "hnorm", "shared_head.norm")
            if self.prefix != "mtp."
            else ("fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
        )
        self.shared = load_target_tensors(target)
        self.tensors = {name.removeprefix(self.prefix): one for name, one in tensors.items()}
        layer = {
            name.removeprefix("layers.0."): one
            for name, one in self.tensors.items()
            if not name.startswith((*self.parts, "embed_tokens", "shared_head"))
        }
        folder.mkdir()
        keys = text_keys(family) | {"num_hidden_layers": 1, "first_k_dense_replace": 0}
        if "layer_types" in keys:
            keys["layer_types"] = ["full_attention"]
        (folder / "config.json").write_text(json.dumps(keys), "utf-8")
        weights = {f"model.layers.0.{name}": one for name, one in layer.items()}
        weights["model.norm.weight"] = self.tensors[f"{self.parts[3]}.weight"]
        weights["model.embed_tokens.weight"] = self.shared.embedding
        weights["lm_head.weight"] = self.shared.head
        save_file({name: one.clone() for name, one in weights.items()}, folder / "model.safetensors")
        self.model, info = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, output_loading_info=True
        )
        assert not info["missing_keys"]
        assert not info["unexpected_keys"]
        self.model.eval()

    @torch.no_grad()
    def __call__(self, ids: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens (T,) and states (T, H) at positions 0 .. T - 1: logits (T, V), and what the next step is fed."""
        fc, enorm, hnorm, _ = (self.tensors[f"{name}.weight"] for name in self.parts)
        embedded = self.shared.embedding[ids].clone()
        if self.family in ZERO_FIRST:
            embedded[0] = 0
        joined = torch.cat([norm(embedded, enorm, self.family), norm(states, hnorm, self.family)], -1)
        kept: list[Tensor] = []
        stack = self.model.get_decoder()
        hook = stack.norm.register_forward_pre_hook(lambda _, given: kept.append(given[0]))
        out = self.model(inputs_embeds=(joined @ fc.T)[None], position_ids=torch.arange(len(ids))[None])
        hook.remove()
        after = kept[0] if self.family in PRE_NORM else stack.norm(kept[0])
        return out.logits[0], after[0]


CASES = [*((family, False) for family in FAMILY_KEYS), *((family, True) for family in EXPERTS)]


@pytest.mark.parametrize(("family", "fused"), CASES)
@torch.no_grad()
def test_it_computes_what_the_familys_own_layer_does(family: str, fused: bool, tmp_path: Path) -> None:
    """The first step over a sequence, then one row's further steps, with the state that the family feeds back."""
    target = make_target(tmp_path / "target", family, fused=fused)
    shared = load_target_tensors(target)
    reference = Reference(family, target, tmp_path / "reference", module_tensors(family, fused=fused))
    drafter, artifact = load_drafter(target, shared, target)
    assert artifact is None
    assert (drafter.kind, drafter.config.family, drafter.has_own_head) == ("mtp", family, False)
    torch.manual_seed(3)
    ids, states = torch.randint(0, 61, (12,)), torch.randn(12, 32)
    cut = 8
    g = drafter.ttt_step(
        ids[None, :cut], states[None, :cut], torch.arange(cut)[None], TTTState(torch.ones(1, cut))
    )
    logits, _ = reference(ids[:cut], states[:cut])
    torch.testing.assert_close(drafter.logits(g)[0], logits, rtol=1e-4, atol=1e-4)
    cache = drafter.new_cache(1, 16)
    for start, stop in ((0, cut), *((at, at + 1) for at in range(cut, 12))):
        slots = torch.arange(start, stop)
        cached = CacheView(cache, slots, torch.arange(stop)[None] <= slots[:, None])
        fed = states[start:stop]
        g, _ = drafter.extend(ids[None, start:stop], fed[None], slots[None], cached)
        logits, after = reference(ids[:stop], states[:stop])
        torch.testing.assert_close(drafter.logits(g)[0], logits[start:], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(g[0], after[start:], rtol=1e-4, atol=1e-4)
        if stop < 12:
            states[stop] = g[0, -1]


def edited(target: Path, change: Any) -> None:
    """Change the tensors of the second shard, which has the module."""
    file = sorted(target.glob("*.safetensors"))[1]
    tensors = load_file(file)
    change(tensors)
    write_shards(target, [load_file(sorted(target.glob("*.safetensors"))[0]), tensors])


def refused(target: Path) -> VocabForgeError:
    with pytest.raises((DataError, MismatchError)) as caught:
        load_drafter(target, load_target_tensors(target), target)
    return caught.value


@pytest.mark.parametrize("family", FAMILY_KEYS)
def test_tensors_that_are_not_the_modules_are_named(family: str, tmp_path: Path) -> None:
    target, prefix = make_target(tmp_path / "target", family), module_prefix(family)
    names = list(module_tensors(family))
    for gone in (names[0], names[-1], next(name for name in names if "o_proj" in name)):
        kept: dict[str, Tensor] = {}
        edited(target, lambda tensors, gone=gone, kept=kept: kept.update({gone: tensors.pop(gone)}))
        assert f"missing {gone}" in str(refused(target).got)
        edited(target, lambda tensors, kept=kept: tensors.update(kept))
    edited(target, lambda tensors: tensors.update({names[0]: torch.zeros(3)}))
    assert f"{names[0]} has shape (3,), expected (32,)" in str(refused(target).got)
    edited(
        target, lambda tensors: tensors.update({names[0]: torch.zeros(32), f"{prefix}more": torch.zeros(2)})
    )
    assert f"{prefix}more" in str(refused(target).got)
    edited(
        target,
        lambda tensors: [tensors.pop(f"{prefix}more"), tensors.update({names[0]: torch.zeros(32).byte()})],
    )
    error = refused(target)
    assert "quantised" in error.message
    assert f"{names[0]} (U8)" in str(error.got)
    edited(target, lambda tensors: [tensors.pop(name) for name in list(tensors) if name.startswith(prefix)])
    error = refused(target)
    assert "no MTP module" in error.message
    assert "save_pretrained" in str(error.expected)


def test_families_and_counts_that_are_not_computed_are_named(tmp_path: Path) -> None:
    target = make_target(tmp_path / "target", "qwen3_next", num_nextn_predict_layers=2)
    assert str(refused(target).got) == "model_type qwen3_next, 2 modules"
    config = json.loads((target / "config.json").read_text("utf-8"))
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text(
        json.dumps({**config, "model_type": "mimo", "num_nextn_predict_layers": 1})
    )
    with pytest.raises(MismatchError, match="not computed here") as caught:
        load_drafter(other, load_target_tensors(target), target)
    assert caught.value.got == "model_type mimo, 1 modules"
    rope = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 2.0}
    made = make_target(tmp_path / "dynamic", "glm4_moe", rope_parameters=rope)
    with pytest.raises(VocabForgeError, match="not computed") as refusal:
        load_drafter(made, load_target_tensors(made), made)
    assert "rope_type dynamic" in str(refusal.value.got)


@pytest.mark.parametrize("family", ["deepseek_v3", "glm4_moe"])
def test_an_embedding_or_a_head_of_its_own(family: str, tmp_path: Path) -> None:
    """Another embedding is refused; another head is the drafter's own."""
    target, prefix = make_target(tmp_path / "target", family), module_prefix(family)
    head = torch.randn(61, 32)
    edited(target, lambda tensors: tensors.update({f"{prefix}shared_head.head.weight": head}))
    shared = load_target_tensors(target)
    drafter, _ = load_drafter(target, shared, target)
    assert drafter.config.draft_vocab_size == 61
    assert torch.equal(drafter.head_weight, head)
    edited(target, lambda tensors: tensors[f"{prefix}embed_tokens.weight"].add_(1))
    assert "own input embedding" in refused(target).message


def test_routing_biases_keep_their_precision(tmp_path: Path) -> None:
    target = make_target(tmp_path / "target", "deepseek_v3")
    drafter, _ = load_drafter(target, load_target_tensors(target, torch.bfloat16), target)
    name = f"{module_prefix('deepseek_v3')}mlp.gate.e_score_correction_bias"
    wanted = module_tensors("deepseek_v3")[name]
    assert {parameter.dtype for parameter in drafter.parameters()} == {torch.bfloat16}
    assert torch.equal(drafter.state_dict()["layer.mlp.gate.e_score_correction_bias"], wanted)
    assert torch.equal(
        drafter.to(torch.float16).state_dict()["layer.mlp.gate.e_score_correction_bias"], wanted
    )
