"""Answer rows in Spec-Bench's exact format, and a side file for data that the format cannot hold."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.files import atomic_write
from ...core.journal import read_jsonl_log

if TYPE_CHECKING:
    from ...decode.request import Generation
    from ..benchmarks import Question
    from ..servers.generator import ServedGeneration


Row = Mapping[str, Any]


@dataclass(frozen=True)
class AnsweredTurn:
    """An answered turn."""

    text: str  # decoded answer without special tokens, stripped
    # Up to and including the first stop token; None: a server did not return them.
    token_ids: tuple[int, ...] | None
    prompt_tokens: int | None  # None as above
    wall_time: float  # seconds of prefill and decode, with the device synchronised
    generation: Generation
    # The generation if a server gave it; steps, accepted lengths and passes are then unknown.
    served: ServedGeneration | None = None

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
            None if turn.served is not None and turn.served.speculation is None else turn.generation.drafted
            for turn in turns
        ],
        "drafted_by_depth": [list(run.drafted_by_depth) for run in runs],
        "accepted_by_depth": [list(run.accepted_by_depth) for run in runs],
        "finish": [run.finish for run in runs],
        "counts": [dict(run.counts) for run in runs],
    }
    if any(turn.served is not None for turn in turns):
        speculations = [turn.served.speculation for turn in turns if turn.served is not None]
        for key in ("verifications", "accepted"):  # None if unknown
            choice[key] = [getattr(speculation, key, None) for speculation in speculations]
    return {"question_id": question.question_id, "category": question.category, "choices": [choice]}


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Write rows atomically, one per line, in ``json.dumps``'s default format."""
    atomic_write(path, "".join(json.dumps(row) + "\n" for row in rows))


def read_method(folder: Path, answers: Sequence[str], details: Sequence[str]) -> list[MethodRows]:
    """Read a method's rows run by run from files relative to an evaluation's folder.

    Raises:
        DataError: a file is missing, or a row is not a JSON object (with file:line).
    """
    return [
        MethodRows(read_jsonl_log(folder / answer), read_jsonl_log(folder / detail))
        for answer, detail in zip(answers, details, strict=True)
    ]
