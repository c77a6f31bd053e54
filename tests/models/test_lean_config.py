"""What a configuration may ask for, and the refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vocabforge.core.errors import DataError
from vocabforge.models.lean.config import FAMILIES, LeanConfig
from vocabforge.models.target.logits import LogitTransform

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 50,
    "hidden_size": 16,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
QWEN2 = {**LLAMA, "architectures": ["Qwen2ForCausalLM"], "num_key_value_heads": 2}


def _refused(values: dict[str, Any], *words: str) -> None:
    with pytest.raises(DataError) as caught:
        LeanConfig.from_hf_config(values)
    for word in words:
        assert word in str(caught.value), f"{word!r} is not in:\n{caught.value}"
    assert caught.value.got is not None
    assert caught.value.remedy


def test_absent_keys_mean_what_they_mean_to_hugging_face() -> None:
    llama = LeanConfig.from_hf_config(LLAMA)
    assert (llama.num_kv_heads, llama.head_dim, llama.rms_norm_eps) == (4, 4, 1e-6)
    assert (llama.hidden_act, llama.tie_word_embeddings, llama.rope.theta) == ("silu", False, 10_000.0)
    assert (llama.qkv_bias, llama.o_bias, llama.mlp_bias) == (False, False, False)
    bitnet = LeanConfig.from_hf_config({**LLAMA, "architectures": ["BitNetForCausalLM"]})
    assert (bitnet.hidden_act, bitnet.rope.theta, bitnet.rms_norm_eps) == ("relu2", 500_000.0, 1e-5)
    mistral = LeanConfig.from_hf_config(
        {**LLAMA, "architectures": ["MistralForCausalLM"], "num_key_value_heads": 2}
    )
    assert (mistral.sliding_window, mistral.sliding_layers) == (4096, (True, True))
    qwen2 = LeanConfig.from_hf_config({**QWEN2, "num_key_value_heads": None})
    assert (qwen2.qkv_bias, qwen2.o_bias, qwen2.num_kv_heads, qwen2.sliding_window) == (True, False, 4, None)
    assert LeanConfig.from_hf_config({**QWEN2, "architectures": ["Qwen3ForCausalLM"]}).head_dim == 128


@pytest.mark.parametrize("architecture", FAMILIES)
def test_model_type_serves_where_no_architecture_is_named(architecture: str) -> None:
    kind = FAMILIES[architecture].model_type
    values = {**LLAMA, "num_key_value_heads": 4, "architectures": None, "model_type": kind}
    assert LeanConfig.from_hf_config(values).architecture == architecture


@pytest.mark.parametrize(
    "change",
    [
        {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"},
        {"architectures": ["LlamaForSequenceClassification"]},
        {"architectures": None, "model_type": "mamba"},
        {"architectures": [], "model_type": None},
    ],
)
def test_other_architectures_are_refused_with_the_list(change: dict[str, Any]) -> None:
    named = (change["architectures"] or [repr(change["model_type"])])[0]
    _refused({**LLAMA, **change}, named, *FAMILIES)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"rope_scaling": {"type": "dynamic", "factor": 4.0}}, "dynamic"),
        (
            {
                "rope_scaling": {
                    "rope_type": "longrope",
                    "short_factor": [1.0, 2.0],
                    "long_factor": [2.0, 3.0],
                }
            },
            "longrope",
        ),
        ({"rope_theta": "big"}, "theta"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "full_attention"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
        ({"quantization_config": {"quant_method": "bitnet"}}, "'bitnet'"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "dequantise"),
        ({"hidden_act": "gelu_new"}, "gelu_new"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping 30.0"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping 50.0"),
        ({"vocab_size": None}, "vocab_size"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"num_key_value_heads": 3}, "num_key_value_heads 3"),
        ({"head_dim": 5}, "head_dim"),
        ({"rms_norm_eps": "tiny"}, "rms_norm_eps"),
    ],
)
def test_what_is_not_computed_is_refused(change: dict[str, Any], word: str) -> None:
    LeanConfig.from_hf_config({**LLAMA, "num_key_value_heads": 2})
    _refused({**LLAMA, "num_key_value_heads": 2, **change}, word)


@pytest.mark.parametrize(
    ("architecture", "change", "word"),
    [
        ("Gemma3ForCausalLM", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("Gemma3ForCausalLM", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ("Gemma3ForCausalLM", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar"),
        ("GraniteForCausalLM", {"residual_multiplier": -1.0}, "residual_multiplier"),
        ("SmolLM3ForCausalLM", {"no_rope_layers": [1, 0, 1]}, "no_rope_layers"),
        ("GptOssForCausalLM", {"num_local_experts": 0}, "num_local_experts"),
        ("Qwen3MoeForCausalLM", {"moe_intermediate_size": 0}, "moe_intermediate_size"),
        ("Glm4ForCausalLM", {"hidden_size": "wide"}, "hidden_size"),
    ],
)
def test_what_a_family_does_not_compute_is_refused(architecture, change, word):
    values = {**LLAMA, "architectures": [architecture], "num_key_value_heads": 2}
    LeanConfig.from_hf_config(values)
    _refused({**values, **change}, word)


def test_logits_of_gemma_are_capped_and_those_of_granite_scaled() -> None:
    def transform(name: str, **keys: Any) -> LogitTransform:
        values = {**LLAMA, "architectures": [name], "num_key_value_heads": 2, **keys}
        return LeanConfig.from_hf_config(values).transform

    assert transform("Gemma3ForCausalLM", final_logit_softcapping=30.0) == LogitTransform(softcap=30.0)
    assert transform("GraniteForCausalLM", logits_scaling=8.0) == LogitTransform(0.125)
    assert transform("LlamaForCausalLM", logits_scaling=8.0) == LogitTransform()  # as Transformers' class


@pytest.mark.parametrize(
    "change",
    [
        {"layer_types": ["full_attention"]},
        {"layer_types": ["full_attention", "chunked_attention"]},
        {"layer_types": ["full_attention", "sliding_attention"]},  # without use_sliding_window
        {"use_sliding_window": True, "sliding_window": -4},
    ],
)
def test_layer_types_that_do_not_fit_are_refused(change: dict[str, Any]) -> None:
    _refused({**QWEN2, **change}, "sliding")


def test_the_file_and_the_folder_are_both_taken_and_named(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text('{"architectures": ["T5ForConditionalGeneration"]}')
    for path in (file, tmp_path):
        with pytest.raises(DataError, match="T5ForConditionalGeneration") as caught:
            LeanConfig.from_hf_config(path)
        assert str(file) in str(caught.value)
    file.write_text("[1]")
    with pytest.raises(DataError, match="JSON object"):
        LeanConfig.from_hf_config(file)
    file.write_text('{"architectures": [')
    with pytest.raises(DataError, match="JSON"):
        LeanConfig.from_hf_config(tmp_path)
