"""The lean decoder over a target that Hugging Face has loaded, its weights held once.

The lean layers hold q, k, v (and gate, up) as one matrix, Hugging Face's hold them apart. So each lean matrix is
made, filled, and Hugging Face's parameters become views of it: both models then read the same memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from ..core.errors import DataError, MismatchError
from .checkpoint import EMBEDDING, FINAL_NORM, LM_HEAD
from .lean import LeanModel
from .lean_config import LeanConfig
from .lean_layers import frozen
from .rope import inverse_frequencies
from .target import HFTarget


@torch.no_grad()
def share_target(target: HFTarget) -> LeanModel:
    """A lean decoder that shares the memory of a loaded target's weights (norms of single heads are copied).

    One layer at a time is held twice while it is made. The target gives the same results afterwards.

    Raises:
        DataError: the lean decoder does not compute this architecture, or the target's weights are spread over
            processes or devices, or of several dtypes.
        MismatchError: the target's tensors are not those of its configuration.
    """
    parameters = dict(target.model.named_parameters())  # a tied LM head is named once, as the embedding
    _check_whole(parameters, target.source)
    config = LeanConfig.from_hf_config(
        target.source
        if isinstance(target.source, Path)
        else {"architectures": [type(target.model).__name__], **_known(target.model.config.to_dict())}
    )
    weight = target.embedding
    model = LeanModel(config, dtype=weight.dtype, device="meta", own_lm_head=LM_HEAD in parameters)
    _check_names(model, parameters, target.source)
    with torch.inference_mode(False):  # training reads these tensors too
        model.embedding = frozen(parameters[EMBEDDING].data)
        model.norm = frozen(parameters[FINAL_NORM].data)
        if model.lm_head is not None:
            model.lm_head = frozen(parameters[LM_HEAD].data)
        inverse = inverse_frequencies(config.rope, config.head_dim)
        model.inverse = inverse.to(weight.device)
        model.eps = torch.tensor(config.rms_norm_eps, device=weight.device)
        for index, layer in enumerate(model._layers()):
            for name, parameter in list(layer.named_parameters()):
                empty = torch.empty(parameter.shape, dtype=weight.dtype, device=weight.device)
                layer.register_parameter(name, frozen(empty))
            for name, parts in layer.checkpoint_views().items():
                theirs = parameters[f"model.layers.{index}.{name}"]
                for part in parts:
                    part.copy_(theirs.data)
                if len(parts) == 1:
                    theirs.data = parts[0]
    return model


def _known(config: Mapping[str, object]) -> dict[str, object]:
    return {key: value for key, value in config.items() if value is not None}


def _check_whole(parameters: Mapping[str, Tensor], source: object) -> None:
    """Refuse weights that lie in several places; Hugging Face's hooks move them, the lean decoder does not."""
    from torch.distributed.tensor import DTensor

    problem = None
    devices = sorted({str(tensor.device) for tensor in parameters.values()})
    dtypes = sorted({str(tensor.dtype) for tensor in parameters.values()})
    if any(isinstance(tensor, DTensor) for tensor in parameters.values()):
        problem = "weights divided over processes (tensor parallelism)"
    elif len(devices) > 1 or devices == ["meta"]:
        problem = f"weights on {', '.join(devices)}"
    elif len(dtypes) > 1:
        problem = f"weights in {', '.join(dtypes)}"
    if problem is not None:
        raise DataError(
            "the lean decoder needs the whole target on one device, in one dtype",
            got=problem,
            source=source,
            remedy="load the target on one device, in one dtype",
        )


def _check_names(model: LeanModel, parameters: Mapping[str, Tensor], source: object) -> None:
    wanted = {name: tuple(parts[0].shape) for name, parts in model.checkpoint_views().items()}
    found = {name: tuple(tensor.shape) for name, tensor in parameters.items()}
    if wanted != found:
        different = sorted(name for name in {*wanted, *found} if wanted.get(name) != found.get(name))
        raise MismatchError(
            "the loaded target's tensors are not those of its configuration",
            got=f"{len(different)} differ, first: {', '.join(different[:3])}",
            expected=f"{len(wanted)} tensors",
            source=source,
        )
