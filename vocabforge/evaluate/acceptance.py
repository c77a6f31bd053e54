"""Accepted length of several ways of drafting on the same prompts, beside plain decoding's outputs.

What exports, re-vocabularised drafters and ``tune`` compare: greedy, through the engine that serves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..decode.engine import Decoder
from ..decode.proposers import Proposer
from ..decode.result import Generation
from ..models.lean import LeanModel
from .intervals import estimate, ratio
from .live import pooled
from .live_prompts import LivePrompts
from .results import Figure


@dataclass(frozen=True)
class Accepted:
    """What one way of drafting did on the prompts.

    Attributes:
        length: mean tokens that a cycle commits, the target's own included, with its interval over prompts.
        committed, cycles: of each prompt, in order; ``length`` is the ratio of their sums.
        identical: prompts whose output is plain decoding's, of ``prompts``.
        made: the generations themselves: times by part, accepted drafts by depth.
    """

    length: Figure
    committed: tuple[int, ...]
    cycles: tuple[int, ...]
    identical: int
    made: tuple[Generation, ...]

    @property
    def prompts(self) -> int:
        return len(self.made)

    @property
    def figures(self) -> dict[str, Any]:
        """:func:`~vocabforge.evaluate.live.pooled`, with ``low``, ``high`` and ``identical``."""
        more = {"low": self.length.low, "high": self.length.high, "identical": self.identical}
        return pooled(self.made) | more


class AcceptanceMeter:
    """Decodes the same prompts again and again.

    Args:
        model: the target.
        prompts: what is decoded.
        new: tokens a prompt.
    """

    def __init__(self, model: LeanModel, prompts: LivePrompts, new: int) -> None:
        self.model, self.prompts, self.new = model, prompts, new
        longest = max(map(len, prompts.prompts)) + new
        self._context = min(model.config.max_positions, longest + 1)
        self._plain: tuple[Generation, ...] | None = None

    def plain(self) -> tuple[Generation, ...]:
        """Plain decoding's generations, made once."""
        if self._plain is None:
            self._plain = tuple(self._decode(Decoder(self.model, context=self._context)))
        return self._plain

    def measure(self, proposer: Proposer) -> Accepted:
        """Decode every prompt with a proposer."""
        made = self._decode(Decoder(self.model, proposer, context=self._context))
        same = sum(one.token_ids == other.token_ids for one, other in zip(made, self.plain()))
        committed = tuple(sum(one.accept_lengths) for one in made)
        cycles = tuple(len(one.accept_lengths) for one in made)
        columns = np.array([committed, cycles], dtype=np.float64).T[:, None]  # (prompts, 1, 2)
        return Accepted(estimate(columns, ratio, pooled=True), committed, cycles, same, tuple(made))

    def _decode(self, decoder: Decoder) -> Sequence[Generation]:
        stops = self.prompts.stop_ids
        return [
            decoder.generate(prompt, max_new_tokens=self.new, stop_ids=stops)
            for prompt in self.prompts.prompts
        ]
