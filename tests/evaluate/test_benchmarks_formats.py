"""HumanEval, GSM8K and conversations, however they are stored, and how a file's format is told."""

from __future__ import annotations

import gzip
import io
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vocabforge.core.errors import DataError
from vocabforge.evaluate.benchmarks import FORMATS, detect_format, load_benchmark
from vocabforge.evaluate.benchmarks import rows as reading
from vocabforge.evaluate.benchmarks.readers import GSM8K_SYSTEM
from vocabforge.evaluate.benchmarks.registry import read_format

HUMAN_EVAL = [
    {
        "task_id": f"HumanEval/{number}",
        "prompt": f"def f{number}():\n",
        "entry_point": f"f{number}",
        "canonical_solution": "    return 1\n",
        "test": f"def check(f{number}): assert f{number}() == 1",
    }
    for number in (2, 10, 1)
]
GSM8K = [
    {"question": "2 + 2 = ?", "answer": "It is <<2+2=4>>4.\n#### 4"},
    {"question": "é?", "answer": "#### -1,000"},
]
# Rows in the columns of each data set's card.
MATH = [
    {"problem": "Compute $1+1$.", "solution": "It is $\\boxed{2}$.", "answer": "2", "subject": "Algebra",
     "level": 1, "unique_id": "test/algebra/1.json"},
    {"problem": "é?", "solution": "", "answer": "3", "subject": "Algebra", "level": 5, "unique_id": "test/2.json"},
]  # fmt: skip
MBPP = [
    {"task_id": number, "text": "Write f.", "code": "def f(): return 1", "test_list": ["assert f()", "assert 1"],
     "test_setup_code": "", "challenge_test_list": []}
    for number in (11, 12)
]  # fmt: skip
SCROLLS = [
    {"id": "a", "pid": f"a_{number}", "input": f"Why?\n\nText {number}", "output": "So"}
    for number in range(2)
]
SPEED = [
    {"question_id": f"q-{number}", "category": "math", "sub_category": "", "turns": ["One", "Two"], "source": "s",
     "src_id": "1", "difficulty": "", "multiturn": True}
    for number in (7, 8)
]  # fmt: skip
CHATS: list[dict[str, Any]] = [
    {
        "conversations": [
            {"from": "system", "value": "Be kind."},
            {"from": "human", "value": "Hi"},
            {"from": "gpt", "value": "Hello"},
            {"from": "system", "value": "Be brief."},
            {"from": "human", "value": "And you?"},
            {"from": "gpt", "value": "Fine"},
        ]
    },
    {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "One "}, {"type": "text", "text": "two"}]}
        ]
    },
    {"instruction": "Add", "input": "1 and 1", "output": "2"},
    {"question": "Say it", "answer": "It"},  # no sum: its answer holds no result
]


