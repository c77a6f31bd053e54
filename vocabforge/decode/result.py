"""What a decoder returns, and what anything that decodes looks like."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

Finish = Literal["stop", "length", "cache"]


@dataclass
class Generation:
    """One generated continuation and what it cost.

    Attributes:
        token_ids: new tokens; a stop token is included, nothing after it.
        accept_lengths: tokens committed by each verification, the target's own included (before anything
            beyond a stop or a limit is cut); plain decoding has a 1 for every new token.
        prefill_s, decode_s: seconds.
        target_forwards: passes of the target, prefill chunks included.
        drafted: draft tokens verified.
        timings: seconds by part: ``prefill``, ``draft``, ``verify``, ``other``.
        finish: ``stop`` token, ``length`` limit, or ``cache`` full.
        accepted_by_depth, drafted_by_depth: verifications whose path reached depth i + 1, and
            verifications whose tree offered that depth.
    """

    token_ids: list[int] = field(default_factory=list)
    accept_lengths: list[int] = field(default_factory=list)
    prefill_s: float = 0.0
    decode_s: float = 0.0
    target_forwards: int = 0
    drafted: int = 0
    timings: dict[str, float] = field(default_factory=dict)
    finish: Finish = "length"
    accepted_by_depth: list[int] = field(default_factory=list)
    drafted_by_depth: list[int] = field(default_factory=list)

    @property
    def mean_accepted_length(self) -> float:
        """Mean tokens committed by a verification; 0 without any."""
        return sum(self.accept_lengths) / len(self.accept_lengths) if self.accept_lengths else 0.0


class Generator(Protocol):
    """Anything that continues a prompt: plain decoding, or a drafter with verification."""

    def generate(
        self,
        prompt_ids: Sequence[int],
        *,
        max_new_tokens: int,
        stop_ids: Collection[int],
        temperature: float = 0.0,
        seed: int = 0,
    ) -> Generation:
        """Continue ``prompt_ids`` by at most ``max_new_tokens`` tokens."""
        ...
