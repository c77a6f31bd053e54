"""Load stored tensors into a server's parameters as its weight loader does."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ...models.target.load import dtype_name
from .forward import ServedDrafter, ServedSizes
from .types import Effect, Folder, KeyUse, Served

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
_REMEDY = "export the drafter again, or correct the tensor's name in the file"


@dataclass(frozen=True)
class Slot:
    """Destination of one stored tensor: rows of a (possibly fused) parameter.

    ``whole`` marks the fused parameter under its own name, for files that store it fused.
    """

    parameter: str
    first: int
    shape: tuple[int, ...]
    whole: bool = False


@dataclass(frozen=True)
class KeyPlace:
    """A server's decision on a stored name: the slot's name, or the reason that there is none."""

    slot: str | None
    note: str = ""
    refused: bool = False


def slots_of(s: ServedSizes) -> dict[str, Slot]:
    """Return a drafter's slots by the name that a loader looks up; fused names are accepted as well."""
    table: dict[str, tuple[int, ...]] = {
        EMBEDDING: (s.vocab, s.hidden),
        HEAD: (s.head_rows, s.hidden),
    }
    if s.family == "eagle3":
        width = s.n_aux * s.target_hidden
        table |= {"model.fc.weight": (s.hidden, width), "model.norm.weight": (s.hidden,)}
        if s.norm_before_fc:
            table["model.input_norm.weight"] = (width,)
        if s.fc_norm:
            table |= {f"model.fc_norm.{i}.weight": (s.target_hidden,) for i in range(s.n_aux)}
    else:
        table["model.fc.weight"] = (s.hidden, 2 * s.hidden)
    if s.fc_bias:
        table["model.fc.bias"] = (s.hidden,)
    slots = {name: Slot(name, 0, shape) for name, shape in table.items()}
    for index in range(s.layers):
        slots |= _layer_slots(s, index)
    return slots


def _layer_slots(s: ServedSizes, index: int) -> dict[str, Slot]:
    """Return the slots of one decoder layer; EAGLE-3's first layer reads two concatenated states."""
    layer, wide, narrow = f"model.layers.{index}.", s.heads * s.head_dim, s.kv_heads * s.head_dim
    inputs = 2 * s.hidden if s.family == "eagle3" and index == 0 else s.hidden
    table: dict[str, tuple[int, ...]] = {
        f"{layer}self_attn.o_proj.weight": (s.hidden, wide),
        f"{layer}mlp.down_proj.weight": (s.hidden, s.intermediate),
        f"{layer}post_attention_layernorm.weight": (s.hidden,),
    }
    if s.family == "eagle3":
        table[f"{layer}input_layernorm.weight"] = (s.hidden,)
    if s.family == "eagle3" and index == 0:
        table[f"{layer}hidden_norm.weight"] = (s.hidden,)
    if s.qk_norm:
        table |= {f"{layer}self_attn.{name}_norm.weight": (s.head_dim,) for name in ("q", "k")}
    slots = {name: Slot(name, 0, shape) for name, shape in table.items()}
    for fused, parts in (
        ("self_attn.qkv_proj", {"q_proj": wide, "k_proj": narrow, "v_proj": narrow}),
        ("mlp.gate_up_proj", {"gate_proj": s.intermediate, "up_proj": s.intermediate}),
    ):
        columns, first = inputs if "qkv" in fused else s.hidden, 0
        whole = f"{layer}{fused}.weight"
        for part, rows in parts.items():
            slots[f"{layer}{fused.split('.')[0]}.{part}.weight"] = Slot(whole, first, (rows, columns))
            first += rows
        slots[whole] = Slot(whole, 0, (first, columns), whole=True)
    return slots


def load(
    served: Served, folder: Folder, slots: Mapping[str, Slot], place: Callable[[str], KeyPlace]
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Fill the parameters in fp32, and record the use of every key in ``served``.

    Returns the parameters with at least one tensor, and a map from slot to the stored name that filled it.
    """
    heights: dict[str, int] = {}
    for slot in slots.values():
        heights[slot.parameter] = max(heights.get(slot.parameter, 0), slot.first + slot.shape[0])
    parameters: dict[str, Tensor] = {}
    filled: dict[str, str] = {}
    for name, tensor in folder.tensors.items():
        where, shape = place(name), tuple(tensor.shape)
        kind = dtype_name(tensor.dtype)
        slot_name = where.slot or ""
        destination = slots.get(slot_name)
        if destination is None:
            effect: Effect = "refused" if where.refused else "ignored"
            served.keys.append(KeyUse(name, shape, kind, effect, note=where.note or "no such parameter"))
            continue
        problem = f"expected {list(destination.shape)}" if shape != destination.shape else ""
        if slot_name in filled:
            problem = f"a second tensor for {slot_name}, after {filled[slot_name]}"
        if problem:
            served.keys.append(KeyUse(name, shape, kind, "refused", slot_name, problem))
            continue
        filled[slot_name] = name
        size = (heights[destination.parameter], *destination.shape[1:])
        whole = parameters.setdefault(destination.parameter, torch.full(size, math.nan))
        whole[destination.first : destination.first + destination.shape[0]] = tensor.float()
        served.keys.append(KeyUse(name, shape, kind, "read", slot_name, where.note))
    return parameters, filled


def is_targets(tensor: Tensor | None, theirs: Tensor) -> bool:
    """Return whether a stored tensor equals the target's in its dtype; the server can then share one copy."""
    return (
        tensor is not None
        and tensor.shape == theirs.shape
        and torch.equal(theirs.cpu().to(tensor.dtype), tensor)
    )


def conclude(
    served: Served,
    sizes: ServedSizes,
    slots: Mapping[str, Slot],
    loaded: tuple[dict[str, Tensor], dict[str, str]],
    shared: Mapping[str, Tensor],
) -> None:
    """Record missing tensors and problems; without problems, record the drafter that the server computes.

    A problem either stops the server or makes it compute silently with wrong weights. ``shared`` holds the
    target's tensors that the server uses instead of the folder's or because the folder has none.
    """
    parameters, filled = loaded
    served.own_head = HEAD not in shared
    for name, slot in slots.items():
        if not (slot.whole or name in filled or (slot.parameter != name and slot.parameter in filled)):
            served.gaps[name] = "target" if name in shared else "random"
    refused = [f"{key.name}: {key.note}" for key in served.keys if key.effect == "refused"]
    if refused:
        served.fail("tensors", f"{served.title} does not start: {'; '.join(refused[:4])}", _REMEDY)
    random = [name for name, source in served.gaps.items() if source == "random"]
    if random:
        told = ", ".join(random[:4]) + (f" and {len(random) - 4} more" if len(random) > 4 else "")
        served.fail("tensors", f"no tensor for {told}: left as memory held it, without an error", _REMEDY)
    lost = [key for key in served.keys if key.effect == "ignored" and not key.note.startswith("not needed")]
    if lost:
        told = "; ".join(f"{key.name} ({key.note})" for key in lost[:4])
        (served.fail if random else served.warn)(
            "tensors",
            f"skipped without an error: {told}",
            "remove it if it is not needed; if it is, its name is not the server's",
        )
    if not served.failed:
        served.drafter = ServedDrafter(sizes, {**parameters, **shared})
