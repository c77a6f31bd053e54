"""From ranks to accepted lengths: which cycles a chain or a fixed tree would have run, and what they commit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vocabforge.decode.trees.shapes import TreeShape

from .types import MISSED, Ranks

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Walked:
    """The cycles of one way of drafting with one shape, over Q answers.

    Attributes:
        lengths: of every answer the tokens that each cycle commits; the last is cut at the answer's end.
        committed, cycles: (Q,) their sums and numbers; see ``walk`` for what counts.
    """

    lengths: tuple[tuple[int, ...], ...]
    committed: Ints
    cycles: Ints


def accepted(ranks: Ranks, shape: TreeShape) -> Ints:
    """(P,) draft tokens that a cycle from each row accepts: the longest prefix of its ranks that is a path.

    Args:
        ranks: (P, levels); a shape that is deeper is cut to these levels, its width is at most the replay's.
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


def walk(ranks: Ranks, offsets: Sequence[int], shape: TreeShape, *, limited: Mask | None = None) -> Walked:
    """Run the cycles of all answers; each begins after the tokens that the last one committed.

    Args:
        ranks: (P, levels) of :class:`~.types.Replayed`.
        offsets: (Q + 1,) where each answer's rows begin, and their number (``replay.cycle_offsets``).
        shape: what every cycle drafts.
        limited: (Q,) answers that a limit of tokens ended, not the target. Of those ``committed`` and ``cycles`` leave
            out the cycles that the limit may have cut (no more tokens are left than the shape has levels): short
            answers would else make long drafts look shorter, and draft vocabularies more alike. None: all count.
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
