"""The EAGLE-3 serving layout (``config.json`` + ``model.safetensors``): writer and strict reader.

Tensors are named as the drafter's own parameters; ``d2t`` holds offsets (target id = j + d2t[j]), ``t2d``
marks the draft tokens. EAGLE-3's own auxiliary layers are left out, since every server's default is these; others are
written as 0-based outputs, which is how SGLang reads an explicit list (it adds 1 and takes layer inputs). vLLM takes an
explicit list as inputs without adding, so a drafter with other layers is for SGLang only.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ..core.errors import ArtifactError, DataError, MismatchError
from ..core.files import atomic_write_json, read_json
from ..models.drafter import Drafter
from ..models.drafter_io import TargetTensors, assemble
from ..models.eagle3 import Eagle3Config, Eagle3Drafter
from ..models.rope import RopeSettings, parse_rope
from ..vocab.subset import VocabSubset
from .layout import Export, layout_folder

ARCHITECTURE = "LlamaForCausalLMEagle3"
_WEIGHTS = "model.safetensors"


class SglangEagle3:
    """A folder that SGLang and vLLM load."""

    NAME = "sglang-eagle3"
    KIND = "export-sglang-eagle3"

    @staticmethod
    def matches(body: Mapping[str, Any]) -> bool:
        """The architecture names it."""
        return ARCHITECTURE in (body.get("architectures") or [])

    @staticmethod
    def write(path: Path, export: Export) -> None:
        """See :class:`~vocabforge.export.layout.Layout`.

        Raises:
            MismatchError: another kind of drafter, or auxiliary layers that the layout cannot express.
        """
        drafter = export.drafter
        if drafter.kind != Eagle3Drafter.kind:
            raise MismatchError(
                "the EAGLE-3 serving layout holds EAGLE-3 drafters only",
                got=f"a drafter of kind {drafter.kind}",
                expected=Eagle3Drafter.kind,
                remedy="export --format native, which vocabforge eval and generate read",
            )
        tensors = {
            name: p.detach().to("cpu", export.dtype).contiguous() for name, p in drafter.named_parameters()
        }
        if drafter.has_own_head:
            subset = _subset_of(drafter, str(export.meta.get("tokenizer_fingerprint", "")))
            tensors["d2t"] = torch.from_numpy(subset.d2t())
            tensors["t2d"] = torch.from_numpy(subset.t2d())
        config = serving_config(drafter.config, export.target, export.dtype)
        with layout_folder(path, SglangEagle3.KIND, export) as folder:
            save_file(tensors, folder / _WEIGHTS, metadata={"format": "pt"})
            atomic_write_json(folder / "config.json", config)

    @staticmethod
    def read(path: Path, shared: TargetTensors, num_layers: int) -> Drafter:
        """See :func:`read_serving`."""
        return read_serving(path, shared, num_layers)


def _subset_of(drafter: Drafter, fingerprint: str) -> VocabSubset:
    ids = drafter.target_ids.cpu().numpy()
    return VocabSubset(ids, ids.copy(), drafter.config.vocab_size, fingerprint)


def serving_config(config: Eagle3Config, target: Mapping[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    """The layout's ``config.json``: a one-layer Llama with the drafter's sizes and both spellings of RoPE.

    Raises:
        MismatchError: auxiliary layers that the layout cannot express.
    """
    count = int(target["num_hidden_layers"])
    _check_layers(config.aux_layers, count)
    own = config.aux_layers == (1, count // 2 - 1, count - 4)
    layers = {} if own else {"eagle_aux_hidden_state_layer_ids": list(config.aux_layers)}
    rope = rope_fields(config.rope)
    return {
        "architectures": [ARCHITECTURE],
        "model_type": "llama",
        "hidden_size": config.hidden_size,
        "target_hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "rms_norm_eps": config.rms_norm_eps,
        "vocab_size": config.vocab_size,
        "draft_vocab_size": config.draft_vocab_size,
        "max_position_embeddings": config.max_position_embeddings,
        "tie_word_embeddings": False,
        "torch_dtype": str(dtype).removeprefix("torch."),
        "bos_token_id": target.get("bos_token_id"),
        "eos_token_id": target.get("eos_token_id"),
        "rope_theta": config.rope.theta,
        "rope_scaling": rope if config.rope.kind != "default" else None,
        "rope_parameters": {"rope_theta": config.rope.theta, **rope},
        "eagle_config": {"use_aux_hidden_state": True, **layers},
    }


def rope_fields(rope: RopeSettings) -> dict[str, Any]:
    """RoPE as Hugging Face configurations spell it, without the base."""
    fields: dict[str, Any] = {"rope_type": rope.kind}
    if rope.kind != "default":
        fields["factor"] = rope.factor
    if rope.kind == "llama3":
        fields |= {
            "low_freq_factor": rope.low_freq_factor,
            "high_freq_factor": rope.high_freq_factor,
            "original_max_position_embeddings": rope.original_positions,
        }
    return fields


def _check_layers(layers: tuple[int, ...], count: int) -> None:
    """The last layer's output is no layer's input; and a list that starts with 1 is the one that SGLang's model
    files, which differ in this, all read as outputs."""
    if len(layers) != 3 or layers[0] != 1 or max(layers) > count - 2:
        raise MismatchError(
            "the serving layout cannot express these auxiliary layers",
            got=f"outputs of layers {list(layers)} (0-based) of {count}",
            expected=f"three layers, the first of them 1, none above {count - 2}",
            remedy="train with other drafter.aux_layers, or export --format native",
        )


def read_serving(path: Path, target: TargetTensors, num_layers: int) -> Eagle3Drafter:
    """Load a drafter from the layout, whoever wrote it, strictly.

    Args:
        num_layers: of the target; decides the auxiliary layers where the folder names none.

    Raises:
        DataError: files missing or damaged.
        ArtifactError: tensors that are not those of the configuration.
        MismatchError: it does not fit the target.
    """
    body = read_json(path / "config.json", "drafter's config.json")
    architectures = (body.get("architectures") if isinstance(body, dict) else None) or []
    if ARCHITECTURE not in architectures:
        raise DataError(
            "this is not a drafter in the EAGLE-3 serving layout",
            got=f"architectures {architectures}",
            expected=ARCHITECTURE,
            source=path / "config.json",
        )
    try:
        tensors = load_file(path / _WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise DataError("the drafter's weights cannot be read", got=error, source=path / _WEIGHTS) from error
    for shared in ("embed_tokens.weight",):  # servers take the target's
        tensors.pop(shared, None)
    d2t, t2d = tensors.pop("d2t", None), tensors.pop("t2d", None)
    config = _read_config(body, num_layers, path)
    ids = None
    if d2t is not None:
        ids = torch.arange(len(d2t)) + d2t
        _check_map(ids, t2d, config, path)
    cast = {name: tensor.to(target.embedding.dtype) for name, tensor in tensors.items()}
    return assemble(config, cast, ids, target, source=path)


def read_layers(body: Mapping[str, Any], num_layers: int) -> tuple[int, ...]:
    """Our auxiliary layers (0-based outputs) from a layout's ``config.json``.

    Listed ids are layer inputs, except that a list starting with 1 holds outputs: only that reading gives
    the layers that EAGLE-3 uses. Without a list it is the servers' default: inputs 2, n//2 and n - 3.
    """
    listed = (body.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids")
    inputs = [int(layer) for layer in listed or (2, num_layers // 2, num_layers - 3)]
    return tuple(inputs if inputs[0] == 1 else [layer - 1 for layer in inputs])


def _read_config(body: Mapping[str, Any], num_layers: int, path: Path) -> Eagle3Config:
    try:
        return Eagle3Config(
            hidden_size=int(body["hidden_size"]),
            intermediate_size=int(body["intermediate_size"]),
            num_heads=int(body["num_attention_heads"]),
            num_kv_heads=int(body["num_key_value_heads"]),
            head_dim=int(body.get("head_dim") or body["hidden_size"] // body["num_attention_heads"]),
            vocab_size=int(body["vocab_size"]),
            draft_vocab_size=body["draft_vocab_size"],
            aux_layers=read_layers(body, num_layers),
            max_position_embeddings=int(body["max_position_embeddings"]),
            rms_norm_eps=float(body["rms_norm_eps"]),
            rope=parse_rope(body, 10_000.0, path / "config.json"),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataError(
            "the drafter's config.json lacks a field", got=error, source=path / "config.json"
        ) from error


def _check_map(ids: Tensor, t2d: Tensor | None, config: Eagle3Config, path: Path) -> None:
    ascending = bool((ids.diff() > 0).all()) and int(ids[0]) >= 0 and int(ids[-1]) < config.vocab_size
    if not ascending:
        raise MismatchError(
            "the drafter's d2t is not a list of offsets to ascending target ids",
            got=f"ids {int(ids.min())} to {int(ids.max())}",
            expected=f"ascending within 0 to {config.vocab_size - 1}",
            source=path,
        )
    if t2d is not None and not torch.equal(t2d.nonzero().flatten(), ids):
        raise ArtifactError("the drafter's t2d and d2t name different tokens", source=path)
