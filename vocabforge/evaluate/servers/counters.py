"""Servers' counters of speculation: vLLM's ``/metrics``, SGLang's ``spec_tokens_details``, llama.cpp's ``timings``."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...core.errors import DataError
from ...core.files import form_errors
from ...corpus.regenerate.rows import token_count

_SAMPLE = re.compile(r"^([A-Za-z_:]+?)(?:_total)?(?:\{([^}]*)\})? (\S+)$", re.MULTILINE)
_POSITION = re.compile(r'position="(\d+)"')
_PREFIX = "vllm:spec_decode_num_"


@dataclass(frozen=True)
class Speculation:
    """Verifications of draft tokens, summed over requests."""

    verifications: int
    drafted: int
    accepted: int
    accepted_by_depth: Sequence[int]  # accepted draft tokens at each depth, from 1
    offered: Sequence[
        int
    ] = ()  # verifications that included each depth; empty if a server does not report it


@dataclass(frozen=True)
class Reading:
    """vLLM's counters at one moment."""

    speculation: Speculation | None  # None without speculation
    generated: int  # tokens of all requests so far
    started: float | None  # start time of the server's process, in seconds

    def restarted_since(self, before: Reading) -> bool:
        """Return whether the server was restarted after an earlier reading."""
        if self.started != before.started or self.generated < before.generated:
            return True
        old, new = before.speculation, self.speculation
        return (old is None) != (new is None) or (
            old is not None and new is not None and new.verifications < old.verifications
        )

    def since(self, before: Reading) -> Speculation | None:
        """Return the counts since an earlier reading of the same process."""
        old, new = before.speculation, self.speculation
        if old is None or new is None:
            return None
        verifications, drafted = new.verifications - old.verifications, new.drafted - old.drafted
        depth = len(new.accepted_by_depth)
        return Speculation(
            verifications,
            drafted,
            new.accepted - old.accepted,
            tuple(later - earlier for later, earlier in zip(new.accepted_by_depth, old.accepted_by_depth)),
            # Draft lengths are only known if every draft was of full length.
            (verifications,) * depth if drafted == verifications * depth else (),
        )


def read_metrics(text: str) -> Reading | None:
    """Parse vLLM's ``/metrics`` (Prometheus' text format), summed over engines.

    Returns:
        The counters; None if they are not vLLM's.

    Raises:
        DataError: a counter is not a finite number.

    Source: ``vllm/v1/spec_decode/metrics.py`` and ``vllm/v1/metrics/loggers.py`` of vLLM 0.32.
    """
    sums: dict[str, float] = {}
    depths: dict[int, int] = {}
    with form_errors("the server's counters cannot be read", "/metrics", kind=DataError):
        for name, labels, value in _SAMPLE.findall(text):
            if name == f"{_PREFIX}accepted_tokens_per_pos":
                if (place := _POSITION.search(labels)) is not None:
                    depth = int(place[1])
                    depths[depth] = depths.get(depth, 0) + int(float(value))
            elif name.startswith(_PREFIX) or name in ("vllm:generation_tokens", "process_start_time_seconds"):
                sums[name] = sums.get(name, 0.0) + float(value)
        for name, total in sums.items():
            if not math.isfinite(total):
                raise ValueError(f"{name} {total}")
    if "vllm:generation_tokens" not in sums:
        return None
    speculation = None
    if (drafts := sums.get(f"{_PREFIX}drafts")) is not None:
        speculation = Speculation(
            int(drafts),
            int(sums.get(f"{_PREFIX}draft_tokens", 0)),
            int(sums.get(f"{_PREFIX}accepted_tokens", 0)),
            tuple(depths[depth] for depth in sorted(depths)),
        )
    return Reading(speculation, int(sums["vllm:generation_tokens"]), sums.get("process_start_time_seconds"))


def read_details(details: Mapping[str, Any]) -> Speculation:
    """Parse SGLang's ``spec_tokens_details`` of one request.

    ``spec_correct_drafts_histogram[i]`` counts verifications that accepted i draft tokens.

    Raises:
        LookupError, TypeError, ValueError, AttributeError: the format is different.

    Source: ``sglang/srt/entrypoints/openai/protocol.py`` and ``managers/tokenizer_manager.py`` of SGLang
        0.5.23.
    """
    histogram = [_count(count) for count in details.get("spec_correct_drafts_histogram") or ()]
    by_depth = tuple(sum(histogram[depth:]) for depth in range(1, len(histogram)))
    while by_depth and not by_depth[-1]:
        by_depth = by_depth[:-1]
    return Speculation(
        _count(details["spec_verify_ct"]),
        _count(details.get("spec_num_proposed_drafts") or 0),
        _count(details["spec_num_correct_drafts"]),
        by_depth,
    )


def read_timings(timings: Mapping[str, Any]) -> Speculation | None:
    """Parse llama.cpp's ``timings`` of one request; None if nothing was drafted.

    Every pass of the target gives one token in addition to the accepted ones; the prompt's pass gives the first token.

    Raises:
        LookupError, ValueError: the format is different.

    Source: ``tools/server/server-common.cpp`` of llama.cpp 0.5.0-dev.
    """
    if "draft_n" not in timings:
        return None
    accepted = _count(timings["draft_n_accepted"])
    verifications = max(0, _count(timings["predicted_n"]) - 1 - accepted)
    return Speculation(verifications, _count(timings["draft_n"]), accepted, ())


def _count(value: Any) -> int:
    """Return a non-negative integer; raise ValueError for other values."""
    if (count := token_count(value)) is None:
        raise ValueError(f"{value!r:.80} is not a count")
    return count


def total_of(parts: Sequence[Speculation | None]) -> Speculation | None:
    """Return the sum of the parts; None if there are none or one is unknown."""
    known = [part for part in parts if part is not None]
    if not known or len(known) < len(parts):
        return None
    depth = max(len(part.accepted_by_depth) for part in known)

    def summed(rows: list[Sequence[int]]) -> tuple[int, ...]:
        return tuple(sum(row[at] for row in rows if at < len(row)) for at in range(depth))

    return Speculation(
        sum(part.verifications for part in known),
        sum(part.drafted for part in known),
        sum(part.accepted for part in known),
        summed([part.accepted_by_depth for part in known]),
        summed([part.offered for part in known]) if all(part.offered for part in known) else (),
    )
