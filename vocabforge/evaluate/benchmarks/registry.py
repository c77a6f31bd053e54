"""Table of named benchmarks. Hashes and commits are those of the published files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ...core.errors import DataError
from ...core.registry import ExtensionTable
from .readers import (
    read_chats,
    read_gsm8k,
    read_human_eval,
    read_math,
    read_mbpp,
    read_questions,
    read_scrolls,
    read_speed_bench,
)
from .rows import iter_rows, no_question
from .types import BenchmarkRow, Question, Source

# The two-turn categories that Spec-Bench takes from MT-bench and also reports as one task.
MT_BENCH = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")

_RAW = "https://raw.githubusercontent.com"
_SPEC_BENCH = "fd2c1cd7d2201ef71db4c5f4e455008f017967bf"
_HUMAN_EVAL = "6d43fb980f9fee3c892a914eda09951f772ad10d"
_GRADE_SCHOOL = "3101c7d5072418e28b9008a6636bde82a006892c"
_FR_SPEC = "9d40eea8a6c2775ca7689a72c5cc76e291417790"
_HUMAN_EVAL_SHA256 = "1d49078ba3e2b196b9344535bef34a43021f038fad9561d6ee7c53450609a6a2"


def _source(repository: str, commit: str, path: str, sha256: str, unpacked: str | None = None) -> Source:
    url = f"{_RAW}/{repository}/{commit}/{path}"
    return Source(url, sha256, unpacked, f"{path} of github.com/{repository} at commit {commit[:12]}")


def _hub_source(repository: str, revision: str, path: str, sha256: str) -> Source:
    url = f"https://huggingface.co/datasets/{repository}/resolve/{revision}/{path}"
    return Source(
        url, sha256, None, f"{path} of huggingface.co/datasets/{repository} at revision {revision[:12]}"
    )


# The tasks with long answers; narrative_qa is larger than a question file may be.
_SCROLLS = {
    f"scrolls-{task.replace('_', '-')}": BenchmarkRow(
        files=(f"scrolls/{task}/validation.jsonl",),
        format="scrolls",
        about=f"validation.jsonl in {task}.zip of huggingface.co/datasets/tau/scrolls at revision 16d7a159dc46",
    )
    for task in ("gov_report", "summ_screen_fd", "qmsum", "qasper")
}

# name -> row. To add a benchmark in a known format, add a row.
BENCHMARKS = ExtensionTable(
    "vocabforge.benchmarks",
    {
        "spec-bench": BenchmarkRow(
            files=("spec_bench/question.jsonl",),
            format="spec-bench",
            sources=(
                _source(
                    "hemingkx/Spec-Bench",
                    _SPEC_BENCH,
                    "data/spec_bench/question.jsonl",
                    "4b6d33e79484f9841c487ee87d1cf6aa8c6066f61d5d482ff09e5a007fafdf04",
                ),
            ),
        ),
        "human-eval": BenchmarkRow(
            files=(
                "human_eval/HumanEval.jsonl.gz",
                "human_eval/HumanEval.jsonl",
                "human_eval/question.jsonl",
            ),
            format="human-eval",
            sources=(
                _source(
                    "openai/human-eval",
                    _HUMAN_EVAL,
                    "data/HumanEval.jsonl.gz",
                    "b796127e635a67f93fb35c04f4cb03cf06f38c8072ee7cee8833d7bee06979ef",
                    _HUMAN_EVAL_SHA256,
                ),
                _source("thunlp/FR-Spec", _FR_SPEC, "data/human_eval/question.jsonl", _HUMAN_EVAL_SHA256),
            ),
        ),
        "gsm8k": BenchmarkRow(
            files=("gsm8k/test.jsonl", "gsm8k/test-00000-of-00001.parquet"),
            format="gsm8k",
            sources=(
                _source(
                    "openai/grade-school-math",
                    _GRADE_SCHOOL,
                    "grade_school_math/data/test.jsonl",
                    "3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14",
                ),
                _source(
                    "thunlp/FR-Spec",
                    _FR_SPEC,
                    "data/gsm8k/gsm8k/main/test-00000-of-00001.parquet",
                    "ee7b8da9e381df27b9e3f7758a159ab2bdaa4dbaa910546cbbc47e0cb44e4f59",
                ),
            ),
        ),
        "math-500": BenchmarkRow(
            files=("math_500/test.jsonl",),
            format="math",
            sources=(
                _hub_source(
                    "HuggingFaceH4/MATH-500",
                    "6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be",
                    "test.jsonl",
                    "35dc41080a3680858b27fa7e0533d2d547825316fc5dafe5d316f4ccc5a06132",
                ),
            ),
        ),
        "mbpp": BenchmarkRow(
            files=("mbpp/test-00000-of-00001.parquet",),
            format="mbpp",
            sources=(
                _hub_source(
                    "google-research-datasets/mbpp",
                    "4bb6404fdc6cacfda99d4ac4205087b89d32030c",
                    "full/test-00000-of-00001.parquet",
                    "566fd53060ffba5766dace1d1e2f4c38906781526de222b0dfbdbc325b696c77",
                ),
            ),
        ),
        **_SCROLLS,
        "speed-bench": BenchmarkRow(
            files=("speed/qualitative/test.parquet",),
            format="speed-bench",
            about="the file that prepare_data.py --config qualitative writes (github.com/NVIDIA/Model-Optimizer, "
            "examples/specdec_bench): huggingface.co/datasets/nvidia/SPEED-Bench lacks the texts of some sources",
        ),
        "sample": BenchmarkRow(files=(), format="spec-bench", max_new_tokens=256),
    },
)


class Format(NamedTuple):
    """Reader, keys and default limit of new tokens per turn of a question format."""

    reader: Callable[[Path], list[Question]]
    keys: tuple[str, ...]
    max_new_tokens: int


# name -> format. The first format whose keys are in a file's first row is used.
FORMATS = ExtensionTable(
    "vocabforge.question_formats",
    {
        "speed-bench": Format(read_speed_bench, ("question_id", "category", "sub_category", "turns"), 1024),
        "spec-bench": Format(read_questions, ("question_id", "category", "turns"), 1024),
        "human-eval": Format(read_human_eval, ("task_id", "prompt", "entry_point", "test"), 512),
        "mbpp": Format(read_mbpp, ("task_id", "code", "test_list"), 512),
        "gsm8k": Format(read_gsm8k, ("question", "answer"), 512),
        "math": Format(read_math, ("problem", "answer"), 1024),
        "scrolls": Format(read_scrolls, ("pid", "input", "output"), 1024),
        "chat": Format(read_chats, ("conversations or messages",), 1024),
    },
)


def read_format(name: str, path: Path) -> list[Question]:
    """Read a file's questions in a named format; raises the errors of its reader."""
    return FORMATS[name].reader(path)


