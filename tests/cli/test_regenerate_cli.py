"""``regenerate`` from end to end, against servers in threads."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import pytest

from tests.cli.cli_support import assert_user_error
from tests.cli.regenerate_support import ask, fast, meta, ok, read, write_rows
from tests.corpus.chat_server import FakeServer, answer_text, completion
from vocabforge.corpus.sources.sources import SourceOptions, iter_documents


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def rows(tmp_path) -> Path:
    return write_rows(tmp_path / "rows.jsonl")


def test_rows_in_order_with_what_decided_them(rows, tmp_path):
    with FakeServer() as server:
        ok(ask(rows, tmp_path / "out", server))
    out = read(tmp_path / "out")
    assert len(out) == 14
    assert [row["generation"]["source"] for row in out[:3]] == [
        "rows.jsonl:1",
        "rows.jsonl:2",
        "rows.jsonl:3",
    ]
    two = out[2]["messages"]
    assert [m["content"] for m in two if m["role"] == "user"] == [f"Frage 2.{t} 日本 🦊" for t in range(3)]
    # Later questions were asked behind the new answers.
    body = next(b for b in server.bodies if b["messages"] == two[:-1])
    assert two[-1]["content"] == answer_text(body)
    assert all("old" not in json.dumps(body) for body in server.bodies)
    assert out[4]["messages"] == out[12]["messages"]
    assert len(server.bodies) == 25  # 24 questions and one more, those of the like rows asked once
    assert out[-1]["tools"] == [{"function": {"name": "sky"}, "type": "function"}]
    assert [body["tools"] for body in server.bodies if "tools" in body] == [out[-1]["tools"]]
    generation = out[0]["generation"]
    assert (generation["temperature"], generation["top_p"], generation["seed"]) == (0.5, 1.0, 0)
    assert generation["max_tokens"] == 2048
    facts = meta(tmp_path / "out")
    assert (facts["rows"], facts["rows_written"], facts["rows_without_prompt"]) == (15, 14, 1)
    assert facts["finish_reasons"] == {"stop": facts["answers"]} == {"stop": 27}
    assert facts["generation"]["model"] == "tiny"
    assert not (tmp_path / "out.partial").exists()
    # It is input again.
    documents = list(iter_documents([tmp_path / "out" / "responses.jsonl"], SourceOptions(strict=True)))
    assert [document.messages for document in documents] == [row["messages"] for row in out]


def test_the_file_depends_on_no_order_and_no_server(rows, tmp_path):
    with FakeServer() as alone:
        ok(ask(rows, tmp_path / "one", alone, concurrency=1))
    draw = random.Random(1)

    def late(body):
        time.sleep(draw.random() * 0.02)
        return 200, completion(body)

    with FakeServer(late) as first, FakeServer(late) as second, FakeServer(late) as third:
        ok(ask(rows, tmp_path / "three", first, second, third, concurrency=2))
        counts = [len(server.bodies) for server in (first, second, third)]
        assert min(counts) > 0
        assert sum(counts) == 25
        assert all(server.most_at_once <= 2 for server in (first, second, third))
    assert (tmp_path / "one/responses.jsonl").read_bytes() == (
        tmp_path / "three/responses.jsonl"
    ).read_bytes()
    shuffled = rows.read_text("utf-8").splitlines(keepends=True)
    draw.shuffle(shuffled)
    other = tmp_path / "rows2.jsonl"
    other.write_text("".join(shuffled), "utf-8")
    with FakeServer() as server:
        ok(ask(other, tmp_path / "shuffled", server))
    as_sets = [{json.dumps(row["messages"]) for row in read(tmp_path / name)} for name in ("one", "shuffled")]
    assert as_sets[0] == as_sets[1]


def test_busy_and_confused_servers_are_asked_again(rows, tmp_path, monkeypatch):
    fast(monkeypatch)
    seen: dict[str, int] = {}
    replies = [
        (429, {"error": "busy"}, {"Retry-After": "0.01"}),
        (503, b"\xff<html>down</html>"),
        (200, b'{"choices": [{"mess'),
        (200, {"choices": []}),
        None,
    ]

    def troubled(body):
        key = json.dumps(body["messages"])
        seen[key] = seen.get(key, -1) + 1
        trouble = replies[len(key) % 5 :][: seen[key] + 1]
        if seen[key] < 2 and len(trouble) > seen[key]:
            return trouble[seen[key]]
        return 200, completion(body)

    with FakeServer(troubled) as server:
        ok(ask(rows, tmp_path / "troubled", server))
    assert max(seen.values()) == 2
    with FakeServer() as server:
        ok(ask(rows, tmp_path / "calm", server))
    assert read(tmp_path / "calm") == read(tmp_path / "troubled")


def test_a_server_that_dies_is_left_out(rows, tmp_path, monkeypatch):
    fast(monkeypatch)
    with FakeServer() as calm:
        ok(ask(rows, tmp_path / "calm", calm))
    dead = False

    def dying(body):
        nonlocal dead
        dead = dead or len(doomed.bodies) > 4
        return None if dead else (200, completion(body))

    with FakeServer(dying) as doomed, FakeServer(delay=0.01) as sound:
        monkeypatch.setattr(
            "vocabforge.corpus.regenerate.server.ChatServer.alive",
            lambda self: not (dead and self.url.startswith(doomed.url)),
        )
        done = ask(rows, tmp_path / "out", doomed, sound, concurrency=2, retries=2)
        ok(done)
    assert f"{doomed.url}/v1 is left out" in done.output
    assert "1 of 2 servers left" in done.output
    assert read(tmp_path / "out") == read(tmp_path / "calm")


def test_all_dead_is_an_error_and_answers_are_kept(rows, tmp_path, monkeypatch):
    fast(monkeypatch)
    with FakeServer() as server:
        port = int(server.url.rpartition(":")[2])
        server.reply = lambda body: (200, completion(body)) if len(server.bodies) <= 9 else None
        monkeypatch.setattr("vocabforge.corpus.regenerate.server.ChatServer.alive", lambda self: False)
        done = ask(rows, tmp_path / "out", server, concurrency=1, retries=1)
    assert_user_error(done, 1, "no server is left to ask", server.url, "finished answers are kept")
    assert not (tmp_path / "out").exists()
    with FakeServer(port=port) as server:
        done = ask(rows, tmp_path / "out", server, concurrency=1)
        ok(done)
        assert "9 answers are kept" in done.output
        assert len(server.bodies) == 25 - 9
    assert_user_error(ask(rows, tmp_path / "other", server), 1, "no server can be reached", server.url)


def test_a_poisoned_request_fails_alone(rows, tmp_path, monkeypatch):
    fast(monkeypatch)

    def picky(body):
        text = json.dumps(body["messages"])
        if "Frage 3.0" in text:
            return 500, {"error": "crashed"}
        if "Frage 5.2" in text:
            return 400, {"error": {"message": "too long"}}
        return 200, completion(body)

    with FakeServer(picky) as one, FakeServer(picky) as two:
        done = ask(rows, tmp_path / "out", one, two, retries=1)
        assert_user_error(done, 1, "some requests found no answer", "2 of 27", "rows.jsonl:6", "too long")
        answered = len(one.bodies) + len(two.bodies)
        done = ask(rows, tmp_path / "out", one, two, retries=1, drop_failed=True)
        ok(done)
        assert len(one.bodies) + len(two.bodies) <= answered + 6
    facts = meta(tmp_path / "out")
    assert (facts["rows_written"], facts["rows_failed"]) == (12, 2)
    sources = [row["generation"]["source"] for row in read(tmp_path / "out")]
    assert not {"rows.jsonl:4", "rows.jsonl:6"} & set(sources)


def test_a_wrong_key_or_path_is_told_at_once_and_the_key_is_nowhere(rows, tmp_path, monkeypatch):
    monkeypatch.setenv("MY_KEY", "sk-very-secret")
    locked = FakeServer(lambda body: (401, {"error": "Incorrect API key: sk-very-secret"}), models=None)
    with locked as server:
        done = ask(rows, tmp_path / "out", server, model="tiny", api_key_env="MY_KEY")
        assert_user_error(done, 1, "no server is left to ask", "401", "***")
    assert "secret" not in done.output
    with FakeServer() as server:
        ok(ask(rows, tmp_path / "out", server, api_key_env="MY_KEY"))
    assert {headers["Authorization"] for headers in server.headers} == {"Bearer sk-very-secret"}
    for file in tmp_path.rglob("*"):
        assert file.is_dir() or b"very-secret" not in file.read_bytes(), file
    monkeypatch.delenv("MY_KEY")
    done = ask(rows, tmp_path / "out2", server, api_key_env="MY_KEY")
    assert_user_error(done, 2, "is not set", "MY_KEY")


def test_truncated_and_empty_answers(rows, tmp_path):
    def short(body):
        reply = completion(body)
        if "Frage 2" in json.dumps(body["messages"]):
            reply["choices"][0]["finish_reason"] = "length"
        if "Frage 7" in json.dumps(body["messages"]):
            reply["choices"][0]["message"]["content"] = None
        return 200, reply

    with FakeServer(short) as server:
        ok(ask(rows, tmp_path / "out", server))
    found = meta(tmp_path / "out")
    assert (found["rows_written"], found["rows_dropped_empty"], found["answers_truncated"]) == (13, 1, 3)


def test_mistakes(rows, tmp_path):
    out = tmp_path / "out"
    with FakeServer(models=("a", "b")) as server:
        assert_user_error(ask(rows, out, server), 2, "which model is meant", "a, b")
        assert_user_error(ask(rows, out, server, model="c"), 1, "does not serve this model", "a, b")
        assert_user_error(ask(rows, out, server, model="a", body="top_k"), 2, "--body", "KEY=VALUE")
        assert_user_error(ask(rows, out, server, model="a", target=tmp_path), 2, "give the target once")
    assert_user_error(ask(rows, out), 2, "give the target once", "neither")
    assert_user_error(ask(rows, out, "http://me:k@host"), 2, "may hold no user, key or query")
    assert not out.exists()
    empty = tmp_path / "empty.jsonl"
    empty.write_text('{"messages": [{"role": "system", "content": "x"}]}\n')
    with FakeServer() as server:
        assert_user_error(ask(empty, out, server), 1, "no prompt to answer")


@pytest.mark.parametrize(
    "calls", [[{"function": None}], [{"function": {"name": "f", "arguments": "[" * 10**5}}]]
)
def test_malformed_calls_are_tried_again_and_crash_no_rerun(tmp_path, monkeypatch, calls):
    fast(monkeypatch)
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"messages": [{"role": "user", "content": "q"}], "tools": [{"name": "f"}]}\n')
    with FakeServer() as server:
        server.reply = lambda body: (200, completion(body, tool_calls=calls))
        for _ in range(2):
            done = ask(rows, tmp_path / "out", server)
            assert_user_error(done, 1, "some requests found no answer")
        assert len(server.bodies) == 16
        server.reply = lambda body: (200, completion(body))
        ok(ask(rows, tmp_path / "out", server))
    assert meta(tmp_path / "out")["answers"] == 1
