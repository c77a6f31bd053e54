"""Dtypes of a drafter's folder against the target's: servers run both in the target's."""

from __future__ import annotations

from ...export.readers.types import Folder, TargetSide
from ...models.target_load import dtype_name
from .checks import Finding

_HELD = ("float64", "float32", "bfloat16", "float16")
_MAPS = ("d2t", "t2d", "model.d2t", "model.t2d")
_WIDE = ("float32", "float64")


def check_dtypes(folder: Folder, target: TargetSide) -> Finding[None]:
    """One dtype of all weights, as ``config.json`` says, that the target's holds without loss of range."""
    kinds = sorted(
        {dtype_name(tensor.dtype) for tensor in folder.tensors.values() if tensor.is_floating_point()}
    )
    packed = [
        name
        for name, tensor in folder.tensors.items()
        if name not in _MAPS and dtype_name(tensor.dtype) not in _HELD
    ]
    if packed:
        return Finding(
            f"packed or quantised: {', '.join(packed[:4])} ({folder.tensors[packed[0]].dtype})",
            "failed",
            "give the drafter as it was before it was quantised",
        )
    named = folder.body.get("dtype") or folder.body.get("torch_dtype")
    named = str(named).removeprefix("torch.") if named else None
    theirs = target.config.get("dtype") or target.config.get("torch_dtype")
    theirs = str(theirs).removeprefix("torch.") if theirs else None
    if len(kinds) > 1:
        return Finding(f"weights of several dtypes: {', '.join(kinds)}", "warning", "export it in one dtype")
    if not kinds:
        return Finding("no weights of a floating-point dtype", "failed", "export the drafter again")
    found = f"weights in {kinds[0]}"
    if named and named != kinds[0]:
        return Finding(f"{found}, but config.json says {named}", "warning", f"write dtype {kinds[0]}")
    if theirs is None or theirs == kinds[0]:
        return Finding(f"{found}, as the target's" if theirs else found)
    if kinds[0] in _WIDE:
        return Finding(
            f"{found}: servers round them to the target's {theirs} (export --dtype {theirs} halves the file)"
        )
    if theirs in _WIDE:
        return Finding(f"{found}; the target's {theirs} holds them as they are")
    return Finding(
        f"{found}, but the target is in {theirs}: servers convert them",
        "warning",
        f"export --dtype {theirs} from the trained drafter",
    )
