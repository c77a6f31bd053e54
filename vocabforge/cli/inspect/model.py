"""Views of targets, training checkpoints, drafters and exports, from file headers without loading weights."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ...core.files import read_json
from .parts import View, ViewRequest, scalars

if TYPE_CHECKING:
    from ...core.artifact import Artifact

# name -> dtype and shape
Tensors = dict[str, dict[str, Any]]


def drafter_view(artifact: Artifact, request: ViewRequest) -> View:
    """Return configuration, parameters, head and target of a native drafter."""
    config, tensors = _json(artifact, "drafter.json"), _tensors(artifact, "drafter.safetensors")
    return _drafter(artifact, config, tensors, ids="target_ids")


def serving_view(artifact: Artifact, request: ViewRequest) -> View:
    """Return :func:`drafter_view`'s content for a serving folder."""
    return _drafter(
        artifact, _json(artifact, "config.json"), _tensors(artifact, "model.safetensors"), ids="d2t"
    )


def module_view(artifact: Artifact, request: ViewRequest) -> View:
    """Return :func:`drafter_view`'s content for the shards with a target's MTP module."""
    from ...layouts.mtp import open_module

    module = open_module(artifact.path)
    tensors = {name: {"dtype": one.dtype, "shape": list(one.shape)} for name, one in module.stored.items()}
    return _drafter(artifact, module.sizes.to_dict(), tensors, ids="d2t")


def gguf_view(artifact: Artifact, request: ViewRequest) -> View:
    """Return :func:`drafter_view`'s content for a drafter in a GGUF file."""
    from ...layouts.gguf.file import read_file
    from ...layouts.gguf.layout import DRAFTER
    from ...models.target.load import dtype_name

    config, stored = read_file(artifact.file(DRAFTER))
    tensors = {
        name: {"dtype": dtype_name(one.dtype), "shape": list(one.shape)} for name, one in stored.items()
    }
    return _drafter(artifact, config, tensors, ids="d2t")


def _drafter(artifact: Artifact, config: Any, tensors: Tensors, *, ids: str) -> View:
    from ...models.heads.served import PREFIX

    tensors = {name: one for name, one in tensors.items() if not name.startswith(PREFIX)}  # skip draft heads
    trained = {name: one for name, one in tensors.items() if name not in ("target_ids", "d2t", "t2d")}
    if ids in tensors:
        own = "its own" if any("lm_head" in name for name in tensors) else "the target's"
        head = f"{own}, {math.prod(tensors[ids]['shape']):,} rows"
    else:  # the target's head, possibly restricted by a token map in the folder
        lists = [name for name in artifact.manifest["files"] if name.startswith("freq_")]
        size = artifact.meta.get("draft_vocab_size")
        head = f"the target's, {size:,} rows by {lists[0]}" if lists and size else "the target's"
    return View(
        {
            "parameters": _parameters(trained),
            "dtype": ", ".join(sorted({one["dtype"] for one in trained.values()})),
            "head": head,
            **scalars(artifact.meta),
            "config": config,
            "tensors": tensors,
        }
    )


def head_view(artifact: Artifact, request: ViewRequest) -> View:
    """Return kind, sizes, drafter and parameters of a ranker, a low-rank head or a router."""
    sizes = _json(artifact, "head.json")["sizes"]
    tensors = _tensors(artifact, "head.safetensors")
    own = {name: one for name, one in tensors.items() if name != "assignment"}
    given = {name: value for name, value in sizes.items() if value is not None}
    return View(
        {"parameters": _parameters(own), **scalars(artifact.meta), "sizes": given, "tensors": tensors}
    )


def target_view(artifact: Artifact, request: ViewRequest) -> View:
    """Return training figures, configuration and parameters."""
    config = _json(artifact, "config.json")
    names = [name for name in artifact.manifest["files"] if name.endswith(".safetensors")]
    tensors = {name: one for file in names for name, one in _tensors(artifact, file).items()}
    facts = {**scalars(artifact.meta), "parameters_stored": _parameters(tensors)}
    return View({**facts, "config": config, "tensors": tensors})


def checkpoint_view(artifact: Artifact, request: ViewRequest) -> View:
    """Return the step, the identity checked on resume, and the trained tensors."""
    tensors = _tensors(artifact, "weights.safetensors")
    step, identity = artifact.meta.get("step"), dict(artifact.meta.get("identity", {}))
    return View({"step": step, "parameters": _parameters(tensors), "identity": identity, "tensors": tensors})


def _json(artifact: Artifact, name: str) -> dict[str, Any]:
    return dict(read_json(artifact.file(name), "configuration"))


def _tensors(artifact: Artifact, name: str) -> Tensors:
    """Read dtypes and shapes from the file's header."""
    from safetensors import safe_open

    with safe_open(str(artifact.file(name)), framework="numpy") as handle:
        slices = {key: handle.get_slice(key) for key in sorted(handle.keys())}
        return {
            key: {"dtype": one.get_dtype(), "shape": list(one.get_shape())} for key, one in slices.items()
        }


def _parameters(tensors: Tensors) -> int:
    return sum(math.prod(one["shape"]) for one in tensors.values())
