"""Readers of what servers answer: lists of models, versions, metrics, streamed answers, files of hidden states.

No socket is opened: a transport in the place of the HTTP client's answers with the files of a folder.
"""

from __future__ import annotations

import contextlib
import functools
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from tests.fuzz.goods_servers import LIMIT, STATES_FILE, document_rows
from tests.fuzz.reader import Read, Reader, command


@contextlib.contextmanager
def answering(reply: Callable[[str, str, str], bytes | None]) -> Iterator[None]:
    """Inside, requests get what ``reply`` gives for host, method and path; None is a 404."""
    from vocabforge.corpus.regenerate import server

    http = server.http_library()

    def respond(request: Any) -> Any:
        content = reply(request.url.host, request.method, request.url.path)
        return http.Response(404 if content is None else 200, content=content or b"")

    def client(*, headers: Any, **_: Any) -> Any:
        return http.Client(headers=headers, transport=http.MockTransport(respond))

    library = SimpleNamespace(**{**vars(http), "Client": client})
    with mock.patch.object(server, "http_library", return_value=library):
        yield


def _evaluated(*options: str) -> Read:
    """A whole evaluation of the spoilt server and a good plain one; its charts are left out, which take seconds."""

    def read(path: Path, goods: Path) -> None:
        from vocabforge.evaluate.reports import plots
        from vocabforge.evaluate.servers import generator

        asked: set[str] = set()

        def reply(host: str, method: str, place: str) -> bytes | None:
            name = place.rpartition("/")[2]
            if method == "POST":
                asked.add(host)
                file = "answer.events"
            elif name == "metrics":
                file = "after.metrics" if host in asked else "before.metrics"
            else:
                file = f"{name}.json"
            found = (goods / "server-plain" if host == "plain" else path) / file
            return found.read_bytes() if found.is_file() else None

        clock = SimpleNamespace(
            perf_counter=time.perf_counter, monotonic=time.monotonic, sleep=lambda seconds: None
        )
        with (
            answering(reply),
            mock.patch.multiple(generator, _LATE_S=0.0, _ATTEMPTS=2, time=clock),
            mock.patch.object(plots, "render_chart", return_value="<svg></svg>"),
            tempfile.TemporaryDirectory() as place,  # what an evaluation that stops keeps is not looked at
        ):
            servers = ("--server", "eagle3=http://fast", "--server", "plain=http://plain")
            words = ("--benchmark", goods / "asked.jsonl", "--max-new-tokens", LIMIT, "--warmup", 0)
            command("eval", *servers, *words, *options, "--output", Path(place) / "out")

    return read


def _captured(path: Path, goods: Path) -> Any:
    """States of one document through a capture source."""
    from vocabforge.train.capture import server
    from vocabforge.train.capture.config import ServerConfig
    from vocabforge.train.capture.online import to_tensors

    target, fingerprint = _target(goods / "model")
    rows = {"train": document_rows()}
    with tempfile.TemporaryDirectory() as place:
        shared = Path(place)

        def reply(host: str, method: str, where: str) -> bytes | None:
            if method == "POST":
                shutil.copyfile(path / STATES_FILE, shared / STATES_FILE)
                return (path / "reply.json").read_bytes()
            return (path / "models.json").read_bytes()

        settings = ServerConfig(url="http://states", folder=shared, retries=0, timeout_s=5.0)
        with answering(reply), mock.patch.multiple(server, _FILE_S=0.02, _LAST_FILES_S=0.0):
            source = server.server_capture(settings, target, goods / "model", fingerprint, rows, "owner")
            try:
                return source(to_tensors(rows["train"], [0], target.device), [("train", 0)])
            finally:
                source.close()


@functools.lru_cache(maxsize=1)
def _target(model: Path) -> Any:
    from vocabforge.models.target.fingerprint import target_fingerprint
    from vocabforge.models.target.hf import HFTarget

    return HFTarget.load(model), target_fingerprint(model)


SERVERS: dict[str, Reader] = {
    "evaluation of vLLM": Reader("server-vllm", _evaluated(), ("*",)),
    "evaluation of vLLM, completions": Reader("server-raw", _evaluated("--prompt-format", "raw"), ("*",)),
    "evaluation of SGLang": Reader("server-sglang", _evaluated(), ("*",)),
    "hidden states of a server": Reader("server-states", _captured, ("*",)),
}
