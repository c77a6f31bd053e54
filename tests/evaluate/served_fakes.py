"""A server in threads that speaks as vLLM 0.32 (recorded) or SGLang 0.5.23 (by its source) does, and misbehaves.

``python -m tests.evaluate.served_fakes --port N`` is one in a process of its own.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from tests.corpus.chat_server import QuietServer

DRAFTED = 3
PATTERN = (4, 1, 2, 3)  # tokens that cycles commit after the prefill's own, over and over
WORDS = 40


def answer(prompt: str, limit: int, words: int = 11) -> list[str]:
    """The words that the target writes after a prompt; the last one is the stop token."""
    digest = hashlib.sha256(prompt.encode()).digest()
    return [*(f" w{digest[at] % WORDS}" for at in range(words)), ""][:limit]


def cycles(tokens: list[str]) -> list[list[str]]:
    """The answer in the pieces that are streamed: the prefill's token, then those of each verification."""
    pieces, at = [tokens[:1]], 1
    while at < len(tokens):
        step = PATTERN[(len(pieces) - 1) % len(PATTERN)]
        pieces.append(tokens[at : at + step])
        at += step
    return pieces


def accepted(tokens: list[str]) -> list[int]:
    """Draft tokens that each verification accepted, before anything beyond the stop is cut."""
    return [PATTERN[number % len(PATTERN)] - 1 for number in range(len(cycles(tokens)) - 1)]


