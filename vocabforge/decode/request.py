"""Requests to a decoder, and the generations that it returns."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from ..core.errors import UsageError
from .stops import StopStrings


@dataclass(frozen=True)
class SamplingParams:
    """Sampling parameters of a request; see ``sampling.py`` for the transform of the logits.

    Attributes:
        temperature: 0 is greedy.
        top_k: keep the k most probable tokens; 0 keeps all.
        top_p: keep the smallest set of most probable tokens with this mass.
        min_p: drop tokens below this share of the highest probability.
        repetition_penalty: divides positive and multiplies negative logits of tokens in the prompt or the output
            (Keskar et al. 2019, CTRL).
        presence_penalty: subtracted from the logits of tokens in the output.
        frequency_penalty: subtracted once per occurrence in the output.
        seed: seed of the request's random stream.
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
        finite, above = math.isfinite, self.repetition_penalty > 0
        checks = (
            ("temperature", finite(self.temperature) and self.temperature >= 0, "0 (greedy) or more"),
            ("top_k", self.top_k >= 0, "0 (all) or more"),
            ("top_p", 0 < self.top_p <= 1, "above 0, at most 1"),
            ("min_p", 0 <= self.min_p <= 1, "0 to 1"),
            ("repetition_penalty", finite(self.repetition_penalty) and above, "above 0"),
            ("presence_penalty", finite(self.presence_penalty), "a finite number"),
            ("frequency_penalty", finite(self.frequency_penalty), "a finite number"),
        )
        for name, fine, expected in checks:
            if not fine:
                raise UsageError(
                    f"the sampling setting {name} is out of range", got=getattr(self, name), expected=expected
                )

    def chosen(self) -> dict[str, float]:
        """Return the temperature, the seed and all settings that differ from their defaults."""
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
        """Whether earlier tokens change the logits."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)


@dataclass(frozen=True)
class Request:
    """One request: at least one token id of the target, and its limits.

    ``stop_ids`` end the output and are part of it. ``stop`` are stop strings; every request needs a new
    object.
    """

    prompt_ids: Sequence[int]
    max_new_tokens: int
    stop_ids: Collection[int] = ()
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stop: StopStrings | None = None


Finish = Literal["stop", "length", "cache"]


@dataclass
class Generation:
    """One generated continuation and its cost. In a batch, a cycle's seconds count for each request."""

    # Includes a stop token but nothing after it; a stop string ends with the token that completes it.
    token_ids: list[int] = field(default_factory=list)
    # Output tokens committed by each verification, the target's own included. Tokens after an end or beyond
    # the limit do not count.
    accept_lengths: list[int] = field(default_factory=list)
    # Same, but including these tokens, as servers count.
    verified_lengths: list[int] = field(default_factory=list)
    drafted_levels: list[int] = field(default_factory=list)  # levels that each cycle was to draft; 0: none
    prefill_s: float = 0.0
    decode_s: float = 0.0
    target_forwards: int = 0  # prefill chunks included
    drafted: int = 0  # draft tokens verified
    verified: int = 0  # nodes checked by verifications, roots included
    # Seconds by part: prefill; drafting in layers, head and draft (growing the tree); verify; other.
    timings: dict[str, float] = field(default_factory=dict)
    finish: Finish = "length"  # stop token or string, length limit, or cache full
    done: bool = False  # no more tokens follow
    # Verifications whose path reached depth i + 1 (as in verified_lengths), and those whose tree did.
    accepted_by_depth: list[int] = field(default_factory=list)
    drafted_by_depth: list[int] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)  # counts of its proposer, by name

    @property
    def mean_accepted_length(self) -> float:
        """Mean number of output tokens per verification; 0 without any."""
        return sum(self.accept_lengths) / len(self.accept_lengths) if self.accept_lengths else 0.0

    def drop(self, tokens: int) -> None:
        """Remove the last committed tokens from the accepted lengths."""
        for at in range(len(self.accept_lengths) - 1, -1, -1):
            taken = min(tokens, self.accept_lengths[at])
            self.accept_lengths[at] -= taken
            tokens -= taken

    def record(self, levels: int, deepest: int, drafted: int, accepted: int) -> None:
        """Record one verification.

        Args:
            levels: levels that the cycle was to draft.
            deepest: deepest level of the row's tree.
            drafted: draft tokens of the row's tree.
            accepted: how many of them were accepted.
        """
        self.target_forwards += 1
        self.accept_lengths.append(accepted + 1)
        self.verified_lengths.append(accepted + 1)
        self.drafted_levels.append(levels)
        self.drafted += drafted
        self.verified += drafted + 1
        for counts in (self.accepted_by_depth, self.drafted_by_depth):
            counts.extend([0] * (levels - len(counts)))
        for level in range(deepest):
            self.drafted_by_depth[level] += 1
            self.accepted_by_depth[level] += level < accepted


class Generator(Protocol):
    """Interface for continuing a prompt: plain decoding, or a drafter with verification."""

    def generate(
        self,
        prompt_ids: Sequence[int],
        *,
        max_new_tokens: int,
        stop_ids: Collection[int],
        sampling: SamplingParams,
    ) -> Generation:
        """Continue ``prompt_ids`` by at most ``max_new_tokens`` tokens."""
