"""Writer and reader for block drafters (P-EAGLE, DFlash, DSpark) in the layout of the speculators library.

Tensors keep the drafter's names; P-EAGLE's first layer is ``layers.0``. An LM head is only included with a
draft vocabulary (P-EAGLE: always, with the input embedding). The mask row is a row of the target's embedding.

``sliding_window_non_causal`` is always written as true: with the library's default, servers make every layer
of the block causal.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..core.errors import ConfigError, DataError, MismatchError
from ..core.files import form_errors
from ..models.drafters.eagle3 import FORMS
from ..models.drafters.interface import Drafter
from ..models.drafters.registry import drafter_class
from ..models.target.head import TargetTensors
from .eagle3 import parameters, token_maps
from .eagle3_folder import assemble_folder, our_name, read_folder, without_targets_head
from .fields import CONFIG, flag, not_computed, read_config, write_files
from .interface import Export, layout_folder
from .layer_ids import LAYER_IDS, as_inputs
from .speculators import layer_kind, layer_sizes, speculators_body, speculators_tensors

BLOCK_LAYERS = "aux_hidden_state_layer_ids"


class _Kind(NamedTuple):
    """A kind's architecture, the key of its layer list, and the keys that are fixed to one value."""

    architecture: str
    layers: str
    fixed: Mapping[str, Any]


_BLOCK = {"sliding_window_non_causal": True}
MARKOV = {"markov_head_type": "vanilla", "confidence_head_with_markov": True, "sample_from_anchor": True}
KINDS: dict[str, _Kind] = {
    "peagle": _Kind("PEagleSpeculator", LAYER_IDS, {}),
    "dflash": _Kind("DFlashSpeculator", BLOCK_LAYERS, {**_BLOCK, "sample_from_anchor": False}),
    "dspark": _Kind("DSparkSpeculator", BLOCK_LAYERS, {**_BLOCK, **MARKOV}),
}


class SpeculatorsBlock:
    """A folder that speculators and vLLM load."""

    NAME = "speculators-block"
    KIND = "export-speculators-block"

    @staticmethod
    def matches(body: Mapping[str, Any]) -> bool:
        """Return whether the model type is a block drafter."""
        return str(body.get("speculators_model_type")) in KINDS

    @staticmethod
    def write(path: Path, export: Export) -> None:
        drafter, config = export.drafter, export.drafter.config
        _check(drafter)
        kind = KINDS[drafter.kind]
        own = {kind.layers: as_inputs(config.aux_layers), "mask_token_id": config.mask_token_id, **kind.fixed}
        if drafter.kind == "peagle":
            own |= {"norm_before_residual": config.norm_before_residual, "embed_requires_grad": True}
        else:
            own["block_size"] = config.block_size
        if drafter.kind == "dspark":
            own |= {"markov_rank": config.markov_rank, "enable_confidence_head": config.confidence}
        tokens = drafter.max_steps or 1
        body = speculators_body(config, export, drafter.kind, kind.architecture, tokens, own)
        with layout_folder(path, SpeculatorsBlock.KIND, export) as folder:
            if drafter.kind == "peagle":
                tensors = speculators_tensors(drafter, export)
            else:
                tensors = parameters(drafter, export.dtype) | token_maps(drafter, export.meta)
            write_files(folder, tensors, body)

    @staticmethod
    def read(path: Path, shared: TargetTensors, num_layers: int) -> Drafter:
        """Read a folder strictly, whichever tool wrote it."""
        body, source = read_config(path), path / CONFIG
        named = str(body.get("speculators_model_type"))
        sizes = _read_sizes(named, body, source)
        folder = read_folder(path, our_name if named == "peagle" else str)
        return assemble_folder(sizes, without_targets_head(folder, shared), shared, path)


def _check(drafter: Drafter) -> None:
    config, problem, remedy = drafter.config, None, "export --format native"
    if drafter.kind not in KINDS:
        problem = f"a drafter of kind {drafter.kind}"
        remedy = "export --format speculators-eagle3 for EAGLE-3; vocabforge export --help has the others"
    elif config.mask_token_id is None:
        problem = "a trained mask row, which has no place in it"
        remedy = "train with drafter.mask_token_id, a row of the target's embedding that is never text"
    elif drafter.kind != "peagle" and config.causal:
        problem = "a causal block, which the library does not compute"
    elif drafter.kind != "peagle" and config.draft_vocab_size == config.vocab_size:
        problem = "a trained LM head over the whole vocabulary, which the library replaces with the target's"
        remedy = "train with drafter.head: target, or cut the vocabulary with --vocab"
    elif drafter.kind == "peagle" and (forms := [name for name in FORMS[1:4] if getattr(config, name)]):
        problem = f"{', '.join(forms)}, which vLLM's reader of this layout leaves out"
    if problem:
        raise MismatchError(
            "the layout speculators-block cannot express this drafter",
            got=problem,
            expected=f"a drafter of kind {', '.join(KINDS)}",
            remedy=remedy,
        )


def _read_sizes(named: str, body: Mapping[str, Any], source: Path) -> Any:
    kind = KINDS[named]
    wrong = [f"{key} {body.get(key)!r}" for key, value in kind.fixed.items() if body.get(key) != value]
    if wrong and named != "peagle":
        raise not_computed(", ".join(wrong), f"{dict(kind.fixed)}", source)
    layered = layer_kind(body, source)
    values: dict[str, Any] = layer_sizes(body, source)
    if named == "peagle":
        with form_errors("the drafter's proposal_methods cannot be read", source, kind=DataError):
            methods = (body.get("speculators_config") or {}).get("proposal_methods") or [{}]
            values["block_size"] = methods[0].get("speculative_tokens")
        values["qk_norm"] = layered == "qwen3"
        values["norm_before_residual"] = flag(body, "norm_before_residual", False, source)
        if dropped := [name for name in FORMS[1:4] if flag(body, name, False, source)]:
            raise not_computed(f"{', '.join(dropped)}", "a drafter without, as vLLM computes it", source)
    elif layered != "qwen3":
        raise not_computed(f"a decoder layer of model_type {layered!r}", "qwen3", source)
    else:
        values["block_size"] = body.get("block_size")
    if named == "dspark":
        values["markov_rank"] = body.get("markov_rank")
        values["confidence"] = flag(body, "enable_confidence_head", True, source)
    values |= {name: body.get(name) for name in ("draft_vocab_size", "mask_token_id")}
    layers = body.get(kind.layers)
    if isinstance(layers, list):
        layers = [layer - 1 if type(layer) is int else layer for layer in layers]
    return block_sizes(named, values, layers, source)


def block_sizes(kind: str, values: dict[str, Any], layers: Any, source: Path) -> Any:
    """Build a block drafter's sizes with its target layers (0-based outputs), and check them.

    Raises:
        DataError: a value is not a number, the layers do not ascend, or the sizes are inconsistent.
    """
    numbers = [values.get(name, 1) for name in ("block_size", "mask_token_id", "markov_rank")]
    numbers.append(values["draft_vocab_size"] or 1)
    listed = [*layers, *numbers] if isinstance(layers, list) else [None]
    if not all(type(number) is int and number >= 0 for number in listed) or layers != sorted(set(layers)):
        got = f"outputs of layers {layers!r} (0-based), block, mask token, rank, rows {numbers}"
        raise not_computed(got, "ascending layers, and numbers", source)
    try:
        return drafter_class(kind).sizes_type(aux_layers=tuple(layers), **values)
    except (ConfigError, TypeError) as error:
        raise not_computed(str(getattr(error, "got", error)), "sizes of a drafter", source) from error
