"""Writer and reader for DFlash and DSpark drafters in the layouts that servers load.

DFlash uses z-lab's layout (``DFlashDraftModel``, keys under ``dflash_config``), which SGLang, vLLM,
TensorRT-LLM and llama.cpp's converter read. DSpark uses DeepSpec's layout (``Qwen3DSparkModel``, keys at the
top level). Target layers and mask token are written in both places. Tensors keep the drafter's names;
embedding and LM head are the target's.

``sample_from_anchor`` is written at the top level only: vLLM rejects a true value under ``dflash_config``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core.errors import DataError, MismatchError
from ..models.drafters.interface import Drafter
from ..models.target.head import TargetTensors
from ..models.target.text_config import text_config
from .eagle3 import parameters, token_maps
from .eagle3_folder import assemble_folder, read_folder, without_targets_head
from .fields import CONFIG, flag, not_computed, read_config, read_sizes, write_files
from .interface import Export, layout_folder
from .layer_ids import LAYER_IDS, as_inputs, as_outputs, check_expressible
from .speculators import layer_config
from .speculators_block import MARKOV, block_sizes

MASK_ROW = "mask_embedding.pt"
_INNER = "dflash_config"
_KINDS = {"DFlashDraftModel": "dflash", "Qwen3DSparkModel": "dspark", "DSparkDraftModel": "dspark"}
# Keys of other variants (top level or inner) and the only value supported here, which is also assumed if a
# key is missing: no windows, sinks, scales, convolution or selector (DFlash2). Keys per kind follow in _OWN.
_COMPUTED: dict[str, Any] = {
    "model_type": "qwen3",
    **dict.fromkeys(("use_sliding_window", "use_swa", "attention_sink_bias"), False),
    **dict.fromkeys(("is_neox_style", "rope_is_neox_style", "use_aux_hidden_state"), True),
    **dict.fromkeys(("attention_value_scale", "input_embedding_scale", "output_multiplier"), 1.0),
    **dict.fromkeys(("conv_kernel_size", "selector_rank"), 0),
}
_OWN: dict[str, dict[str, Any]] = {
    # If z-lab's architecture came with DeepSpec's key, rows would silently predict the next position.
    "dflash": {"sample_from_anchor": False, "projector_type": "dflash", "markov_rank": None},
    "dspark": {**MARKOV, "projector_type": "dspark"},
}


class ServedBlock:
    """A folder that SGLang, vLLM and llama.cpp's converter load."""

    NAME = "block"
    KIND = "export-block"

    @staticmethod
    def matches(body: Mapping[str, Any]) -> bool:
        """Return whether the architecture is of one of these families, supported or not."""
        return any(family in str(body.get("architectures")) for family in ("DFlash", "DSpark"))

    @staticmethod
    def write(path: Path, export: Export) -> None:
        drafter, body = export.drafter, _body(export)
        with layout_folder(path, ServedBlock.KIND, export) as folder:
            tensors = parameters(drafter, export.dtype) | token_maps(drafter, export.meta)
            if (row := tensors.pop("mask_embedding", None)) is not None:
                number = body[_INNER]["mask_token_id"]
                torch.save({"embedding": row, "mask_token_id": number}, folder / MASK_ROW)
            write_files(folder, tensors, body)

    @staticmethod
    def read(path: Path, shared: TargetTensors, num_layers: int) -> Drafter:
        """Read a folder strictly.

        DeepSpec's DFlash (``markov_rank`` 0) becomes DSpark with a zero Markov head.
        """
        body, folder = read_config(path), read_folder(path, lambda name: name.removeprefix("model."))
        sizes, added = _read_sizes(body, shared, num_layers, path / CONFIG), dict(folder.weights)
        if body.get("markov_rank") == 0:
            rows = {"w1": sizes.vocab_size, "w2": sizes.draft_vocab_size or sizes.vocab_size}
            added |= {f"markov_head.markov_{name}.weight": torch.zeros(n, 1) for name, n in rows.items()}
        if (path / MASK_ROW).exists():
            added["mask_embedding"] = _mask_row(path / MASK_ROW, sizes)
            sizes = replace(sizes, mask_token_id=None)
        folder = without_targets_head(replace(folder, weights=added), shared)
        return assemble_folder(sizes, folder, shared, path)


def block_readers(export: Export) -> tuple[str, ...]:
    """Return the servers that compute this drafter from its folder.

    SGLang drafts with the target's head, writes a mask row into the target's own table, and captures layer
    inputs. llama.cpp's converter supports a draft vocabulary for DSpark only.
    """
    kind, config = export.drafter.kind, export.drafter.config
    if config.aux_layers[-1] + 1 == int(text_config(export.target).num_hidden_layers):
        return ("vllm",)
    if (rows := config.draft_vocab_size) is not None:
        return ("vllm", "llama.cpp") if kind == "dspark" and rows < config.vocab_size else ("vllm",)
    return ("vllm", "llama.cpp") if config.mask_token_id is None else ("sglang", "vllm", "llama.cpp")


