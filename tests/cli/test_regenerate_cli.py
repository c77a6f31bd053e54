"""``regenerate`` from end to end: with servers in threads, with a target in this process, killed and continued."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from click.testing import Result

from tests.cli.cli_support import assert_user_error, edit_json, invoke, ok
from tests.corpus.chat_server import FakeServer, answer_text, completion
from tests.worlds import ROOT, make_target
from vocabforge.corpus.regenerate.pool import PoolOptions
from vocabforge.corpus.sources.sources import SourceOptions, iter_documents


def write_rows(file: Path) -> Path:
    """Conversations of one to three questions, two of them alike, one without a question, one without an answer."""
    lines = []
    for number in range(12):
        turns = [{"role": "system", "content": "Sei höflich."}] if number % 3 == 0 else []
        for turn in range(1 + number % 3):
            turns.append({"role": "user", "content": f"Frage {number}.{turn} 日本 🦊"})
            turns.append({"role": "assistant", "content": "old"})
        lines.append({"messages": turns})
    lines += [lines[4], {"messages": [{"role": "system", "content": "alone"}]}]
    lines.append({"messages": [{"role": "user", "content": "open"}], "tools": [{"name": "sky"}]})
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return file


def ask(rows: Path, output: Path, *servers: FakeServer | str, **options: object) -> Result:
    words: list[object] = ["--input", rows, "--output", output, "--temperature", 0.5]
    for server in servers:
        words += ["--server", server if isinstance(server, str) else server.url]
    for name, value in options.items():
        words += [f"--{name.replace('_', '-')}"] + ([] if value is True else [value])
    return invoke("regenerate", *words)


def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Back-off of thousandths of a second."""
    quick = partial(PoolOptions, first_wait=0.001, longest_wait=0.01)
    monkeypatch.setattr("vocabforge.decode.regenerate.PoolOptions", quick)


def read(output: Path) -> list[dict]:
    return [json.loads(line) for line in (output / "responses.jsonl").read_text("utf-8").split("\n")[:-1]]


def meta(output: Path) -> dict:
    return json.loads((output / "manifest.json").read_text("utf-8"))["meta"]


def local(rows: Path, output: Path, target: Path, **options: object) -> Result:
    words: list[object] = ["--input", rows, "--output", output, "--target", target, "--device", "cpu"]
    for name, value in {"max_tokens": 8, "batch_size": 4, **options}.items():
        words += [f"--{name.replace('_', '-')}"] + ([] if value is True else [value])
    return invoke("regenerate", *words)


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


def test_changed_settings_and_inputs_are_refused(rows, tmp_path, monkeypatch):
    fast(monkeypatch)
    out = tmp_path / "out"
    with FakeServer() as server:
        server.reply = lambda body: (200, completion(body)) if len(server.bodies) <= 5 else (400, {})
        assert ask(rows, out, server).exit_code == 1
        server.reply = lambda body: (200, completion(body))
        done = ask(rows, out, server, max_tokens=99, template_arg="enable_thinking=false")
        assert_user_error(done, 2, "has other settings or inputs", "generation.max_tokens: 2048, now 99")
        assert "generation.template_arguments.enable_thinking: none, now false" in done.output
        assert_user_error(ask(rows, out, server, seed=1), 2, "generation.seed: 0, now 1")
        text = rows.read_text("utf-8")
        rows.write_text(text + text.splitlines()[0] + "\n", "utf-8")
        done = ask(rows, out, server)
        assert_user_error(done, 2, "inputs.1 rows.jsonl.rows: 15, now 16", "inputs.1 rows.jsonl.sha256:")
        rows.write_text(text, "utf-8")
        moved = tmp_path / "elsewhere"
        moved.mkdir()
        rows = rows.rename(moved / rows.name)
        ok(ask(rows, out, server, empty="keep"))  # neither the place nor what becomes of rows is a setting
        assert_user_error(ask(rows, out, server), 2, "exists already")
        ok(ask(rows, out, server, overwrite=True, max_tokens=5))
    assert {body["max_tokens"] for body in server.bodies[-25:]} == {5}


def test_kill_minus_nine_loses_only_what_is_under_way(rows, tmp_path):
    with FakeServer() as server:
        ok(ask(rows, tmp_path / "whole", server))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    out = tmp_path / "out"
    with FakeServer(delay=0.05) as server:
        words = ["--input", rows, "--output", out, "--server", server.url, "--temperature", "0.5"]
        command = [sys.executable, "-m", "vocabforge", "regenerate", *words, "--concurrency", "2"]
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL)
        until = time.monotonic() + 60
        while len(server.bodies) < 7 and time.monotonic() < until:
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.wait()
        answered = (tmp_path / "out.partial/answers.jsonl").read_bytes().count(b"\n")
        assert answered >= 3  # of 7 or more that were asked, 2 under way and 2 on their way in
        assert not out.exists()
        with open(tmp_path / "out.partial/answers.jsonl", "ab") as log:  # as if killed within a line
            log.write(b'{"key": "00ff", "mess')
        done = invoke(*command[3:])
        ok(done)
        assert f"{answered} answers are kept" in done.output
        assert len(server.bodies) <= 25 + 4
    assert (out / "responses.jsonl").read_bytes() == (tmp_path / "whole/responses.jsonl").read_bytes()


