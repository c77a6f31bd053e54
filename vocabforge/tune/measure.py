"""Tokens/s of candidates and of plain decoding, measured alternately on the same prompts.

The speed of a machine drifts by more than methods differ. Candidates and plain decoding therefore alternate
on each group of prompts, in rotating order, and a candidate is judged by its speed-up over plain decoding in
the same turns.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from ..core.config import StrictModel
from ..core.journal import LinePosition, RunJournal
from ..corpus.regenerate.rows import content_digest
from ..decode.engine import Decoder
from ..decode.request import Generation, Request
from ..decode.spec import MethodSpec
from ..evaluate.acceptance.meter import LivePrompts
from ..evaluate.results.intervals import Array, estimate, ratio, ratio_of_ratios
from ..evaluate.results.schema import Figure

WARM_UP = 8  # tokens decoded before timing starts
TOGETHER = 8  # maximum number of alternating candidates, each with its own caches
_MOST_TRIES = 4  # attempts to decode without passes being captured meanwhile

Count = Annotated[int, Field(ge=0)]
Turn = tuple[list[Generation], float]  # answers of a group, and their seconds


class TurnRow(StrictModel):
    """A group of prompts decoded side by side, and plain decoding of the same group in the same turn.

    Attributes:
        new_tokens, seconds: totals of all answers, including the prompts' passes.
        cycles, committed: number of verifications, and of tokens that they committed.
        plain_tokens, plain_seconds: totals of plain decoding.
        identical: whether all answers equal plain decoding's.
    """

    new_tokens: Count
    seconds: float = Field(gt=0.0)
    cycles: Count
    committed: Count
    plain_tokens: Count
    plain_seconds: float = Field(gt=0.0)
    identical: bool = True


class Measured(StrictModel):
    """Summary of a candidate's rows; intervals are over groups.

    Attributes:
        groups: number of groups; the output of ``different`` of them differs from plain decoding's.
        tokens_per_s: throughput of all requests together, including the prompts' passes.
        speedup: ratio to plain decoding in the same turns.
        accepted: tokens per cycle of one request.
        plain: tokens/s of plain decoding in these turns.
    """

    groups: int
    different: int
    tokens_per_s: Figure
    speedup: Figure
    accepted: Figure
    plain: Figure


def measured(rows: Sequence[TurnRow]) -> Measured:
    """Summarise rows."""

    def columns(*names: str) -> Array:
        return np.array([[getattr(row, name) for name in names] for row in rows], np.float64)[:, None]

    own, plain = ("new_tokens", "seconds"), ("plain_tokens", "plain_seconds")
    return Measured(
        groups=len(rows),
        different=sum(not row.identical for row in rows),
        tokens_per_s=estimate(columns(*own), ratio, pooled=True),
        speedup=estimate(columns(*own, *plain), ratio_of_ratios, pooled=True),
        accepted=estimate(columns("committed", "cycles"), ratio, pooled=True),
        plain=estimate(columns(*plain), ratio, pooled=True),
    )


class SpeedMeter(RunJournal):
    """Times candidates alternating with plain decoding, and keeps each row in its journal at once.

    Args:
        folder, fresh: see :class:`~vocabforge.core.journal.RunJournal`.
        identity: everything besides the candidate, prompts and settings below that determines a row,
            including the machine.
        prompts: all prompts, in order; ``batch`` of them are a group.
        new: maximum tokens per answer.
        decoder: builds the decoder of a method (None: plain decoding) for a batch.

    Attributes:
        on_answers: called with the number of answers that a candidate decoded.
    """

    def __init__(
        self,
        folder: Path,
        identity: Mapping[str, Any],
        prompts: LivePrompts,
        new: int,
        batch: int,
        decoder: Callable[[MethodSpec | None], Decoder],
        *,
        fresh: bool = False,
    ) -> None:
        self.prompts, self.new, self.batch, self._decoder = prompts, new, batch, decoder
        self.groups = -(-len(prompts.prompts) // batch)
        self.on_answers: Callable[[int], object] = lambda count: None
        self._turns: dict[str, dict[int, TurnRow]] = {}
        asked = content_digest([list(prompt) for prompt in prompts.prompts])
        own = {"new_tokens": new, "batch": batch, "stop_ids": sorted(prompts.stop_ids), "prompts": asked}
        super().__init__(folder, {**identity, **own}, fresh=fresh)

    def take(self, row: Any, place: LinePosition) -> None:
        self._turns.setdefault(row["method"], {})[int(row["group"])] = TurnRow.model_validate(row["turn"])
        self.places[row["method"], row["group"]] = place

    def rows(self, method: str, groups: int | None = None) -> list[TurnRow]:
        """Return a method's known rows among the first groups, or all of them."""
        known = self._turns.get(method, {})
        return [known[group] for group in range(self.groups if groups is None else groups) if group in known]

    def measure(self, methods: Mapping[str, MethodSpec], groups: int, left: Callable[[], float]) -> None:
        """Time up to ``TOGETHER`` methods on the first groups; existing rows are kept.

        Args:
            methods: hash of everything that determines a method's drafts -> method.
            left: remaining seconds. At 0 no further group is timed, and of the first group only one method.
        """
        missing = {
            group: [key for key in methods if group not in self._turns.get(key, {})]
            for group in range(groups)
        }
        used = [key for key in methods if any(key in some for some in missing.values())]
        if not used:
            return
        decoders: dict[str | None, Decoder] = {None: self._decoder(None)}
        decoders |= {key: self._decoder(methods[key]) for key in used}
        try:
            for decoder in decoders.values():
                decoder.reserve(max(map(len, self.prompts.prompts)) + self.new)
            warm = set()
            for group, some in missing.items():
                if not some:
                    continue
                turns: dict[str | None, Turn] = {}
                order = [None, *some]
                first = group % len(order)
                for key in order[first:] + order[:first]:
                    if group == 0 and turns.keys() - {None} and left() <= 0:
                        break  # later groups are finished so that all candidates have the same groups
                    if key not in warm:
                        self._decode(decoders[key], group, min(self.new, WARM_UP))
                        warm.add(key)
                    turns[key] = self._decode(decoders[key], group, self.new)
                    if key is not None:
                        self.on_answers(self.batch)
                plain = turns.pop(None, None) or self._decode(decoders[None], group, self.new)
                for key, turn in turns.items():
                    assert key is not None
                    self._keep(key, group, turn, plain)
                if left() <= 0:
                    return
        finally:
            decoders.clear()
            gc.collect()  # decoders and captured passes form reference cycles

    def _decode(self, decoder: Decoder, group: int, new: int) -> Turn:
        prompts, stops, first = self.prompts.prompts, self.prompts.stop_ids, group * self.batch
        asked = [Request(prompts[(first + row) % len(prompts)], new, stops) for row in range(self.batch)]
        for _ in range(_MOST_TRIES):
            before, began = decoder.recordings, time.perf_counter()
            made = decoder.generate_batch(asked)
            seconds = time.perf_counter() - began
            if decoder.recordings == before:  # otherwise passes were captured meanwhile
                break
        return made, seconds

    def _keep(self, method: str, group: int, own: Turn, plain: Turn) -> None:
        lengths = [length for generation in own[0] for length in generation.accept_lengths]
        answers, plain_answers = ([generation.token_ids for generation in made] for made, _ in (own, plain))
        row = TurnRow(
            new_tokens=sum(map(len, answers)),
            seconds=own[1],
            cycles=len(lengths),
            committed=sum(lengths),
            plain_tokens=sum(map(len, plain_answers)),
            plain_seconds=plain[1],
            identical=answers == plain_answers,
        )
        line = json.dumps({"method": method, "group": group, "turn": row.model_dump()}) + "\n"
        self.put((method, group), line.encode())
        self._turns.setdefault(method, {})[group] = row
