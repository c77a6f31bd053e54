"""Exact acceptance of many draft heads without decoding: replay of the target's own answers.

Greedy verification, and the verifier ``match`` above temperature 0, give the target's own continuation whatever was
drafted, and drafts depend on the context alone. The drafts of every cycle that could begin in a known answer can thus
be made beforehand: along the accepted path the drafter is fed the answer's own tokens. Acceptance follows from the
rank of the answer's token among the head's tokens at every step, for chains and for trees of a fixed shape. Dynamic
trees cannot be replayed: the scores of tokens that are not accepted decide which nodes they keep.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vocabforge.core.errors import UsageError
from vocabforge.core.progress import ProgressBar
from vocabforge.decode.proposers.context import ContextTokens
from vocabforge.decode.target_side import TargetSide
from vocabforge.decode.trees.shapes import TreeShape
from vocabforge.models.drafters.interface import CachedDrafter
from vocabforge.models.heads.registry import DraftHead, DraftState, LowRankHead
from vocabforge.models.kv_cache import CacheView
from vocabforge.models.lean.model import LeanModel

MISSED = 255  # a rank that was not among the best ``width``, or was not asked for
SCORED_ROWS = 64  # hidden rows that a head scores at once

Ranks = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Continuation:
    """A prompt and the target's answer to it, greedy or sampled, with its stop token if there was one."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Replayed:
    """Ranks of one way of drafting on all continuations.

    Attributes:
        ranks: (P, levels) uint8, row p for the cycle that would begin with root ``tokens[i]`` of a continuation (i
            from 0; the last token has no row): place of ``tokens[i + 1 + k]`` among the head's tokens at draft step
            k, 0 the best, drafting along the target's own tokens. :data:`MISSED` if it is not among the best
            ``width``, if an earlier one missed, and beyond the end of the continuation.
        scored: (levels,) mean number of tokens with an exact logit per row, by draft step; NaN without rows.
    """

    ranks: Ranks
    scored: tuple[float, ...]


@dataclass(frozen=True)
class StepRows:
    """The M cycles that reach a draft step: (M,) ``tokens`` fed and ``wanted``, (M, H) ``previous`` states fed and
    (M, .) ``hidden`` that the head reads. Row i belongs to the cycle whose root is token i of the answer.
    """

    tokens: Tensor
    previous: Tensor
    hidden: Tensor
    wanted: Tensor


@torch.inference_mode()
def replay(
    model: LeanModel,
    methods: Mapping[str, tuple[CachedDrafter, DraftHead]],
    continuations: Sequence[Continuation],
    *,
    levels: int,
    width: int,
    label: str = "Replay",
) -> dict[str, Replayed]:
    """Rank the target's own tokens by every head, as decoding would draft them.

    Args:
        methods: EAGLE drafters with their draft heads by name. A drafter drafts once for all its heads, and the
            target reads every text once for all drafters of the same layers.
        continuations: the target's answers.
        levels: maximum draft steps of a cycle.
        width: number of ranks that are distinguished, below :data:`MISSED`; children of a node.

    Raises:
        UsageError: a head whose rows share a shortlist, or a width out of range.
    """
    if not 1 <= width < MISSED:
        raise UsageError("a replay distinguishes too many ranks", got=width, expected=f"1 to {MISSED - 1}")
    heads: dict[CachedDrafter, dict[str, DraftHead]] = {}
    for name, (drafter, head) in methods.items():
        heads.setdefault(drafter, {})[name] = head
        if getattr(getattr(head, "tail", None) or head, "shared", False):
            raise UsageError(
                "a draft head whose rows share a shortlist cannot be replayed",
                got=f"{name}: rows shared",
                expected="rows own, which is the same for a chain",
            )
    offsets = cycle_offsets(continuations)
    ranks = {name: np.full((offsets[-1], levels), MISSED, np.uint8) for name in methods}
    sums = {name: np.zeros((2, levels)) for name in methods}  # scored tokens, and rows, by step
    longest = max((len(text.prompt) + len(text.tokens) for text in continuations), default=1)
    most = max((len(text.tokens) for text in continuations), default=1)
    keys = [(drafter.reads, tuple(drafter.config.aux_layers)) for drafter in heads]
    targets = {key: _TargetReader(model, *key, longest) for key in keys}
    unrollers = [_Unroller(drafter, levels, longest, most) for drafter in heads]
    sizes = {head.context_size for _, head in methods.values()} - {0}
    with ProgressBar(label, offsets[-1] * len(heads), "rows") as bar:
        for begin, continuation in zip(offsets, continuations):
            prompt, tokens = continuation.prompt, continuation.tokens
            cycles = len(tokens) - 1
            if cycles < 1:
                continue
            text = torch.tensor(prompt + tokens, device=model.device)
            states = {key: read(text) for key, read in targets.items()}
            contexts = text_contexts(continuation, sizes, model.device)
            for own, key, unroll in zip(heads.values(), keys, unrollers):
                steps = unroll(text, len(prompt), states[key])
                for name, head in own.items():
                    context = contexts.get(head.context_size)
                    drafted = _ranks_of(head, steps, context, width, sums[name])
                    ranks[name][begin : begin + cycles, : len(steps)] = drafted.cpu().numpy()
                bar.update(cycles)
    with np.errstate(invalid="ignore"):
        means = {name: tuple((tokens / rows).tolist()) for name, (tokens, rows) in sums.items()}
    return {name: Replayed(ranks[name], means[name]) for name in methods}


