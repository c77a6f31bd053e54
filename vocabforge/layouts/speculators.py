"""Writer and reader for the EAGLE-3 layout of the speculators library, which vLLM loads with its verifier.

Tensors are those of the serving layout, with the decoder layers under ``layers.i.*``; the input embedding and
the LM head are always included. The layout can express every form of the drafter's norms.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..models.drafters.eagle3 import Eagle3Config, Eagle3Drafter
from ..models.drafters.interface import Drafter
from ..models.target.head import TargetTensors
from ..models.target.load import dtype_name
from ..models.target.text_config import text_config
from .eagle3 import only, parameters, token_maps
from .eagle3_folder import (
    EMBEDDING,
    LM_HEAD,
    FolderTensors,
    assemble_folder,
    checked_layers,
    eagle3_config,
    read_folder,
    target_ids,
    without_targets_head,
)
from .fields import CONFIG, decoder_fields, flag, not_computed, read_config, read_sizes, write_files
from .interface import Export, layout_folder
from .layer_ids import LAYER_IDS, LayerReading, as_inputs, check_expressible, speculators_layers

ARCHITECTURE = "Eagle3Speculator"
VERSION = "0.9.0"  # version of speculators whose configuration is written
ALGORITHM = "eagle3"
_PROPOSAL = "greedy"
# Switches and the defaults of vLLM's reader.
_ABSENT = {"norm_before_residual": True, "norm_before_fc": False, "fc_norm": False, "norm_output": False}
_LAYERS = ("llama", "qwen3")  # qwen3 normalises q and k


class SpeculatorsEagle3:
    """A folder that vLLM and speculators load."""

    NAME = "speculators-eagle3"
    KIND = "export-speculators-eagle3"

    @staticmethod
    def matches(body: Mapping[str, Any]) -> bool:
        """Return whether the configuration names a speculators model."""
        return "speculators_model_type" in body

    @staticmethod
    def write(path: Path, export: Export) -> None:
        drafter = only(Eagle3Drafter, export.drafter, "the layout of speculators")
        config = speculators_config(drafter.config, export)
        with layout_folder(path, SpeculatorsEagle3.KIND, export) as folder:
            tensors = speculators_tensors(drafter, export)
            write_files(folder, tensors, config)

    @staticmethod
    def read(path: Path, shared: TargetTensors, num_layers: int) -> Drafter:
        """Read a folder strictly, whichever tool wrote it.

        Missing switches take vLLM's defaults. A missing LM head means the target's rows, as in speculators.
        """
        config = _read_config(read_config(path), num_layers, path)
        folder = without_targets_head(read_folder(path), shared)
        if LM_HEAD not in folder.weights:
            folder = _with_targets_rows(config, folder, shared, path)
        return assemble_folder(config, folder, shared, path)


def speculators_tensors(drafter: Drafter, export: Export) -> dict[str, Tensor]:
    """Return the tensors of the layout, see the module docstring."""
    tensors = {
        f"layers.0.{name.removeprefix('midlayer.')}" if name.startswith("midlayer.") else name: tensor
        for name, tensor in parameters(drafter, export.dtype).items()
    }
    tensors[EMBEDDING] = export.shared.embedding.detach().to("cpu", export.dtype).contiguous()
    if LM_HEAD not in tensors:
        tensors[LM_HEAD] = export.shared.head.detach().to("cpu", export.dtype, copy=True).contiguous()
    return tensors | token_maps(drafter, export.meta)


def speculators_config(config: Eagle3Config, export: Export) -> dict[str, Any]:
    """Return the layout's ``config.json``."""
    own = {
        LAYER_IDS: as_inputs(config.aux_layers),
        **{switch: getattr(config, switch) for switch in _ABSENT},
        "embed_requires_grad": False,
    }
    return speculators_body(config, export, ALGORITHM, ARCHITECTURE, export.speculative_tokens, own)


