"""What is checked of a target by a forward pass, before anything is trained on it.

Hidden states of the wrong layer train without complaint: an acceptance of 1.2% instead of 58.9% is how it shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..core.errors import DataError

if TYPE_CHECKING:
    from .target import HFTarget

# Settings of Hugging Face configurations that change logits after the LM head, unless they are None or 1.
_LOGIT_SETTINGS = ("final_logit_softcapping", "logit_scale", "logits_scaling", "lm_head_multiplier")
_FINAL_NORMS = ("norm", "final_layernorm", "final_layer_norm", "ln_f")
_TOKENS = 8


def refuse_logit_settings(config: Mapping[str, Any], kind: str, source: object) -> None:
    """Refuse a softcap or scale by its setting; a softcap hardly shows on small logits.

    Raises:
        DataError: such a setting is on.
    """
    named = [f"{key} {config[key]}" for key in _LOGIT_SETTINGS if config.get(key) not in (None, 1)]
    if named:
        raise _changed_logits(f"{kind}: {', '.join(named)}", source)


@torch.no_grad()
def check_target(target: HFTarget) -> None:
    """Hold the target's own logits and layer outputs against what training will take for them.

    Raises:
        DataError: logits that are not LM head weight x hidden states (softcaps, scales, a bias), or auxiliary
            layers whose outputs are not what the model itself reports under their numbers.
    """
    refuse_logit_settings(vars(target.model.config), type(target.model).__name__, target.source)
    ids = torch.arange(min(_TOKENS, target.vocab_size), device=target.device)[None]  # (1, n)
    with torch.autocast(target.device.type, enabled=False):
        whole = target.model(input_ids=ids, use_cache=False, output_hidden_states=True)
        kept, hidden = target.forward(ids, target.aux_layers)
        _check_head(target, whole.logits, hidden)
        _check_layers(target, whole.hidden_states, kept, hidden)


def _check_head(target: HFTarget, whole: Tensor, hidden: Tensor) -> None:
    weight = target.head_weight
    ours = F.linear(hidden.to(weight), weight)
    if not close(ours, whole):
        difference = float((ours - whole.to(ours)).abs().max())
        raise _changed_logits(f"{type(target.model).__name__}: up to {difference:.3g} apart", target.source)


def _changed_logits(got: str, source: object) -> DataError:
    return DataError(
        "this target changes its logits after the LM head, which is not supported",
        got=got,
        expected="logits = LM head weight x hidden states",
        source=source,
    )


def _check_layers(
    target: HFTarget, reported: tuple[Tensor, ...] | None, kept: Mapping[int, Tensor], hidden: Tensor
) -> None:
    """``hidden_states[i + 1]`` is the output of layer i; after the last layer it is behind the final norm."""
    count = target.num_layers
    problem = None
    if reported is None or len(reported) != count + 1:
        problem = f"{0 if reported is None else len(reported)} hidden states of {count} layers"
    else:
        wrong = [i for i in kept if not _is_output(target, i, kept[i], reported[i + 1], hidden)]
        if wrong:
            problem = f"layer {wrong[0]}'s output is not hidden_states[{wrong[0] + 1}]"
    if problem is not None:
        raise DataError(
            "the target's layers cannot be told apart safely",
            got=f"{type(target.model).__name__}: {problem}",
            expected="hidden_states[i + 1] = output of layer i (0-based)",
            source=target.source,
        )


def _is_output(target: HFTarget, index: int, output: Tensor, reported: Tensor, hidden: Tensor) -> bool:
    if index < target.num_layers - 1:
        return close(output, reported)
    return close(final_norm(target, output), hidden) or close(output, hidden)


def final_norm(target: HFTarget, states: Tensor) -> Tensor:
    """The norm between the last layer and the LM head, applied to (..., H).

    Raises:
        DataError: the model has none under the usual names.
    """
    for name in _FINAL_NORMS:
        norm = getattr(target.backbone, name, None)
        if norm is not None:
            return norm(states).to(states.device)
    raise DataError(
        "the target has no final norm where it was looked for",
        got=type(target.model).__name__,
        expected=" or ".join(_FINAL_NORMS),
        source=target.source,
    )


def close(one: Tensor, other: Tensor) -> bool:
    """Equal but for rounding of the coarser dtype, measured against the largest number."""
    limit = 1e-2 if min(one.element_size(), other.element_size()) < 4 else 1e-3
    other = other.to(one.device).float()
    return bool((one.float() - other).abs().max() <= limit * other.abs().max())