def cycle_offsets(continuations: Sequence[Continuation]) -> list[int]:
    """Return where the rows of each continuation begin in ``Replayed.ranks``, and their total number."""
    lengths = [max(0, len(continuation.tokens) - 1) for continuation in continuations]
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).tolist()


def _ranks_of(
    head: DraftHead,
    steps: Sequence[StepRows],
    context: Tensor | None,
    width: int,
    sums: npt.NDArray[np.float64],
) -> Tensor:
    """Return (cycles, steps) ranks of one continuation; a cycle that missed is not asked again."""
    device, cycles = steps[0].tokens.device, len(steps[0].tokens)
    ranks = torch.full((cycles, len(steps)), MISSED, dtype=torch.uint8, device=device)
    alive = torch.arange(cycles, device=device)
    for step, rows in enumerate(steps):
        alive = alive[alive < len(rows.tokens)]
        for part in alive.split(SCORED_ROWS) if len(alive) else ():
            told = None if context is None else context[part]
            state = DraftState(step, rows.tokens[part], rows.previous[part], len(part), told)
            logits, ids = head.scores(rows.hidden[part], min(width, head.size), state)
            ranks[part, step] = rank_of(logits, ids, rows.wanted[part], width)
            # All scores of a low-rank head are its own: none is an exact logit.
            sums[0, step] += 0 if isinstance(head, LowRankHead) else int(logits.isfinite().sum())
            sums[1, step] += len(part)
        alive = alive[ranks[alive, step] < MISSED]
    return ranks


def rank_of(logits: Tensor, ids: Tensor, wanted: Tensor, width: int) -> Tensor:
    """Return (N,) uint8 ranks of the ``wanted`` ids, ties to the lower id, by :meth:`DraftHead.scores`' results."""
    known, wanted = logits.isfinite(), wanted[:, None]
    own = torch.where(known & (ids == wanted), logits, -torch.inf).amax(1, keepdim=True)
    above = known & ((logits > own) | ((logits == own) & (ids < wanted)))
    rank = above.sum(1)
    return torch.where(own[:, 0].isfinite() & (rank < width), rank, MISSED).to(torch.uint8)


class _TargetReader:
    """The target's states of texts of at most ``longest`` tokens, read as decoding reads a prompt."""

    def __init__(self, model: LeanModel, reads: str, aux_layers: tuple[int, ...], longest: int) -> None:
        self._side, self._reads = TargetSide(model, aux_layers, 1), reads
        self._side.allocate(longest, 0)

    def __call__(self, text: Tensor) -> Tensor:
        """(T,) tokens -> (T, .) states."""
        self._side.set_length(0, 0)
        chunks = self._side.prefill(0, text, self._reads)[1]
        return torch.cat([states for states in chunks if states is not None])


class _Unroller:
    """Drafts all cycles of a continuation side by side along its own tokens.

    The drafter writes the step-0 key of every position; each cycle sees the positions before its root and its own
    draft nodes.

    Args:
        levels: maximum draft steps.
        longest, most: tokens of the longest text and of the longest answer.
    """

    def __init__(self, drafter: CachedDrafter, levels: int, longest: int, most: int) -> None:
        self.drafter, self.levels = drafter, levels
        capacity = longest + (levels - 1) * most
        self._cache = drafter.new_cache(1, capacity)
        self._slots = torch.arange(capacity, device=self._cache.device)
        drafter.ensure_positions(longest + levels)

    def __call__(self, text: Tensor, prompt: int, states: Tensor) -> list[StepRows]:
        """Return the rows of every draft step.

        Args:
            text: (T,) tokens of prompt and answer, at least two of the answer.
            prompt: number of tokens of the prompt.
            states: (T - 2 or more, .) the target's states from the text's beginning.
        """
        count = len(text) - 2  # the last root is the last token but one, its row one before it
        fused = self.drafter.fuse(states[None, :count])  # (1, T - 2, H)
        slots = self._slots[:count]
        g = self._extend(text[1 : count + 1], fused, slots, slots, slots <= slots[:, None])
        own = slice(prompt - 1, count)  # the step-0 rows of the roots
        previous, g, places = fused[0, own], g[own], slots[own]
        steps = [self._rows(text, prompt, 0, previous, g)]
        every = len(g) - 1  # cycles that reach the second step
        for k in range(1, min(self.levels, len(g))):
            previous = g[: len(g) - 1]  # the last one has nothing left to predict
            n = len(previous)
            first = count + (k - 1) * every
            before = slots <= places[:n, None]  # (n, T - 2)
            same = self._slots[:every] == self._slots[:n, None]  # its own nodes, one a step
            mask = torch.cat([before, same.repeat(1, k)], 1)[:, : first + n]
            fed = text[prompt + k : prompt + k + n]
            g = self._extend(fed, previous[None], places[:n] + k, self._slots[first : first + n], mask)
            steps.append(self._rows(text, prompt, k, previous, g))
        return steps

    def _extend(self, fed: Tensor, g: Tensor, position: Tensor, slots: Tensor, mask: Tensor) -> Tensor:
        return self.drafter.extend(fed[None], g, position[None], CacheView(self._cache, slots, mask))[0][0]

    def _rows(self, text: Tensor, prompt: int, step: int, previous: Tensor, g: Tensor) -> StepRows:
        fed, wanted = text[prompt + step :][: len(g)], text[prompt + step + 1 :][: len(g)]
        return StepRows(fed, previous, self.drafter.read(g), wanted)