def lines(rows: list[dict]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def parquet(rows: list[dict]) -> bytes:
    arrow = pytest.importorskip("pyarrow", reason="the extra data (pyarrow) is not installed")
    from pyarrow import parquet as library

    stored = io.BytesIO()
    library.write_table(arrow.Table.from_pylist(rows), stored, row_group_size=1)
    return stored.getvalue()


def zst(data: bytes) -> bytes:
    return (
        pytest.importorskip("zstandard", reason="the extra data (zstandard) is not installed")
        .ZstdCompressor()
        .compress(data)
    )


STORED: dict[str, Callable[[list[dict]], bytes]] = {
    "q.jsonl": lines,
    "q": lines,
    "q.jsonl.gz": lambda rows: gzip.compress(lines(rows)),
    "q.jsonl.xz": lambda rows: lzma.compress(lines(rows)),
    "q.jsonl.zst": lambda rows: zst(lines(rows)),
    "q.json": lambda rows: json.dumps(rows, indent=1).encode(),
    "q.json.gz": lambda rows: gzip.compress(b"\xef\xbb\xbf" + json.dumps(rows).encode()),
    "lines.json": lines,
    "q.parquet": parquet,
}


@pytest.mark.parametrize("file", STORED)
def test_every_way_to_store_rows_gives_the_same_questions(tmp_path: Path, file: str) -> None:
    spec = [{"question_id": number, "category": "qa", "turns": ["a", "b"]} for number in range(2)]
    formats = {"spec-bench": spec, "human-eval": HUMAN_EVAL, "gsm8k": GSM8K, "math": MATH, "mbpp": MBPP}
    formats |= {"scrolls": SCROLLS, "speed-bench": SPEED}
    formats |= {} if file == "q" else {"chat": CHATS[:1]}
    for name, rows in formats.items():
        path, plain = tmp_path / f"{name}-{file}", tmp_path / "plain.jsonl"
        path.write_bytes(STORED[file](rows))
        plain.write_bytes(lines(rows))
        assert detect_format(path) == name
        assert read_format(name, path) == read_format(name, plain)


def test_human_eval_asks_for_the_code_alone(tmp_path: Path) -> None:
    path = tmp_path / "HumanEval.jsonl.gz"
    path.write_bytes(gzip.compress(lines(HUMAN_EVAL)))
    benchmark = load_benchmark(str(path))
    assert (benchmark.name, benchmark.format) == ("HumanEval", "human-eval")
    assert benchmark.max_new_tokens == 512
    assert [question.question_id for question in benchmark.questions] == [2, 10, 1]
    first, row = benchmark.questions[0], HUMAN_EVAL[0]
    assert (first.task_id, first.category, first.turns) == ("HumanEval/2", "human-eval", (row["prompt"],))
    assert first.system == (
        "Please complete the following Python code without providing any additional tasks such as testing or "
        "explanations."
    )


def test_gsm8k_asks_the_question_alone_and_says_how_to_close(tmp_path: Path) -> None:
    path = tmp_path / "test.jsonl"
    path.write_bytes(lines(GSM8K).replace(b"\n", b"\n\n"))  # blank lines are not counted
    benchmark = load_benchmark(str(path))
    assert (benchmark.format, benchmark.max_new_tokens) == ("gsm8k", 512)
    first, second = benchmark.questions
    assert (first.question_id, second.question_id, first.category) == (0, 1, "gsm8k")
    assert (first.turns, second.turns) == (("2 + 2 = ?",), ("é?",))
    assert first.system == GSM8K_SYSTEM
    assert "####" in GSM8K_SYSTEM


@pytest.mark.parametrize(
    ("format", "rows", "ids", "names", "category", "turns"),
    [
        ("math", MATH, [0, 1], ["0", "1"], "math-problems", ("Compute $1+1$.",)),
        ("mbpp", MBPP, [11, 12], ["11", "12"], "mbpp",
         ("Write f. Your code should pass these tests:\n\nassert f()\nassert 1",)),
        ("scrolls", SCROLLS, [0, 1], ["0", "1"], "scrolls", ("Why?\n\nText 0",)),
        ("speed-bench", SPEED, [0, 1], ["q-7", "q-8"], "speed-math", ("One", "Two")),
    ],
)  # fmt: skip
def test_rows_of_published_benchmarks_become_questions(tmp_path, format, rows, ids, names, category, turns):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(lines(rows))
    benchmark = load_benchmark(str(path))
    assert (benchmark.format, benchmark.max_new_tokens) == (format, FORMATS[format].max_new_tokens)
    assert [question.question_id for question in benchmark.questions] == ids
    assert [question.name for question in benchmark.questions] == names
    first = benchmark.questions[0]
    assert (first.category, first.turns) == (category, turns)
    assert (first.system is None) == (format == "speed-bench")


def test_the_sanitized_mbpp_is_read_too(tmp_path: Path) -> None:
    path = tmp_path / "sanitized-mbpp.json"
    row = {key: value for key, value in MBPP[0].items() if key != "text"}
    path.write_text(json.dumps([{**row, "prompt": "Write f.", "source_file": "a", "test_imports": []}]))
    plain = tmp_path / "mbpp.jsonl"
    plain.write_bytes(lines(MBPP[:1]))
    assert load_benchmark(str(path)).questions == load_benchmark(str(plain)).questions


@pytest.mark.parametrize(
    ("name", "change", "expected"),
    [
        ("math", {"problem": ""}, "problem is not valid"),
        ("mbpp", {"task_id": True}, "task_id is not valid"),
        ("mbpp", {"task_id": 11}, "a question id is given twice"),
        ("mbpp", {"test_list": "assert f()"}, "test_list is not valid"),
        ("scrolls", {"input": None}, "input is not valid"),
        ("speed-bench", {"turns": []}, "turns is not valid"),
        ("speed-bench", {"question_id": 8}, "question_id is not valid"),
        (
            "speed-bench",
            {"turns": ["FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE USING SPECDEC_BENCH"]},
            r"text of a question is missing(.|\n)*prepare_data\.py",
        ),
        ("human-eval", {"task_id": "HumanEval-2"}, "the task_id holds no number"),
        ("human-eval", {"task_id": "HumanEval/1"}, "a question id is given twice"),
        ("human-eval", {"prompt": ""}, "prompt is not valid"),
        ("gsm8k", {"question": ["a"]}, "question is not valid"),
    ],
)
def test_a_wrong_row_is_reported_with_its_line_there_too(tmp_path, name, change, expected):
    pairs = {"human-eval": HUMAN_EVAL[::-2], "gsm8k": GSM8K, "math": MATH, "mbpp": MBPP, "scrolls": SCROLLS}
    good, other = {**pairs, "speed-bench": SPEED}[name]
    path = tmp_path / "q.jsonl"
    path.write_bytes(lines([good, {**other, **change}]))
    with pytest.raises(DataError, match=expected) as caught:
        read_format(name, path)
    assert f"{path}:2" in caught.value.render()
    path.write_bytes(lines([good, {key: value for key, value in other.items() if key not in change}]))
    with pytest.raises(DataError, match=f"lacks a key[^,]*|expected: *{next(iter(change))}"):
        read_format(name, path)


def test_turns_of_the_user_are_asked_and_other_rows_said(tmp_path, capsys):
    path = tmp_path / "mixed.jsonl"
    call = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}],
    }
    user = {"role": "user", "content": "Call f"}
    wrong: list[Any] = [
        {"text": "a plain text"},
        {"messages": [{"role": "assistant", "content": "Hi"}]},
        {"messages": [{"role": "user", "content": " "}]},
        {"messages": [{"role": "narrator", "content": "Hi"}]},
        {"messages": [user, call, {"role": "tool", "content": "1"}, {"role": "user", "content": "Again"}]},
        {"messages": [{"role": "developer", "content": "A"}, {"role": "system", "content": "B"}, user]},
        {"messages": [user], "tools": '[{"name": "f"}]'},
    ]
    path.write_bytes(lines([*CHATS, *wrong]) + b'{"messages": [\n')
    benchmark = load_benchmark(str(path))
    assert (benchmark.name, benchmark.format) == ("mixed", "chat")
    assert [question.turns for question in benchmark.questions] == [
        ("Hi", "And you?"),
        ("One two",),
        ("Add\n1 and 1",),
        ("Say it",),
        ("Call f", "Again"),
        ("Call f",),
        ("Call f",),
    ]
    assert [question.system for question in benchmark.questions] == ["Be kind.", *[None] * 4, "A\n\nB", None]
    assert {question.category for question in benchmark.questions} == {"chat"}
    assert len({question.question_id for question in benchmark.questions}) == benchmark.of == 7
    said = capsys.readouterr().err
    for line, kind in (
        (5, "the row holds no conversation"),
        (6, "the conversation has no turn of a user"),
        (7, "a turn of the user holds no text"),
        (8, "a turn of the conversation has an unknown role"),
        (12, "the line is not valid JSON"),
    ):
        assert f"Skipped {path}:{line}: {kind}" in said
    path.write_bytes(lines(wrong[1:4]))
    with pytest.raises(
        DataError, match=r"no conversation with a question[^!]*1 x a turn of the user holds no text"
    ):
        load_benchmark(str(path))


