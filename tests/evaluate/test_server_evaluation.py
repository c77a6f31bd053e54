"""``vocabforge eval --server``: figures from counters, outputs, loads, and servers that misbehave."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import Result

from tests.cli.cli_support import invoke, ok
from tests.evaluate.served_fakes import DRAFTED, FakeInference, Served, accepted, answer
from vocabforge.evaluate.results.schema import Results, read_results

QUESTIONS = [
    {"question_id": number, "category": category, "turns": turns}
    for number, category, turns in (
        (81, "writing", ["Tell a story", "Once more"]),
        (82, "writing", ["Write a poem"]),
        (90, "qa", ["Who was it"]),
        (91, "qa", ["What is it", "And why"]),
    )
]
TURNS = 6


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    path = tmp_path / "question.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in QUESTIONS), "utf-8")
    return path


def evaluate(questions: Path, *options: object) -> Result:
    words = ("--benchmark", questions, "--max-new-tokens", "32", "--warmup", "1")
    return invoke("eval", *words, "--output", questions.parent / "out", *options)


def results_of(questions: Path, *options: object) -> Results:
    ok(evaluate(questions, *options))
    return read_results(questions.parent / "out")


def expected(questions: Path, system: str | None = None) -> list[int]:
    """Draft tokens that each verification accepts over all questions, by the fake's own rule."""
    found = []
    for row in QUESTIONS:
        messages: list[dict[str, str]] = []
        for turn in row["turns"]:  # type: ignore[attr-defined]
            messages.append({"role": "user", "content": turn})
            tokens = answer(json.dumps(messages), 32)
            found += accepted(tokens)
            messages.append({"role": "assistant", "content": "".join(tokens).strip()})
    return found


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_counters_become_the_figures_of_a_local_evaluation(questions: Path, kind: str) -> None:
    with FakeInference(Served(kind)) as fast, FakeInference(Served(kind, speculates=False)) as plain:
        results = results_of(questions, "--server", f"eagle3={fast.url}", "--server", f"plain={plain.url}")
        assert len(fast.served.requests) == TURNS + 2, "the first question's turns are the warm-up"
    lengths = expected(questions)
    first, method = results.methods
    assert [first.name, method.name] == ["plain", "eagle3"]
    summary = method.summary
    assert summary.overall.accepted_length.value == pytest.approx(1 + sum(lengths) / len(lengths))
    assert summary.overall.accepted_length.low is not None, "each answer is counted by itself"
    assert [row.accepted for row in summary.depths] == [
        sum(length >= depth for length in lengths) for depth in range(1, DRAFTED + 1)
    ]
    assert {row.offered for row in summary.depths} == {len(lengths) if kind == "vllm" else None}
    assert first.summary.overall.accepted_length.value is None
    assert summary.overall.speedup.value is not None
    assert summary.outputs is not None
    assert (summary.outputs.compared, summary.outputs.identical) == (4, 4)
    assert summary.overall.forwards_per_token.value is None
    assert [(one.method, one.concurrency, one.turns) for one in results.load] == [
        ("plain", 1, TURNS),
        ("eagle3", 1, TURNS),
    ]
    assert results.load[1].accepted_length == summary.overall.accepted_length.value
    assert results.load[1].first_token_s.median is not None
    assert results.load[1].token_s.p95 is not None
    assert {one.kind for one in results.servers} == {kind}
    assert results.warnings == []
    page = (questions.parent / "out" / "report.html").read_text("utf-8")
    assert "accepted lengths of single cycles are not known" in page


