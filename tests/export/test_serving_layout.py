"""The EAGLE-3 serving layout: what is written, what is read, what is refused."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.export import eagle3_cases as cases
from tests.export.eagle3_cases import OWN_HEAD, ROPES, SHAPES, config_of, drafter_of, shapes_of
from tests.worlds import tiny_drafter, tiny_target
from vocabforge.core.artifact import MANIFEST
from vocabforge.core.errors import MismatchError
from vocabforge.layouts.eagle3 import SglangEagle3, serving_config
from vocabforge.layouts.interface import Export
from vocabforge.layouts.layer_ids import read_layers
from vocabforge.layouts.registry import load_drafter
from vocabforge.models.drafters.eagle3 import Eagle3Drafter
from vocabforge.models.drafters.io import save_drafter
from vocabforge.models.target.fingerprint import target_fingerprint
from vocabforge.models.target.head import TargetTensors
from vocabforge.models.target.hf import HFTarget

IDS = torch.tensor([0, 1, 2, 3, 9, 17, 20, 41, 58, 60])
H, R = 32, len(IDS)


def make(target: HFTarget, reduced: bool) -> Eagle3Drafter:
    return tiny_drafter(target, own_head=R if reduced else None, target_ids=IDS if reduced else None)


def write(
    path: Path, drafter: Eagle3Drafter, folder: Path, dtype: torch.dtype = torch.float32, **meta: Any
) -> Path:
    config = json.loads((folder / "config.json").read_text())
    shared = TargetTensors(drafter.embedding, drafter.target_head)
    SglangEagle3.write(path, Export(drafter, config, shared, str(folder), dtype, meta=meta))
    return path


def tensors_of(target: HFTarget) -> TargetTensors:
    return TargetTensors(target.embedding, target.head_weight)


def test_what_a_form_changes_in_the_configuration(tmp_path: Path) -> None:
    """One that both servers compute; the other keys are those of the goldens."""
    drafter = drafter_of(config_of(norm_before_fc=True, norm_output=True, rope=ROPES[3]))
    rope = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    body, tensors = cases.write(SglangEagle3, tmp_path / "e", drafter, torch.bfloat16)
    changed = {
        "dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": [2, 7],
        "rope_theta": 500000.0,
        "rope_scaling": rope,
        "rope_parameters": {"rope_theta": 500000.0, **rope},
        "num_aux_hidden_states": 3,
        "eagle_aux_hidden_state_layer_ids": [2, 6, 9],  # inputs: vLLM
        "norm_before_residual": False,
        "norm_before_fc": True,
        "fc_norm": False,
        "norm_output": True,
        "eagle_config": {
            "use_aux_hidden_state": True,
            "eagle_aux_hidden_state_layer_ids": [1, 5, 8],  # outputs: SGLang
            "norm_before_fc": True,
        },
    }
    assert {key: body[key] for key in changed} == changed
    assert shapes_of(tensors) == SHAPES | OWN_HEAD | {"input_norm.weight": (3 * 16,)}
    body, tensors = cases.write(SglangEagle3, tmp_path / "n", drafter_of(config_of(fc_norm=True)))
    assert (body["fc_norm"], body["torch_dtype"], body["rope_scaling"]) == (True, "float32", None)
    norms = {f"fc_norm.{number}.weight": (16,) for number in range(3)}
    assert shapes_of(tensors) == SHAPES | OWN_HEAD | norms


def test_a_shared_head_is_null_and_eagle3s_own_layers_are_listed_too(tmp_path: Path) -> None:
    body, tensors = cases.write(SglangEagle3, tmp_path / "e", drafter_of(config_of(draft_vocab_size=None)))
    assert body["draft_vocab_size"] is None
    assert shapes_of(tensors) == SHAPES
    assert read_layers({}, cases.LAYERS).layers == (1, 5, 8)
    assert body["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [1, 5, 8]


@pytest.mark.parametrize("layers", [(2, 3, 3), (3, 1), (1, 2, 4)])
def test_layers_that_servers_do_not_capture_are_refused(folder, tmp_path, layers):
    """They capture in ascending order, each once, and SGLang not the last output."""
    with pytest.raises(MismatchError, match="cannot express these auxiliary layers"):
        write(tmp_path / "e", make(HFTarget.load(folder, aux_layers=layers), False), folder)
    assert not (tmp_path / "e").exists()


def test_layers_that_sglang_numbers_otherwise_for_this_target_are_refused() -> None:
    """Its DeepSeek class adds 1 only to a list that starts with 1."""
    target = {
        "model_type": "llama",
        "num_hidden_layers": cases.LAYERS,
        "architectures": ["DeepseekV3ForCausalLM"],
    }
    for layers, named in (((1, 4, 7), None), ((2, 4, 7), "SGLang would capture other layers")):
        with contextlib.nullcontext() if named is None else pytest.raises(MismatchError, match=named):
            serving_config(config_of(aux_layers=layers), target, torch.float32)


@pytest.mark.parametrize("form", ["norm_before_residual", "qk_norm"])
def test_forms_that_sglang_would_silently_compute_otherwise_are_refused(tmp_path: Path, form: str) -> None:
    with pytest.raises(MismatchError, match=f"(?s){form}.*speculators-eagle3"):
        cases.write(SglangEagle3, tmp_path / "e", drafter_of(config_of(**{form: True})))
    assert not (tmp_path / "e").exists()


def test_one_auxiliary_layer_is_refused_since_sglang_would_skip_fc(tmp_path: Path) -> None:
    with pytest.raises(MismatchError, match=r"(?s)one auxiliary layer.*speculators-eagle3"):
        cases.write(SglangEagle3, tmp_path / "e", drafter_of(config_of(aux_layers=(5,))))
    assert not (tmp_path / "e").exists()


def test_wrong_target_and_missing_layers_are_refused(target: HFTarget, folder: Path, tmp_path: Path) -> None:
    other = tiny_target(tmp_path / "other", seed=9)
    save_drafter(tmp_path / "native", make(target, False), {"target_fingerprint": target_fingerprint(folder)})
    write(tmp_path / "served", make(target, False), folder, target_fingerprint=target_fingerprint(folder))
    for name in ("native", "served"):
        with pytest.raises(MismatchError, match="another target"):
            load_drafter(tmp_path / name, tensors_of(target), other)
    (tmp_path / "served" / MANIFEST).unlink()
    shallow = tiny_target(tmp_path / "shallow", num_hidden_layers=3)
    with pytest.raises(MismatchError, match="layers that the target does not have"):
        load_drafter(tmp_path / "served", tensors_of(target), shallow)
