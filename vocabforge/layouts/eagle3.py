"""Writer and strict reader for the EAGLE-3 serving layout (``config.json`` + ``model.safetensors``).

Tensors have the names of the drafter's parameters; ``d2t`` holds offsets (target id = j + d2t[j]), ``t2d``
marks the draft tokens. SGLang and vLLM read the same folder: auxiliary layers are listed in the numbering of
each (``layer_ids.py``), and forms that SGLang does not compute are rejected.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core.artifact import MANIFEST
from ..core.console import say
from ..core.errors import DataError, MismatchError
from ..models.checkpoint import checkpoint_files, load_stored, read_headers
from ..models.drafters.eagle3 import Eagle3Config, Eagle3Drafter
from ..models.drafters.interface import Drafter
from ..models.target.head import TargetTensors
from ..models.target.text_config import text_config
from ..vocab.subset.subset import VocabSubset
from .eagle3_folder import (
    ARCHITECTURE,
    D2T,
    LM_HEAD,
    T2D,
    FolderTensors,
    assemble_folder,
    checked_layers,
    eagle3_config,
    read_folder,
    refuse_packed,
    without_targets_head,
)
from .fields import CONFIG, decoder_fields, flag, read_config, read_sizes, write_files
from .interface import Export, layout_folder
from .layer_ids import LAYER_IDS, as_inputs, as_outputs, check_expressible, read_layers, sglang_inputs

# VocabForge's classes for vLLM, by whether q and k are normalised; registered in serve/vllm/plugin.py.
WITH_HEAD = {False: "VocabForgeLlamaEagle3", True: "VocabForgeQwen3Eagle3"}
# The layout's own name first, then vLLM's class names.
_ARCHITECTURES = (ARCHITECTURE, "Eagle3LlamaForCausalLM", "Eagle3Qwen3ForCausalLM", *WITH_HEAD.values())
_WITH_QK_NORM = ("Eagle3Qwen3ForCausalLM", WITH_HEAD[True])
_QUERY_NORM = "midlayer.self_attn.q_norm.weight"


class SglangEagle3:
    """A folder that SGLang and vLLM load."""

    NAME = "sglang-eagle3"
    KIND = "export-sglang-eagle3"

    @staticmethod
    def matches(body: Mapping[str, Any]) -> bool:
        """Return whether the architecture is one of this layout."""
        return _architecture(body) is not None

    @staticmethod
    def write(path: Path, export: Export) -> None:
        drafter = only(Eagle3Drafter, export.drafter, "the EAGLE-3 serving layout")
        config = serving_config(drafter.config, export.target, export.dtype)
        with layout_folder(path, SglangEagle3.KIND, export) as folder:
            tensors = parameters(drafter, export.dtype) | token_maps(drafter, export.meta)
            write_files(folder, tensors, config)

    @staticmethod
    def read(path: Path, shared: TargetTensors, num_layers: int) -> Drafter:
        """Read a folder strictly, whichever tool wrote it."""
        body, folder = read_config(path), read_folder(path)
        if _architecture(body) is None:  # told by its tensors
            rows = len(folder.weights[LM_HEAD]) if LM_HEAD in folder.weights else None
            named = _WITH_QK_NORM[0] if _QUERY_NORM in folder.weights else ARCHITECTURE
            body = {"draft_vocab_size": rows, **body, "architectures": [named]}
        config = read_serving_config(body, num_layers, path)
        _check_tied(body, folder, shared, path)
        if config.norm_output and not (path / MANIFEST).exists():
            say(
                f"{path.name}: norm_output is true, so the normed state is fed back, as SGLang and vLLM do. SpecForge "
                "writes the same key but trains with the state before the norm: compare the accepted length with "
                "norm_output false in config.json."
            )
        if config.draft_vocab_size is None:
            folder = without_targets_head(folder, shared)
        return assemble_folder(config, folder, shared, path)


def serving_config(config: Eagle3Config, target: Mapping[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    """Return the layout's ``config.json``: a Llama with the drafter's sizes."""
    _check_form(config)
    layers = int(text_config(target).num_hidden_layers)
    check_expressible(
        config.aux_layers,
        layers - 2,  # SGLang captures layer inputs
        layout="the EAGLE-3 serving layout",
        remedy="train with other drafter.aux_layers; --format speculators-eagle3 (vLLM) takes the last layer too",
    )
    if sglang_inputs(as_outputs(config.aux_layers), target, layers) != as_inputs(config.aux_layers):
        raise MismatchError(
            "SGLang would capture other layers of this target",
            got=f"outputs of layers {list(config.aux_layers)} (0-based)",
            expected="a list that starts with layer 1: SGLang reads any other list of this target differently",
            remedy="train with drafter.aux_layers that start with 1; --format speculators-eagle3 serves it in vLLM",
        )
    return config_body(config, target, dtype)


def config_body(config: Eagle3Config, target: Mapping[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    """Return the ``config.json`` for any form of the drafter, including those that only vLLM computes."""
    text = text_config(target)
    return {
        "architectures": [ARCHITECTURE],
        "model_type": "llama",
        **decoder_fields(config, dtype),
        "target_hidden_size": config.hidden_size,
        "draft_vocab_size": config.draft_vocab_size,
        "bos_token_id": text.bos_token_id,
        "eos_token_id": text.eos_token_id,
        "num_aux_hidden_states": len(config.aux_layers),
        LAYER_IDS: as_inputs(config.aux_layers),
        "norm_before_residual": config.norm_before_residual,
        "norm_before_fc": config.norm_before_fc,
        "fc_norm": config.fc_norm,
        "norm_output": config.norm_output,
        "eagle_config": {
            "use_aux_hidden_state": True,
            LAYER_IDS: as_outputs(config.aux_layers),
            "norm_before_fc": config.norm_before_fc,
        },
    }


def _check_form(config: Eagle3Config) -> None:
    """Reject forms that SGLang would load without an error but compute differently.

    With one auxiliary layer the captured state is as wide as the output of ``fc``, so SGLang skips ``fc``.
    """
    forms = [name for name in ("norm_before_residual", "qk_norm") if getattr(config, name)]
    forms += ["one auxiliary layer"] if len(config.aux_layers) == 1 else []
    forms += [f"{config.num_layers} decoder layers"] if config.num_layers > 1 else []
    if forms:
        raise MismatchError(
            "the EAGLE-3 serving layout cannot express this drafter",
            got=f"a drafter with {' and '.join(forms)}, which SGLang does not compute",
            expected="a drafter without",
            remedy="export --format speculators-eagle3, which vLLM reads",
        )


def _architecture(body: Mapping[str, Any]) -> str | None:
    named = body.get("architectures")
    return next((name for name in _ARCHITECTURES if isinstance(named, list) and name in named), None)


def read_serving_config(body: Mapping[str, Any], num_layers: int, path: Path) -> Eagle3Config:
    """Read the drafter's sizes from the layout's ``config.json``, strictly.

    Raises:
        DataError: a size is invalid, or the form is not supported.
    """
    source = path / CONFIG
    eagle = body.get("eagle_config")
    eagle = eagle if isinstance(eagle, Mapping) else {}
    if not flag(eagle, "use_aux_hidden_state", True, source):
        raise DataError(
            "this drafter reads no auxiliary layers",
            got="use_aux_hidden_state false",
            expected="true, as EAGLE-3 has it",
            source=source,
        )
    if "draft_vocab_size" not in body:
        raise DataError(
            "the drafter's config.json lacks a field",
            got="no draft_vocab_size",
            source=source,
            remedy="write the number of rows of its LM head, or null if it shares the target's",
        )
    layers = checked_layers(read_layers(body, num_layers), path)
    count = body.get("num_aux_hidden_states")
    if count is not None and count != len(layers):
        raise DataError(
            "the drafter's config.json contradicts itself",
            got=f"num_aux_hidden_states {count}, {len(layers)} auxiliary layers",
            expected="one number",
            source=source,
            remedy=f"list the layers that it was trained with ({LAYER_IDS})",
        )
    sizes = read_sizes(body, source, several=True)
    switches = {
        "norm_before_residual": flag(body, "norm_before_residual", False, source),
        "norm_before_fc": flag(eagle, "norm_before_fc", flag(body, "norm_before_fc", False, source), source),
        "fc_norm": flag(body, "fc_norm", False, source) or flag(body, "use_aux_norm", False, source),
        "norm_output": flag(body, "norm_output", False, source),
        "qk_norm": _architecture(body) in _WITH_QK_NORM,
    }
    return eagle3_config(sizes | switches, body["draft_vocab_size"], layers, source)


def _check_tied(body: Mapping[str, Any], folder: FolderTensors, shared: TargetTensors, path: Path) -> None:
    """Reject a head tied to the embedding that is not the target's head, with which it would be replaced."""
    tied = body.get("tie_word_embeddings") is True and LM_HEAD not in folder.weights
    if tied and not torch.equal(shared.head, shared.embedding):
        raise MismatchError(
            "the drafter's LM head is its embedding, which is not the target's LM head",
            got=f"tie_word_embeddings true, no {LM_HEAD}",
            expected=f"{LM_HEAD}, or a target that shares the two as well",
            source=path,
            remedy="write tie_word_embeddings false if it was trained with the target's LM head",
        )