def test_a_sweep_asks_side_by_side_and_draws_speed_against_load(questions: Path) -> None:
    with FakeInference(Served(delay=0.01)) as fast, FakeInference(Served(speculates=False)) as plain:
        servers = ("--server", f"eagle3={fast.url}", "--server", f"plain={plain.url}")
        results = results_of(questions, *servers, "--concurrency", "1,4")
        assert fast.served.most_at_once == 4
    lengths = expected(questions)
    for load in results.load:
        if load.method == "eagle3":
            assert load.verifications == len(lengths)
            assert load.accepted_length == pytest.approx(1 + sum(lengths) / len(lengths))
    assert [one.concurrency for one in results.load] == [1, 1, 4, 4]
    assert results.methods[1].answers == ["answers/eagle3.jsonl"]
    assert results.load[3].answers == ["answers/concurrency_4/eagle3.jsonl"]
    assert (questions.parent / "out" / results.load[3].details[0]).is_file()
    page = (questions.parent / "out" / "report.html").read_text("utf-8")
    assert "Speed under load" in page


def test_one_load_above_1_has_totals_without_an_interval(questions: Path) -> None:
    with FakeInference() as fast:
        results = results_of(questions, "--server", fast.url, "--concurrency", "3")
    lengths, overall = expected(questions), results.methods[0].summary.overall
    assert overall.accepted_length.value == pytest.approx(1 + sum(lengths) / len(lengths))
    assert overall.accepted_length.low is None
    assert results.methods[0].summary.tasks["qa"].accepted_length.value is None


def test_without_a_plain_server_nothing_is_compared(questions: Path) -> None:
    with FakeInference() as fast:
        done = evaluate(questions, "--server", f"eagle3={fast.url}")
    assert done.exit_code == 0, done.output
    results = read_results(questions.parent / "out")
    assert not results.baseline
    assert results.methods[0].summary.overall.speedup.value is None
    assert results.methods[0].summary.outputs is None
    assert "speed-up" not in done.stdout.partition("No plain server")[0].replace("no speed-up", "")
    assert results.warnings == [
        "No plain server was asked: there is no speed-up and no check of the outputs. Add --server plain=URL."
    ]


def test_completions_are_asked_with_texts(questions: Path) -> None:
    with FakeInference() as fast:
        results_of(questions, "--server", fast.url, "--prompt-format", "raw", "--warmup", "0")
        prompts = {body["prompt"] for body in fast.served.requests}
    first = "".join(answer("Tell a story", 32)).strip()
    assert "Tell a story" in prompts
    assert f"Tell a story{first}\nOnce more" in prompts


def test_sampling_and_seeds_are_sent(questions: Path) -> None:
    with FakeInference() as fast:
        words = ("--temperature", "0.7", "--sampling-top-k", "5", "--seed", "1", "--seed", "2")
        results = results_of(questions, "--server", fast.url, *words, "--warmup", "0")
        bodies = fast.served.requests
    assert len(bodies) == 2 * TURNS
    assert len({body["seed"] for body in bodies}) == 2 * TURNS
    assert {(body["temperature"], body["top_k"]) for body in bodies} == {(0.7, 5)}
    assert results.runs == 2


def test_other_outputs_are_found_by_token_or_by_text(questions: Path) -> None:
    for kind, unit in (("vllm", "token"), ("unknown", "character")):
        with FakeInference(Served(kind, corrupt=True)) as fast, FakeInference(Served(kind)) as plain:
            words = ("--server", f"a={fast.url}", "--server", f"plain={plain.url}", "--overwrite")
            outputs = results_of(questions, *words).methods[1].summary.outputs
        assert outputs is not None
        assert (outputs.identical, outputs.not_judged) == (0, 4)
        assert {(row.turn, row.unit) for row in outputs.divergences} == {(0, unit)}


