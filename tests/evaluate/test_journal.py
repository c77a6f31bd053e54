"""An interrupted evaluation goes on where it was, whatever it was doing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.evaluate.eval_fakes import (
    ROWS,
    FakeGenerator,
    FakeMethod,
    make_tokenizer,
    plain_and_tree,
    run_fakes,
)
from vocabforge.core.errors import UsageError
from vocabforge.decode.request import SamplingParams
from vocabforge.evaluate.run.journal import EvaluationJournal, Key

HEADER, ROWS_FILE = EvaluationJournal.header, EvaluationJournal.rows_file
Told = dict[tuple[str, int], dict]
SAMPLED = {"sampling": SamplingParams(0.8), "seeds": (7, 8)}


def pair() -> list[FakeMethod]:
    """Plain decoding cannot answer question 5, which the other method has answered by then."""
    methods = plain_and_tree()
    methods[0].generator.too_long = 16
    return methods


def told(folder: Path, part: str) -> Told:
    """Every row by file and question id."""
    table: Told = {}
    for file in sorted((folder / "work" / part).rglob("*.jsonl")):
        for row in map(json.loads, file.read_text("utf-8").splitlines()):
            table[str(file.relative_to(folder / "work" / part)), row["question_id"]] = row
    return table


def tokens(folder: Path) -> dict[tuple[str, int], list[list[int]]]:
    return {place: row["choices"][0]["token_ids"] for place, row in told(folder, "details").items()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A run of two methods and two seeds that nothing interrupted; one question fails."""
    folder = tmp_path_factory.mktemp("whole")
    run_fakes(folder, pair(), **SAMPLED)
    return folder


def leave(folder: Path, whole: Path, data: bytes) -> None:
    """The journal as a kill would leave it, its rows cut to ``data``."""
    (folder / "out.partial").mkdir(parents=True)
    header = (whole / "out.partial" / HEADER).read_bytes()
    (folder / "out.partial" / HEADER).write_bytes(header)
    (folder / "out.partial" / ROWS_FILE).write_bytes(data)


def test_cut_at_any_byte_it_gives_the_same_answers_and_keeps_the_times(tmp_path: Path, whole: Path) -> None:
    data = (whole / "out.partial" / ROWS_FILE).read_bytes()
    lines = data.splitlines()
    assert len(lines) == 1 + 3 * 4 + 2  # a start, three questions, a failure and the row before it
    ends = [at + 1 for at, byte in enumerate(data) if byte == 10]
    around = {end - shift for end in ends for shift in (0, 1)}
    for cut in sorted({*around, 0, 1, *range(100, len(data), 1777)}):
        folder = tmp_path / str(cut)
        leave(folder, whole, data[:cut])
        outcome = run_fakes(folder, pair(), **SAMPLED)
        assert [failure.question_id for failure in outcome.failures] == [5]
        assert outcome.resumed == (cut >= ends[1])
        assert tokens(folder) == tokens(whole)
        kept = [lines[number] for number, end in enumerate(ends) if end <= cut]
        answers, before = told(folder, "answers"), told(whole, "answers")
        same = [place for place, row in answers.items() if row["answer_id"] == before[place]["answer_id"]]
        assert all(answers[place] == before[place] for place in same)  # times and all
        # What was answered before another method failed is kept as well, and stands in no file.
        assert len(same) == sum(b'"answer"' in line and b'"question_id": 5' not in line for line in kept)


def test_what_is_kept_is_not_asked_again(tmp_path: Path, whole: Path, capsys) -> None:
    data = (whole / "out.partial" / ROWS_FILE).read_bytes()
    lines = data.splitlines(keepends=True)
    leave(tmp_path, whole, b"".join(lines[:-3]) + lines[-3][:50])
    methods = pair()
    run_fakes(tmp_path, methods, **SAMPLED)
    assert sum(len(method.generator.prompts) for method in methods) == 3
    again = pair()
    outcome = run_fakes(tmp_path, again, warmup=0, **SAMPLED)
    assert [method.generator.prompts for method in again] == [[], []]
    assert (outcome.resumed, tokens(tmp_path)) == (2, tokens(whole))
    assert "damaged" not in capsys.readouterr().err


