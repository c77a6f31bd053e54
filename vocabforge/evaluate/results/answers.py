"""Answer rows in Spec-Bench's exact format, and a side file for data that the format cannot hold."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from ...core.errors import DataError
from ...core.files import atomic_write, parse_json

if TYPE_CHECKING:
    from ...decode.request import Generation
    from ..benchmarks import Question


Row = Mapping[str, Any]


Count = Annotated[int, Field(strict=True, ge=0, lt=2**53)]
Seconds = Annotated[float, Field(strict=True, ge=0, lt=2**53, allow_inf_nan=False)]


class _AnswerChoice(BaseModel):
    index: Any
    turns: list[str]
    decoding_steps: list[Count | None]
    new_tokens: list[Count]
    wall_time: list[Seconds]
    accept_lengths: list[Count]


class _DetailChoice(BaseModel):
    """A choice of a side file.

    ``counts`` is missing in old files. ``verifications``, ``accepted`` and nulls occur only in files of
    servers.
    """

    index: Any
    prompt_tokens: list[Count | None]
    token_ids: list[list[Count] | None]
    accept_lengths: list[list[Count]]
    prefill_s: list[Seconds]
    decode_s: list[Seconds]
    timings: list[dict[str, Seconds]]
    target_forwards: list[Count | None]
    drafted: Any
    drafted_by_depth: list[list[Count]]
    accepted_by_depth: list[list[Count]]
    finish: list[str]
    verifications: list[Count | None] | None = None
    accepted: list[Count | None] | None = None


class _DetailRow(BaseModel):
    question_id: Annotated[int, Field(strict=True)]
    category: str
    choices: Annotated[list[_DetailChoice], Field(min_length=1)]


class _AnswerRow(BaseModel):
    question_id: Annotated[int, Field(strict=True)]
    category: str
    answer_id: Any
    model_id: Any
    choices: Annotated[list[_AnswerChoice], Field(min_length=1)]
    tstamp: Any


@dataclass(frozen=True)
class ServedTurn:
    """A turn as reported by a server, which gives less detail than a decoder.

    Attributes:
        new_tokens: number of tokens of the answer as counted by the server.
        verifications: number of verifications; None if not known for this turn alone.
        accepted: number of accepted draft tokens; None as above.
    """

    new_tokens: int
    verifications: int | None
    accepted: int | None


@dataclass(frozen=True)
class AnsweredTurn:
    """An answered turn.

    Attributes:
        text: decoded answer without special tokens, stripped.
        token_ids: tokens up to and including the first stop token; None if a server does not return them.
        prompt_tokens: length of the prompt; None as above.
        wall_time: seconds of prefill and decode, with the device synchronised.
        generation: result of the generator.
        served: totals of a server; steps, accepted lengths and passes are then unknown.
    """

    text: str
    token_ids: tuple[int, ...] | None
    prompt_tokens: int | None
    wall_time: float
    generation: Generation
    served: ServedTurn | None = None

    @property
    def new_tokens(self) -> int:
        """Number of tokens of the answer."""
        return len(self.token_ids or ()) if self.served is None else self.served.new_tokens


@dataclass(frozen=True)
class MethodRows:
    """Output of a method in one run: answer rows and detail rows over the same questions."""

    answers: Sequence[Row]
    details: Sequence[Row]


def answer_row(
    question: Question, turns: Sequence[AnsweredTurn], *, model_id: str, answer_id: str, tstamp: float
) -> dict[str, Any]:
    """Return a Spec-Bench answer row (docs/formats.md): upstream key order, one entry per turn."""
    choice = {
        "index": 0,
        "turns": [turn.text for turn in turns],
        "decoding_steps": [
            None if turn.served is not None else len(turn.generation.accept_lengths) for turn in turns
        ],
        "new_tokens": [turn.new_tokens for turn in turns],
        "wall_time": [turn.wall_time for turn in turns],
        "accept_lengths": [length for turn in turns for length in turn.generation.accept_lengths],
    }
    return {
        "question_id": question.question_id,
        "category": question.category,
        "answer_id": answer_id,
        "model_id": model_id,
        "choices": [choice],
        "tstamp": tstamp,
    }


def detail_row(question: Question, turns: Sequence[AnsweredTurn]) -> dict[str, Any]:
    """Return the side file's row: token ids, times in seconds and verification counts per turn."""
    runs = [turn.generation for turn in turns]
    choice = {
        "index": 0,
        "prompt_tokens": [turn.prompt_tokens for turn in turns],
        "token_ids": [None if turn.token_ids is None else list(turn.token_ids) for turn in turns],
        "accept_lengths": [list(run.accept_lengths) for run in runs],
        "prefill_s": [run.prefill_s for run in runs],
        "decode_s": [run.decode_s for run in runs],
        "timings": [dict(run.timings) for run in runs],
        "target_forwards": [
            None if turn.served is not None else turn.generation.target_forwards for turn in turns
        ],
        "drafted": [
            None if turn.served is not None and turn.served.verifications is None else turn.generation.drafted
            for turn in turns
        ],
        "drafted_by_depth": [list(run.drafted_by_depth) for run in runs],
        "accepted_by_depth": [list(run.accepted_by_depth) for run in runs],
        "finish": [run.finish for run in runs],
        "counts": [dict(run.counts) for run in runs],
    }
    if any(turn.served is not None for turn in turns):
        served = [turn.served for turn in turns if turn.served is not None]
        choice["verifications"] = [one.verifications for one in served]
        choice["accepted"] = [one.accepted for one in served]
    return {"question_id": question.question_id, "category": question.category, "choices": [choice]}


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Write rows atomically, one per line, in ``json.dumps``'s default format."""
    atomic_write(path, "".join(json.dumps(row) + "\n" for row in rows))


def read_answers(path: Path) -> list[dict[str, Any]]:
    """Read an answer file.

    Raises:
        DataError: the file is missing, or a row is not valid JSON or lacks a key (with file:line).
    """
    return _read_rows(path, _AnswerRow)


def read_details(path: Path) -> list[dict[str, Any]]:
    """Read a side file; raises like ``read_answers``."""
    return _read_rows(path, _DetailRow)


def read_method(folder: Path, answers: Sequence[str], details: Sequence[str]) -> list[MethodRows]:
    """Read a method's rows run by run from files relative to an evaluation's folder; see ``read_answers``."""
    return [
        MethodRows(read_answers(folder / answer), read_details(folder / detail))
        for answer, detail in zip(answers, details, strict=True)
    ]


def _read_rows(path: Path, model: type[BaseModel]) -> list[dict[str, Any]]:
    remedy = "the file may be damaged; evaluate again"
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError("cannot read the answer file", got=error, source=path, remedy=remedy) from error
    rows = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line:
            continue
        try:
            row = parse_json(line, finite=False)  # the model below reports non-finite values by name
            model.model_validate(row)
        except (ValueError, RecursionError) as error:
            what, got = "an answer row is not valid JSON", str(error)
            if isinstance(error, ValidationError):
                first = error.errors(include_url=False)[0]
                place = ".".join(map(str, first["loc"])) or "the value"
                what, got = (
                    f"{place} of an answer row is not valid",
                    f"{first['input']!r:.80}: {first['msg']}",
                )
            raise DataError(what, got=got, source=f"{path}:{number}", remedy=remedy) from error
        rows.append(row)
    return rows
