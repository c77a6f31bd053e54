"""Drafters in GGUF files: what is written is what is read, and what llama.cpp does not compute is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.export.eagle3_cases import LAYERS, ROPES, TARGET, assert_same, config_of, drafter_of, shared_of
from tests.export.readers_support import QWEN2, write_tokenizer
from vocabforge.core.errors import DataError, MismatchError
from vocabforge.layouts.gguf.layout import DRAFTER, Gguf, serving_form
from vocabforge.layouts.interface import Export
from vocabforge.models.rope import RopeSettings, rope_tables

gguf = pytest.importorskip("gguf", reason="the extra gguf is not installed")
VOCAB = 31
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return write_tokenizer(tmp_path / "target")


def put(path: Path, target: Path, drafter: Any, dtype: torch.dtype = torch.float32, **config: Any) -> Path:
    Gguf.write(
        path, Export(drafter, {**TARGET, **config}, shared_of(drafter), "org/name", dtype, target_path=target)
    )
    return path


def fields_of(path: Path) -> dict[str, Any]:
    return {name: one.contents() for name, one in gguf.GGUFReader(path / DRAFTER).fields.items()}


FORMS: tuple[dict[str, Any], ...] = (
    {},
    {"draft_vocab_size": None},
    {"draft_vocab_size": VOCAB, "norm_before_residual": True},
    {"norm_before_fc": True, "rope": ROPES[2], "num_kv_heads": 4},
)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_drafters_come_back_as_they_were(form, dtype, target, tmp_path):
    drafter = drafter_of(config_of(**form))
    path = put(tmp_path / "e", target, drafter, dtype)
    assert_same(Gguf.read(path, shared_of(drafter), LAYERS), drafter, dtype)
    (path / "manifest.json").unlink()
    (path / DRAFTER).rename(path / "other.gguf")  # as another tool leaves it
    assert_same(Gguf.read(path, shared_of(drafter), LAYERS), drafter, dtype)


def test_llama3_positions_come_back_as_factors(target: Path, tmp_path: Path) -> None:
    drafter = drafter_of(config_of(rope=RopeSettings(1e4, "llama3", 8.0, 1.0, 4.0, 16), head_dim=8))
    loaded = Gguf.read(put(tmp_path / "e", target, drafter), shared_of(drafter), LAYERS)
    for found, wanted in zip(rope_tables(loaded.config.rope, 8, 64), rope_tables(drafter.config.rope, 8, 64)):
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)


def test_keys_that_llama_cpp_reads(target: Path, tmp_path: Path) -> None:
    """Layer inputs, target ids (not offsets), rotary pairs as neighbours, and the target's tokenizer."""
    drafter = drafter_of(config_of())
    path = put(tmp_path / "e", target, drafter)
    fields = fields_of(path)
    assert fields["general.architecture"] == "eagle3"
    assert fields["eagle3.target_layers"] == [layer + 1 for layer in drafter.config.aux_layers]
    assert fields["eagle3.target_hidden_size"] == 16
    assert fields["tokenizer.ggml.pre"] == "qwen2"
    assert fields["tokenizer.ggml.tokens"][-5:] == ["ab", "<|end|>", "<word>", "[PAD29]", "[PAD30]"]
    assert fields["tokenizer.ggml.token_type"][-5:] == [1, 3, 4, 5, 5]  # normal, control, user, unused
    assert fields["tokenizer.ggml.merges"] == ["a b"]
    assert fields["tokenizer.ggml.eos_token_id"] == 27
    stored = {one.name: one for one in gguf.GGUFReader(path / DRAFTER).tensors}
    assert stored["d2t"].data.tolist() == drafter.target_ids.tolist()
    ours = drafter.midlayer.self_attn.q_proj.weight
    assert (
        stored["blk.0.attn_q.weight"].data[1].tolist() == ours[3].tolist()
    )  # D is 6: pairs (0, 3), (1, 4), (2, 5)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"aux_layers": (1, 5)}, "2 auxiliary layers"),
        ({"aux_layers": (5,)}, "1 auxiliary layer"),
        ({"aux_layers": (1, 2, 3, 4)}, "4 auxiliary layers"),
        ({"aux_layers": (1, 5, LAYERS - 1)}, "auxiliary layers"),
        ({"fc_norm": True, "qk_norm": True}, "fc_norm, qk_norm"),
        ({"norm_output": True}, "norm_output"),
        ({"rope": ROPES[4]}, "RoPE of kind yarn"),
    ],
)
def test_what_llama_cpp_does_not_compute_is_refused(changes, named, target, tmp_path):
    with pytest.raises(MismatchError, match=named):
        put(tmp_path / "e", target, drafter_of(config_of(**changes)))
    assert not (tmp_path / "e").exists()


