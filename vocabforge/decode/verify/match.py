"""Lossless sampling by the target's own choice: draw its token, and accept the child that equals it.

The distribution is the target's whatever was drafted, and a child x is accepted with p(x), as where point masses are
tried one after the other (``verify/point.py``). One uniform number a token, the same that plain decoding would use: a
request's output follows from its seed alone, not from what was drafted, how much, or beside whom.
"""

from __future__ import annotations

from ..sampling import target_weights
from ..tree import RowTree, Verifier, walk_down


def _choose(row: RowTree, node: int, path_tokens: list[int]) -> tuple[int | None, int]:
    weights = target_weights(row.logits[node], row.sampling, row.history, path_tokens)
    token = row.chance.draw(weights)
    return next((child for child in row.children[node] if row.tokens[child] == token), None), token


MATCH = Verifier(lambda row: walk_down(row, _choose))