def test_another_runs_journal_is_refused_with_every_difference(tmp_path: Path, whole: Path) -> None:
    data = (whole / "out.partial" / ROWS_FILE).read_bytes()
    leave(tmp_path, whole, data)
    methods = [*plain_and_tree(), FakeMethod("new", FakeGenerator())]
    methods[1].description = "other trees"
    with pytest.raises(UsageError, match="has other settings or inputs") as caught:
        run_fakes(
            tmp_path, methods, rows=ROWS[:3], warmup=2, identity={"target": "b" * 64}, repeats=2, **SAMPLED
        )
    text = str(caught.value)
    for line in (
        "questions: 4, now 3",
        "questions_sha256: ",
        'methods.tree: ["t", "for tests", null], now ["t", "other trees", null]',
        'methods.new: none, now ["n", "for tests", null]',
        'order: ["plain", "tree"], now ["plain", "tree", "new"]',
        "settings.warmup: 0, now 2",
        "settings.repeats: 1, now 2",
        'target: none, now "bbbb',
    ):
        assert f"\n    {line}" in text
    assert text.count(", now ") == 8
    assert "--fresh" in text
    assert str(tmp_path / "out.partial") in text
    assert (tmp_path / "out.partial" / ROWS_FILE).read_bytes() == data
    assert run_fakes(tmp_path, methods, warmup=2, fresh=True).resumed == 0
    assert sorted(path.name for path in (tmp_path / "work" / "answers").iterdir()) == [
        "new.jsonl",
        "plain.jsonl",
        "tree.jsonl",
    ]


@pytest.mark.parametrize("change", ["template", "stop", "system", "words"])
def test_other_prompts_are_refused(tmp_path: Path, change: str, monkeypatch) -> None:
    run_fakes(tmp_path, plain_and_tree())
    options: dict = {}
    if change == "words":
        options["rows"] = [(9, "translation", ("w1 w2 w2",)), *ROWS[1:]]
    elif change == "system":
        options["system"] = "w1"
    else:
        make = make_tokenizer

        def changed(folder: Path, **chosen):
            tokenizer = make(folder, **chosen)
            if change == "stop":
                object.__setattr__(tokenizer, "eos_ids", (2, 7))
            else:
                object.__setattr__(tokenizer, "chat_template", f"{tokenizer.chat_template} ")
            return tokenizer

        monkeypatch.setattr("tests.evaluate.eval_fakes.make_tokenizer", changed)
    with pytest.raises(UsageError, match="has other settings or inputs"):
        run_fakes(tmp_path, plain_and_tree(), **options)


def test_a_journal_without_rows_serves_any_run(tmp_path: Path) -> None:
    def stop(prompt: list[int]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_fakes(tmp_path, plain_and_tree(before=stop), warmup=1)
    assert [path.name for path in tmp_path.iterdir()] == ["tokenizer"]
    # Killed in its warm-up, it could not clear up.
    (tmp_path / "out.partial").mkdir()
    (tmp_path / "out.partial" / HEADER).write_text('{"other": 1}')
    (tmp_path / "out.partial" / ROWS_FILE).write_text('{"started": 1.0}\n')
    assert run_fakes(tmp_path, plain_and_tree()).resumed == 0
    assert run_fakes(tmp_path, plain_and_tree()).resumed == 1


@pytest.mark.parametrize(
    "line",
    [
        '{"run": 1e999, "question_id": 2, "method": "run", "answer": {}, "detail": {}}',
        '{"failure": {"question_id": 1e999}}',
        '{"failure": {"question_id": 2}}',
        '{"run": 1, "question_id": 2, "method": "run", "answer": {"choices": "a"}, "detail": {"choices": "a"}}',
    ],
)
def test_lines_that_are_json_and_no_rows_are_measured_again(tmp_path, line, capsys):
    row = {"question_id": 1, "choices": [{}]}
    with EvaluationJournal(tmp_path / "out.partial", {}) as journal:
        journal.add(Key(1, 1, "plain"), answer=row, detail=row)
    with open(tmp_path / "out.partial" / ROWS_FILE, "a") as rows:
        rows.write(line + "\n")
    with EvaluationJournal(tmp_path / "out.partial", {}) as journal:
        assert len(journal) == 1
    assert "1 damaged lines" in capsys.readouterr().err
