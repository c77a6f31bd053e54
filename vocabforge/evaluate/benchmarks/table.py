"""The named benchmarks: one row each. Hashes and commits are those of the published files."""

from __future__ import annotations

from .types import BenchmarkRow, Source

# The two-turn categories that Spec-Bench takes over from MT-bench and also reports as one task.
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


# name -> row; adding a benchmark in a known format is a row.
BENCHMARKS: dict[str, BenchmarkRow] = {
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
        max_new_tokens=1024,
        scorer=None,
        about="Six tasks in 13 categories: conversations of two turns, translation, summaries, answers, sums, RAG.",
        questions=480,
    ),
    "human-eval": BenchmarkRow(
        files=("human_eval/HumanEval.jsonl.gz", "human_eval/HumanEval.jsonl", "human_eval/question.jsonl"),
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
        max_new_tokens=512,
        scorer="human-eval",
        about="Python functions to complete, each with tests: pass@1.",
        questions=164,
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
        max_new_tokens=512,
        scorer="gsm8k",
        about="Sums in words for school children (test split): exact match of the result.",
        questions=1319,
    ),
    # The demo's questions, which its training texts never hold: the number of each category and the seed are its own.
    "sample": BenchmarkRow(
        files=(),
        format="sample",
        sources=(),
        max_new_tokens=256,
        scorer=None,
        about="The demo's questions in nine categories, made here: needs no file, measures no real use.",
        questions=45,
    ),
}
