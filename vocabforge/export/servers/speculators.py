"""Folders as the speculators library loads them: ``Eagle3Speculator``.

Facts of speculators 0.9: ``t2d`` and ``d2t`` exist where the draft vocabulary is not the target's; norm_before_residual
is false where it is not written; the listed layers are inputs. An LM head or embedding that is absent is meant to be
the verifier's, but with transformers 5 stays what memory held: the library looks for NaN there and finds none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ..layouts.layer_ids import LAYER_IDS, as_inputs, default_layers
from .forward import ServedSizes
from .settings import check_layers, configuration, map_rows, sizes_of
from .types import LAYERS_FROM, Folder, Reader, Served, ServedTarget
from .vllm import ALGORITHM, own_embedding
from .weights import EMBEDDING, HEAD, KeyPlace, conclude, is_targets, load, slots_of

_IGNORED = {"verifier_lm_head.weight", "verifier_norm.weight"}


def _read(served: Served, folder: Folder, target: ServedTarget) -> None:
    body = folder.body
    served.architecture = "Eagle3Speculator"
    config = configuration(served, body.get("transformer_layer_config") or {})
    if config is None:
        return
    rows = body.get("draft_vocab_size")
    if not isinstance(rows, int):
        served.fail(
            "configuration",
            f"draft_vocab_size {rows!r}: the library would take 32000 or refuse",
            "write the rows of the head, every token's without a draft vocabulary",
        )
        return
    listed = body.get(LAYER_IDS)
    inputs = list(listed) if listed else as_inputs(default_layers(target.layers))
    served.layers = check_layers(served, inputs, target.layers, last=True)
    served.facts[LAYERS_FROM] = "the folder's list (inputs)" if listed else "the library's default"
    sizes = _sizes(served, config, body, rows, len(inputs), target)
    if sizes is None:
        return
    slots, total = slots_of(sizes), len(target.embedding)
    loaded = load(served, folder, slots, lambda name: _place(name, set(slots)))
    if rows != total:
        _map_rows(served, folder, rows, total)
    shared = {}
    if EMBEDDING in loaded[1] and not own_embedding(served, folder, loaded[1], target):
        shared[EMBEDDING] = target.embedding
    if rows == total and is_targets(folder.tensors.get("lm_head.weight"), target.head):
        shared[HEAD] = target.head
    conclude(served, sizes, slots, loaded, shared)


def _sizes(
    served: Served, config: Any, body: Mapping[str, Any], rows: int, n_aux: int, target: ServedTarget
) -> ServedSizes | None:
    flags = {
        name: bool(body.get(name, False))
        for name in ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
    }
    if flags["norm_before_fc"] and flags["fc_norm"]:
        served.fail("configuration", "norm_before_fc and fc_norm exclude each other", "write one of them")
    return sizes_of(
        served,
        config,
        "eagle3",
        target,
        target_hidden=config.hidden_size,
        head_rows=rows,
        n_aux=n_aux,
        several=True,
        qk_norm=config.model_type == "qwen3",
        **flags,
    )


def _place(name: str, slots: set[str]) -> KeyPlace:
    if name in ("d2t", "t2d"):
        return KeyPlace(None, "not needed: a buffer that maps rows to ids and back")
    if name in _IGNORED:
        return KeyPlace(None, "not needed: the verifier's, for training")
    slot = name if name.startswith("lm_head.") else f"model.{name}"
    return KeyPlace(slot if slot in slots else None)


def _map_rows(served: Served, folder: Folder, rows: int, total: int) -> None:
    d2t, t2d = folder.tensors.get("d2t"), folder.tensors.get("t2d")
    if d2t is None or t2d is None:
        absent = " and ".join(name for name in ("d2t", "t2d") if name not in folder.tensors)
        told = f"no {absent}: the library would map every row to id 0"
        served.fail("draft tokens", told, "export the drafter again with its draft vocabulary")
        return
    map_rows(served, d2t, rows, total)
    ids = served.target_ids
    if ids is not None and not (
        t2d.shape == (total,) and torch.equal(t2d.bool().nonzero().flatten(), ids.sort().values)
    ):
        served.fail("draft tokens", "t2d marks other tokens than d2t", "export the drafter again")
        served.target_ids = None


SPECULATORS = Reader(
    "speculators",
    "speculators",
    "speculators-eagle3",
    lambda folder: folder.body.get("speculators_model_type") == ALGORITHM,
    _read,
)