# kind of drafter -> the format that servers read it in
_FORMATS = {
    "eagle3": "export --format sglang-eagle3, whose d2t inside is the draft vocabulary",
    "eagle1": "export --format eagle, or fr-spec with a draft vocabulary",
    "medusa": "export --format medusa, which vLLM 0.32 reads (0.33 has dropped it)",
}


def only(of: type[Drafter], drafter: Drafter, layout: str) -> Any:
    """Return the drafter if it is of this class's kind; raise MismatchError naming ``layout`` otherwise."""
    if drafter.kind != of.kind:
        raise MismatchError(
            f"{layout} holds {of.label} drafters only",
            got=f"a drafter of kind {drafter.kind}",
            expected=of.kind,
            remedy=_FORMATS.get(
                drafter.kind, "export --format native, which vocabforge eval and generate read"
            ),
        )
    return drafter


def check_whole_vocabulary(drafter: Drafter, layout: str, remedy: str) -> None:
    """Raise MismatchError if the drafter has a draft vocabulary, which the layout cannot store."""
    size = drafter.config.vocab_size
    if drafter.config.draft_vocab_size not in (None, size):
        raise MismatchError(
            f"the layout {layout} has no place for a draft vocabulary",
            got=f"a head of {len(drafter.target_ids):,} tokens",
            expected=f"all {size:,} tokens",
            remedy=remedy,
        )


def stored_tensors(path: Path) -> dict[str, Tensor]:
    """Read a folder's floating-point tensors as fp32; raise DataError if files are missing, damaged or packed."""
    stored = read_headers(checkpoint_files(path, pickles=True))
    refuse_packed(stored, path)
    return load_stored(stored, torch.float32)


def parameters(drafter: Drafter, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return the drafter's own parameters by name, in the dtype to store."""
    return {name: p.detach().to("cpu", dtype).contiguous() for name, p in drafter.named_parameters()}


def token_maps(drafter: Drafter, meta: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return ``d2t`` (R,) int64 offsets and ``t2d`` (V,) bool; empty if the head scores every token.

    vLLM rejects a map between vocabularies of equal size.
    """
    vocab = drafter.config.vocab_size
    if drafter.config.draft_vocab_size in (None, vocab):
        return {}
    ids = drafter.target_ids.cpu().numpy()
    subset = VocabSubset(ids, ids.copy(), vocab, str(meta.get("tokenizer_fingerprint", "")))
    return {D2T: torch.from_numpy(subset.d2t()), T2D: torch.from_numpy(subset.t2d())}
