"""Writer and strict reader for EAGLE-1 and EAGLE-2 drafters (``config.json`` + ``model.safetensors``).

Tensors: ``embed_tokens`` (V, H); ``fc`` (H, 2H) over embedding and hidden state, in this order;
``layers.0.*`` without input norm. The LM head is always the target's. SGLang and vLLM differ in the
architecture's name and in the bias of ``fc``: SGLang always adds a bias and leaves a missing one
uninitialised, vLLM does not support one.

A restricted head is stored as a list of target ids in rank order, ``freq_<R>.pt``, as in FR-Spec (Zhao et al.
2025). SGLang takes it with ``--speculative-token-map``; FR-Spec's engine finds it by its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.errors import DataError, MismatchError
from ..models.drafters.eagle1 import Eagle1Config, Eagle1Drafter
from ..models.drafters.interface import Drafter
from ..models.drafters.io import assemble, check_own_embedding
from ..models.drafters.revocab import prune_head
from ..models.target.head import TargetTensors
from ..models.target.text_config import text_config
from ..vocab.subset.maps import ExportInputs, read_fr_spec, write_fr_spec
from ..vocab.subset.subset import VocabSubset
from .eagle3 import check_whole_vocabulary, only, parameters, stored_tensors
from .eagle3_folder import EMBEDDING, LM_HEAD, rounded_alike
from .fields import CONFIG, PLAIN, decoder_fields, read_config, read_sizes, write_files
from .interface import Export, layout_folder

SGLANG, VLLM = "sglang", "vllm"
# server -> its architecture name for this drafter
ARCHITECTURES = {SGLANG: "LlamaForCausalLMEagle", VLLM: "EagleLlamaForCausalLM"}
SERVERS = {"eagle": (SGLANG, VLLM), "fr-spec": (SGLANG,)}  # layout -> servers, default first
FC_BIAS = "fc.bias"
TOKEN_MAPS = "freq_*.pt"


class Eagle:
    """A folder for SGLang or vLLM; EAGLE's published folders can be read as well."""

    NAME = "eagle"
    KIND = "export-eagle"

    @staticmethod
    def matches(body: Mapping[str, Any]) -> bool:
        """Return whether the architecture is EAGLE's, or a single-layer Llama as in published folders."""
        named = body.get("architectures")
        if not isinstance(named, list):
            return False
        if any(name in named for name in ARCHITECTURES.values()):
            return True
        return PLAIN[0] in named and body.get("num_hidden_layers") == 1

    @staticmethod
    def write(path: Path, export: Export) -> None:
        drafter = only(Eagle1Drafter, export.drafter, f"the layout {Eagle.NAME}")
        if drafter.has_own_head and not has_targets_rows(drafter, export.shared):
            raise _no_own_head(drafter)
        remedy = "export --format fr-spec, which adds the list of tokens to the folder"
        check_whole_vocabulary(drafter, Eagle.NAME, remedy)
        with layout_folder(path, Eagle.KIND, export) as folder:
            _write_folder(folder, drafter, export)

    @staticmethod
    def read(path: Path, shared: TargetTensors, num_layers: int) -> Drafter:
        """Read a folder strictly; a token map in it restricts the head."""
        drafter = read_eagle(path, shared)
        token_list = token_map(path)
        return drafter if token_list is None else restricted(drafter, token_list)


class FrSpec(Eagle):
    """An EAGLE folder with a list of draft tokens, for SGLang and FR-Spec's engine."""

    NAME = "fr-spec"
    KIND = "export-fr-spec"

    @staticmethod
    def matches(body: Mapping[str, Any]) -> bool:
        """Return False: the configuration is that of ``eagle``, whose reader also finds the token map."""
        return False

    @staticmethod
    def write(path: Path, export: Export) -> None:
        drafter = only(Eagle1Drafter, export.drafter, f"the layout {FrSpec.NAME}")
        if drafter.config.draft_vocab_size in (None, drafter.config.vocab_size):
            raise MismatchError(
                "the FR-Spec layout restricts the draft head, and this drafter's is not restricted",
                got=f"a head of all {drafter.config.vocab_size:,} tokens",
                expected="a draft vocabulary",
                remedy="give --vocab DIR (a subset of select-vocab), or --format eagle",
            )
        if not has_targets_rows(drafter, export.shared):
            raise _no_own_head(drafter)
        with layout_folder(path, FrSpec.KIND, export) as folder:
            _write_folder(folder, drafter, export)
            write_token_map(folder, export)


def eagle_config(
    config: Eagle1Config, target: Mapping[str, Any], dtype: torch.dtype, server: str
) -> dict[str, Any]:
    """Return the layout's ``config.json``: a single-layer Llama with the drafter's sizes.

    EAGLE's own loader assumes that ``fc`` has a bias unless ``bias`` is false. The key is only written if
    false, because servers interpret true as an attention bias.
    """
    text = text_config(target)
    return {
        "architectures": [ARCHITECTURES[server]],
        "model_type": "llama",
        **decoder_fields(config, dtype),
        **({"bias": False} if server == VLLM else {}),
        "bos_token_id": text.bos_token_id,
        "eos_token_id": text.eos_token_id,
    }


