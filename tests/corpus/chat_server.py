"""An OpenAI-compatible server in a thread, whose answers depend on nothing but the request."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

WORDS = ("ja", "Ünïcode", "日本語", "🦊", "yes", "perhaps", "\u2028line", '"quoted"')


def answer_text(body: dict[str, Any]) -> str:
    """A few words drawn by the messages and the seed."""
    content = json.dumps([body["messages"], body.get("seed"), body.get("temperature")], sort_keys=True)
    digest = hashlib.sha256(content.encode()).digest()
    return " ".join(WORDS[byte % len(WORDS)] for byte in digest[: 2 + digest[0] % 5])


def completion(body: dict[str, Any], **message: Any) -> dict[str, Any]:
    """A chat completion of an answer of the given fields, by default of a text."""
    said = {"role": "assistant", "content": answer_text(body), **message}
    reason = "tool_calls" if said.get("tool_calls") else "stop"
    usage = {"prompt_tokens": len(body["messages"]), "completion_tokens": len(str(said["content"]).split())}
    return {"choices": [{"index": 0, "message": said, "finish_reason": reason}], "usage": usage}


Reply = tuple[int, Any] | tuple[int, Any, dict[str, str]] | None
"""Status, body (JSON, or bytes as they are), headers; None hangs up without an answer."""


class QuietServer(ThreadingHTTPServer):
    """Clients that hang up are no news here."""

    daemon_threads = True
    request_queue_size = 128  # with the usual 5, the sixth client at once waits a second

    def handle_error(self, request: Any, client_address: Any) -> None:
        return


class FakeServer:
    """Runs while the ``with`` lasts."""

    def __init__(
        self,
        reply: Callable[[dict[str, Any]], Reply] | None = None,
        *,
        delay: float = 0.0,
        models: tuple[str, ...] | None = ("tiny",),
        port: int = 0,
    ) -> None:
        self.reply = reply or (lambda body: (200, completion(body)))
        self.delay, self.models = delay, models
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.at_once = self.most_at_once = 0
        self.lock = threading.Lock()
        self._server = QuietServer(("127.0.0.1", port), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self) -> FakeServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _handler(fake) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # else the body of an answer waits 40 ms for its head

            def log_message(self, *_: Any) -> None:
                return

            def do_GET(self) -> None:
                if fake.models is None:
                    self.send(404, {"error": "no list here"})
                else:
                    self.send(200, {"data": [{"id": name} for name in fake.models]})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with fake.lock:
                    fake.bodies.append(body)
                    fake.headers.append(dict(self.headers))
                    fake.at_once += 1
                    fake.most_at_once = max(fake.most_at_once, fake.at_once)
                time.sleep(fake.delay)
                reply = fake.reply(body)
                with fake.lock:
                    fake.at_once -= 1
                if reply is None:
                    self.close_connection = True
                    self.connection.close()
                else:
                    self.send(*reply)

            def send(self, status: int, value: Any, headers: dict[str, str] | None = None) -> None:
                data = value if isinstance(value, bytes) else json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                for name, text in (headers or {}).items():
                    self.send_header(name, text)
                self.end_headers()
                self.wfile.write(data)

        return Handler
