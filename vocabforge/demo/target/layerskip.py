"""LayerSkip training (Elhoushi et al. 2024): dropped layers, and a loss at every exit.

The trained target can predict from its first layers with its single LM head and final norm, so it can draft
for itself (``decode/proposers/early_exit.py``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .config import TinyTargetConfig
from .train import Step, TextBatch, TextRows, counted_states


def dropout_rates(layers: int, most: float, step: int, steps: int) -> list[float]:
    """Return each layer's dropout rate, which grows exponentially with depth and time up to ``most``.

    The paper's p(l, t) = S(t) D(l) p_max, with D(l) = exp(l ln 2 / (L - 1)) - 1 and an analogous S(t) over
    steps, as for training from scratch.
    """

    def rising(place: int, last: int) -> float:
        return math.exp(place * math.log(2) / last) - 1 if last else 1.0

    return [most * rising(step, steps - 1) * rising(layer, layers - 1) for layer in range(layers)]


def exit_weights(layers: int, scale: float, step: int, every: int) -> dict[int, float]:
    """Return layer -> loss weight of its exit, summing to 1.

    The last layer always has an exit, earlier layers in rotation, every ``every``-th per step. The paper's
    e(l) = scale (0 + 1 + .. + l), for the last layer L - 1 + scale (0 + .. + L - 2), with its rotational
    curriculum.
    """
    last = layers - 1
    sums = {layer: scale * layer * (layer + 1) / 2 for layer in range(last) if layer % every == step % every}
    sums[last] = last + scale * last * (last - 1) / 2 or 1.0
    total = sum(sums.values())
    return {layer: weight / total for layer, weight in sums.items() if weight}


@contextmanager
def dropped(model: Any, stays: Tensor, wanted: set[int]) -> Iterator[dict[int, Tensor]]:
    """Run the model's passes with dropped layers; yield the outputs (B, T, H) of the ``wanted`` layers.

    Args:
        stays: (B, L), 1 if a row keeps a layer and 0 if it skips it.
    """
    outputs: dict[int, Tensor] = {}

    def hook(layer: int) -> Any:
        def run(_module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
            before = args[0] if args else kwargs["hidden_states"]
            after = output[0] if isinstance(output, tuple) else output
            kept = torch.where(stays[:, layer, None, None] > 0, after, before)
            if layer in wanted:
                outputs[layer] = kept
            return (kept, *output[1:]) if isinstance(output, tuple) else kept

        return run

    handles = [
        layer.register_forward_hook(hook(number), with_kwargs=True)
        for number, layer in enumerate(model.model.layers)
    ]
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()


def layerskip_loss(model: Any, batch: TextBatch, stays: Tensor, weights: dict[int, float]) -> Tensor:
    """Return the weighted sum of the exits' mean cross-entropies over the counted predictions."""
    last = len(model.model.layers) - 1
    with dropped(model, stays, set(weights) - {last}) as outputs:
        states = {last: counted_states(model, batch)}
    for layer, output in outputs.items():
        states[layer] = model.model.norm(output)[:, :-1][batch.keep]
    count = max(len(batch.labels), 1)
    return sum(
        (
            weight
            * F.cross_entropy(model.lm_head(states[layer]).float(), batch.labels, reduction="sum")
            / count
            for layer, weight in weights.items()
        ),
        torch.zeros((), device=batch.labels.device),
    )


def layerskip_step(
    model: Any, optimizer: torch.optim.Optimizer, rows: TextRows, config: TinyTargetConfig
) -> Step:
    """Return a step on LayerSkip's loss; the seed and the step number determine the dropped layers."""
    layers = config.num_layers

    def step(number: int, batch: TextBatch) -> tuple[Tensor, Tensor]:
        rates = torch.tensor(dropout_rates(layers, config.layer_dropout, number, config.optim.steps))
        draws = torch.rand(
            len(batch.input_ids),
            layers,
            generator=torch.Generator().manual_seed(config.seed + (number << 32)),
        )
        stays = (draws >= rates).to(batch.input_ids.device)
        weights = exit_weights(layers, config.early_exit_loss, number, config.early_exit_every)
        loss = layerskip_loss(model, batch, stays, weights)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), config.optim.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach(), norm

    return step
