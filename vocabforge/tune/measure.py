"""Tokens/s of candidates and of plain decoding, measured alternately on the same prompts.

The speed of a machine drifts by more than methods differ. Candidates and plain decoding therefore alternate
on each prompt, in rotating order, and a candidate is judged by its speed-up over plain decoding in the same
turns.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field, ValidationError

from ..core.config import StrictModel
from ..core.errors import ArtifactError, DataError
from ..core.files import atomic_write_json, read_json
from ..corpus.regenerate.rows import content_digest
from ..decode.engine import Decoder
from ..decode.request import Request
from ..evaluate.acceptance.meter import LivePrompts
from ..evaluate.results.intervals import Array, estimate, ratio, ratio_of_ratios
from ..evaluate.results.schema import Figure

WARM_UP = 8  # tokens decoded before timing starts
TOGETHER = 8  # maximum number of alternating candidates, each with its own caches
_MOST_TRIES = 4  # attempts to decode without passes being captured meanwhile


Count = Annotated[int, Field(ge=0)]


class TurnRow(StrictModel):
    """A group of prompts decoded in a batch, and plain decoding of the same group in the same turn.

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


@dataclass(frozen=True)
class Measured:
    """Summary of the rows of a candidate and batch size.

    Attributes:
        rows: number of groups.
        different: number of groups whose output differs from plain decoding's.
        tokens_per_s: throughput of all requests together.
        speedup: ratio to plain decoding in the same turns, with its interval over groups.
        accepted: tokens per cycle of one request.
        cycle: seconds per cycle of one request, including the prompts' passes; None for several requests.
        plain: tokens/s of plain decoding in these turns.
    """

    rows: int
    different: int
    tokens_per_s: Figure
    speedup: Figure
    accepted: Figure
    cycle: float | None
    plain: Figure

    @property
    def value(self) -> float:
        """The speed-up; 0 if nothing was decoded."""
        return self.speedup.value or 0.0


def measured(rows: Sequence[TurnRow], batch: int) -> Measured:
    """Summarise rows of one batch size."""

    def columns(*names: str) -> Array:
        return np.array([[getattr(row, name) for name in names] for row in rows], np.float64)[:, None]

    own, plain = ("new_tokens", "seconds"), ("plain_tokens", "plain_seconds")
    cycles = sum(row.cycles for row in rows)
    return Measured(
        len(rows),
        sum(not row.identical for row in rows),
        estimate(columns(*own), ratio, pooled=True),
        estimate(columns(*own, *plain), ratio_of_ratios, pooled=True),
        estimate(columns("committed", "cycles"), ratio, pooled=True),
        sum(row.seconds for row in rows) / max(cycles, 1) if batch == 1 else None,
        estimate(columns(*plain), ratio, pooled=True),
    )


