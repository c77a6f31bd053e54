"""What the tests of the draft model and of the early exit share: models, trees, requests, fresh passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.worlds import tiny_target
from vocabforge.decode.control.control import CycleFigures
from vocabforge.decode.engine import Decoder
from vocabforge.decode.interface import PLAIN_PLAN, DraftStep, Plan
from vocabforge.decode.proposers.model import ModelProposer
from vocabforge.decode.proposers.registry import ProposerParts
from vocabforge.decode.request import Request
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


def noisy(folder: Path, size: float = 0.015, **changes: Any) -> LeanModel:
    """The tiny target with noise on its weights: it agrees often, not always."""
    model = load_tiny(folder, **changes)
    torch.manual_seed(7)
    for weight in model.parameters():
        weight.add_(torch.randn_like(weight) * size)
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
    """Drafts for a few cycles, decodes plainly for a few, and so on.

    Args:
        plans: a proposer's.
        pattern: of each cycle: full size (True), plain (False), or the smallest size (None).
    """

    def __init__(self, plans: Sequence[Plan], pattern: Sequence[bool | None]) -> None:
        self._plans, self._pattern, self.cycles = plans, pattern, 0

    def begin(self) -> None:
        return

    def plan(self, ready: object = None) -> Plan:
        which = self._pattern[self.cycles % len(self._pattern)]
        return PLAIN_PLAN if which is False else self._plans[-1 if which else 0]

    def observe(self, cycle: CycleFigures) -> None:
        self.cycles += 1


def plain(target: LeanModel, asked: Sequence[Request], context: int | None = None) -> list[list[int]]:
    return [one.token_ids for one in Decoder(target, context=context).generate_batch(asked)]


@torch.inference_mode()
def fresh(
    model: LeanModel, text: Sequence[int], layers: range | None = None, reach: int | None = None
) -> tuple[Tensor, Any]:
    """Hidden states (T, H) of a text read at once, and the cache."""
    slots = torch.arange(len(text))
    cache, window = model.new_cache(len(text)), model.config.sliding_window
    mask = causal_mask(slots, slots, reach)
    near = None if window is None else mask & causal_mask(slots, slots, window)
    ids = torch.tensor([list(text)])
    output = model.forward(
        ids, slots[None], cache=cache, slots=slots, mask=mask, window_mask=near, layers=layers
    )
    return output.hidden[0], cache


class Watched:
    """Keeps what a proposer's backend drafted: for each drafting and row, (path below the root, state)."""

    def __init__(self, proposer: ModelProposer) -> None:
        self.draftings: list[list[tuple[list[int], Tensor]]] = []  # in rows of each drafting
        self.lengths: list[list[int]] = []
        backend = proposer.backend
        start, expand = backend.start, backend.expand
        paths: list[list[list[int]]] = []

        def watched_start(roots: Tensor) -> DraftStep:
            step = start(roots)
            paths[:] = [[[root]] for root in roots.tolist()]
            self.draftings.append([])
            self.lengths.append(list(backend.passes.lengths))
            self._note(paths, step.hidden)
            return step

        def watched_expand(frontier: Any, step: DraftStep, level: int) -> DraftStep:
            found = expand(frontier, step, level)
            tokens, parents = frontier.tokens.tolist(), frontier.parents.tolist()
            for row, before in enumerate(paths):
                paths[row] = [[*before[p], t] for t, p in zip(tokens[row], parents[row])]
            self._note(paths, found.hidden)
            return found

        backend.start, backend.expand = watched_start, watched_expand

    def _note(self, paths: list[list[list[int]]], hidden: Tensor) -> None:
        for row, below in enumerate(paths):
            for place, path in enumerate(below):
                self.draftings[-1].append(([row, *path], hidden[row, place].clone()))

    def drafted(self) -> Iterator[tuple[int, int, list[int], Tensor]]:
        """Row, committed positions, path from the root, state."""
        for lengths, found in zip(self.lengths, self.draftings):
            for (row, *path), state in found:
                yield row, lengths[row], path, state


def check_paths(
    watched: Watched,
    model: LeanModel,
    text: Sequence[int],
    layers: range | None = None,
    reach: int | None = None,
) -> int:
    """Every drafted state of a single row is that of its path read alone behind the text; how many there were."""
    count = 0
    for _, length, path, state in watched.drafted():
        assert text[length] == path[0], "the root is the last committed token"
        alone = fresh(model, [*text[:length], *path], layers, reach)[0][-1]
        torch.testing.assert_close(state, alone, rtol=1e-4, atol=1e-4)
        count += 1
    return count