def test_a_target_whose_layers_are_not_captured_is_refused(target: Path, tmp_path: Path) -> None:
    with pytest.raises(MismatchError, match="a qwen2 target"):
        put(tmp_path / "e", target, drafter_of(config_of()), model_type="qwen2")


@pytest.mark.parametrize("pieces", [r"\s+", QWEN2.replace(r"\p{N}|", r"\p{N}{1,3}|")])
def test_a_tokenizer_that_llama_cpp_would_cut_otherwise_is_refused(pieces: str, tmp_path: Path) -> None:
    """Llama 3's pieces go with whole tokens first (``ignore_merges``), which is off here."""
    target = write_tokenizer(tmp_path / "target", pieces)
    with pytest.raises(MismatchError, match="this tokenizer is not written"):
        put(tmp_path / "e", target, drafter_of(config_of()))


@pytest.mark.parametrize(("each", "pre"), [(True, "smollm"), (False, None)])
def test_smollms_tokenizer_cuts_digit_by_digit(target, tmp_path, each, pre):
    body = json.loads((target / "tokenizer.json").read_text("utf-8"))
    byte_level = body["pre_tokenizer"]["pretokenizers"][-1] | {"use_regex": True}
    digits = {"type": "Digits", "individual_digits": each}
    body["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [digits, byte_level]}
    (target / "tokenizer.json").write_text(json.dumps(body), "utf-8")
    if pre is None:
        with pytest.raises(MismatchError, match="this tokenizer is not written"):
            put(tmp_path / "e", target, drafter_of(config_of()))
    else:
        file = put(tmp_path / "e", target, drafter_of(config_of())) / DRAFTER
        assert gguf.GGUFReader(file).fields["tokenizer.ggml.pre"].contents() == pre


def test_damage_is_one_error(target: Path, tmp_path: Path) -> None:
    drafter = drafter_of(config_of())
    path = put(tmp_path / "e", target, drafter)
    whole = (path / DRAFTER).read_bytes()
    for spoilt in (b"", b"GGUF", whole[:200], whole[: len(whole) // 2], b"nothing" + whole):
        (path / DRAFTER).write_bytes(spoilt)
        with pytest.raises(DataError, match=r"cannot be read|lacks a part|no EAGLE-3 drafter"):
            Gguf.read(path, shared_of(drafter), LAYERS)


def test_quantised_weights_and_other_models_are_refused(target: Path, tmp_path: Path) -> None:
    for name, architecture, kind in (("llama", "llama", "F32"), ("packed", "eagle3", "Q8_0")):
        folder = tmp_path / name
        folder.mkdir()
        writer = gguf.GGUFWriter(folder / "model.gguf", architecture)
        data = gguf.quants.quantize(torch.randn(4, 32).numpy(), gguf.GGMLQuantizationType[kind])
        writer.add_tensor("fc.weight", data, raw_dtype=gguf.GGMLQuantizationType[kind])
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        with pytest.raises(DataError, match=r"no EAGLE-3 drafter|are quantised"):
            serving_form(folder / "model.gguf")
