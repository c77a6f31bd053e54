"""The fingerprint tells targets apart that compute differently, and only those."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from tests.folders import edit_folder
from tests.worlds import tiny_target
from vocabforge.core.errors import DataError
from vocabforge.models.target.fingerprint import target_fingerprint


def changed(folder: Path, to: Path, *change: Any, **fields: Any) -> str:
    shutil.copytree(folder, to)
    return target_fingerprint(edit_folder(to, *change, **fields))


@pytest.mark.parametrize(
    "config",
    [
        {"rope_parameters": {"rope_type": "default", "rope_theta": 17.0}},
        {"rms_norm_eps": 0.5},
        {"sliding_window": 8},
        {"hidden_act": "gelu"},
        {"final_logit_softcapping": 30.0},
    ],
)
def test_a_setting_of_the_forward_pass_changes_it(folder: Path, tmp_path: Path, config: Any) -> None:
    assert changed(folder, tmp_path / "c", **config) != target_fingerprint(folder)


def test_bookkeeping_and_another_spelling_of_rope_do_not(folder: Path, tmp_path: Path) -> None:
    def older(body: dict[str, Any]) -> None:
        body["rope_theta"] = body.pop("rope_parameters")["rope_theta"]

    other = {"transformers_version": "4.40.0", "use_cache": False}
    assert changed(folder, tmp_path / "old", None, older, **other) == target_fingerprint(folder)


def test_shards_keep_it(folder: Path, tmp_path: Path) -> None:
    AutoModelForCausalLM.from_pretrained(folder).save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2, "the test needs shards"
    assert target_fingerprint(tmp_path) == target_fingerprint(folder)


def test_an_exact_change_of_dtype_and_a_stored_tied_head_keep_the_fingerprint(tmp_path: Path) -> None:
    folder = tiny_target(tmp_path / "tied", tie_word_embeddings=True, dtype="bfloat16")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    expected = target_fingerprint(folder)
    model.float().save_pretrained(tmp_path / "wide")
    assert expected == target_fingerprint(tmp_path / "wide")
    assert "lm_head.weight" not in load_file(folder / "model.safetensors")

    def store_head(weights: dict[str, torch.Tensor]) -> None:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()

    assert expected == changed(folder, tmp_path / "both", store_head)


@pytest.mark.parametrize(
    "name",
    [
        "model.embed_tokens.weight",
        "lm_head.weight",
        "model.layers.2.self_attn.v_proj.weight",  # what merged adapters change, and often they alone
        "model.layers.4.mlp.down_proj.weight",
        "model.norm.weight",
    ],
)
def test_fingerprints_of_other_weights_differ(folder: Path, tmp_path: Path, name: str) -> None:
    other = changed(folder, tmp_path / "other", lambda weights: weights[name].mul_(1.001))
    assert other != target_fingerprint(folder)


def test_fingerprint_errors_are_clear(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "cut")
    whole = (tmp_path / "cut" / "model.safetensors").read_bytes()
    (tmp_path / "cut" / "model.safetensors").write_bytes(whole[:2000])
    with pytest.raises(DataError, match="cannot be read"):
        target_fingerprint(tmp_path / "cut")
    (tmp_path / "cut" / "model.safetensors").unlink()
    with pytest.raises(DataError, match="no safetensors weights"):
        target_fingerprint(tmp_path / "cut")