def text_contexts(
    continuation: Continuation, sizes: Collection[int], device: torch.device
) -> dict[int, Tensor]:
    """Return by C the (n - 1, C) tokens that heads which read the text get at every root: ``DraftState.context``."""
    contexts = {}
    for size in sizes:
        met, rows = ContextTokens(1, size, "cpu"), []
        met.begin(0, continuation.prompt)
        for root in continuation.tokens[:-1]:
            met.add(0, [root])
            rows.append(met.tensor[0].clone())
        contexts[size] = torch.stack(rows).to(device)
    return contexts


@dataclass(frozen=True)
class Walked:
    """The cycles of one way of drafting with one shape, over Q answers.

    Attributes:
        lengths: tokens committed by each cycle of each answer; the last is cut at the answer's end.
        committed, cycles: (Q,) their sums and numbers; see :func:`walk` for what counts.
    """

    lengths: tuple[tuple[int, ...], ...]
    committed: Ints
    cycles: Ints


def accepted(ranks: Ranks, shape: TreeShape) -> Ints:
    """Return (P,) draft tokens that a cycle from each row accepts: the longest prefix of its ranks that is a path.

    Args:
        ranks: (P, levels); a deeper shape is cut to these levels, its width is at most the replay's.
    """
    table = np.full((shape.nodes + 1, MISSED + 1), shape.nodes, np.int64)  # the last node has no children
    for node, children in enumerate(shape.children):
        for child in children:
            table[node, shape.ranks[child]] = child
    at = np.zeros(len(ranks), np.int64)
    length = np.zeros(len(ranks), np.int64)
    for level in range(min(ranks.shape[1], shape.levels)):
        at = table[at, ranks[:, level]]
        length += at < shape.nodes
    return length


def walk(
    ranks: Ranks, offsets: Sequence[int], shape: TreeShape, *, limited: npt.NDArray[np.bool_] | None = None
) -> Walked:
    """Run the cycles of all answers; each begins after the tokens that the last one committed.

    Args:
        ranks: (P, levels) of :class:`Replayed`.
        offsets: (Q + 1,) result of :func:`cycle_offsets`.
        shape: what every cycle drafts.
        limited: (Q,) answers that a token limit ended. ``committed`` and ``cycles`` leave out their cycles that the
            limit may have cut (no more tokens left than the shape has levels): short answers would make long drafts
            look shorter, and draft vocabularies more alike. None: all cycles count.
    """
    begins, ends = np.asarray(offsets[:-1], np.int64), np.asarray(offsets[1:], np.int64)
    answer = np.repeat(np.arange(len(begins)), ends - begins)  # of each row
    left = ends[answer] - np.arange(len(ranks))  # tokens after each root
    lengths = np.minimum(accepted(ranks, shape) + 1, left)
    begun = np.zeros(len(ranks), bool)
    at, stop = begins[begins < ends], ends[begins < ends]
    while len(at):
        begun[at] = True
        at = at + lengths[at]
        at, stop = at[at < stop], stop[at < stop]
    whole = begun
    if limited is not None:
        whole = begun & ~(limited[answer] & (left <= min(ranks.shape[1], shape.levels)))
    return Walked(
        tuple(tuple(lengths[begin:end][begun[begin:end]].tolist()) for begin, end in zip(begins, ends)),
        np.bincount(answer[whole], lengths[whole], len(begins)).astype(np.int64),
        np.bincount(answer[whole], minlength=len(begins)),
    )
