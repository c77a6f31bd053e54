"""``regenerate`` killed and continued, with servers and with a tiny target in this process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.cli_support import assert_user_error, edit_json
from tests.cli.regenerate_support import ask, fast, local, meta, ok, read, write_rows
from tests.corpus.chat_server import FakeServer, completion
from tests.worlds import ROOT, make_target


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def rows(tmp_path) -> Path:
    return write_rows(tmp_path / "rows.jsonl")


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


def command(rows: Path, output: Path, *servers: FakeServer) -> list[str]:
    words = [sys.executable, "-m", "vocabforge", "regenerate", "--input", rows, "--output", output]
    for server in servers:
        words += ["--server", server.url]
    return [*map(str, words), "--temperature", "0.5", "--concurrency", "2"]


def test_kill_minus_nine_loses_only_what_is_under_way(rows, tmp_path):
    with FakeServer() as server:
        ok(ask(rows, tmp_path / "whole", server))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    out = tmp_path / "out"
    with FakeServer(delay=0.05) as server:
        answered = 0
        for _ in range(2):
            started = len(server.bodies)
            process = subprocess.Popen(
                command(rows, out, server), cwd=ROOT, env=environment, stderr=subprocess.DEVNULL
            )
            until = time.monotonic() + 60
            while len(server.bodies) < started + 7 and time.monotonic() < until:
                time.sleep(0.005)
            process.send_signal(signal.SIGKILL)
            process.wait()
            lines = (tmp_path / "out.partial/answers.jsonl").read_bytes().count(b"\n")
            assert lines >= answered + 3  # of 7 or more that were asked, 2 under way and 2 on their way in
            answered = lines
            assert not out.exists()
        with open(tmp_path / "out.partial/answers.jsonl", "ab") as log:  # as if killed within a line
            log.write(b'{"key": "00ff", "mess')
        done = subprocess.run(
            command(rows, out, server), cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        assert f"{answered} answers are kept" in done.stderr
        assert len(server.bodies) <= 25 + 2 * 4
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
