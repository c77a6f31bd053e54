"""What a decoder returns, and what anything that decodes looks like."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from .request import SamplingParams

Finish = Literal["stop", "length", "cache"]


@dataclass
class Generation:
    """One generated continuation and what it cost.

    Attributes:
        token_ids: new tokens; a stop token is included, nothing after it; stop strings end with the token that
            completes them.
        accept_lengths: tokens committed by each verification, the target's own included (before anything
            beyond a stop or a limit is cut); plain decoding has a 1 for every new token.
        drafted_levels: levels that each cycle was to draft; 0 where it decoded plainly.
        prefill_s, decode_s: seconds. In a batch a cycle's seconds count for each of its requests.
        target_forwards: passes of the target, prefill chunks included.
        drafted: draft tokens verified.
        verified: nodes that verifications checked, roots included.
        timings: seconds by part: ``prefill``; drafting in ``layers``, ``head`` and ``draft`` (the rest: growing the
            tree); ``verify``; ``other`` (committing, and the other rows of a batch).
        finish: ``stop`` token or string, ``length`` limit, or ``cache`` full.
        accepted_by_depth, drafted_by_depth: verifications whose path reached depth i + 1, and
            verifications whose tree offered that depth.
        counts: what its proposer counted (``proposers.Counts``), by name.
    """

    token_ids: list[int] = field(default_factory=list)
    accept_lengths: list[int] = field(default_factory=list)
    drafted_levels: list[int] = field(default_factory=list)
    prefill_s: float = 0.0
    decode_s: float = 0.0
    target_forwards: int = 0
    drafted: int = 0
    verified: int = 0
    timings: dict[str, float] = field(default_factory=dict)
    finish: Finish = "length"
    accepted_by_depth: list[int] = field(default_factory=list)
    drafted_by_depth: list[int] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def mean_accepted_length(self) -> float:
        """Mean tokens committed by a verification; 0 without any."""
        return sum(self.accept_lengths) / len(self.accept_lengths) if self.accept_lengths else 0.0

    def record(self, levels: int, deepest: int, drafted: int, accepted: int) -> None:
        """One verification.

        Args:
            levels: that the cycle was to draft.
            deepest: level that the row's tree offered.
            drafted: draft tokens of the row's tree.
            accepted: of them.
        """
        self.target_forwards += 1
        self.accept_lengths.append(accepted + 1)
        self.drafted_levels.append(levels)
        self.drafted += drafted
        self.verified += drafted + 1
        for counts in (self.accepted_by_depth, self.drafted_by_depth):
            counts.extend([0] * (levels - len(counts)))
        for level in range(deepest):
            self.drafted_by_depth[level] += 1
            self.accepted_by_depth[level] += level < accepted


class Generator(Protocol):
    """Anything that continues a prompt: plain decoding, or a drafter with verification."""

    def generate(
        self,
        prompt_ids: Sequence[int],
        *,
        max_new_tokens: int,
        stop_ids: Collection[int],
        sampling: SamplingParams,
    ) -> Generation:
        """Continue ``prompt_ids`` by at most ``max_new_tokens`` tokens."""
        ...
