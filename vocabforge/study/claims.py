"""Published claims, and the study's own goal, held against its table: each a row that says what is compared.

Papers measured other targets, drafters and machines. A claim holds here where this study's figure reaches the published
one (or, of a plain order, where the order is the same and the seeds tell it); it cannot be judged where a row or a
column is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from . import claim_looks as looks
from .claim_looks import EXACT, FASTER, KEPT, Look
from .claim_rows import Table
from .joined import GREEDY, Row
from .results import RARE

GOAL = "this study's goal"
_ALIKE = 0.01  # lengths that differ by no more are about the same


@dataclass(frozen=True)
class Claim:
    """A published result beside this study's.

    Attributes:
        source: paper or plan.
        claim: in words; ``compared`` what of this study it is held against.
        published: its figure in words; ``found`` this study's.
        threshold: that the figure must reach; ``value`` this study's.
        held: None where it cannot be judged here: something is missing, or the seeds tell no order.
    """

    source: str
    claim: str
    compared: str
    published: str
    threshold: float
    value: float | None
    found: str
    held: bool | None


@dataclass(frozen=True)
class _Published:
    """A claim before it is judged: ``look`` finds the study's figure, None where something is missing.

    ``strictly``: it must be above the threshold.
    """

    source: str
    claim: str
    compared: str
    published: str
    threshold: float
    look: Look
    strictly: bool = False


def claims(
    rows: Sequence[Row], *, shape: str | None = None, temperature: str = GREEDY, rare: str = RARE
) -> list[Claim]:
    """Every claim judged on one shape and temperature.

    Args:
        rows: joined rows of all groups.
        shape: None: the largest tree, else the chain.
        rare: group of the questions with rare tokens.
    """
    table = Table.of(rows, shape=shape, temperature=temperature, rare=rare)
    return [_judged(one, table) for one in (*_ACCEPTANCE, *_SPEED, _OWN)]


def goal(rows: Sequence[Row], *, shape: str | None = None, temperature: str = GREEDY) -> Claim:
    """The study's own goal alone."""
    return _judged(_OWN, Table.of(rows, shape=shape, temperature=temperature))


def reaching(rows: Sequence[Row], *, shape: str | None = None, temperature: str = GREEDY) -> list[Row]:
    """Dynamic heads that keep enough with few enough exact logits, the fastest at the larger shape first."""
    return looks.frugal(Table.of(rows, shape=shape, temperature=temperature))


def _judged(one: _Published, table: Table) -> Claim:
    value, found, told = one.look(table)
    held = None
    if value is not None and (told or not one.strictly):
        held = value > one.threshold if one.strictly else value >= one.threshold
    return Claim(
        one.source,
        one.claim,
        one.compared,
        one.published,
        one.threshold,
        value,
        found if value is not None else f"cannot be judged here: {found}",
        held,
    )


_FULL_LENGTH = 5.26  # SpecVocab's full head; its table is Qwen3-8B's
_D8, _D16 = "ranker d/8, joint", "ranker d/16, joint"
_RANKER: tuple[str, int, str | None] = "ranker", 2048, _D8

