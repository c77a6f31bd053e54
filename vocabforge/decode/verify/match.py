"""Lossless sampling by the target's own choice: draw its token, and accept the child that equals it.

The output has the target's distribution for any drafts. A child x is accepted with p(x), as with point masses
tried one after the other (``verify/point.py``). Each token uses one uniform number, as in plain decoding. A
request's output therefore depends only on its seed, not on what was drafted, how much, or on other requests
in the batch.
"""

from __future__ import annotations

from ..sampling import target_weights
from ..tree import RowTree, Verifier, walk_down


def _choose(row: RowTree, node: int, path_tokens: list[int]) -> tuple[int | None, int]:
    weights = target_weights(row.logits[node], row.sampling, row.history, path_tokens)
    token = row.chance.draw(weights)
    return next((child for child in row.children[node] if row.tokens[child] == token), None), token


MATCH = Verifier(lambda row: walk_down(row, _choose))