def test_an_unknown_format_names_what_is_known(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    path.write_bytes(lines([{"task_id": 1, "text": "Write f.", "code": "..."}]))
    with pytest.raises(DataError) as caught:
        load_benchmark(str(path))
    text = caught.value.render()
    assert "keys of its first row: task_id, text, code" in text
    assert all(f"({name})" in text for name in FORMATS)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "holds no question"),
        (b" \n\n", "holds no question"),
        (b"[]", "holds no question"),
        (b'{"question_id": 1, "tur', "not valid JSON"),
        (b"[1, 2]", "not a JSON object"),
        (b"\xff\xfe{", "not UTF-8 text"),
    ],
)
def test_files_without_a_first_row(tmp_path: Path, content: bytes, expected: str) -> None:
    path = tmp_path / "q.json"
    path.write_bytes(content)
    with pytest.raises(DataError, match=expected):
        detect_format(path)


@pytest.mark.parametrize("file", ["q.jsonl.gz", "q.jsonl.xz", "q.parquet"])
def test_damaged_files_are_refused(tmp_path: Path, file: str) -> None:
    path = tmp_path / file
    whole = STORED[file](GSM8K * 50)
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="damaged"):
        read_format("gsm8k", path)
    if file == "q.parquet":
        broken = bytearray(whole)
        broken[4:200] = bytes(196)
        path.write_bytes(bytes(broken))
        with pytest.raises(DataError, match="damaged"):
            load_benchmark(str(path))


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"turns": ["\ud800"]}, "a turn holds half a character"),
        ({"category": "\udfff"}, "category holds half a character"),
        ({"category": "a\x1b[2J"}, "category is not valid"),
        ({"category": "a\nb"}, "category is not valid"),
    ],
)
def test_texts_that_nothing_can_take_are_refused_before_anything_is_asked(tmp_path, row, expected):
    path = tmp_path / "q.jsonl"
    path.write_bytes(lines([{"question_id": 1, "category": "a", "turns": ["b"], **row}]))
    with pytest.raises(DataError, match=expected) as raised:
        load_benchmark(str(path))
    assert str(raised.value).isascii()
    assert "\x1b" not in str(raised.value)


def test_a_small_file_cannot_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_BYTES", 1 << 21)
    packed = tmp_path / "bomb.jsonl.gz"
    packed.write_bytes(gzip.compress(lines(GSM8K) + b"\n" * (3 << 20)))
    with pytest.raises(DataError, match="the question file is too large"):
        load_benchmark(str(packed))
