"""The layout ``gguf``: ``drafter.gguf``, loaded by llama.cpp with its target, and optionally ``target.gguf``.

Format of llama.cpp 0.5.0-dev (August 2026): exactly three layer inputs, ``target_layers``; ``fc``; one
decoder layer with ``attn_norm_2`` for the hidden state; ``enc.output_norm`` before ``fc``; ``d2t`` holds
target ids (int64), not offsets. Missing ``output`` or ``token_embd`` are taken from the target. Both files
contain the tokenizer.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...core.errors import DataError, MismatchError
from ...core.files import form_errors
from ...models.drafters.eagle3 import Eagle3Config, Eagle3Drafter
from ...models.drafters.interface import Drafter
from ...models.target.head import TargetTensors
from ...models.target.text_config import text_config
from ..eagle3 import only, parameters, read_serving_config
from ..eagle3_folder import ARCHITECTURE, D2T, EMBEDDING, LM_HEAD, FolderTensors, assemble_folder
from ..interface import Export, Layout, layout_folder
from ..layer_ids import LAYER_IDS, as_inputs, check_expressible
from .file import (
    LAYER,
    ROPE_FREQS,
    ROPES,
    add_tensor,
    gguf_file,
    read_file,
    settings_of,
    to_halves,
    to_neighbours,
)
from .target import check_target, write_target

DRAFTER, TARGET = "drafter.gguf", "target.gguf"
EAGLE3 = "eagle3"  # llama.cpp's architecture name
AUX_LAYERS = 3
# model_type of targets whose layer inputs llama.cpp can pass to a drafter
TARGETS = (
    *("llama", "mistral", "mixtral", "qwen3", "qwen3_moe", "qwen3_next", "gpt_oss", "lfm2", "minimax_m2"),
    *("nemotron_h", "gemma4", "gemma4_text"),
)
_FORMS = ("fc_norm", "norm_output", "qk_norm")
_NAMES = {
    "fc": "fc",
    "input_norm": "enc.output_norm",
    "norm": "output_norm",
    "lm_head": "output",
    "embed_tokens": "token_embd",
    "midlayer.hidden_norm": "blk.0.attn_norm_2",
    **{f"midlayer.{ours}": f"blk.0.{theirs}" for ours, theirs in LAYER.items()},
}
_HF = "export --format sglang-eagle3 or speculators-eagle3 for another server"


class Gguf(Layout):
    """A folder with a drafter that llama.cpp loads, without ``config.json``."""

    NAME = "gguf"
    KIND = "export-gguf"

    @staticmethod
    def write(path: Path, export: Export) -> None:
        drafter = only(Eagle3Drafter, export.drafter, "a GGUF file")
        check_form(drafter.config, export.target)
        assert export.target_path is not None
        name, folder = Path(export.target_name).name, export.target_path
        if export.with_target:
            check_target(folder)
        with layout_folder(path, Gguf.KIND, export) as made:
            _write_drafter(made / DRAFTER, drafter, folder, f"{name} EAGLE-3", export.dtype)
            if export.with_target:
                write_target(made / TARGET, folder, name, export.dtype)

    @staticmethod
    def read(path: Path, shared: TargetTensors, num_layers: int) -> Drafter:
        """Read a folder strictly; a llama3 RoPE is returned as the equivalent longrope factors."""
        file = drafter_file(path)
        body, tensors = serving_form(file)
        config = read_serving_config(body | {"architectures": [ARCHITECTURE]}, num_layers, file)
        embedding, d2t = tensors.pop(EMBEDDING, None), tensors.pop(D2T, None)
        return assemble_folder(config, FolderTensors(tensors, embedding, d2t), shared, file)


def check_form(config: Eagle3Config, target: Mapping[str, Any]) -> None:
    """Check that llama.cpp computes this form of drafter.

    Raises:
        MismatchError: it does not; the message lists every unsupported feature.
    """
    text = text_config(target)
    other = [name for name in _FORMS if getattr(config, name)]
    count = len(config.aux_layers)
    other += [f"{count} auxiliary layer{'s' if count > 1 else ''}"] if count != AUX_LAYERS else []
    other += [f"RoPE of kind {config.rope.kind}"] if config.rope.kind not in ROPES else []
    other += [f"a {text.model_type} target"] if text.model_type not in TARGETS else []
    other += [f"{config.num_layers} decoder layers"] if config.num_layers > 1 else []
    other += ["a sliding window"] if config.sliding_window is not None else []
    if other:
        raise MismatchError(
            "llama.cpp does not compute this drafter",
            got=f"a drafter with {', '.join(other)}",
            expected=f"{AUX_LAYERS} auxiliary layers, none of {', '.join(_FORMS)}, RoPE {', '.join(ROPES)}, and a "
            f"target of {', '.join(TARGETS)}",
            remedy=_HF,
        )
    check_expressible(
        config.aux_layers,
        int(text.num_hidden_layers) - 2,
        layout="llama.cpp",
        remedy="train with other layers",
    )


def _write_drafter(path: Path, drafter: Drafter, target: Path, name: str, dtype: torch.dtype) -> None:
    config = drafter.config
    sizes = {"layers": 1, "positions": config.max_position_embeddings}
    heads = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads}
    with gguf_file(path, EAGLE3, config, **sizes, dtype=dtype, tokenizer=target, name=name) as writer:
        writer.add_array(f"{EAGLE3}.target_layers", as_inputs(config.aux_layers))
        writer.add_uint32(f"{EAGLE3}.target_hidden_size", config.hidden_size)
        writer.add_bool(f"{EAGLE3}.norm_before_residual", config.norm_before_residual)
        writer.add_bool(f"{EAGLE3}.norm_before_fc", config.norm_before_fc)
        for ours, tensor in parameters(drafter, dtype).items():
            module = ours.removesuffix(".weight")
            part = module.rsplit(".", 1)[-1]
            moved = to_neighbours(tensor, heads[part]) if part in heads else tensor
            add_tensor(writer, f"{_NAMES[module]}.weight", moved, dtype)
        if config.draft_vocab_size not in (None, config.vocab_size):
            writer.add_tensor(D2T, drafter.target_ids.cpu().numpy())


def drafter_file(path: Path) -> Path:
    """Return the drafter's file in a folder: ``drafter.gguf``, or the only GGUF file.

    Raises:
        DataError: there are several files.
    """
    files = sorted(path.glob("*.gguf"))
    if (path / DRAFTER) not in files and len(files) != 1:
        raise DataError(
            "the folder holds several GGUF files",
            got=", ".join(file.name for file in files),
            expected=f"one, or {DRAFTER}",
            source=path,
            remedy=f"name the drafter's {DRAFTER}",
        )
    return path / DRAFTER if (path / DRAFTER) in files else files[0]


def is_gguf(path: Path) -> bool:
    """Return whether a folder holds GGUF files instead of a ``config.json``."""
    return not (path / "config.json").is_file() and any(path.glob("*.gguf"))


def serving_form(file: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Convert a GGUF file to an equivalent ``config.json`` and tensors of the EAGLE-3 serving layout.

    Raises:
        DataError: the architecture does not match, a key is missing, or the weights are quantised.
    """
    fields, stored = read_file(file)
    settings = settings_of(fields, EAGLE3, file)
    ours = {f"{theirs}.weight": f"{name}.weight" for name, theirs in _NAMES.items()}
    factors = stored.pop(ROPE_FREQS, None)
    tensors = {ours.get(name, name): tensor for name, tensor in stored.items()}
    lacking = "the GGUF file lacks a part of an EAGLE-3 drafter"
    with form_errors(lacking, file, remedy="export the drafter again, or convert it again", kind=DataError):
        heads, kv_heads = settings["attention.head_count"], settings["attention.head_count_kv"]
        head = tensors.get(LM_HEAD)
        layers = settings["target_layers"]
        body = {
            "architectures": [f"GGUF {EAGLE3}"],
            "model_type": "llama",
            "hidden_size": settings["embedding_length"],
            "intermediate_size": settings["feed_forward_length"],
            "num_hidden_layers": settings["block_count"],
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "head_dim": settings.get("attention.key_length", settings["embedding_length"] // heads),
            "hidden_act": "silu",
            "rms_norm_eps": settings["attention.layer_norm_rms_epsilon"],
            "vocab_size": settings["vocab_size"],
            "max_position_embeddings": settings["context_length"],
            "tie_word_embeddings": False,
            "target_hidden_size": settings["target_hidden_size"],
            "draft_vocab_size": None if head is None else len(head),
            "num_aux_hidden_states": len(layers),
            LAYER_IDS: layers,
            "norm_before_residual": settings.get("norm_before_residual", False),
            "norm_before_fc": settings.get("norm_before_fc", False),
            "eagle_config": {LAYER_IDS: [layer - 1 for layer in layers]},
            **_rope(settings, factors, file),
        }
        for name, count in (("q_proj", heads), ("k_proj", kv_heads)):
            key = f"midlayer.self_attn.{name}.weight"
            if type(count) is not int or count < 1 or len(tensors[key]) % (2 * count):
                raise ValueError(f"{count!r} heads in {name} of {len(tensors[key])} rows")
            tensors[key] = to_halves(tensors[key], count)
        if D2T in tensors:
            if tensors[D2T].dim() != 1:
                raise ValueError(f"{D2T} of shape {tuple(tensors[D2T].shape)}")
            tensors[D2T] = tensors[D2T] - torch.arange(len(tensors[D2T]))
    return body, tensors


def _rope(settings: Mapping[str, Any], factors: Tensor | None, file: Path) -> dict[str, Any]:
    theta, kind = settings.get("rope.freq_base", 10_000.0), settings.get("rope.scaling.type", "none")
    if factors is not None:
        table = {"short_factor": factors.tolist(), "long_factor": factors.tolist(), "factor": 1.0}
        table |= {"rope_type": "longrope", "original_max_position_embeddings": settings["context_length"]}
    elif kind == "linear":
        table = {"rope_type": "linear", "factor": settings["rope.scaling.factor"]}
    elif kind == "none":
        table = {"rope_type": "default"}
    else:
        raise DataError(
            "this GGUF file's RoPE is not read here",
            got=f"rope.scaling.type {kind}",
            expected="none, linear, or rope_freqs",
            source=file,
            remedy="give the folder that it was converted from",
        )
    return {"rope_parameters": {"rope_theta": theta, **table}}