def _write_folder(folder: Path, drafter: Eagle1Drafter, export: Export) -> None:
    server = export.server or SGLANG
    tensors = {name: p for name, p in parameters(drafter, export.dtype).items() if name != LM_HEAD}
    bias = tensors.pop(FC_BIAS, None)
    if server == SGLANG:
        tensors[FC_BIAS] = (
            torch.zeros(drafter.config.hidden_size, dtype=export.dtype) if bias is None else bias
        )
    elif bias is not None and bool(bias.any()):
        raise MismatchError(
            "vLLM computes EAGLE drafters without a bias in fc",
            got=f"a trained bias of up to {float(bias.abs().max()):.3g}",
            expected="none, or zeros",
            remedy="train again with drafter.fc_bias=false; or export --server sglang, which computes it",
        )
    tensors[EMBEDDING] = export.shared.embedding.detach().to("cpu", export.dtype, copy=True).contiguous()
    write_files(folder, tensors, eagle_config(drafter.config, export.target, export.dtype, server))


def _no_own_head(drafter: Drafter) -> MismatchError:
    return MismatchError(
        "servers run EAGLE-1/2 drafters with rows of the target's head",
        got=f"an own head of {len(drafter.head_weight):,} rows that was trained",
        expected="the target's rows",
        remedy="export --format native, which vocabforge eval and generate read; or train with drafter.head=target",
    )


def has_targets_rows(drafter: Drafter, shared: TargetTensors) -> bool:
    """Return whether the drafter's head consists of the target's rows, up to rounding."""
    rows = shared.head[drafter.target_ids.to(shared.head.device)]
    return rounded_alike(drafter.head_weight, rows)


def write_token_map(folder: Path, export: Export) -> None:
    """Write the ids of the draft vocabulary as ``freq_<R>.pt``, ranked if their rank is known."""
    ids = export.drafter.target_ids.cpu().numpy()
    ranked = ids if export.ranked is None else np.asarray(export.ranked, dtype=np.int64)
    subset = VocabSubset(ids, ranked, export.drafter.config.vocab_size, "")  # rejects a ranking of other ids
    write_fr_spec(ExportInputs(subset), folder)


def token_map(path: Path) -> Path | None:
    """Return the path of the token map in a drafter's folder, if there is one."""
    files = sorted(path.glob(TOKEN_MAPS))
    if len(files) > 1:
        raise DataError(
            "the drafter's folder has several lists of draft tokens",
            got=", ".join(file.name for file in files),
            expected="one",
            source=path,
            remedy="move the others away",
        )
    return files[0] if files else None


def ranked_ids(path: Path) -> tuple[int, ...] | None:
    """Return the ids of the draft vocabulary in rank order, if the drafter's folder has a token map."""
    token_list = token_map(path)
    return None if token_list is None else tuple(read_fr_spec(token_list).tolist())


def read_eagle(path: Path, shared: TargetTensors) -> Eagle1Drafter:
    """Read the drafter of a folder with the target's head.

    Raises:
        DataError: files are missing or damaged, or the drafter's form is not supported.
        ArtifactError: the tensors do not match the configuration.
        MismatchError: the drafter does not fit the target.
    """
    body = read_config(path)
    tensors = stored_tensors(path)
    _check_head(tensors.pop(LM_HEAD, None), shared, path)
    embedding = tensors.pop(EMBEDDING, None)
    if embedding is not None:
        check_own_embedding(embedding, shared, path)
    biased = FC_BIAS in tensors
    if isinstance(body.get("bias"), bool) and body["bias"] != biased:
        raise DataError(
            "the drafter's config.json contradicts its weights",
            got=f"bias {str(body['bias']).lower()}, and {'an' if biased else 'no'} {FC_BIAS}",
            source=path / CONFIG,
            remedy="the bias is that of fc: correct config.json, or fetch the weights again",
        )
    positions = {"max_position_embeddings": body.get("max_sequence_length")}  # EAGLE-Vicuna-33B's key
    fields = read_sizes({**positions, **body, "bias": None}, path / CONFIG)  # bias is that of fc here
    config = Eagle1Config(draft_vocab_size=None, fc_bias=biased, **fields)
    cast = {name: tensor.to(shared.embedding.dtype) for name, tensor in tensors.items()}
    drafter: Eagle1Drafter = assemble(config, cast, None, shared, source=path)
    return drafter


def _check_head(head: Tensor | None, shared: TargetTensors, path: Path) -> None:
    """Reject an LM head that differs from the target's: SGLang would ignore it, vLLM would use it."""
    if head is not None and not rounded_alike(head, shared.head):
        raise MismatchError(
            "the EAGLE-1/2 drafter brings an LM head of its own",
            got=f"shape {tuple(head.shape)}, different values from the target's",
            expected="none: servers draft with the target's",
            source=path,
            remedy="give the target that it was trained for, or remove lm_head.weight from its weights",
        )


def restricted(drafter: Drafter, file: Path) -> Drafter:
    """Return the drafter restricted to a list of draft tokens, with the target's rows."""
    ids, size = read_fr_spec(file), drafter.config.vocab_size
    subset = VocabSubset.from_ranked(ids, vocab_size=size, fingerprint="", source=file)
    return prune_head(drafter, subset, source=file)
