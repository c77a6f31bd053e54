"""Answer rows as other projects' evaluation code writes them, made from an evaluation's own answer rows."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import DataError
from ..core.files import atomic_write
from .answers import ANSWER_KEYS, CHOICE_KEYS, read_answers, read_details, write_rows
from .names import run_files

if TYPE_CHECKING:
    from .benchmarks import Benchmark

if TYPE_CHECKING:
    from .benchmarks import Benchmark, Question

    Row = Mapping[str, Any]
    Dialect = Callable[[Path, Benchmark, Sequence[str], int], list[str]]

# FR-Spec leaves out what its question files do not have.
_LEFT_OUT = {"human-eval": {"category"}, "gsm8k": {"question_id", "category"}}


def write_fr_spec(folder: Path, benchmark: Benchmark, methods: Sequence[str], runs: int) -> list[str]:
    """Write ``fr-spec/METHOD.jsonl`` (several runs: ``fr-spec/run_i/METHOD.jsonl``) from ``answers/``.

    A row is Spec-Bench's with ``generate_speed`` (tokens per second of each turn) at the end of its choice.
    HumanEval: no ``category``, the task's name as ``question_id``, sorted as texts, and beside it the samples
    ``METHOD_correctness.jsonl``, one for each question asked (an unanswered one is empty and so fails).
    GSM8K: neither ``question_id`` nor ``category``, in the order of the questions.

    Source: the evaluation code of FR-Spec (Zhao et al. 2025).

    Args:
        folder: the evaluation's folder.
        methods: names; as many ``runs`` of each are there.

    Returns:
        The files written, relative to ``folder``.

    Raises:
        DataError: an answer file is missing or damaged.
    """
    answers, wanted = run_files("answers", methods, runs), run_files("fr-spec", methods, runs)
    written = []
    for name in methods:
        for source, file in zip(answers[name], wanted[name], strict=True):
            rows = {row["question_id"]: row for row in read_answers(folder / source)}
            answered = [question for question in _in_order(benchmark) if question.question_id in rows]
            made = [_fr_spec_row(rows[question.question_id], question, benchmark) for question in answered]
            write_rows(folder / file, made)
            written.append(file)
            if benchmark.scorer == "human-eval":
                beside = file.removesuffix(".jsonl") + "_correctness.jsonl"
                write_rows(
                    folder / beside, (_sample(rows.get(one.question_id), one) for one in benchmark.questions)
                )
                written.append(beside)
    return written


# name of --dialect -> what writes it.
DIALECTS: dict[str, Dialect] = {"fr-spec": write_fr_spec}


def _in_order(benchmark: Benchmark) -> list[Question]:
    """The questions in the order of FR-Spec's file: of the file for GSM8K, by its id for the others."""
    if benchmark.scorer == "gsm8k":
        return list(benchmark.questions)
    if benchmark.scorer == "human-eval":
        return sorted(benchmark.questions, key=lambda question: question.name)
    return sorted(benchmark.questions, key=lambda question: question.question_id)


def _fr_spec_row(row: Row, question: Question, benchmark: Benchmark) -> dict[str, Any]:
    values = dict(row, choices=[_fr_spec_choice(choice) for choice in row["choices"]])
    if benchmark.scorer == "human-eval":
        values["question_id"] = question.name
    left_out = _LEFT_OUT.get(benchmark.scorer or "", set())
    return {key: values[key] for key in ANSWER_KEYS if key not in left_out}


def _fr_spec_choice(choice: Row) -> dict[str, Any]:
    pairs = zip(choice["new_tokens"], choice["wall_time"], strict=True)
    # A clock too coarse for a turn must not end an evaluation.
    speeds = [tokens / seconds if seconds else 0.0 for tokens, seconds in pairs]
    return {**{key: choice[key] for key in CHOICE_KEYS}, "generate_speed": speeds}


def _sample(row: Row | None, question: Question) -> dict[str, str]:
    """FR-Spec's sample: the first answer as it is, but for odd indents, which get one more space."""
    text = row["choices"][0]["turns"][0] if row is not None else ""
    even = re.sub(r"^ +", lambda indent: indent[0] + " " * (len(indent[0]) % 2), text, flags=re.MULTILINE)
    return {"task_id": question.name, "completion": even}


FILE = "hf-bench.csv"


@dataclass(frozen=True)
class HfRow:
    """One line; the fields are the header, in order.

    Attributes:
        dataset_path: name of the benchmark. dataset_name: its question file. dataset_split: blank.
        num_of_examples: prompts asked. example_id: of this one, from 0.
        drafter: name of the method; blank for plain decoding.
        new_toks: tokens of the answer, its stop token included.
        ttft_ms: milliseconds to the end of prefill.
        tpot_ms: (total - TTFT) / (new_toks - 1). out_toks_per_sec: 1000 / tpot_ms.
    """

    target: str
    dataset_path: str
    dataset_name: str
    dataset_split: str
    num_of_examples: int
    drafter: str
    temperature: float
    example_id: int
    new_toks: int
    ttft_ms: float
    tpot_ms: float
    out_toks_per_sec: float


@dataclass(frozen=True)
class HfSummary:
    """A group of lines as hf-bench sums it up: arithmetic means of tokens and TTFT, harmonic means of the others."""

    target: str
    dataset_path: str
    drafter: str
    temperature: float
    examples: int
    new_toks: float
    ttft_ms: float
    tpot_ms: float
    out_toks_per_sec: float


HEADER = tuple(field.name for field in fields(HfRow))
_KINDS = {"int": int, "float": float, "str": str}