def detect_format(path: Path) -> str:
    """Return the name of the format that matches the first row.

    Raises:
        DataError: the file is unreadable or empty, or its first row is not a JSON object or matches no
            format.
    """
    _, row = next(iter_rows(path), ("", None))
    if row is None:
        no_question(path)
    for name in FORMATS:
        if _is_of(name, row, path):
            return name
    raise DataError(
        "the format of the question file is not known",
        got=f"keys of its first row: {', '.join(map(str, row)) or 'none'}",
        expected="; or ".join(f"{', '.join(row.keys)} ({name})" for name, row in FORMATS.items()),
        source=path,
        remedy="write the file anew in one of these formats",
    )


def _is_of(name: str, row: Mapping[str, Any], path: Path) -> bool:
    if name == "chat":
        return _is_chat(row, path)
    if name == "spec-bench":  # a first row without a category is an invalid row of this format
        return row.keys() >= {"question_id", "turns"}
    holds = row.keys() >= set(FORMATS[name].keys)
    # A row with other answers is a conversation.
    return holds and (name != "gsm8k" or (isinstance(row["answer"], str) and "####" in row["answer"]))


def _is_chat(row: Mapping[str, Any], path: Path) -> bool:
    from ...corpus.sources.bytes import Problems
    from ...corpus.sources.document import SourceOptions
    from ...corpus.sources.rows import row_document

    if row.keys() & {"messages", "conversations", "conversation"}:
        return True
    document = row_document(dict(row), path, 1, SourceOptions(), Problems(shown=0))
    return document is not None and document.messages is not None