def test_warnings_name_what_the_figures_hide(questions: Path) -> None:
    with FakeInference(Served(speculates=False)) as fast, FakeInference() as plain:
        words = ("--server", f"eagle3={fast.url}", "--server", f"plain={plain.url}")
        warnings = results_of(questions, *words).warnings
    assert "plain is not a plain server: it verified" in warnings[0]
    assert warnings[1] == "eagle3 has no speculation on: start it with --speculative-config."
    with FakeInference(Served(foreign=3)) as fast:
        warnings = results_of(questions, "--server", fast.url, "--overwrite").warnings
    assert "Others asked the server of server meanwhile (18 tokens)" in warnings[0]
    with (
        FakeInference(Served(tokenizer=" be kind")) as fast,
        FakeInference(Served(speculates=False)) as plain,
    ):
        words = ("--server", f"eagle3={fast.url}", "--server", f"plain={plain.url}", "--overwrite")
        warnings = results_of(questions, *words).warnings
    assert "serve different models or chat templates" in warnings[0]


def test_a_refused_question_is_left_out(questions: Path) -> None:
    with FakeInference(Served(refuses="Who was it")) as fast:
        results = results_of(questions, "--server", fast.url)
    assert results.answered == 3
    assert [row.question_id for row in results.failures] == [90]
    assert "too long" in results.failures[0].reason


@pytest.mark.parametrize(
    ("trouble", "message", "load"),
    [({"dies": 5}, "is gone", "1"), ({"hangs": 5}, "hangs", "2"), ({"restarts": 5}, "was restarted", "1")],
)
def test_answers_survive_a_server_that_fails_and_the_same_command_goes_on(questions, trouble, message, load):
    words = ("--timeout", "0.5", "--concurrency", load)
    with FakeInference(Served(**trouble)) as broken:  # type: ignore[arg-type]
        done = evaluate(questions, "--server", broken.url, *words)
        port = broken.port
    assert done.exit_code == 1, done.output
    assert f"Error: the server server {message}" in done.output
    assert "run the same command again" in done.output
    partial = questions.parent / "out.partial"
    rows = (partial / "rows.jsonl").read_text("utf-8")
    kept = rows.count('"answer"')
    assert kept >= 1
    with FakeInference(port=port) as mended:
        results = results_of(questions, "--server", mended.url, *words)
        asked = len(mended.served.requests) - 2
    assert asked < TURNS
    assert results.resumed == 1
    assert results.answered == 4
    assert not partial.exists()


def test_another_models_answers_end_the_run(questions: Path) -> None:
    with FakeInference(Served(says="huge")) as fast:
        done = evaluate(questions, "--server", fast.url)
    assert done.exit_code == 1
    assert "answers as another model" in done.output
    assert "huge, expected tiny" in done.output


def test_a_key_is_shown_nowhere(questions: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVER_KEY", "sk-very-secret")
    with FakeInference(Served(key="sk-very-secret")) as fast:
        done = ok(evaluate(questions, "--server", fast.url, "--api-key-env", "SERVER_KEY"))
        wrong = evaluate(questions, "--server", fast.url, "--overwrite")
        assert "401" in wrong.output
        address = evaluate(
            questions, "--server", re.sub("//", "//me:sk-very-secret@", fast.url), "--overwrite"
        )
        assert "may hold no user" in address.output
    for path in questions.parent.rglob("*"):
        assert not path.is_file() or b"sk-very-secret" not in path.read_bytes(), path
    assert "sk-very-secret" not in done.output + wrong.output + address.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--server", "plain=http://127.0.0.1:1", "--drafter", "x"), "a server decides how it decodes"),
        (("--concurrency", "2"), "there is no server to ask"),
        (("--server", "ftp://x"), "not a server's address"),
        (("--server", "http://127.0.0.1:1"), "cannot be reached"),
        (("--server", "a=http://127.0.0.1:1", "--server", "a=http://127.0.0.1:2"), "the same label"),
        (
            ("--server", "http://127.0.0.1:1", "--prompt-format", "raw", "--system", "x"),
            "no place for a system",
        ),
        (("--start", "python serve.py"), "no place for its port"),
    ],
)
def test_wrong_options_are_one_error(questions: Path, words: tuple[str, ...], message: str) -> None:
    done = evaluate(questions, *words)
    assert done.exit_code in (1, 2)
    assert message in done.output