class TurnStore:
    """A folder with one file per candidate: rows by batch size and group."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, key: str) -> dict[str, TurnRow]:
        """Return the rows of a candidate so far.

        Raises:
            ArtifactError: the file is damaged.
        """
        path = self.folder / f"{key[:32]}.json"
        if not path.is_file():
            return {}
        try:
            body = read_json(path, "measured speeds")
            return {name: TurnRow.model_validate(row) for name, row in body["rows"].items()}
        except (DataError, ValidationError, KeyError, TypeError, AttributeError) as error:
            raise ArtifactError(
                "measured speeds cannot be read",
                got=error.got if isinstance(error, DataError) else error,
                source=path,
                remedy="delete the file; its method is measured again",
            ) from error

    def write(self, key: str, about: Mapping[str, Any], rows: Mapping[str, TurnRow]) -> None:
        """Save all rows of a candidate."""
        saved = {name: row.model_dump() for name, row in rows.items()}
        atomic_write_json(self.folder / f"{key[:32]}.json", {"key": key, "about": dict(about), "rows": saved})


class SpeedMeter:
    """Times candidates alternating with plain decoding and saves each row immediately.

    Args:
        prompts: all available prompts, in order.
        new: maximum tokens per answer.
        decoder: builds the decoder of a candidate (None: plain decoding) for a batch size.
        store: storage of the rows.
        identity: everything besides the candidate that determines a row, including the machine.

    Attributes:
        on_answers: called with the number of answers that a candidate decoded.
    """

    def __init__(
        self,
        prompts: LivePrompts,
        new: int,
        decoder: Callable[[Any, int], Decoder],
        store: TurnStore,
        identity: Mapping[str, Any],
    ) -> None:
        self.prompts, self.new, self.store, self._decoder = prompts, new, store, decoder
        asked = content_digest([list(prompt) for prompt in prompts.prompts])
        stops = sorted(prompts.stop_ids)
        self.identity = {**identity, "new_tokens": new, "stop_ids": stops, "prompts": asked}
        self._rows: dict[str, dict[str, TurnRow]] = {}
        self.on_answers: Callable[[int], object] = lambda count: None

    def __len__(self) -> int:
        return len(self.prompts.prompts)

    def groups(self, prompts: int, batch: int) -> int:
        """Return the number of groups that cover this many prompts."""
        return -(-prompts // batch)

    def known(self, about: Mapping[str, Any]) -> dict[str, TurnRow]:
        """Return a candidate's rows so far, by batch size and group."""
        key = self._key(about)
        if key not in self._rows:
            self._rows[key] = self.store.read(key)
        return self._rows[key]

    def rows(self, about: Mapping[str, Any], prompts: int, batch: int) -> list[TurnRow]:
        """Return the known rows of the groups that cover the first prompts."""
        known = self.known(about)
        names = (f"{batch}:{group}" for group in range(self.groups(prompts, batch)))
        return [known[name] for name in names if name in known]

    def measure(
        self,
        candidates: Sequence[tuple[Any, Mapping[str, Any]]],
        prompts: int,
        batch: int,
        left: Callable[[], float],
    ) -> None:
        """Time up to ``TOGETHER`` candidates on the first prompts; existing rows are kept.

        Args:
            candidates: JSON values that determine each candidate's drafts.
            left: remaining seconds. At 0 no further group is timed, and of the first group only one
                candidate.
        """
        missing = {
            group: [
                one
                for one, (_, about) in enumerate(candidates)
                if f"{batch}:{group}" not in self.known(about)
            ]
            for group in range(self.groups(prompts, batch))
        }
        used = sorted({one for some in missing.values() for one in some})
        if not used:
            return
        decoders = {one: self._decoder(None if one < 0 else candidates[one][0], batch) for one in (-1, *used)}
        try:
            for decoder in decoders.values():
                decoder.reserve(max(map(len, self.prompts.prompts)) + self.new)
            warm: set[int] = set()
            for group, some in missing.items():
                if not some:
                    continue
                turn: dict[int, Any] = {}
                for one in self._order([-1, *some], group):
                    if group == 0 and turn.keys() - {-1} and left() <= 0:
                        break  # later groups are finished so that all candidates have the same groups
                    if one not in warm:
                        self._decode(decoders[one], group, batch, min(self.new, WARM_UP))
                        warm.add(one)
                    turn[one] = self._decode(decoders[one], group, batch, self.new)
                    if one >= 0:
                        self.on_answers(batch)
                if -1 not in turn:
                    turn[-1] = self._decode(decoders[-1], group, batch, self.new)
                for one in turn.keys() - {-1}:
                    self._save(candidates[one][1], f"{batch}:{group}", turn[one], turn[-1])
                if left() <= 0:
                    return
        finally:
            decoders.clear()
            gc.collect()  # decoders and captured passes form reference cycles

    @staticmethod
    def _order(places: list[int], group: int) -> list[int]:
        first = group % len(places)
        return places[first:] + places[:first]

    def _decode(self, decoder: Decoder, group: int, batch: int, new: int) -> tuple[list[Any], float]:
        prompts, stops = self.prompts.prompts, self.prompts.stop_ids
        asked = [Request(prompts[(group * batch + row) % len(prompts)], new, stops) for row in range(batch)]
        for _ in range(_MOST_TRIES):
            before, began = decoder.recordings, time.perf_counter()
            made = decoder.generate_batch(asked)
            seconds = time.perf_counter() - began
            if decoder.recordings == before:  # otherwise passes were captured meanwhile
                break
        return made, seconds

    def _save(
        self,
        about: Mapping[str, Any],
        name: str,
        own: tuple[list[Any], float],
        plain: tuple[list[Any], float],
    ) -> None:
        known = self.known(about)
        lengths = [length for one in own[0] for length in one.accept_lengths]
        known[name] = TurnRow(
            new_tokens=sum(len(one.token_ids) for one in own[0]),
            seconds=own[1],
            cycles=len(lengths),
            committed=sum(lengths),
            plain_tokens=sum(len(one.token_ids) for one in plain[0]),
            plain_seconds=plain[1],
            identical=[one.token_ids for one in own[0]] == [one.token_ids for one in plain[0]],
        )
        self.store.write(self._key(about), about, known)

    def _key(self, about: Mapping[str, Any]) -> str:
        return content_digest({**self.identity, "candidate": dict(about)})
