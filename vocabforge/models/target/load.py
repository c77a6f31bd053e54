"""Loading a Hugging Face target: its dtype, and where its layers lie when one device is too small."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...core.distributed import local_world_size, world_size
from ...core.errors import DataError, UsageError
from ...core.files import read_json
from ..checkpoint import checkpoint_files, read_headers

_MOST_LAYERS = 1 << 12
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Placement:
    """Where a target is put.

    Attributes:
        device: of a target that fits on one; with the others, where the trainer wants its tensors.
        device_map: Hugging Face's placement of layers over the devices of one process (``auto``, or a mapping).
        tp_plan: ``auto``: Hugging Face's tensor parallelism over all launched processes, one a GPU.
    """

    device: torch.device
    device_map: str | Mapping[str, Any] | None = None
    tp_plan: str | None = None

    @property
    def spread(self) -> bool:
        """Whether weights may lie elsewhere than on ``device``."""
        return self.device_map is not None or self.tp_plan is not None


def dtype_name(dtype: torch.dtype) -> str:
    """``float32`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


def resolve_dtype(dtype: torch.dtype | str, device: torch.device) -> torch.dtype | str:
    """``auto`` is the checkpoint's own dtype on CUDA (Hugging Face's ``auto``) and fp32 on a CPU.

    Raises:
        UsageError: an unknown name.
    """
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype == "auto":
        return "auto" if device.type == "cuda" else torch.float32
    if dtype not in DTYPES:
        raise UsageError("there is no such dtype", got=dtype, expected=", ".join(["auto", *DTYPES]))
    return DTYPES[dtype]


def load_causal_lm(path: Path, dtype: torch.dtype | str, placement: Placement) -> Any:
    """Load a local Hugging Face folder; remote code stays off.

    Raises:
        DataError: the folder holds no loadable model, or weights are missing.
        UsageError: a placement that does not suit how the processes were launched.
    """
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging as hf_logging

    _check_launch(placement)
    read_target_config(path)
    read_headers(checkpoint_files(path))  # names a missing or damaged file, which transformers does not
    hf_logging.disable_progress_bar()
    resolved = resolve_dtype(dtype, placement.device)
    try:
        model, info = AutoModelForCausalLM.from_pretrained(
            path,
            dtype=resolved,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
            **_placing(placement),
        )
    except Exception as error:  # transformers raises many kinds; all mean the same to a user
        raise DataError(
            "the target cannot be loaded",
            got=f"{type(error).__name__}: {error}",
            expected="a causal language model of Transformers, in safetensors, without code of its own",
            source=path,
        ) from error
    missing = [key for key in info["missing_keys"] if "rotary" not in key]
    if missing:
        raise DataError(
            "the target's checkpoint lacks weights",
            got=f"{len(missing)} missing, first: {', '.join(sorted(missing)[:3])}",
            source=path,
            remedy="the checkpoint may be incomplete; fetch it again",
        )
    return model if placement.spread else model.to(placement.device)


def _check_launch(placement: Placement) -> None:
    if placement.device_map is not None and placement.tp_plan is not None:
        raise UsageError(
            "a target is placed by a device map or by tensor parallelism, not by both",
            got=f"device_map {placement.device_map} and tp_plan {placement.tp_plan}",
            remedy="leave one of them out",
        )
    if placement.tp_plan not in (None, "auto"):
        raise UsageError("there is no such tensor parallelism", got=placement.tp_plan, expected="auto")
    if placement.tp_plan is not None and world_size() == 1:
        raise UsageError(
            "tensor parallelism needs one process for each GPU",
            got="one process",
            remedy="start the command under torchrun or accelerate launch, or use device_map instead",
        )
    if isinstance(placement.device_map, str) and local_world_size() > 1:
        raise UsageError(
            "a device map spreads the target over every GPU of the machine, but each has a process of its own",
            got=f"device_map {placement.device_map} in {local_world_size()} processes",
            remedy="use tp_plan: auto, or start one process, or train from a cache (vocabforge capture)",
        )


def _placing(placement: Placement) -> dict[str, Any]:
    """The arguments of ``from_pretrained``; transformers before 5.18 takes the plan itself."""
    if placement.device_map is not None:
        named = placement.device_map
        return {"device_map": named if isinstance(named, str) else dict(named)}
    if placement.tp_plan is None:
        return {}
    from transformers.distributed import DistributedConfig

    if "tp_plan" in {field.name for field in fields(DistributedConfig)}:
        return {"distributed_config": DistributedConfig(tp_plan=placement.tp_plan)}
    return {"tp_plan": placement.tp_plan}


def whole_weight(module: nn.Module, device: torch.device) -> Tensor:
    """A module's weight as one plain tensor on ``device``, wherever its parts lie (other devices, disk, shards).

    Under tensor parallelism every process must call this.
    """
    weight: Any = module.weight
    if hasattr(weight, "full_tensor"):  # torch's DTensor
        return weight.full_tensor().detach().to(device)
    loaded: Any = nullcontext()
    if weight.is_meta:  # offloaded by accelerate, loaded for the length of a forward pass
        from accelerate.utils import align_module_device

        loaded = align_module_device(module)
    with loaded:
        found: Any = module.weight
        return found.detach().to(device, copy=weight.is_meta)


def read_target_config(path: Path) -> dict[str, Any]:
    """The target's ``config.json`` as a dictionary.

    Raises:
        DataError: missing or unreadable.
    """
    file = path / "config.json"
    if not file.is_file():
        raise DataError(
            "there is no model here",
            got=f"{path} without config.json",
            expected="a Hugging Face model folder (config.json, *.safetensors, tokenizer.json)",
            remedy="check the path",
        )
    value = read_json(file, "target's config.json", finite=False)
    if not isinstance(value, dict):
        raise DataError(
            "the target's config.json is not a JSON object",
            got=type(value).__name__,
            expected="an object",
            source=file,
        )
    layers = value.get("num_hidden_layers")
    if isinstance(layers, int) and layers > _MOST_LAYERS:  # making them all would never end
        raise DataError(
            "the target's config.json asks for more layers than any model has",
            got=f"num_hidden_layers {layers}",
            expected=f"at most {_MOST_LAYERS:,}",
            source=file,
        )
    return value


def dtype_of(path: Path, dtype: str, device: torch.device) -> torch.dtype:
    """What ``dtype`` comes to for this checkpoint, without loading it.

    Raises:
        UsageError: an unknown name.
        DataError: the checkpoint's own dtype cannot be used.
    """
    resolved = resolve_dtype(dtype, device)
    if isinstance(resolved, torch.dtype):
        return resolved
    config = read_target_config(path)
    named = config.get("dtype") or config.get("torch_dtype")
    if named is None:
        first = next(iter(read_headers(checkpoint_files(path)).values()))
        named = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}.get(first.dtype, first.dtype)
    if named not in DTYPES:
        raise DataError(
            "the checkpoint's own dtype cannot be used",
            got=named,
            expected=", ".join(DTYPES),
            source=path,
            remedy="set capture.dtype",
        )
    return DTYPES[str(named)]
