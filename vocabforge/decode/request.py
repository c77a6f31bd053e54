"""What is asked of a decoder: a prompt, limits, and how tokens are chosen."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ..core.errors import UsageError


@dataclass(frozen=True)
class SamplingParams:
    """How the target's next token is chosen: one transform of its logits, then a draw (see ``sampling.py``).

    Attributes:
        temperature: 0 is greedy.
        top_k: keep the k most probable tokens; 0 keeps all.
        top_p: keep the smallest set of most probable tokens with this mass; 1 keeps all.
        min_p: drop tokens below this share of the most probable one's probability; 0 keeps all.
        repetition_penalty: divides positive and multiplies negative logits of tokens in prompt or output
            (Keskar et al. 2019, CTRL); 1 is none.
        presence_penalty, frequency_penalty: subtracted from logits of tokens in the output, once and once an
            occurrence; 0 is none.
        seed: of the request's random stream.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        finite = math.isfinite
        checks = (
            ("temperature", finite(self.temperature) and self.temperature >= 0, "0 (greedy) or more"),
            ("top_k", self.top_k >= 0, "0 (all) or more"),
            ("top_p", 0 < self.top_p <= 1, "above 0, at most 1"),
            ("min_p", 0 <= self.min_p <= 1, "0 to 1"),
            (
                "repetition_penalty",
                finite(self.repetition_penalty) and self.repetition_penalty > 0,
                "above 0",
            ),
            ("presence_penalty", finite(self.presence_penalty), "a finite number"),
            ("frequency_penalty", finite(self.frequency_penalty), "a finite number"),
            ("seed", 0 <= self.seed < 2**63, "0 to 2**63 - 1"),
        )
        for name, fine, expected in checks:
            if not fine:
                raise UsageError(
                    f"the sampling setting {name} is out of range", got=getattr(self, name), expected=expected
                )

    def chosen(self) -> dict[str, float]:
        """Temperature, seed and whatever differs from its default."""
        default = SamplingParams()
        always = ("temperature", "seed")
        return {
            name: value
            for name, value in vars(self).items()
            if name in always or value != getattr(default, name)
        }

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def penalised(self) -> bool:
        """Whether tokens that were there before change what comes next."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)


class StopRule(Protocol):
    """Ends a request by what was generated, beyond stop tokens; see ``stops.py``."""

    def kept(self, token_ids: Sequence[int], fresh: int) -> int | None:
        """How many of the generated tokens stay if the request ends here; None where it goes on.

        Args:
            token_ids: all generated tokens.
            fresh: how many of them are new since the last call.
        """
        ...


@dataclass(frozen=True)
class Request:
    """One request.

    Attributes:
        prompt_ids: the target's token ids, at least one.
        max_new_tokens: at least 1.
        stop_ids: tokens that end the output; the one met is part of it.
        sampling: how tokens are chosen.
        stop: a further rule, such as stop strings; a new object for every request.
    """

    prompt_ids: Sequence[int]
    max_new_tokens: int
    stop_ids: Collection[int] = ()
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stop: StopRule | None = None
