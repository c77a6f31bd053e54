"""Single changes of a drafter's config.json or tensors, in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.export.readers_support import LAYERS
from vocabforge.export.layer_ids import LAYER_IDS

Change = Callable[[dict[str, Any]], object]


def shift(by: int) -> Change:
    def edit(body: dict[str, Any]) -> None:
        body["eagle_config"][LAYER_IDS] = [layer + by for layer in LAYERS]

    return edit


def put(**fields: Any) -> Change:
    return lambda body: body.update(fields)


def drop(*names: str) -> Change:
    return lambda body: [body.pop(name) for name in names]


def inner(**fields: Any) -> Change:
    return lambda body: body["eagle_config"].update(fields)


def layer(**fields: Any) -> Change:
    return lambda body: body["transformer_layer_config"].update(fields)


def rename(old: str, new: str) -> Change:
    return lambda tensors: tensors.update({new: tensors.pop(old)})


def edit(name: str, function: Callable[[Tensor], Tensor]) -> Change:
    return lambda tensors: tensors.update({name: function(tensors[name])})


def uncounted(body: dict[str, Any]) -> None:
    del body["transformer_layer_config"]["num_aux_hidden_states"]


def shuffled(rows: Tensor) -> Tensor:
    return rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(1))]


def as_ids(d2t: Tensor) -> Tensor:
    return d2t + torch.arange(len(d2t))


def of_other_tokens(d2t: Tensor) -> Tensor:
    return (torch.arange(len(d2t)) > 20) * 9 + 7


GATE, DOWN = "midlayer.mlp.gate_proj.weight", "midlayer.mlp.down_proj.weight"
HIDDEN_NORM = "midlayer.hidden_norm.weight"
ROPE = {"rope_theta": 500000.0, "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}
LINEAR = {"rope_type": "linear", "factor": 4.0}
