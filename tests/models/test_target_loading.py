"""What is loaded as a target, and what is refused by its config.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

from tests.folders import edit_folder
from tests.models.quantised import fp8_target, mxfp4_target
from tests.worlds import tiny_target
from vocabforge.core.errors import DataError
from vocabforge.decode.engine import Decoder
from vocabforge.decode.request import Request
from vocabforge.models.backends import load_decoding_target
from vocabforge.models.hf.model import TransformersModel
from vocabforge.models.target.fingerprint import target_fingerprint
from vocabforge.models.target.head import TargetHead, load_target_tensors
from vocabforge.models.target.hf import HFTarget
from vocabforge.models.target.load import Placement, load_causal_lm

IDS = torch.tensor([[5, 11, 7, 3, 9, 60, 13, 21]])


def captured(folder: Path) -> Any:
    target = HFTarget.load(folder)
    return target.capture(IDS, torch.arange(8)[None], torch.ones_like(IDS)), target


def decoded(folder: Path) -> list[int]:
    target = load_decoding_target(folder, "transformers")
    (made,) = Decoder(target, None).generate_batch([Request(IDS[0].tolist(), 16, ())])
    return made.token_ids


_VERSION = tuple(int(part) for part in transformers.__version__.split(".")[:2])
_FP8 = pytest.mark.skipif(_VERSION < (5, 17), reason="Transformers 5.16 fails to load any FP8 checkpoint")


@pytest.mark.parametrize("make", [pytest.param(fp8_target, marks=_FP8), mxfp4_target])
def test_a_quantised_checkpoint_is_the_model_that_it_dequantises_to(tmp_path, make):
    packed, plain = make(tmp_path)
    (ours, target), (theirs, _) = captured(packed), captured(plain)
    assert target.dtype == torch.float32
    assert torch.equal(ours.hidden, theirs.hidden)
    assert torch.equal(ours.features, theirs.features)
    original = next(path for path in tmp_path.iterdir() if path.name.startswith("whole"))
    assert not torch.equal(ours.hidden, captured(original)[0].hidden), (
        "what is stored is not what it came from"
    )
    assert decoded(packed) == decoded(plain)
    assert isinstance(load_decoding_target(packed), TransformersModel), (
        "the lean decoder reads no packed weights"
    )
    assert len(target_fingerprint(packed)) == 64
    assert torch.equal(TargetHead.load(packed).head_weight, target.head_weight), "the head is not packed"


def test_a_packed_embedding_is_not_read_as_numbers(tmp_path: Path) -> None:
    folder = tiny_target(tmp_path / "t")
    name = "model.embed_tokens.weight"
    edit_folder(folder, lambda weights: weights.update({name: weights[name].to(torch.float8_e4m3fn)}))
    with pytest.raises(DataError, match="embedding is packed, quantised") as error:
        load_target_tensors(folder)
    assert "F8_E4M3" in str(error.value)


def config_only(folder: Path, config: Any) -> Path:
    """No weights: whoever refuses it has read none."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    return folder


LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}


@pytest.mark.parametrize(
    ("quantised", "found", "remedy"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes", "pip install bitsandbytes"),
        ({"quant_method": "awq", "bits": 4}, "awq, no package gptqmodel", "pip install gptqmodel"),
        ({"quant_method": "gptq", "bits": 4}, "gptq", "pip install optimum gptqmodel"),
        ({"quant_method": "compressed-tensors"}, "compressed_tensors", "pip install compressed-tensors"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "modelopt NVFP4", "was quantised from"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "modelopt FP8", "was quantised from"),
        (
            {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"},
            "nvfp4",
            "was quantised from",
        ),
        ({"quant_method": "nvfp4"}, "nvfp4", "was quantised from"),
    ],
)
@pytest.mark.parametrize("nested", [False, True])
def test_quantisations_that_cannot_be_read_are_refused_by_name(tmp_path, quantised, found, remedy, nested):
    config: dict[str, Any] = {**LLAMA, "quantization_config": quantised}
    if nested:
        config = {
            "architectures": ["Gemma3ForConditionalGeneration"],
            "model_type": "gemma3",
            "text_config": {"model_type": "gemma3_text", "quantization_config": quantised},
        }
    folder = config_only(tmp_path / "t", config)
    with pytest.raises(DataError, match="the target is quantised") as error:
        HFTarget.load(folder)
    assert found in str(error.value.got)
    assert remedy in str(error.value.remedy)


def test_modelopt_is_also_known_by_its_own_file(tmp_path: Path) -> None:
    folder = config_only(tmp_path / "t", LLAMA)
    (folder / "hf_quant_config.json").write_text("{}")
    with pytest.raises(DataError, match="does not compute") as error:
        HFTarget.load(folder)
    assert error.value.got == "modelopt"


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"architectures": ["T5ForConditionalGeneration"], "model_type": "t5"}, "an encoder and a decoder"),
        (
            {"architectures": ["BartForConditionalGeneration"], "model_type": "bart"},
            "an encoder and a decoder",
        ),
        ({"architectures": ["BertForMaskedLM"], "model_type": "bert"}, "no LM head"),
        ({**LLAMA, "architectures": ["LlamaForSequenceClassification"]}, "no LM head"),
        ({"architectures": ["BertModel"], "model_type": "bert"}, "no LM head"),
        ({**LLAMA, "architectures": ["LlamaModel"]}, "no LM head"),
        ({"architectures": ["CLIPModel"], "model_type": "clip"}, "no LM head"),
        ({"architectures": ["BltForCausalLM"], "model_type": "blt"}, "no stack of decoder layers"),
    ],
)
def test_what_is_no_decoder_with_logits_is_refused_before_its_weights(tmp_path, config, problem):
    folder = config_only(tmp_path / "t", config)
    for load in (HFTarget.load, lambda path: load_decoding_target(path, "transformers")):
        with pytest.raises(DataError, match="cannot be a target") as error:
            load(folder)
        assert problem in str(error.value.got)