def speculators_body(
    config: Any, export: Export, algorithm: str, architecture: str, tokens: int, own: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a speculators ``config.json``: fields common to all drafters, and an algorithm's ``own`` fields.

    Raises:
        MismatchError: auxiliary layers cannot be captured.
    """
    check_expressible(
        config.aux_layers,
        int(text_config(export.target).num_hidden_layers) - 1,
        layout="the layout of speculators",
        remedy="train with other drafter.aux_layers, or export --format native",
    )
    name = export.target_name
    return {
        "architectures": [architecture],
        "speculators_model_type": algorithm,
        "speculators_version": VERSION,
        "draft_vocab_size": config.draft_vocab_size or config.vocab_size,
        "target_hidden_size": config.hidden_size,
        **own,
        "tie_word_embeddings": False,
        "torch_dtype": dtype_name(export.dtype),
        "dtype": dtype_name(export.dtype),
        "transformer_layer_config": layer_config(config, export.dtype),
        "speculators_config": {
            "algorithm": algorithm,
            "proposal_methods": [{"proposal_type": _PROPOSAL, "speculative_tokens": tokens}],
            "default_proposal_method": _PROPOSAL,
            "verifier": {
                "name_or_path": str(Path(name).resolve()) if Path(name).is_dir() else name,
                "architectures": list(export.target.get("architectures") or []),
            },
        },
    }


def layer_config(config: Any, dtype: torch.dtype) -> dict[str, Any]:
    """Return the configuration of the decoder layers for the matching Transformers class.

    It includes the number of auxiliary layers: vLLM builds its whole configuration from this part.
    """
    fields = {
        "model_type": _LAYERS[config.qk_norm],
        **decoder_fields(config, dtype),
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "use_cache": True,
        "num_aux_hidden_states": len(config.aux_layers),
    }
    if config.qk_norm:
        whole = {"sliding_window": None, "layer_types": ["full_attention"] * config.num_layers}
        fields = {**whole, "use_sliding_window": "sliding_window" in fields, **fields}
    return fields


def _read_config(body: Mapping[str, Any], num_layers: int, path: Path) -> Eagle3Config:
    source, named = path / CONFIG, body.get("speculators_model_type")
    if named != ALGORITHM:
        raise not_computed(f"speculators_model_type {named!r}", repr(ALGORITHM), source)
    kind = layer_kind(body, source)
    reading = LayerReading(speculators_layers(body, num_layers), "as speculators and vLLM number them")
    sizes = layer_sizes(body, source)
    switches = {name: flag(body, name, absent, source) for name, absent in _ABSENT.items()}
    switches["qk_norm"] = kind == _LAYERS[1]
    return eagle3_config(
        sizes | switches, body.get("draft_vocab_size"), checked_layers(reading, path), source
    )


def layer_kind(body: Mapping[str, Any], source: Path) -> str:
    """Return the layer type: ``qwen3`` if q and k are normalised, otherwise ``llama``.

    Raises:
        DataError: the decoder layer is missing or its type is not supported.
    """
    layer = body.get("transformer_layer_config")
    if not isinstance(layer, Mapping):
        raise not_computed("no transformer_layer_config", "the drafter's decoder layer", source)
    if (kind := layer.get("model_type", _LAYERS[0])) not in _LAYERS:
        raise not_computed(f"a decoder layer of model_type {kind!r}", " or ".join(_LAYERS), source)
    return str(kind)


def layer_sizes(body: Mapping[str, Any], source: Path) -> dict[str, Any]:
    """Read the drafter's sizes, see :func:`.fields.read_sizes`."""
    wide = {"target_hidden_size": body.get("target_hidden_size")}
    return read_sizes({**body["transformer_layer_config"], **wide}, source, several=True)


def _with_targets_rows(
    config: Eagle3Config, folder: FolderTensors, shared: TargetTensors, source: Path
) -> FolderTensors:
    """Return the folder with the target's rows as head, unless the drafter scores every token."""
    ids = target_ids(folder, config, source)
    if ids is None or config.draft_vocab_size in (None, config.vocab_size):
        return folder
    rows = shared.head[ids.to(shared.head.device)].cpu()
    return FolderTensors({**folder.weights, LM_HEAD: rows}, folder.embedding, folder.d2t, folder.t2d)
