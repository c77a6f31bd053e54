"""Loading of Hugging Face targets: dtype, quantisation, and placement over several devices."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...core.artifact import MANIFEST
from ...core.console import say
from ...core.distributed import local_world_size, world_size
from ...core.errors import DataError, UsageError
from ...core.files import read_json
from ..checkpoint import checkpoint_files, read_headers

_MOST_LAYERS = 1 << 12
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Placement:
    """Placement of a target's weights.

    Attributes:
        device: device of the target; with the other options, device of the tensors that it returns.
        device_map: Hugging Face's placement of layers over the devices of one process: ``auto``, or a mapping
            of modules to devices, optionally as JSON.
        tp_plan: ``auto`` for Hugging Face's tensor parallelism over all launched processes, one per GPU.
    """

    device: torch.device
    device_map: str | Mapping[str, Any] | None = None
    tp_plan: str | None = None

    @property
    def spread(self) -> bool:
        """Whether weights may be on other devices than ``device``."""
        return self.device_map is not None or self.tp_plan is not None


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype, such as ``float32`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


def resolve_dtype(dtype: torch.dtype | str, device: torch.device) -> torch.dtype | str:
    """Resolve a dtype; ``auto`` is the checkpoint's on CUDA (Hugging Face's ``auto``) and fp32 on a CPU.

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
    """Load a local Hugging Face folder without remote code. Multimodal models are used with text only.

    Transformers dequantises a checkpoint whose kernels are missing (FP8 and MXFP4 on a CPU). On one device
    the result is converted to ``dtype``; otherwise it keeps its dtype.

    Raises:
        DataError: the folder has no loadable model, or weights are missing.
        UsageError: the placement does not suit how the processes were launched.
    """
    from transformers.utils import logging as hf_logging

    _check_launch(placement)
    config = read_target_config(path)
    auto = auto_class(path, config)
    quantised = check_quantisation(path, config)
    read_headers(checkpoint_files(path))  # unlike transformers, names a missing or damaged file
    hf_logging.disable_progress_bar()
    resolved = resolve_dtype(dtype, placement.device)
    placing = _placing(placement)
    if quantised and not placement.spread and placement.device.type != "cpu":
        # Some formats are packed on the device and cannot be moved later.
        placing = {"device_map": {"": placement.device}}
    try:
        model, info = auto.from_pretrained(
            path,
            # FP8 weights and their scales cannot be converted while loading.
            dtype="auto" if quantised else resolved,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # reported below
            **placing,
        )
    except Exception as error:  # transformers raises many types of errors, all with the same meaning
        raise DataError(
            "the target cannot be loaded",
            got=f"{type(error).__name__}: {error}",
            expected="a causal language model of Transformers, in safetensors, without custom code",
            source=path,
            remedy="a newer transformers may read it",
        ) from error
    missing = [key for key in info["missing_keys"] if "rotary" not in key]
    if missing:
        raise DataError(
            "the target's checkpoint lacks weights",
            got=f"{len(missing)} missing, first: {', '.join(sorted(missing)[:3])}",
            source=path,
            remedy="the checkpoint may be incomplete; fetch it again",
        )
    if other := sorted(info["mismatched_keys"]):
        name, stored, wanted = other[0]
        raise DataError(
            "tensors of the target's checkpoint do not have the shapes of its configuration",
            got=f"{len(other)} tensor{'s' if other[1:] else ''}, first: {name} {tuple(stored)}, not {tuple(wanted)}",
            source=path,
            remedy="use the config.json that was saved with these weights",
        )
    if placement.spread:
        return model
    if quantised:
        packed = getattr(model, "is_quantized", False) or resolved == "auto"
        return model if packed else model.to(resolved)
    return model.to(placement.device)


def auto_class(path: Path, config: Mapping[str, Any]) -> Any:
    """Return the Transformers class that loads a causal language model with this configuration.

    Raises:
        DataError: the model has no causal decoder with an LM head, or Transformers does not support it.
    """
    import transformers

    listed = config.get("architectures") or f"model_type {config.get('model_type')}"
    named = ", ".join(map(str, listed)) if isinstance(listed, list) else str(listed)
    try:
        known = transformers.AutoConfig.from_pretrained(path, trust_remote_code=False)
        text = known.get_text_config(decoder=True)
    except Exception as error:
        raise DataError(
            "Transformers does not know this target",
            got=f"{named}: {' '.join(str(error).split())[:300]}",
            source=path / "config.json",
            remedy="upgrade transformers; code that comes with a model is not run",
        ) from error
    auto = next(
        (
            loader
            for loader, models in (
                (transformers.AutoModelForCausalLM, transformers.MODEL_FOR_CAUSAL_LM_MAPPING),
                (transformers.AutoModelForImageTextToText, transformers.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING),
            )
            if type(known) in models
        ),
        None,
    )
    body = transformers.MODEL_MAPPING.get(type(known), None)
    bare = isinstance(body, type) and named == body.__name__
    problem = None
    if known.is_encoder_decoder:
        problem = "an encoder and a decoder"
    elif auto is None or bare or _OTHER_TASK.search(named):
        problem = "no LM head over a causal decoder"
    elif not getattr(text, "num_hidden_layers", None):
        problem = "no stack of decoder layers"
    if problem is not None:
        raise DataError(
            "this model cannot be a target",
            got=f"{named}: {problem}",
            expected="a decoder-only language model with an LM head",
            source=path / "config.json",
        )
    if text is not known:
        say(f"The target is multimodal ({named}): it is used with text only.")
    return auto


