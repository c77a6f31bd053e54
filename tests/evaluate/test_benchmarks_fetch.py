"""Fetching published question files from a server of our own."""

from __future__ import annotations

import hashlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from tests.corpus.chat_server import QuietServer
from vocabforge.core.errors import DataError
from vocabforge.evaluate.benchmarks import BENCHMARKS, BenchmarkRow, Source, load_benchmark
from vocabforge.evaluate.benchmarks import find as fetching
from vocabforge.evaluate.benchmarks.find import NotFetched, fetch

ROWS = b"".join(
    json.dumps({"question_id": number, "category": "qa", "turns": ["why?" * 50]}).encode() + b"\n"
    for number in range(20)
)
SHA256 = hashlib.sha256(ROWS).hexdigest()


class FileServer:
    """Answers every request by ``reply(handler)``; remembers the paths and headers asked for."""

    def __init__(self) -> None:
        self.reply: Callable[[Any], None] = lambda handler: send(handler, ROWS)
        self.paths: list[str] = []
        self.headers: list[dict[str, str]] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: Any) -> None:
                return

            def do_GET(self) -> None:
                server.paths.append(self.path)
                server.headers.append({name.lower(): value for name, value in self.headers.items()})
                server.reply(self)

        self._server = QuietServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def send(
    handler: Any, content: bytes, *, status: int = 200, length: int | None = None, **headers: str
) -> None:
    handler.send_response(status)
    if length != -1:
        handler.send_header("Content-Length", str(len(content) if length is None else length))
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(content)


@pytest.fixture
def server() -> Iterator[FileServer]:
    running = FileServer()
    yield running
    running.close()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the file is fetched to: an empty cache, with the network allowed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VOCABFORGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("VOCABFORGE_DATA", raising=False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    return tmp_path / "cache" / "benchmarks" / "spec_bench" / "question.jsonl"


def published(monkeypatch: pytest.MonkeyPatch, *sources: Source, **changes: Any) -> BenchmarkRow:
    """The row of spec-bench with other sources."""
    row = replace(BENCHMARKS["spec-bench"], sources=sources, **changes)
    monkeypatch.setitem(BENCHMARKS, "spec-bench", row)
    return row


def test_the_right_file_is_fetched_once(server, place, monkeypatch, capsys):
    url = f"{server.url}/question.jsonl"
    published(monkeypatch, Source(url, SHA256))
    for _ in range(2):
        benchmark = load_benchmark("spec-bench", limit=2)
        assert (benchmark.path, benchmark.sha256, benchmark.published) == (place, SHA256, True)
        assert (len(benchmark.questions), benchmark.of) == (2, 20)
    assert server.paths == ["/question.jsonl"]
    assert place.read_bytes() == ROWS
    assert [file.name for file in place.parent.iterdir()] == ["question.jsonl"]
    assert capsys.readouterr().err == f"Fetching spec-bench from {url} to {place}\n"


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (lambda it: send(it, ROWS + b"\n"), "another file came"),
        (lambda it: send(it, ROWS[:500], length=len(ROWS)), "RemoteProtocolError"),
        (lambda it: send(it, b"no", status=404), "404 Not Found"),
        (lambda it: send(it, b"", status=302, Location="/again"), "TooManyRedirects"),
        (lambda it: it.connection.close(), "Error"),
    ],
)
def test_anything_else_is_no_file(server, tmp_path, reply, reason):
    server.reply = reply
    place = tmp_path / "cache" / "question.jsonl"
    place.parent.mkdir()
    place.write_bytes(b"an older one")
    with pytest.raises(NotFetched, match=reason):
        fetch(Source(f"{server.url}/question.jsonl", SHA256), place)
    assert place.read_bytes() == b"an older one"
    assert [file.name for file in place.parent.iterdir()] == ["question.jsonl"], "nothing half is left behind"


def test_the_next_source_is_asked_where_one_fails(server, place, monkeypatch):
    sources = [Source(f"{server.url}/{folder}/question.jsonl", SHA256) for folder in "ab"]
    published(monkeypatch, *sources)
    server.reply = lambda handler: send(handler, ROWS, status=200 if handler.path.startswith("/b") else 500)
    assert load_benchmark("spec-bench").path == place
    assert server.paths == ["/a/question.jsonl", "/b/question.jsonl"]


def test_without_a_network_the_error_says_what_to_put_where(place, monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/question.jsonl"
    published(monkeypatch, Source(url, SHA256, about="question.jsonl of somebody"))
    with pytest.raises(DataError) as caught:
        load_benchmark("spec-bench")
    text = caught.value.render()
    assert f"got:      {url}: ConnectError" in text
    for part in ("question.jsonl of somebody", SHA256, str(place), "data/spec_bench/question.jsonl"):
        assert part in text
    assert not place.exists()


def test_a_server_that_says_nothing_is_not_waited_for(server, tmp_path, monkeypatch):
    done = threading.Event()
    server.reply = lambda handler: done.wait(10) and None
    monkeypatch.setattr(fetching, "_TIMEOUT_S", 0.1)
    with pytest.raises(NotFetched, match="ReadTimeout"):
        fetch(Source(f"{server.url}/question.jsonl", SHA256), tmp_path / "question.jsonl")
    done.set()
    assert list(tmp_path.iterdir()) == []