def write_hf_bench(
    folder: Path, benchmark: Benchmark, methods: Sequence[str], runs: int, *, target: str, temperature: float
) -> list[str]:
    """Write ``hf-bench.csv`` (several runs: ``hf-bench/run_i.csv``) from ``answers/`` and ``details/``.

    Args:
        folder: the evaluation's folder.
        methods: names, plain decoding first; as many ``runs`` of each are there.

    Returns:
        The files written, relative to ``folder``.

    Raises:
        DataError: an answer file or a side file is missing or damaged.
    """
    answers, details = run_files("answers", methods, runs), run_files("details", methods, runs)
    files = [FILE] if runs == 1 else [f"hf-bench/run_{number}.csv" for number in range(1, runs + 1)]
    for index, file in enumerate(files):
        figures = {
            name: _figures(
                benchmark,
                read_answers(folder / answers[name][index]),
                read_details(folder / details[name][index]),
            )
            for name in methods
        }
        atomic_write(folder / file, to_csv(_rows(benchmark, figures, target, temperature)))
    return files


def to_csv(rows: Iterable[HfRow]) -> str:
    """Header and lines."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEADER)
    writer.writerows(astuple(row) for row in rows)
    return text.getvalue()


def read_hf_bench(path: Path) -> list[HfRow]:
    """Read such a file, ours or hf-bench's own.

    Raises:
        DataError: unreadable file, another header, or a value of another kind (with file:line).
    """
    try:
        lines = list(csv.reader(io.StringIO(path.read_text("utf-8"), newline="")))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(
            "cannot read the CSV file",
            got=error,
            expected="a CSV file in UTF-8, as hf-bench writes it",
            source=path,
        ) from error
    if not lines or tuple(lines[0]) != HEADER:
        got = ",".join(lines[0]) if lines else "an empty file"
        raise DataError("the file is not one of hf-bench", got=got, expected=",".join(HEADER), source=path)
    return [_parse(line, f"{path}:{number}") for number, line in enumerate(lines[1:], start=2) if line]


def summarise_hf_bench(rows: Iterable[HfRow]) -> list[HfSummary]:
    """One figure each for target, dataset, drafter and temperature, as hf-bench's own summary groups them."""
    groups: dict[tuple[str, str, str, float], list[HfRow]] = {}
    for row in rows:
        groups.setdefault((row.target, row.dataset_path, row.drafter, row.temperature), []).append(row)
    return [
        HfSummary(
            *key,
            examples=len({row.example_id for row in group}),
            new_toks=sum(row.new_toks for row in group) / len(group),
            ttft_ms=sum(row.ttft_ms for row in group) / len(group),
            tpot_ms=_harmonic_mean([row.tpot_ms for row in group]),
            out_toks_per_sec=_harmonic_mean([row.out_toks_per_sec for row in group]),
        )
        for key, group in groups.items()
    ]


@dataclass(frozen=True)
class _Turn:
    tokens: int
    ttft_s: float
    total_s: float

    @property
    def tpot_s(self) -> float:
        return (self.total_s - self.ttft_s) / (self.tokens - 1)

    @property
    def countable(self) -> bool:
        """Whether there is a time per token: one token has none."""
        return self.tokens > 1 and self.total_s > self.ttft_s


def _figures(
    benchmark: Benchmark, answers: Sequence[Mapping[str, Any]], details: Sequence[Mapping[str, Any]]
) -> dict[int, _Turn]:
    """Each answered turn of one method by example id."""
    choices = {row["question_id"]: row["choices"][0] for row in answers}
    prefill = {row["question_id"]: row["choices"][0]["prefill_s"] for row in details}
    figures: dict[int, _Turn] = {}
    first = 0
    for question in benchmark.questions:
        if question.question_id in choices:
            choice = choices[question.question_id]
            turns = zip(choice["new_tokens"], prefill[question.question_id], choice["wall_time"], strict=True)
            figures |= {first + index: _Turn(*turn) for index, turn in enumerate(turns)}
        first += len(question.turns)
    return figures


def _rows(
    benchmark: Benchmark, figures: Mapping[str, Mapping[int, _Turn]], target: str, temperature: float
) -> list[HfRow]:
    """Lines of all methods; hf-bench wants positive figures, and each example of all drafters or of none."""
    baseline = next(iter(figures))
    asked = sum(len(question.turns) for question in benchmark.questions)
    kept = [
        example
        for example in figures[baseline]
        if all(example in turns and turns[example].countable for turns in figures.values())
    ]
    return [
        HfRow(
            target=target,
            dataset_path=benchmark.name,
            dataset_name=benchmark.file,
            dataset_split="",
            num_of_examples=asked,
            drafter="" if name == baseline else name,
            temperature=float(temperature),
            example_id=example,
            new_toks=turns[example].tokens,
            ttft_ms=turns[example].ttft_s * 1000,
            tpot_ms=turns[example].tpot_s * 1000,
            out_toks_per_sec=1 / turns[example].tpot_s,
        )
        for name, turns in figures.items()
        for example in kept
    ]


def _parse(line: Sequence[str], source: str) -> HfRow:
    if len(line) != len(HEADER):
        raise DataError(
            "a line of the CSV file has another number of values",
            got=len(line),
            expected=len(HEADER),
            source=source,
        )
    values: dict[str, Any] = {}
    for field, text in zip(fields(HfRow), line, strict=True):
        try:
            values[field.name] = _KINDS[str(field.type)](text)
        except ValueError as error:
            raise DataError(
                f"{field.name} has the wrong type", got=repr(text), expected=field.type, source=source
            ) from error
    return HfRow(**values)


def _harmonic_mean(values: Sequence[float]) -> float:
    """n / sum(1 / x), in the limit for 0 and infinity: hf-bench writes those for answers of one token."""
    if 0 in values:
        return 0.0
    inverse = sum(1 / value for value in values)
    return len(values) / inverse if inverse else float("inf")