_OTHER_TASK = re.compile("ForMaskedLM|Classification|QuestionAnswering|RewardModel")
# quant_method of config.json -> packages that read it, and the command to install them
_PACKAGES = {
    "bitsandbytes": (("bitsandbytes",), "pip install bitsandbytes"),
    "awq": (("gptqmodel",), "pip install gptqmodel"),
    "gptq": (("optimum", "gptqmodel"), "pip install optimum gptqmodel"),
    "compressed-tensors": (("compressed_tensors",), "pip install compressed-tensors"),
}


def check_quantisation(path: Path, config: Mapping[str, Any]) -> bool:
    """Return whether a checkpoint is quantised according to its configuration.

    Raises:
        DataError: Transformers does not support the format, or its package is not installed.
    """
    inner = config.get("text_config") or {}
    quantization = config.get("quantization_config") or inner.get("quantization_config")
    if not quantization and (path / "hf_quant_config.json").is_file():  # written by older ModelOpt versions
        quantization = {"quant_method": "modelopt"}
    if not quantization:
        return False
    facts = quantization if isinstance(quantization, Mapping) else {"quant_method": quantization}
    method = str(facts.get("quant_method"))
    form = f"{method} {facts.get('format') or facts.get('quant_algo') or ''}"
    if re.search("modelopt|nvfp4", form, re.IGNORECASE):
        raise DataError(
            "the target is quantised in a format that Transformers does not compute",
            got=form.strip(),
            expected="floating point, FP8 blocks, MXFP4, bitsandbytes, AWQ, GPTQ or compressed-tensors",
            source=path / "config.json",
            remedy="use the checkpoint that it was quantised from",
        )
    packages, install = _PACKAGES.get(method, ((), ""))
    absent = [name for name in packages if find_spec(name) is None]
    if absent:
        raise DataError(
            "the target is quantised, and the package that reads it is not installed",
            got=f"{method}, no package {' and '.join(absent)}",
            source=path / "config.json",
            remedy=install,
        )
    return True


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
            "a device map spreads the target over every GPU of the machine, but each GPU has its own process",
            got=f"device_map {placement.device_map} in {local_world_size()} processes",
            remedy="use tp_plan: auto, or start one process, or train from a cache (vocabforge capture)",
        )


def _placing(placement: Placement) -> dict[str, Any]:
    if placement.device_map is not None:
        named = placement.device_map
        if isinstance(named, str) and named.startswith("{"):
            try:
                named = json.loads(named)
            except ValueError as error:
                raise UsageError(
                    "the device map is no JSON",
                    got=named,
                    expected='auto, or {"model.embed_tokens": 0, "model.layers.0": 1, …}',
                ) from error
        return {"device_map": named if isinstance(named, str) else dict(named)}
    if placement.tp_plan is None:
        return {}
    from transformers.distributed import DistributedConfig

    return {"distributed_config": DistributedConfig(tp_size=world_size(), tp_plan=placement.tp_plan)}


def whole_weight(module: Any, device: torch.device) -> Tensor:
    """Return a module's weight as a plain tensor on ``device``, gathered from other devices, disk or shards.

    Under tensor parallelism every process must call this.
    """
    weight = module.weight
    if hasattr(weight, "full_tensor"):  # torch's DTensor
        return weight.full_tensor().detach().to(device)
    loaded: Any = nullcontext()
    if weight.is_meta:  # offloaded by accelerate, which loads it only during a forward pass
        from accelerate.utils import align_module_device

        loaded = align_module_device(module)
    with loaded:
        return module.weight.detach().to(device, copy=weight.is_meta)


def read_target_config(path: Path) -> dict[str, Any]:
    """Read the target's ``config.json`` as a dictionary.

    Raises:
        DataError: the file is missing or cannot be read.
    """
    file = path / "config.json"
    if not file.is_file():
        raise DataError(
            "no model here",
            got=f"{path} without config.json",
            expected="a Hugging Face model folder (config.json, *.safetensors, tokenizer.json)",
            remedy="give the target's folder; this is an artefact of VocabForge"
            if (path / MANIFEST).is_file()
            else "check the path",
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
    if isinstance(layers, int) and layers > _MOST_LAYERS:  # building them would take forever
        raise DataError(
            "the target's config.json has more layers than any model",
            got=f"num_hidden_layers {layers}",
            expected=f"at most {_MOST_LAYERS:,}",
            source=file,
        )
    return value


def dtype_of(path: Path, dtype: str, device: torch.device) -> torch.dtype:
    """Resolve ``dtype`` for this checkpoint without loading it.

    Raises:
        UsageError: an unknown name.
        DataError: the checkpoint's dtype cannot be used.
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


def decoding_dtype(path: Path, dtype: str, device: torch.device) -> str:
    """Resolve ``dtype`` for decoding.

    ``auto`` is the checkpoint's dtype on a GPU, as in servers, and fp32 on a CPU, whose compiled ops
    compute in it (bf16 matrices stay bf16 in memory).
    """
    return dtype if dtype != "auto" else dtype_name(dtype_of(path, dtype, device))


def multiplies_bf16() -> bool:
    """Return whether this CPU multiplies bf16 natively (AVX512-BF16 or AMX); on others it is much slower."""
    file = Path("/proc/cpuinfo")
    flags = set(file.read_text("utf-8").split()) if file.is_file() else set()
    return bool(flags & {"avx512_bf16", "amx_bf16"})