def _body(export: Export) -> dict[str, Any]:
    """Return the layout's ``config.json``; raise MismatchError if it cannot express the drafter."""
    kind, config = export.drafter.kind, export.drafter.config
    layers = int(text_config(export.target).num_hidden_layers)
    if kind not in _OWN or (kind == "dspark" and config.mask_token_id is None):
        raise MismatchError(
            "the layout block cannot express this drafter",
            got=f"a drafter of kind {kind}" + (" with a trained mask row" if kind in _OWN else ""),
            expected="DFlash, or DSpark trained with drafter.mask_token_id",
            remedy="export --format native; vocabforge export --help has the layouts of other kinds",
        )
    check_expressible(
        config.aux_layers, layers - 1, layout="the layout block", remedy="export --format native"
    )
    number = config.vocab_size - 1 if config.mask_token_id is None else config.mask_token_id
    named: dict[str, Any] = {"mask_token_id": number, "target_layer_ids": as_outputs(config.aux_layers)}
    body: dict[str, Any] = {
        **layer_config(config, export.dtype),
        "architectures": [next(name for name, known in _KINDS.items() if known == kind)],
        "block_size": config.block_size,
        "num_target_layers": layers,
        _INNER: {**named, "causal": config.causal},
    }
    if config.causal:
        body["is_causal"] = True  # SGLang's key; vLLM treats a model with false as an encoder
    if config.draft_vocab_size is not None:
        body["draft_vocab_size"] = config.draft_vocab_size
    if kind == "dspark":
        body[_INNER]["projector_type"] = kind
        body |= {**named, **MARKOV, "markov_rank": config.markov_rank}
        body["enable_confidence_head"] = config.confidence
    return body


def _read_sizes(body: Mapping[str, Any], shared: TargetTensors, num_layers: int, source: Path) -> Any:
    """Return the drafter's sizes; raise DataError for contradictory or unsupported keys."""
    names, inner = body.get("architectures"), body.get(_INNER) or {}
    kind = next((_KINDS[name] for name in _KINDS if isinstance(names, list) and name in names), None)
    if kind is None or not isinstance(inner, Mapping):
        raise not_computed(f"architectures {names!r}, {_INNER} {inner!r}", ", ".join(_KINDS), source)
    merged = {**body, **inner}
    layers = merged.get("target_layer_ids")
    expected = {
        **{name: body[name] for name in inner if body.get(name) is not None},
        **_COMPUTED,
        **_OWN[kind],
        "num_target_layers": num_layers,
        "final_logit_softcapping": shared.transform.softcap,
    }
    if isinstance(layers, list) and all(type(layer) is int for layer in layers):
        expected[LAYER_IDS] = as_inputs(layers)  # vLLM prefers this list over all others
    wrong = [name for name, value in expected.items() if merged.get(name) not in (None, value)]
    if wrong:
        got, right = ({name: values.get(name) for name in wrong} for values in (merged, expected))
        raise not_computed(f"{got}", f"{right}", source)
    values = read_sizes(merged, source, several=True)
    values |= {name: merged.get(name) for name in ("block_size", "mask_token_id", "draft_vocab_size")}
    values["causal"] = flag(merged, "is_causal", flag(merged, "causal", False, source), source)
    if kind == "dspark":
        values["markov_rank"] = merged.get("markov_rank") or 1
        values["confidence"] = flag(merged, "enable_confidence_head", False, source)
    return block_sizes(kind, values, layers, source)


def _mask_row(path: Path, sizes: Any) -> Tensor:
    """Load the trained mask-token row (d,) with a weights-only unpickler, so that no code is executed."""
    try:
        stored: Any = torch.load(path, map_location="cpu", weights_only=True)
        named = stored if isinstance(stored, Mapping) else {"embedding": stored}
        if sizes.kind != "dflash" or named.get("mask_token_id", sizes.mask_token_id) != sizes.mask_token_id:
            raise ValueError(f"for token {named.get('mask_token_id')} of {sizes.kind}")
        row: Tensor = named["embedding"].reshape(sizes.hidden_size)
    except Exception as error:  # damaged archives raise many types
        raise DataError(
            "the drafter's mask row cannot be used",
            got=f"{type(error).__name__}: {error}"[:200],
            expected=f"({sizes.hidden_size},) for token {sizes.mask_token_id} of dflash",
            source=path,
            remedy="fetch or export the drafter again",
        ) from error
    return row
