"""Answer rows in the exact format of Spec-Bench, and a side file with what that format has no room for."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import DataError
from ..core.files import atomic_write, parse_json

if TYPE_CHECKING:
    from ..decode.request import Generation
    from .benchmarks import Question

ANSWER_KEYS = ("question_id", "category", "answer_id", "model_id", "choices", "tstamp")
CHOICE_KEYS = ("index", "turns", "decoding_steps", "new_tokens", "wall_time", "accept_lengths")
DETAIL_KEYS = ("question_id", "category", "choices")
DETAIL_CHOICE_KEYS = (
    "index",
    "prompt_tokens",
    "token_ids",
    "accept_lengths",
    "prefill_s",
    "decode_s",
    "timings",
    "target_forwards",
    "drafted",
    "drafted_by_depth",
    "accepted_by_depth",
    "finish",
)
# "counts" is not among them: details written before proposers counted are read, too.
# Readers of these rows expect the id to look like a "shortuuid": 22 characters of this alphabet.
_ID_ALPHABET = "23456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_ID_LENGTH = 22

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Turn:
    """One answered turn.

    Attributes:
        text: decoded answer without special tokens, stripped.
        token_ids: the answer's tokens up to and with the first stop token.
        prompt_tokens: length of the prompt.
        wall_time: seconds for prefill and decode together, device synchronised.
        generation: what the generator reported.
    """

    text: str
    token_ids: tuple[int, ...]
    prompt_tokens: int
    wall_time: float
    generation: Generation


@dataclass(frozen=True)
class MethodRows:
    """What one method wrote in one run: answer rows and detail rows over the same questions."""

    answers: Sequence[Row]
    details: Sequence[Row]


def new_answer_id() -> str:
    """A random UUID in base 57 (22 characters)."""
    number, digits = uuid.uuid4().int, ""
    while number:
        number, rest = divmod(number, len(_ID_ALPHABET))
        digits = _ID_ALPHABET[rest] + digits
    return digits.rjust(_ID_LENGTH, _ID_ALPHABET[0])


def answer_row(
    question: Question, turns: Sequence[Turn], *, model_id: str, answer_id: str, tstamp: float
) -> dict[str, Any]:
    """A Spec-Bench answer row (docs/formats.md: keys in upstream order; one entry per turn, accept_lengths flat)."""
    choice = {
        "index": 0,
        "turns": [turn.text for turn in turns],
        "decoding_steps": [len(turn.generation.accept_lengths) for turn in turns],
        "new_tokens": [len(turn.token_ids) for turn in turns],
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


def detail_row(question: Question, turns: Sequence[Turn]) -> dict[str, Any]:
    """The side file's row: per turn token ids, times in seconds and counts of verification."""
    runs = [turn.generation for turn in turns]
    choice = {
        "index": 0,
        "prompt_tokens": [turn.prompt_tokens for turn in turns],
        "token_ids": [list(turn.token_ids) for turn in turns],
        "accept_lengths": [list(run.accept_lengths) for run in runs],
        "prefill_s": [run.prefill_s for run in runs],
        "decode_s": [run.decode_s for run in runs],
        "timings": [dict(run.timings) for run in runs],
        "target_forwards": [run.target_forwards for run in runs],
        "drafted": [run.drafted for run in runs],
        "drafted_by_depth": [list(run.drafted_by_depth) for run in runs],
        "accepted_by_depth": [list(run.accepted_by_depth) for run in runs],
        "finish": [run.finish for run in runs],
        "counts": [dict(run.counts) for run in runs],
    }
    return {"question_id": question.question_id, "category": question.category, "choices": [choice]}


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Write rows, one a line, as ``json.dumps`` writes by default; the file is whole or not there."""
    atomic_write(path, "".join(json.dumps(row) + "\n" for row in rows))


def read_answers(path: Path) -> list[dict[str, Any]]:
    """Read an answer file.

    Raises:
        DataError: missing file, bad JSON, or a row without the format's keys (with file:line).
    """
    return _read_rows(path, ANSWER_KEYS, CHOICE_KEYS)


def read_details(path: Path) -> list[dict[str, Any]]:
    """Read a side file. Raises as ``read_answers``."""
    return _read_rows(path, DETAIL_KEYS, DETAIL_CHOICE_KEYS)


def read_method(folder: Path, answers: Sequence[str], details: Sequence[str]) -> list[MethodRows]:
    """A method's rows run by run, from its files relative to an evaluation's folder. Raises as ``read_answers``."""
    return [
        MethodRows(read_answers(folder / answer), read_details(folder / detail))
        for answer, detail in zip(answers, details, strict=True)
    ]


def _read_rows(path: Path, keys: Sequence[str], choice_keys: Sequence[str]) -> list[dict[str, Any]]:
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            "cannot read the answer file",
            got=error,
            expected="JSON lines in UTF-8",
            source=path,
            remedy="check the path and its permissions",
        ) from error
    rows = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line:
            continue
        source = f"{path}:{number}"
        try:
            row = parse_json(line, finite=False)  # which value it is, is said below
        except json.JSONDecodeError as error:
            raise DataError(
                "an answer row is not valid JSON",
                got=error.msg,
                source=source,
                remedy="the file may be damaged; evaluate again",
            ) from error
        except (ValueError, RecursionError) as error:  # numbers of thousands of digits, thousands of brackets
            raise DataError(
                "an answer row cannot be read",
                got=error,
                source=source,
                remedy="the file may be damaged; evaluate again",
            ) from error
        _require(row, keys, source)
        for key, kind, wanted in (("question_id", int, "a whole number"), ("category", str, "a text")):
            if type(row[key]) is not kind:
                raise DataError(
                    f"{key} of an answer row is not {wanted}",
                    got=repr(row[key])[:80],
                    expected=wanted,
                    source=source,
                )
        if not isinstance(row["choices"], list) or not row["choices"]:
            raise DataError(
                "an answer row has no choice",
                got=repr(row["choices"])[:80],
                expected="a list with one choice or more",
                source=source,
            )
        for choice in row["choices"]:
            _require(choice, choice_keys, source)
            _check_values(choice, source)
        rows.append(row)
    return rows


def _check_values(choice: Row, source: str) -> None:
    """Refuse values that no figure can be made from."""
    for key, (fits, expected) in _VALUES.items():
        if key in choice and not (isinstance(choice[key], list) and all(map(fits, choice[key]))):
            raise DataError(
                f"{key} of an answer row has the wrong type",
                got=repr(choice[key])[:80],
                expected=f"a list of {expected}",
                source=source,
            )


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST


def _seconds(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _MOST


def _counts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_count, value))


_MOST = 2**53
_COUNTS, _LISTS = (_count, "whole numbers, 0 or more"), (_counts, "lists of whole numbers")
_VALUES: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "turns": (lambda value: isinstance(value, str), "texts"),
    **dict.fromkeys(("decoding_steps", "new_tokens", "target_forwards", "prompt_tokens"), _COUNTS),
    **dict.fromkeys(("wall_time", "prefill_s", "decode_s"), (_seconds, "finite numbers, 0 or more")),
    **dict.fromkeys(("token_ids", "drafted_by_depth", "accepted_by_depth"), _LISTS),
    "accept_lengths": (
        lambda value: _count(value) or _counts(value),
        "whole numbers, or a list of them a turn",
    ),
    "finish": (lambda value: isinstance(value, str), "texts"),
    "timings": (
        lambda value: isinstance(value, Mapping) and all(map(_seconds, value.values())),
        "tables of seconds",
    ),
}


def _require(value: Any, keys: Sequence[str], source: str) -> None:
    missing = [key for key in keys if not isinstance(value, dict) or key not in value]
    if missing:
        raise DataError(
            "an answer row lacks keys",
            got=", ".join(value) if isinstance(value, dict) else type(value).__name__,
            expected=", ".join(missing),
            source=source,
        )
