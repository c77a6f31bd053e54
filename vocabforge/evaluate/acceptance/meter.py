"""Compare the accepted length of several drafting methods on the same prompts with plain decoding.

Decoding is greedy and uses the production engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...decode.engine import Decoder
from ...decode.proposers.registry import Proposer
from ...decode.request import Generation
from ...models.target.interface import Target
from ..results.intervals import estimate, ratio
from ..results.schema import Figure


@dataclass(frozen=True)
class Accepted:
    """Result of one drafting method on the prompts.

    Attributes:
        length: mean output tokens per cycle, including the target's own, with an interval over prompts.
        identical: number of prompts whose output equals plain decoding's.
    """

    length: Figure
    identical: int
    made: tuple[Generation, ...]

    @property
    def prompts(self) -> int:
        """Number of prompts decoded."""
        return len(self.made)


@dataclass(frozen=True)
class LivePrompts:
    """Token ids of held-out prompts, and the stop tokens of an answer."""

    prompts: Sequence[Sequence[int]]
    stop_ids: tuple[int, ...]


class AcceptanceMeter:
    """Decodes the same prompts repeatedly, each to ``new`` tokens."""

    def __init__(self, model: Target, prompts: LivePrompts, new: int) -> None:
        self.model, self.prompts, self.new = model, prompts, new
        longest = max(map(len, prompts.prompts)) + new
        self._context = min(model.config.max_positions, longest + 1)
        self._plain: tuple[Generation, ...] | None = None

    def plain(self) -> tuple[Generation, ...]:
        """Return plain decoding's generations, computed once."""
        if self._plain is None:
            self._plain = tuple(self.decode(None))
        return self._plain

    def measure(self, proposer: Proposer) -> Accepted:
        """Decode every prompt with a proposer."""
        made = self.decode(proposer)
        same = sum(one.token_ids == other.token_ids for one, other in zip(made, self.plain()))
        sums = [(sum(one.accept_lengths), len(one.accept_lengths)) for one in made]  # tokens, cycles
        columns = np.array(sums, dtype=np.float64)[:, None]  # (prompts, 1, 2)
        return Accepted(estimate(columns, ratio, pooled=True), same, tuple(made))

    def decode(self, proposer: Proposer | None, temperature: float = 0.0) -> list[Generation]:
        """Return the generation of every prompt, seeded by its number; None decodes plainly."""
        decoder, stops = Decoder(self.model, proposer, context=self._context), self.prompts.stop_ids
        return [
            decoder.generate(
                prompt, max_new_tokens=self.new, stop_ids=stops, temperature=temperature, seed=seed
            )
            for seed, prompt in enumerate(self.prompts.prompts)
        ]


def pooled(made: Sequence[Generation]) -> dict[str, Any]:
    """Compute metrics over all prompts' verification cycles.

    Returns:
        ``accepted_length``: mean output tokens per cycle, including the target's own; 1 without a cycle.
        ``reached_by_position``: share of cycles that accept draft token 1, 2, ...; like all keys below, this
        includes tokens after a stop token. ``conditional_by_position``: the same, relative to the cycles that
        accepted the previous token. ``drafted``, ``accepted``: number of draft tokens verified and accepted.
        ``cycles``, ``tokens``, ``prompts``.
    """
    cycles = sum(len(one.accept_lengths) for one in made)
    committed = sum(sum(one.accept_lengths) for one in made)
    depth = max((len(one.accepted_by_depth) for one in made), default=0)
    reached = [
        sum(one.accepted_by_depth[at] for one in made if at < len(one.accepted_by_depth))
        for at in range(depth)
    ]
    return {
        "accepted_length": committed / cycles if cycles else 1.0,
        "reached_by_position": [share_of(count, cycles) for count in reached],
        "conditional_by_position": [
            share_of(count, before) for count, before in zip(reached, [cycles, *reached])
        ],
        "drafted": sum(one.drafted for one in made),
        "accepted": sum(reached),
        "cycles": cycles,
        "tokens": sum(len(one.token_ids) for one in made),
        "prompts": len(made),
    }


def share_of(part: float | None, whole: float | None) -> float | None:
    """Return the ratio; None if it is undefined."""
    return None if part is None or not whole else part / whole
