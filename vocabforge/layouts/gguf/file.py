"""GGUF files, written with the package ``gguf``: parts shared by drafters and targets, such as the tokenizer.

Source: the GGUF specification (ggml-org/ggml, docs/gguf.md); names as llama.cpp reads them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...core.errors import DataError, MismatchError
from ...core.files import form_errors, read_json
from ...core.gguf import open_gguf, package, shortest
from ...models.drafters.parts import LayerSizes
from ...models.lean.config import LeanConfig
from ...models.rope import RopeSettings, inverse_frequencies

ROPE_FREQS = "rope_freqs.weight"
ROPES = ("default", "linear", "llama3")
# Transformers' names of a decoder layer's modules -> GGUF's names.
LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
# dtype -> tensor type, file type
_TYPES = {
    torch.float32: ("F32", "ALL_F32"),
    torch.float16: ("F16", "MOSTLY_F16"),
    torch.bfloat16: ("BF16", "MOSTLY_BF16"),
}
# Supported pre-tokenizers: byte-level BPE whose pieces llama.cpp splits as ``tokenizer.json`` does.
_CASES = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# Split pattern -> its name in llama.cpp (src/llama-vocab.cpp). llama-bpe also matches whole tokens first.
_PATTERNS = {_CASES + r"\p{N}{1,3}" + _REST: "llama-bpe", _CASES + r"\p{N}" + _REST: "qwen2"}
_WHOLE_FIRST = ("llama-bpe",)
_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False}
_DIGITS = {"type": "Digits", "individual_digits": True}


def to_neighbours(weight: Tensor, heads: int) -> Tensor:
    """Reorder rows of a query or key projection from rotary pairs (i, i + D / 2) to adjacent pairs."""
    return weight.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)


def to_halves(weight: Tensor, heads: int) -> Tensor:
    """Undo :func:`to_neighbours`."""
    return weight.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)


@contextmanager
def gguf_file(
    path: Path,
    architecture: str,
    sizes: LayerSizes | LeanConfig,
    *,
    layers: int,
    positions: int,
    dtype: torch.dtype,
    tokenizer: Path,
    name: str,
) -> Iterator[Any]:
    """Yield a writer with the decoder's settings, RoPE and tokenizer; write the file on exit.

    Raises:
        MismatchError: llama.cpp does not support the RoPE or the tokenizer.
    """
    gguf = package()
    writer = gguf.GGUFWriter(path, architecture, use_temp_file=True)
    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_name(name)
    writer.add_file_type(gguf.LlamaFileType[_TYPES[dtype][1]])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_block_count(layers)
    writer.add_context_length(positions)
    writer.add_embedding_length(sizes.hidden_size)
    writer.add_feed_forward_length(sizes.intermediate_size)
    writer.add_head_count(sizes.num_heads)
    writer.add_head_count_kv(sizes.num_kv_heads)
    writer.add_key_length(sizes.head_dim)
    writer.add_value_length(sizes.head_dim)
    writer.add_layer_norm_rms_eps(sizes.rms_norm_eps)
    writer.add_vocab_size(sizes.vocab_size)
    _add_rope(writer, sizes.rope, sizes.head_dim)
    add_tokenizer(writer, tokenizer, sizes.vocab_size)
    yield writer
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_rope(writer: Any, rope: RopeSettings, head_dim: int) -> None:
    if rope.kind not in ROPES or rope.partial is not None:
        raise MismatchError(
            "GGUF export does not support this RoPE",
            got=f"RoPE of kind {rope.kind}" + ("" if rope.partial is None else " over a part of each head"),
            expected=", ".join(ROPES),
            remedy="export --format sglang-eagle3 and convert it with llama.cpp's convert_hf_to_gguf.py",
        )
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(rope.theta)
    if rope.kind == "linear":
        writer.add_rope_scaling_type(package().RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope.factor)
    elif rope.kind == "llama3":
        plain = inverse_frequencies(RopeSettings(rope.theta), head_dim)
        add_tensor(writer, ROPE_FREQS, plain / inverse_frequencies(rope, head_dim), torch.float32)


def add_tensor(writer: Any, name: str, tensor: Tensor, dtype: torch.dtype) -> None:
    """Add a weight in a dtype. Vectors are stored in fp32: llama.cpp computes norms in fp32 only."""
    gguf = package()
    kind = gguf.GGMLQuantizationType[_TYPES[torch.float32 if tensor.dim() == 1 else dtype][0]]
    data = tensor.detach().cpu().to(dtype).float().contiguous().numpy()
    writer.add_tensor(name, gguf.quants.quantize(data, kind), raw_dtype=kind)


def add_tokenizer(writer: Any, folder: Path, rows: int) -> None:
    """Add tokens, merges, special tokens and the chat template from a target's folder.

    Args:
        rows: rows of the embedding; rows without a token are padding.

    Raises:
        MismatchError: llama.cpp would split text differently, or the tokenizer's format is not supported.
    """
    gguf = package()
    body = read_json(folder / "tokenizer.json", "tokenizer")
    pre = _pre_tokenizer(body, folder)
    texts = {at: text for text, at in body["model"]["vocab"].items()}
    kinds = dict.fromkeys(texts, gguf.TokenType.NORMAL)
    for token in body["added_tokens"]:
        texts[token["id"]] = token["content"]
        control = token["special"] or (token["content"].startswith("<|") and token["content"].endswith("|>"))
        kinds[token["id"]] = gguf.TokenType.CONTROL if control else gguf.TokenType.USER_DEFINED
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list([texts.get(at, f"[PAD{at}]") for at in range(rows)])
    writer.add_token_types([kinds.get(at, gguf.TokenType.UNUSED) for at in range(rows)])
    gguf.SpecialVocab(folder, load_merges=True).add_to_gguf(writer, quiet=True)


def _pre_tokenizer(body: Mapping[str, Any], folder: Path) -> str:
    model, parts = body["model"], body["pre_tokenizer"] or {}
    *cuts, last = parts.get("pretokenizers", [parts])
    pre = None
    if model["type"] == "BPE" and not body["normalizer"] and last == last | _BYTE_LEVEL:
        patterns = [step.get("pattern", {}).get("Regex") for step in cuts]
        own = last["use_regex"]
        pre = {0: "gpt-2", 1: "smollm" if cuts == [_DIGITS] else None}.get(len(cuts)) if own else None
        pre = _PATTERNS.get(patterns[0]) if len(cuts) == 1 and not own else pre
    if pre is None or bool(model.get("ignore_merges")) != (pre in _WHOLE_FIRST):
        raise MismatchError(
            "this tokenizer is not written to GGUF here",
            got=f"{model['type']} cut by {[step.get('type') for step in (*cuts, last)]}",
            expected="byte-level BPE that cuts texts as Llama 3, Qwen2, GPT-2 or SmolLM do",
            source=folder / "tokenizer.json",
            remedy="export --format sglang-eagle3 and convert it with llama.cpp's convert_hf_to_gguf.py",
        )
    return pre


def read_file(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read the settings (without the tokenizer's) and tensors, in their stored dtype.

    Raises:
        DataError: this is not a GGUF file, or it is damaged or quantised.
    """
    gguf, dtypes = package(), {kind: dtype for dtype, (kind, _) in _TYPES.items()}
    damaged = "the GGUF file cannot be read"
    with form_errors(damaged, path, remedy="fetch the file again, or export it again", kind=DataError):
        reader = open_gguf(path)
        fields = {
            name: field.contents()
            for name, field in reader.fields.items()
            if not name.startswith("tokenizer.")
        }
        packed = [
            f"{item.name} ({item.tensor_type.name})"
            for item in reader.tensors
            if item.tensor_type.name not in (*dtypes, "I64")
        ]
        if packed:
            raise DataError(
                "the GGUF file's weights are quantised",
                got=", ".join(packed[:5]),
                expected=", ".join(dtypes),
                source=path,
                remedy="give the file as it was before it was quantised",
            )
        tensors = {}
        for item in reader.tensors:
            if item.tensor_type.name == "I64":
                tensors[item.name] = torch.from_numpy(item.data.copy())
            else:
                data = gguf.quants.dequantize(item.data, item.tensor_type).copy()
                tensors[item.name] = torch.from_numpy(data).to(dtypes[item.tensor_type.name])
    return fields, tensors


def settings_of(fields: Mapping[str, Any], architecture: str, path: Path) -> dict[str, Any]:
    """Return the settings of an architecture, without its prefix.

    Raises:
        DataError: the file is of another architecture.
    """
    stored = fields.get("general.architecture")
    if stored != architecture:
        raise DataError(
            "this GGUF file is no EAGLE-3 drafter",
            got=f"general.architecture {stored!r}",
            expected=repr(architecture),
            source=path,
            remedy="give the folder of the drafter's file, alone or named drafter.gguf",
        )
    own = f"{architecture}."
    ours = {name: setting for name, setting in fields.items() if name.startswith(own)}
    return {name.removeprefix(own): shortest(setting) for name, setting in ours.items()}