@dataclass
class Served:
    """Counters and manners of the fake.

    Attributes:
        dies, hangs, restarts: the request (from 0) at which it does.
        says: model named in its replies.
        corrupt: the answers have another first word.
        foreign: tokens that it generates for others with each request.
    """

    kind: str = "vllm"
    speculates: bool = True
    key: str | None = None
    delay: float = 0.0
    dies: int | None = None
    hangs: int | None = None
    restarts: int | None = None
    says: str = "tiny"
    corrupt: bool = False
    foreign: int = 0
    tokenizer: str = ""  # words that its chat template adds
    refuses: str | None = None
    drafts: int = 0
    by_position: list[int] = field(default_factory=lambda: [0] * DRAFTED)
    generated: int = 0
    started: float = 1.7e9
    requests: list[dict[str, Any]] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def metrics(self) -> str:
        label = 'engine="0",model_name="tiny"'
        lines = [
            "# HELP process_start_time_seconds Start time of the process since unix epoch in seconds.",
            f"process_start_time_seconds {self.started}",
            f"vllm:generation_tokens_total{{{label}}} {float(self.generated)}",
            f"vllm:generation_tokens_created{{{label}}} 1.7954644768066735e+09",
            'vllm:iteration_tokens_total_bucket{engine="0",le="+Inf",model_name="tiny"} 14.0',
        ]
        if self.speculates:
            name = "vllm:spec_decode_num"
            lines += [
                f"# TYPE {name}_drafts_total counter",
                f"{name}_drafts_total{{{label}}} {float(self.drafts)}",
                f"{name}_drafts_created{{{label}}} 1.7954644768053293e+09",
                f"{name}_draft_tokens_total{{{label}}} {float(self.drafts * DRAFTED)}",
                f"{name}_accepted_tokens_total{{{label}}} {float(sum(self.by_position))}",
            ]
            for place, count in enumerate(self.by_position):
                where = f'{{{label},position="{place}"}}'
                lines += [
                    f"{name}_accepted_tokens_per_pos_total{where} {float(count)}",
                    f"{name}_accepted_tokens_per_pos_created{where} 1.7954644768054779e+09",
                ]
        return "\n".join(lines) + "\n"

    def count(self, tokens: list[str]) -> None:
        with self.lock:
            self.generated += len(tokens) + self.foreign
            if self.speculates:
                for length in accepted(tokens):
                    self.drafts += 1
                    for place in range(length):
                        self.by_position[place] += 1

    def events(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        chat = "messages" in body
        prompt = json.dumps(body["messages"]) if chat else body["prompt"]
        drawn = "" if body["temperature"] == 0 else str(body["seed"])
        tokens = answer(prompt + drawn, body["max_tokens"])
        if self.corrupt:
            tokens[0] = " other"
        base = {"object": "chat.completion.chunk" if chat else "text_completion", "model": self.says}
        asked = len((prompt + self.tokenizer).split())
        if chat:
            role = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
            yield {**base, "choices": [role], "prompt_token_ids": list(range(asked))}
        pieces = cycles(tokens) if self.speculates else [[one] for one in tokens]
        for number, piece in enumerate(pieces):
            time.sleep(self.delay)
            reason = None
            if number == len(pieces) - 1:
                reason = "stop" if tokens[-1] == "" else "length"
            choice: dict[str, Any] = {"index": 0, "finish_reason": reason}
            choice |= {"delta": {"content": "".join(piece)}} if chat else {"text": "".join(piece)}
            if body.get("return_token_ids") and (self.kind == "vllm" or not chat):
                choice["token_ids"] = [_id(word) for word in piece]
            yield {**base, "choices": [choice]}
        extra: dict[str, Any] = {}
        if self.kind == "sglang" and body.get("return_spec_tokens_details") and self.speculates:
            found = accepted(tokens)
            extra["spec_tokens_details"] = {
                "spec_accept_rate": sum(found) / (DRAFTED * len(found)),
                "spec_accept_length": len(tokens) / len(found),
                "spec_cap_length": 0.0,
                "spec_num_correct_drafts": sum(found),
                "spec_num_proposed_drafts": DRAFTED * len(found),
                "spec_verify_ct": len(found),
                "spec_correct_drafts_histogram": [found.count(length) for length in range(DRAFTED + 1)],
                "spec_cap_lens_histogram": [],
            }
        if self.kind == "sglang" and body.get("return_output_ids_in_sglext"):
            extra["output_ids"] = [[_id(word) for word in tokens]]
        if extra:
            yield {**base, "choices": [], "sglext": extra}
        self.count(tokens)
        usage = {
            "prompt_tokens": asked,
            "total_tokens": asked + len(tokens),
            "completion_tokens": len(tokens),
        }
        yield {**base, "choices": [], "usage": usage}


def _id(word: str) -> int:
    return 2 if not word else 5 + (int(word[2:]) if word[2:].isdigit() else WORDS)


class FakeInference:
    """Runs while the ``with`` lasts; ``port`` 0 takes a free one."""

    def __init__(self, served: Served | None = None, port: int = 0) -> None:
        self.served = served or Served()
        self._server = QuietServer(("127.0.0.1", port), self._handler())
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.closed = False

    def __enter__(self) -> FakeInference:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        if not self.closed:
            self.closed = True
            self._server.shutdown()
            self._server.server_close()

    def _handler(fake) -> type[BaseHTTPRequestHandler]:
        served = fake.served

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def log_message(self, *_: object) -> None:
                return

            def reply(self, status: int, content: bytes, kind: str = "application/json") -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def do_GET(self) -> None:
                if fake.closed:
                    self.close_connection = True
                    return None
                wrong = served.key and self.headers.get("Authorization") != f"Bearer {served.key}"
                if wrong and self.path not in ("/health", "/metrics"):
                    return self.reply(401, b'{"error":"Unauthorized"}')
                entry = {"id": "tiny", "object": "model", "owned_by": served.kind, "max_model_len": 512}
                pages = {
                    "/health": b"",
                    "/v1/models": json.dumps({"object": "list", "data": [entry]}).encode(),
                    "/metrics": served.metrics().encode(),
                    "/version": b'{"version":"0.32.0"}',
                }
                if served.kind == "sglang":
                    del pages["/metrics"], pages["/version"]
                    pages["/server_info"] = b'{"version":"0.5.23"}'
                if self.path in pages:
                    return self.reply(200, pages[self.path])
                return self.reply(404, b'{"detail":"Not Found"}')

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with served.lock:
                    number = len(served.requests)
                    served.requests.append(body)
                    served.at_once += 1
                    served.most_at_once = max(served.most_at_once, served.at_once)
                try:
                    self.stream(body, number)
                finally:
                    with served.lock:
                        served.at_once -= 1

            def stream(self, body: dict[str, Any], number: int) -> None:
                if served.key and self.headers.get("Authorization") != f"Bearer {served.key}":
                    return self.reply(401, b'{"error":"Unauthorized"}')
                if served.refuses is not None and served.refuses in json.dumps(body):
                    said = {"error": {"message": "too long", "type": "BadRequestError", "code": 400}}
                    return self.reply(400, json.dumps(said).encode())
                if served.restarts == number:
                    served.drafts = served.generated = 0
                    served.by_position, served.started = [0] * DRAFTED, served.started + 100
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream; charset=utf-8")
                self.send_header("Connection", "close")
                self.end_headers()
                self.close_connection = True
                for event in served.events(body):
                    if served.dies == number:
                        fake.closed = True
                        threading.Thread(target=fake._server.shutdown, daemon=True).start()
                        fake._server.server_close()
                        return None
                    if served.hangs == number:
                        time.sleep(5.0)
                    self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
                    self.wfile.flush()
                self.wfile.write(b"data: [DONE]\n\n")
                return None

        return Handler


if __name__ == "__main__":
    options = argparse.ArgumentParser()
    options.add_argument("--port", type=int, required=True)
    options.add_argument("--host", default="127.0.0.1")
    options.add_argument("--api-key")
    options.add_argument("--fails", action="store_true")
    options.add_argument("--slow", type=float, default=0.0)
    options.add_argument("--plain", action="store_true")
    options.add_argument("--drafter", type=Path)
    given = options.parse_args()
    print(f"args: {vars(given)}", flush=True)
    if given.drafter is not None:
        print(
            f"architectures {json.loads((given.drafter / 'config.json').read_text('utf-8'))['architectures']}"
        )
        sys.stdout.flush()
    if given.fails:
        sys.exit("CUDA error: no such device")
    with FakeInference(
        Served(speculates=not given.plain, key=given.api_key, delay=given.slow), given.port
    ) as running:
        if given.host != "127.0.0.1":
            other = QuietServer((given.host, given.port + 1), running._handler())
        threading.Event().wait()
