"""Drafters on disk, and the module's own rules."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.worlds import tiny_drafter, tiny_target
from vocabforge.core.artifact import open_artifact, write_artifact
from vocabforge.core.errors import ArtifactError, ConfigError, MismatchError
from vocabforge.models.drafters.dflash import DFlashConfig
from vocabforge.models.drafters.eagle3 import Eagle3Config, Eagle3Drafter
from vocabforge.models.drafters.eagle_layers import RMSNorm
from vocabforge.models.drafters.io import (
    assemble,
    check_own_embedding,
    check_target,
    load_native,
    save_drafter,
)
from vocabforge.models.drafters.revocab import with_stored_rows
from vocabforge.models.lean.model import load_target
from vocabforge.models.rope import inverse_frequencies, parse_rope, rope_at
from vocabforge.models.target.fingerprint import target_facts, target_fingerprint
from vocabforge.models.target.head import TargetTensors, load_target_tensors
from vocabforge.models.target.hf import HFTarget

IDS = torch.tensor([0, 3, 4, 9, 17, 20, 41, 58])


def shared(target: HFTarget, dtype: torch.dtype = torch.float32) -> TargetTensors:
    return TargetTensors(target.embedding.to(dtype), target.head_weight.to(dtype))


def make(target: HFTarget, head: str) -> Eagle3Drafter:
    rows = {"target": None, "own": 61, "reduced": len(IDS)}[head]
    drafter = tiny_drafter(target, own_head=rows, target_ids=IDS if head == "reduced" else None)
    if drafter.has_own_head:
        with torch.no_grad():
            drafter.lm_head.weight.add_(torch.randn(drafter.lm_head.weight.shape))
    return drafter


def test_a_drafter_takes_the_targets_dtype(target: HFTarget, tmp_path: Path) -> None:
    save_drafter(tmp_path / "d", make(target, "reduced"), {})
    loaded, _ = load_native(tmp_path / "d", shared(target, torch.bfloat16))
    assert {tensor.dtype for tensor in (*loaded.parameters(), loaded.cos, loaded.embedding)} == {
        torch.bfloat16
    }
    assert loaded.target_ids.dtype == torch.int64


def test_restricted_to_rows_of_the_targets_head_it_stores_only_their_ids(target, tmp_path):
    """The rows are the target's: in the file they would be most of a small drafter."""
    drafter = tiny_drafter(target, target_ids=IDS)
    assert drafter.restricted
    assert not drafter.has_own_head
    g = torch.randn(2, 3, target.hidden_size)
    whole = tiny_drafter(target).logits(g)
    torch.testing.assert_close(drafter.logits(g), whole[..., IDS])
    save_drafter(tmp_path / "d", drafter, {})
    stored = load_file(tmp_path / "d/drafter.safetensors")
    assert [name for name in stored if "head" in name] == []
    loaded, _ = load_native(tmp_path / "d", shared(target))
    assert loaded.restricted
    assert torch.equal(loaded.target_ids, IDS)
    assert torch.equal(loaded.logits(g), drafter.logits(g))
    served = with_stored_rows(loaded)  # what servers load has them
    assert served.has_own_head
    assert torch.equal(served.lm_head.weight, target.head_weight[IDS])


def test_another_quantisation_of_the_target_is_reported_another_target_refused(target, tmp_path, capsys):
    from safetensors.torch import save_file

    folder = tiny_target(tmp_path / "target")
    save_drafter(tmp_path / "d", make(target, "target"), target_facts(folder))
    artifact = open_artifact(tmp_path / "d")
    weights = load_file(folder / "model.safetensors")
    rounded = {name: t if t.dim() == 1 else (t * 16).round() / 16 for name, t in weights.items()}
    save_file(rounded, folder / "model.safetensors", {"format": "pt"})
    check_target(artifact, target_fingerprint(folder), target=folder)
    assert "another quantisation of it, or a fine-tune" in capsys.readouterr().err
    other = tiny_target(tmp_path / "other", seed=1)
    with pytest.raises(MismatchError, match="another target"):
        check_target(artifact, target_fingerprint(other), target=other)


def test_strictness(target: HFTarget) -> None:
    drafter = make(target, "reduced")
    good = {name: p.detach() for name, p in drafter.named_parameters()}
    for change, words in (
        (lambda t: t.pop("midlayer.mlp.up_proj.weight"), "missing midlayer.mlp.up_proj.weight"),
        (lambda t: t.update(extra=torch.zeros(1)), "unexpected extra"),
        (lambda t: t.update({"norm.weight": torch.zeros(31)}), "norm.weight has shape (31,), expected (32,)"),
    ):
        tensors = dict(good)
        change(tensors)
        with pytest.raises(ArtifactError) as error:
            assemble(drafter.config, tensors, IDS, shared(target), source="somewhere")
        assert words in str(error.value)
    with pytest.raises(MismatchError, match="no matching list of target ids"):
        assemble(drafter.config, good, IDS[:-1], shared(target), source="somewhere")
    for ids in (IDS[:0], IDS.clamp(max=40), IDS + 10):
        with pytest.raises(ArtifactError, match="not ids of the vocabulary"):
            assemble(drafter.config, good, ids, shared(target), source="somewhere")
    other = TargetTensors(target.embedding[:60], target.head_weight[:60])
    with pytest.raises(MismatchError, match="does not fit the drafter"):
        assemble(drafter.config, good, IDS, other, source="somewhere")


def test_positions_that_a_target_writes_as_8192_0_are_read_back() -> None:
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    config = {"rope_scaling": {**scaling, "original_max_position_embeddings": 8192.0}}
    sizes = Eagle3Config(8, 16, 2, 1, 4, 9, None, 16, aux_layers=(1,), rope=parse_rope(config, 10_000.0))
    body = json.loads(json.dumps(sizes.to_dict()))
    assert Eagle3Config.from_dict(body) == sizes
    assert body["rope"]["original_positions"] == 8192


