"""What tests of whole decoders over real tiny models share: models, trees, requests, plans, fresh passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.worlds import tiny_target
from vocabforge.decode.control.control import CycleFigures
from vocabforge.decode.engine import Decoder
from vocabforge.decode.interface import PLAIN_PLAN, Plan
from vocabforge.decode.proposers.model import ModelProposer
from vocabforge.decode.proposers.registry import ProposerParts
from vocabforge.decode.request import Generation, Request
from vocabforge.decode.spec import MethodSpec
from vocabforge.decode.trees.fixed import ShapePolicy
from vocabforge.decode.trees.shapes import from_paths
from vocabforge.models.kv_cache import causal_mask
from vocabforge.models.lean.model import LeanModel, load_target

SHAPES = {
    "one": MethodSpec(tree="chain", depth=0),
    "chain": MethodSpec(tree="chain", depth=3),
    "dynamic": MethodSpec(tree="dynamic", depth=3, topk=3, total_nodes=14),
    "narrow": MethodSpec(tree="dynamic", depth=2, topk=1, total_nodes=4),
    "static": MethodSpec(tree="static", depth=3, topk=3, total_nodes=12),
}
# Two levels of one node each above a tree.
STEM = from_paths([(0,), (0, 0), (0, 0, 0), (0, 0, 1), (0, 0, 0, 0), (0, 0, 1, 0), (0, 0, 1, 1)])
PROMPTS = [[3, 17, 8, 44, 21, 9], [5], [11, 12] * 9, [40, 2, 7]]
COUNT = 16  # new tokens


def load_tiny(folder: Path, **changes: Any) -> LeanModel:
    return load_target(tiny_target(folder, **changes))


def noisy(model: LeanModel, share: float = 0.03) -> LeanModel:
    """The model with noise on its weights: it agrees often, not always."""
    stream = torch.Generator().manual_seed(3)
    for weight in model.parameters():
        weight.data.mul_(torch.empty(weight.shape).normal_(1.0, share, generator=stream))
    return model


def sharp(model: LeanModel) -> LeanModel:
    """The same model, so sure of itself that a dynamic tree always holds its best path."""
    model.norm.mul_(20)
    return model


def requests(count: int = COUNT, prompts: Sequence[Sequence[int]] = PROMPTS) -> list[Request]:
    return [Request(prompt, count + 3 * at) for at, prompt in enumerate(prompts)]


def shaped(
    build: Callable[[ProposerParts], ModelProposer], parts: ProposerParts, shape: Any
) -> ModelProposer:
    """A proposer with a tree of ``SHAPES``, with options, or with STEM."""
    options = SHAPES.get(shape, SHAPES["chain"]) if isinstance(shape, str) else shape
    made = build(
        replace(parts, options=options.model_copy(update={"exit_layers": parts.options.exit_layers}))
    )
    return ModelProposer(made.backend, made.head, ShapePolicy(STEM)) if shape == "stem" else made


class Alternating:
    """Cycles of full size (True), plain (False) or of the smallest size (None); from the start for each batch."""

    def __init__(self, plans: Sequence[Plan], pattern: Sequence[bool | None]) -> None:
        self._plans, self._pattern, self.cycles = plans, pattern, 0

    def begin(self) -> None:
        self.cycles = 0

    def plan(self, ready: object = None) -> Plan:
        which = self._pattern[self.cycles % len(self._pattern)]
        return PLAIN_PLAN if which is False else self._plans[-1 if which else 0]

    def observe(self, cycle: CycleFigures) -> None:
        self.cycles += 1


def plain(target: LeanModel, asked: Sequence[Request], context: int | None = None) -> list[list[int]]:
    return [one.token_ids for one in Decoder(target, context=context).generate_batch(asked)]


def check_always_right(decoder: Decoder, asked: Sequence[Request]) -> list[Generation]:
    """Output is plain decoding's, and every level drafted was accepted: no state, key or mask of drafting is wrong."""
    results = decoder.generate_batch(asked)
    assert [one.token_ids for one in results] == plain(decoder.target, asked)
    for one in results:
        assert one.verified_lengths == [levels + 1 for levels in one.drafted_levels]
    return results


@torch.inference_mode()
def fresh(model: LeanModel, text: Sequence[int]) -> tuple[Tensor, Any]:
    """Hidden states (T, H) of a text read at once, and the cache."""
    slots, cache = torch.arange(len(text)), model.new_cache(len(text))
    mask, ids = causal_mask(slots, slots), torch.tensor([list(text)])
    output = model.forward(ids, slots[None], cache=cache, slots=slots, mask=mask)
    return output.hidden[0], cache
