"""Stand-in servers in a process of their own: each folder of a trial has its own ones, before and after a kill."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

ADDRESS = "servers.txt"
SENT = "sent"  # where states come to lie, in a trial's folder


def url_of(world: Path, work: Path, kind: str) -> str:
    """The address of the server of a trial: ``states``, ``vllm`` or ``plain``; it is started at the first call."""
    asked = Request((world / ADDRESS).read_text(), json.dumps([kind, str(work)]).encode())
    with urlopen(asked, timeout=120) as reply:
        return str(reply.read().decode())


@contextlib.contextmanager
def serving(world: Path) -> Iterator[None]:
    """Servers run while the ``with`` lasts."""
    pid = os.fork()
    if not pid:
        try:
            _serve(world)
        finally:
            os._exit(1)
    try:
        while not (world / ADDRESS).is_file():
            time.sleep(0.01)
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)


def _serve(world: Path) -> None:
    started: dict[tuple[str, str], Any] = {}
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            return

        def do_POST(self) -> None:
            kind, work = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                if (kind, work) not in started:
                    started[kind, work] = _start(kind, world, Path(work)).__enter__()
            content = started[kind, work].url.encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    server = HTTPServer(("127.0.0.1", 0), Handler)
    aside = world / f"{ADDRESS}.new"
    aside.write_text(f"http://127.0.0.1:{server.server_address[1]}")
    aside.rename(world / ADDRESS)
    server.serve_forever()


def _start(kind: str, world: Path, work: Path) -> Any:
    if kind == "states":
        from tests.capture.hidden_server import HiddenServer
        from vocabforge.models.target.hf import HFTarget

        return HiddenServer(work / SENT, HFTarget.load(world / "target"))
    from tests.evaluate.served_fakes import FakeInference, Served

    return FakeInference(Served(speculates=kind == "vllm"))