def test_the_first_token_can_be_the_mask() -> None:
    sizes = DFlashConfig(8, 16, 2, 1, 4, 9, None, 16, aux_layers=(1,), mask_token_id=0)
    assert DFlashConfig.from_dict(json.loads(json.dumps(sizes.to_dict()))) == sizes
    with pytest.raises(ConfigError, match="do not go together") as caught:
        DFlashConfig.from_dict(sizes.to_dict() | {"block_size": 0})
    assert "block_size 0" in caught.value.render()


def test_unknown_kinds_and_keys_are_refused(target: HFTarget, tmp_path: Path) -> None:
    drafter = make(target, "target")
    save_drafter(tmp_path / "d", drafter, {})
    body = json.loads((tmp_path / "d" / "drafter.json").read_text())
    weights = (tmp_path / "d" / "drafter.safetensors").read_bytes()
    for name, values in (("kind", body | {"kind": "eagle9"}), ("key", body | {"colour": "red"})):
        with write_artifact(tmp_path / name, "drafter", {}) as temporary:
            (temporary / "drafter.json").write_text(json.dumps(values))
            (temporary / "drafter.safetensors").write_bytes(weights)
    with pytest.raises(ArtifactError, match="kind of drafter is not known"):
        load_native(tmp_path / "kind", shared(target))
    with pytest.raises(ConfigError, match="unknown keys"):
        load_native(tmp_path / "key", shared(target))


@pytest.mark.parametrize("tied", [False, True])
def test_shared_tensors_without_the_layers_equal_the_lean_models(tmp_path: Path, tied: bool) -> None:
    folder = tiny_target(tmp_path / "t", tie_word_embeddings=tied)
    found, lean = load_target_tensors(folder), load_target(folder)
    assert torch.equal(found.embedding, lean.embedding)
    assert torch.equal(found.head, lean.lm_head_weight)
    assert torch.equal(found.embedding, found.head) == tied
    assert (found.embedding is found.head) == tied


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_kv_heads": 3}, "not a multiple"),
        ({"head_dim": 7}, "odd"),
        ({"draft_vocab_size": 62}, "draft_vocab_size 62"),
        ({"hidden_size": 0}, "hidden_size 0"),
        ({"aux_layers": ()}, "aux_layers"),
    ],
)
def test_impossible_sizes_are_refused(target: HFTarget, change: dict[str, object], words: str) -> None:
    config = make(target, "target").config
    with pytest.raises(ConfigError, match="do not go together") as error:
        dataclasses.replace(config, **change)
    assert words in str(error.value)


def test_a_context_of_millions_makes_no_tables_of_millions(target: HFTarget) -> None:
    config = dataclasses.replace(make(target, "target").config, max_position_embeddings=10_000_000)
    drafter = Eagle3Drafter(config, target.embedding, target.head_weight)
    assert drafter.positions == 131_072
    drafter.ensure_positions(131_080)
    cos, sin = rope_at(torch.tensor([131_079]), inverse_frequencies(config.rope, config.head_dim))
    assert torch.equal(drafter.cos[-1:], cos)
    assert torch.equal(drafter.sin[-1:], sin)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_norms_two_forms_agree(dtype: torch.dtype) -> None:
    norm = RMSNorm(48, 1e-3).to(dtype)
    with torch.no_grad():
        norm.weight.uniform_(0.5, 1.5)
    x = torch.randn(7, 48, dtype=dtype) * 0.05
    with torch.enable_grad():
        trained = norm(x).detach()
    with torch.inference_mode():
        decoded = norm(x)
    tolerance = 1e-6 if dtype == torch.float32 else 4e-2
    torch.testing.assert_close(decoded.clone(), trained, rtol=0, atol=tolerance)
    expected = x.float() / (x.float().square().mean(-1, keepdim=True) + 1e-3).sqrt() * norm.weight.float()
    torch.testing.assert_close(trained.float(), expected, rtol=0, atol=tolerance)


DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def table() -> Tensor:
    """(V, H) fp32, from large values to ones below fp16's smallest normal."""
    torch.manual_seed(0)
    return torch.randn(50, 16) * torch.logspace(-9, 1, 50)[:, None]


def over_table(embedding: Tensor) -> TargetTensors:
    return TargetTensors(embedding, embedding)


@pytest.mark.parametrize("kept", DTYPES)
@pytest.mark.parametrize("stored", DTYPES)
@pytest.mark.parametrize("target", DTYPES)
def test_roundings_of_one_table_are_equal(target, stored, kept):
    """Rounded by the target's checkpoint, by the drafter's, and then held in a third dtype that is no coarser."""
    if kept != torch.float32 and kept != target:
        return
    embedding = table().to(target).to(kept)
    check_own_embedding(table().to(stored), over_table(embedding), "folder")


@pytest.mark.parametrize("stored", DTYPES)
@pytest.mark.parametrize("target", DTYPES)
def test_a_trained_embedding_is_refused(target: torch.dtype, stored: torch.dtype) -> None:
    other = table()
    other[25] *= 1.05
    other[40, 3] = torch.nan
    with pytest.raises(MismatchError, match="2 of 50 rows differ") as error:
        check_own_embedding(other.to(stored), over_table(table().to(target)), "folder")
    assert "own input embedding" in str(error.value)
    assert "folder" in str(error.value)
    with pytest.raises(MismatchError, match="does not have the target's shape"):
        check_own_embedding(torch.zeros(51, 16), over_table(table()), "folder")