def test_an_architecture_with_code_of_its_own_is_refused(tmp_path: Path) -> None:
    config = {
        "architectures": ["OwnForCausalLM"],
        "model_type": "own",
        "auto_map": {
            "AutoConfig": "configuration_own.OwnConfig",
            "AutoModelForCausalLM": "own.OwnForCausalLM",
        },
    }
    folder = config_only(tmp_path / "t", config)
    (folder / "configuration_own.py").write_text("raise SystemExit('it ran')")
    with pytest.raises(DataError, match="Transformers does not know") as error:
        HFTarget.load(folder)
    assert "is not run" in str(error.value.remedy)


def test_tensors_of_another_shape_are_named(tmp_path: Path) -> None:
    folder = tiny_target(tmp_path / "t")
    name = "model.layers.2.mlp.up_proj.weight"
    edit_folder(folder, lambda weights: weights.update({name: weights[name][:-1]}))
    with pytest.raises(DataError, match="do not have the shapes") as error:
        HFTarget.load(folder)
    assert error.value.got == "1 tensor, first: model.layers.2.mlp.up_proj.weight (47, 32), not (48, 32)"


def vision_target(folder: Path) -> Any:
    """A tiny Qwen3-VL, which has no causal class of its own."""
    from transformers import Qwen3VLConfig

    text = {
        "vocab_size": 96,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "mrope_section": [4, 2, 2],
            "mrope_interleaved": True,
        },
    }
    vision = {
        "depth": 2,
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_heads": 2,
        "out_hidden_size": 64,
        "deepstack_visual_indexes": [0],
    }
    torch.manual_seed(0)
    config = Qwen3VLConfig(text_config=text, vision_config=vision, image_token_id=90, video_token_id=91)
    model = AutoModelForImageTextToText.from_config(config).eval()
    model.save_pretrained(folder)
    return model


def test_a_multimodal_model_is_a_target_of_texts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = vision_target(tmp_path / "t")
    states, target = captured(tmp_path / "t")
    assert "The target is multimodal (Qwen3VLForConditionalGeneration): it is used with text only." in (
        capsys.readouterr().err
    )
    with torch.inference_mode():
        expected = model(input_ids=IDS).logits
        text = model.generate(IDS, max_new_tokens=16, do_sample=False, eos_token_id=None)[0, 8:].tolist()
    torch.testing.assert_close(target.logits(states.hidden), expected, rtol=0, atol=1e-5)
    assert decoded(tmp_path / "t") == text
    head = TargetHead.load(tmp_path / "t")
    assert torch.equal(head.embedding, target.embedding)
    assert head.aux_layers == target.aux_layers


def test_a_causal_class_forced_on_other_weights_lacks_them(tmp_path: Path) -> None:
    """Names of tensors that no layer takes are not enough: those that are missing would be random."""
    folder = tiny_target(tmp_path / "t")

    def rename(weights: dict[str, torch.Tensor]) -> None:
        for name in [one for one in weights if "layers" in one]:
            weights[name.replace("model.layers.", "model.blocks.")] = weights.pop(name)

    edit_folder(folder, rename)
    with pytest.raises(DataError, match="lacks weights") as error:
        load_causal_lm(folder, "float32", Placement(torch.device("cpu")))
    assert "model.layers.0" in str(error.value)
    AutoModelForCausalLM.from_pretrained(folder)  # Transformers itself only warns
