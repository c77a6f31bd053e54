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


def node_reach(parents: Sequence[int], acceptance: Sequence[Number]) -> list[Number]:
    """P(node i is accepted) of a draft tree, the root first with 1.

    Args:
        parents: (N,) parent of each node, before it; the root's is itself.
        acceptance: (N,) P(node i is the accepted child | its parent is accepted); the root's is not read.
    """
    found: list[Number] = [1]
    for node in range(1, len(parents)):
        found.append(found[parents[node]] * acceptance[node])
    return found


def expected_tree_tokens(parents: Sequence[int], acceptance: Sequence[Number]) -> Number:
    """Expected committed tokens of a draft tree: the sum of :func:`node_reach`, whose root is the target's own."""
    return sum(node_reach(parents, acceptance))


def point_acceptance(target: Sequence[Number], children: Sequence[int]) -> Number:
    """P(one of these fixed children is accepted), verification A: their probability under the target."""
    return sum(target[child] for child in set(children))


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


def cycle_cost(plain: Number, levels: Number, verification: Number, keeping: Number = 0) -> Number:
    """A cycle's seconds in plain steps.

    Args:
        plain: seconds of a plain cycle.
        levels: seconds of drafting, all levels.
        verification: seconds of the target's pass over all N nodes; not those of one token.
        keeping: seconds of the rest: compaction, the drafter reading what was accepted, the host.
    """
    return (levels + verification + keeping) / plain


def speedup(tokens: Number, cost: Number) -> Number:
    """Long-run tokens a second over those of plain decoding: ``E[tokens] / E[cost]``.

    Args:
        tokens: expected committed tokens of a cycle.
        cost: its expected cost in plain steps, see :func:`cycle_cost`.
    """
    return tokens / cost


def overall_speedup(plain: Sequence[Number], speculative: Sequence[Number]) -> Number:
    """Speed-up over several prompts from seconds of each: of the whole work, not the mean of ratios."""
    return sum(plain) / sum(speculative)


def level_pays(reached: Number, seconds: Number, rate: Number) -> bool:
    """Whether one more level (or node) raises tokens a second.

    Args:
        reached: P(it is accepted), the expected tokens that it adds.
        seconds: what it adds to the cycle.
        rate: tokens a second without it.
    """
    return bool(reached > rate * seconds)


def best_length(conditional: Sequence[Number], seconds: Sequence[Number]) -> int:
    """The chain length with the most tokens a second; 0 is plain decoding, ties go to the shorter.

    Args:
        conditional: (g,) acceptance by position.
        seconds: (g + 1,) of a cycle with 0 .. g draft tokens.
    """
    rates = [tokens / cost for tokens, cost in zip(expected_by_length(conditional), seconds)]
    return rates.index(max(rates))


def expected_cycles(law: Sequence[Number], tokens: int) -> Number:
    """Expected cycles until at least ``tokens`` tokens are committed, cycles being independent.

    Args:
        law: (g + 1,) P(a cycle commits 1 .. g + 1 tokens).
        tokens: the length limit.
    """
    visits: list[Number] = [1]  # P(some cycle starts with exactly this many tokens committed)
    for place in range(1, tokens):
        visits.append(sum(law[j - 1] * visits[place - j] for j in range(1, min(len(law), place) + 1)))
    return sum(visits[:tokens])


def limiting_overshoot(law: Sequence[Number]) -> Number:
    """Expected tokens that the last cycle commits beyond a far limit: ``(E[L^2] / E[L] - 1) / 2``.

    For laws that are not confined to the multiples of a number above 1.
    """
    mean = sum(length * p for length, p in enumerate(law, 1))
    square = sum(length**2 * p for length, p in enumerate(law, 1))
    return (square / mean - 1) / 2