@pytest.fixture(scope="module")
def target(tmp_path_factory) -> Path:
    return make_target(tmp_path_factory.mktemp("target"), max_position_embeddings=512)


def test_a_local_target_answers_as_generate_does(rows, tmp_path, target):
    import torch
    from transformers import AutoModelForCausalLM

    from vocabforge.corpus.tokenizer.tokenizer import load_tokenizer

    ok(local(rows, tmp_path / "out", target))
    model, tokenizer = AutoModelForCausalLM.from_pretrained(target), load_tokenizer(target)
    out = read(tmp_path / "out")
    assert len(out) == 14
    for row in out[:5]:
        at = [n for n, message in enumerate(row["messages"]) if message["role"] == "assistant"]
        for number, answer in zip(at, row["generation"]["answers"], strict=True):
            text = tokenizer.render(row["messages"][:number], add_generation_prompt=True)
            ids = torch.tensor([tokenizer.encode(text)])
            # Without a mask, generate would take real tokens of the padding's id for padding.
            mask = torch.ones_like(ids)
            alone = model.generate(
                ids, attention_mask=mask, max_new_tokens=8, eos_token_id=257, pad_token_id=257
            )
            expected = alone[0, ids.shape[1] :].tolist()
            assert answer["response_ids"] == expected
            assert answer["prompt_tokens"] == ids.shape[1]
            assert answer["finish_reason"] == ("stop" if expected[-1] == 257 else "length")
            assert row["messages"][number]["content"] == tokenizer.decode([i for i in expected if i != 257])
    assert meta(tmp_path / "out")["generation"]["backend"]["kind"] == "decoder"


def test_local_sampling_is_seeded_and_resumes_to_the_same_file(rows, tmp_path, target, monkeypatch):
    from vocabforge.corpus.regenerate.local import LocalTarget

    ok(local(rows, tmp_path / "one", target, temperature=1.0, top_p=0.9))
    ok(local(rows, tmp_path / "two", target, temperature=1.0, top_p=0.9, seed=1))
    whole = (tmp_path / "one/responses.jsonl").read_bytes()
    ok(local(rows, tmp_path / "single", target, temperature=1.0, top_p=0.9, batch_size=1))
    one, two, single = (
        [[m["content"] for m in row["messages"]] for row in read(tmp_path / name)]
        for name in ("one", "two", "single")
    )
    assert one == single  # a row's draws do not depend on its neighbours
    assert sum(left == right for left, right in zip(one, two)) <= 1
    answer = LocalTarget.answer

    def failing(self, prompts):
        for count, found in enumerate(answer(self, prompts)):
            if count == 7:
                raise KeyboardInterrupt
            yield found

    monkeypatch.setattr(LocalTarget, "answer", failing)
    assert local(rows, tmp_path / "out", target, temperature=1.0, top_p=0.9).exit_code == 130
    log = tmp_path / "out.partial/answers.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    assert len(lines) == 7
    log.write_bytes(b"".join(lines[:5]) + lines[5][:20])  # killed while it wrote the sixth
    monkeypatch.setattr(LocalTarget, "answer", answer)
    ok(local(rows, tmp_path / "out", target, temperature=1.0, top_p=0.9))
    assert (tmp_path / "out/responses.jsonl").read_bytes() == whole


def test_drafts_do_not_change_answers(rows, tmp_path, target):
    ok(local(rows, tmp_path / "plain", target))
    ok(local(rows, tmp_path / "drafted", target, proposer="n-gram", batch_size=3))
    plain, drafted = ((tmp_path / name / "responses.jsonl").read_bytes() for name in ("plain", "drafted"))
    assert plain == drafted


def test_local_mistakes(rows, tmp_path, target):
    done = local(rows, tmp_path / "out", target, max_tokens=490)
    assert_user_error(done, 1, "some requests found no answer", "exceed the target's context of 512")
    assert_user_error(local(rows, tmp_path / "o", target, dtype="int4"), 2, "no dtype of this name")
    assert_user_error(local(rows, tmp_path / "o", target, body="a=1"), 2, "--body is for servers")
    assert_user_error(local(rows, tmp_path / "o", tmp_path / "nowhere"), 1, "missing")
    plain = make_target(tmp_path / "plain")
    edit_json(plain / "tokenizer_config.json", chat_template=None)
    assert_user_error(local(rows, tmp_path / "o", plain), 1, "no chat template")
