"""Formulas of speculative decoding: expected tokens, costs, when drafting pays.

Derivations, and what other formulas leave out: docs/speculation-theory.md, whose claims ``test_theory.py`` holds
against enumeration. All functions are pure and take floats or ``Fraction``; nothing here assumes that positions are
alike or independent. The one that decoding reads, ``expected_by_length``, stands there.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import mul
from typing import Any

from vocabforge.decode.control.estimates import expected_by_length

# float or Fraction: exact in, exact out
Number = Any


def reach(conditional: Sequence[Number]) -> list[Number]:
    """P(at least j draft tokens are accepted), j = 1 .. g: the products of conditional acceptances.

    Args:
        conditional: (g,) P(position j is accepted | the ones before it are).
    """
    return list(accumulate(conditional, mul))


def expected_tokens(conditional: Sequence[Number]) -> Number:
    """Expected committed tokens of a chain's cycle, the target's own token included: ``1 + sum_j reach_j``."""
    return expected_by_length(conditional)[-1]


def expected_tokens_alike(acceptance: Number, length: int) -> Number:
    """The same where every position has one acceptance: Leviathan et al. 2023, equation 1, at 1 too."""
    return sum(acceptance**j for j in range(length + 1))


def pooled_acceptance(conditional: Sequence[Number]) -> Number:
    """Accepted / tested draft tokens of many cycles; a token behind a rejected one is not tested."""
    alive = [1, *reach(conditional)]
    return sum(alive[1:]) / sum(alive[:-1])


def drawn_acceptance(target: Sequence[Number], draft: Sequence[Number], children: int) -> Number:
    """P(one of k children is accepted), verification B: drawn from ``draft`` without replacement.

    By enumeration of the draws, ``V**(k - 1)`` of them; for one child it is ``sum_v min(p, q)``.

    Args:
        target, draft: (V,) distributions of sum 1.
        children: k; drawing ends early where nothing is left to draw.
    """
    if children == 0 or not any(draft):
        return 0
    first = sum(map(min, target, draft))
    if first == 1:
        return first
    residual = [max(p - q, 0) / (1 - first) for p, q in zip(target, draft)]
    later = 0 * first
    for drawn, q in enumerate(draft):
        refused = max(q - target[drawn], 0)  # P(drawn and refused)
        if refused > 0:
            rest = [0 * q if v == drawn else w for v, w in enumerate(draft)]
            left = sum(rest)
            if left > 0:
                rest = [w / left for w in rest]
                later += refused * drawn_acceptance(residual, rest, children - 1)
    return first + later


def expected_cycles(distribution: Sequence[Number], tokens: int) -> Number:
    """Expected cycles until at least ``tokens`` tokens are committed, cycles being independent.

    Args:
        distribution: (g + 1,) P(a cycle commits 1 .. g + 1 tokens).
        tokens: the length limit.
    """
    visits: list[Number] = [1]  # P(some cycle starts with exactly this many tokens committed)
    for place in range(1, tokens):
        visits.append(
            sum(distribution[j - 1] * visits[place - j] for j in range(1, min(len(distribution), place) + 1))
        )
    return sum(visits[:tokens])