_ACCEPTANCE = (
    _Published(
        "SpecVocab",
        "FR-Spec with 32,768 tokens keeps most of the accepted length",
        "share of the full head's accepted length, FR-Spec 32,768",
        "4.69 of 5.26 (89.2%)",
        round(4.69 / _FULL_LENGTH, 3),
        looks.share("fr", 32_768),
    ),
    _Published(
        "SpecVocab",
        "VocabTrim keeps more than FR-Spec",
        "accepted length, VocabTrim 32,768 over FR-Spec 32,768",
        "4.84 and 4.69",
        1.0,
        looks.lengths(("trim", 32_768, None), ("fr", 32_768, None)),
        strictly=True,
    ),
    _Published(
        "SpecVocab",
        "a ranker with 2,048 candidates keeps 95.2% of the full head's accepted length",
        "share of the full head's accepted length, ranker d/8, joint, k = 2,048",
        "5.01 of 5.26 (95.2%)",
        round(5.01 / _FULL_LENGTH, 3),
        looks.share(*_RANKER),
    ),
    _Published(
        "SpecVocab",
        "a ranker accepts more than EAGLE-3 trained over a reduced vocabulary",
        "accepted length, ranker d/8, joint, k = 2,048 over EAGLE-3 reduced",
        "5.01 and 4.78",
        1.0,
        looks.trained,
        strictly=True,
    ),
    _Published(
        "SpecVocab",
        "pruning a finished drafter beats training over a reduced vocabulary",
        "accepted length, the full drafter cut to the reduced one's tokens over EAGLE-3 reduced",
        "4.84 and 4.78",
        1.0,
        looks.pruned,
        strictly=True,
    ),
    _Published(
        "SpecVocab",
        "a rank of d/16 is about as good as d/8",
        "accepted length, ranker d/16 over d/8, joint, k = 2,048; within 1%",
        "both are used",
        1 - _ALIKE,
        looks.lengths(("ranker", 2048, _D16), _RANKER),
    ),
    _Published(
        "SpecVocab",
        "a ranker trained with its drafter beats one trained on the finished drafter",
        "accepted length, ranker d/8, k = 2,048, joint over alone (both on the drafter that learnt with rankers)",
        "joint training is the method",
        1.0,
        looks.lengths(_RANKER, ("ranker", 2048, "ranker d/8, alone")),
        strictly=True,
    ),
    _Published(
        "DynaSpec",
        "a router keeps 98.4% of the full head's accepted length with 27,344 of 128,256 tokens",
        "share of the full head's accepted length, best router with at most 21.3% of the vocabulary",
        "98.4%",
        0.984,
        looks.router,
    ),
    _Published(
        "DynaSpec",
        "a router keeps more than a static vocabulary of 32,768 while it scores fewer tokens",
        "share of the full head's accepted length, best such router over FR-Spec 32,768",
        "98.4% and 93.6%",
        1.0,
        looks.router_beside_static,
        strictly=True,
    ),
    _Published(
        "PA-FR",
        "a static vocabulary that shrinks with the draft step loses nothing",
        "accepted length, best schedule from 32,768 over FR-Spec 32,768; within 1%",
        "no loss",
        1 - _ALIKE,
        looks.schedule,
    ),
)
_SPEED = (
    _Published(
        "FR-Spec",
        "32,768 tokens in place of all are 1.12 times as fast",
        "predicted tokens/s, FR-Spec 32,768 over the full head",
        "201.9 and 181.0 tokens/s (1.12)",
        1.12,
        looks.static_speed,
    ),
    _Published(
        "SpecVocab",
        "up to 1.081 times EAGLE-3's tokens/s",
        "predicted tokens/s, fastest ranker over EAGLE-3 reduced",
        "1.081",
        1.081,
        looks.ranker_speed,
    ),
    _Published(
        "DynaSpec",
        "where tokens are rare a router beats a static vocabulary",
        "speed-up on questions with rare tokens, fastest router over FR-Spec 32,768",
        "2.23 and 1.91 (1.17)",
        1.0,
        looks.rare,
        strictly=True,
    ),
    _Published(
        "NanoSpec",
        "fewer than 3,000 tokens are 1.17 to 1.29 times as fast as the full head",
        "predicted tokens/s, fastest context head with fewer than 3,000 tokens over the full head",
        "1.17 to 1.29",
        1.17,
        looks.context_speed,
    ),
    _Published(
        "SlimSpec",
        "a low-rank head takes a fourth to a fifth of the full head's time",
        "head time of a cycle, full head over low rank",
        "4 to 5",
        4.0,
        looks.low_rank_head,
    ),
    _Published(
        "SlimSpec",
        "a low-rank head is 8 to 9% faster end to end",
        "predicted tokens/s, low rank over the full head",
        "1.08 to 1.09",
        1.08,
        looks.low_rank_speed,
    ),
)
_OWN = _Published(
    GOAL,
    f"a dynamic head keeps {KEPT:.1%} of the full head's accepted length with at most {EXACT:.0%} of exact logits, and "
    f"is {FASTER:.2f} times as fast as a static vocabulary of 32,768",
    "predicted tokens/s, fastest such head over the faster of FR-Spec and VocabTrim 32,768",
    f"{FASTER:.2f}",
    FASTER,
    looks.own,
)
