"""Client for one OpenAI-compatible server: requests, answers and the classification of errors."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from ...core.errors import DataError, UsageError, VocabForgeError
from ..chat.conversation import Message
from .rows import ChatCompletion, ChatRequest, GenerationSettings, check_message, json_line, token_count

_AGAIN = {408, 409, 425, 429}  # and every 5xx: retried
_BAD_REQUEST = {400, 413, 422}
_CONNECT_S = 10.0
_LONGEST_WAIT_S = 300.0


class TryAgain(Exception):
    """The server is busy, unreachable or inconsistent; ``wait`` is its requested delay in seconds, if any."""

    def __init__(self, reason: str, wait: float | None = None) -> None:
        super().__init__(reason)
        self.wait = wait


class TooSlow(TryAgain):
    """No byte arrived within the time-out."""


class Refused(Exception):
    """The server will never answer this request (too long, malformed)."""


class Unusable(Exception):
    """The server will never answer any request (wrong key, path or model)."""


def http_library() -> Any:
    """Import the HTTP client of huggingface_hub: httpx2, or httpx (same interface) on Python 3.10.

    Raises:
        VocabForgeError: neither is installed.
    """
    for name in ("httpx2", "httpx"):
        with contextlib.suppress(ImportError):
            return importlib.import_module(name)
    raise VocabForgeError(
        "an HTTP client is needed to ask servers", expected="httpx2", remedy="pip install httpx2"
    )


def base_url(text: str) -> str:
    """Complete an address: ``http://host:8000`` -> ``http://host:8000/v1``; a given path is kept.

    Raises:
        UsageError: not an http(s) address, or it contains a key.
    """
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError("this is not a server's address", got=text, expected="http://HOST:PORT[/v1]")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise UsageError(
            "a server's address may hold no user, key or query",
            got=f"{parts.scheme}://{parts.hostname}",
            remedy="put the key into an environment variable and name it with --api-key-env",
        )
    bare = text.rstrip("/")
    return bare if parts.path.strip("/") else f"{bare}/v1"


def api_key(variable: str | None) -> str | None:
    """Return the key in an environment variable; None without a variable.

    Raises:
        UsageError: the variable is not set.
    """
    if variable is None:
        return None
    key = os.environ.get(variable, "").strip()
    if not key:
        raise UsageError(
            "the environment variable of --api-key-env is not set",
            got=variable,
            expected="the variable's name, with the key as its value",
        )
    return key


class Server:
    """Requests to one server; ``key`` is never shown, ``timeout`` is in seconds without a byte."""

    def __init__(self, url: str, *, key: str | None, timeout: float) -> None:
        self.url, self._key, self._timeout = url, key, timeout
        self._http = http_library()
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._client = self._http.Client(
            headers={**headers, "Content-Type": "application/json"},
            verify=url.startswith("https:"),  # loading certificates takes a quarter of a second
            timeout=self._http.Timeout(timeout, connect=min(_CONNECT_S, timeout)),
            limits=self._http.Limits(max_connections=None, max_keepalive_connections=None),
        )

    def close(self) -> None:
        """Close connections; requests in progress fail."""
        self._client.close()

    def models(self) -> list[str] | None:
        """Return the names of the served models, or None if the server does not list them.

        Raises:
            TryAgain, Unusable: the server is unreachable, or the key is wrong.
        """
        entries = self.model_entries()
        return None if entries is None else [str(entry["id"]) for entry in entries]

    def model_entries(self) -> list[dict[str, Any]] | None:
        """Return the entries of the list of models, each with an ``id``; raises like :meth:`models`."""
        try:
            reply = json.loads(self.exchange("GET", f"{self.url}/models", None))
            return [{**entry, "id": entry["id"]} for entry in reply["data"]]
        except (ValueError, KeyError, TypeError, RecursionError, Refused):
            return None
        except Unusable as error:
            if str(error).startswith(("401", "403")):
                raise
            return None

    def alive(self) -> bool:
        """Return whether the server responds at all."""
        try:
            self.models()
        except TryAgain:
            return False
        except Unusable:
            pass
        return True

    def exchange(self, method: str, url: str, body: bytes | None) -> bytes:
        """Return the content of a reply.

        Raises:
            TryAgain, Refused, Unusable: the request failed; see these classes for whether to retry.
        """
        with self._named_errors():
            reply = self._client.request(method, url, content=body)
        self._check(reply)
        return bytes(reply.content)

    def events(self, url: str, body: bytes) -> Iterator[dict[str, Any]]:
        """Yield the objects of a reply streamed as server-sent events, as they arrive.

        Raises like :meth:`exchange`, and TryAgain if the stream ends early.
        """
        with self._named_errors(), self._client.stream("POST", url, content=body) as reply:
            if reply.status_code != 200:
                reply.read()
            self._check(reply)
            for line in reply.iter_lines():
                if not line.startswith("data:"):
                    continue
                text = line[5:].strip()
                if text == "[DONE]":
                    return
                try:
                    event = json.loads(text)
                except (ValueError, RecursionError) as error:
                    raise TryAgain(f"its answer is not JSON: {self._quote(text.encode())}") from error
                if not isinstance(event, dict):
                    raise TryAgain(f"its answer is not an object: {self._quote(text.encode())}")
                if event.get("error"):  # an error within a stream has no status code
                    raise TryAgain(self._quote(text.encode()))
                yield event
        raise TryAgain("its answer ended in the middle")

    @contextlib.contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except self._http.TimeoutException as error:
            raise TooSlow(f"no answer in time ({type(error).__name__})") from error
        except (self._http.HTTPError, self._http.InvalidURL, RuntimeError, OSError) as error:
            raise TryAgain(self._hide(f"{type(error).__name__}: {error}")) from error

    def _check(self, reply: Any) -> None:
        if reply.status_code == 200:
            return
        said = f"{reply.status_code} {self._quote(reply.content)}"
        if reply.status_code in _AGAIN or reply.status_code >= 500:
            raise TryAgain(said, _wait(reply.headers.get("retry-after")))
        raise Refused(said) if reply.status_code in _BAD_REQUEST else Unusable(said)

    def _quote(self, content: bytes) -> str:
        """Return the start of a server's reply, without the key, which some servers repeat."""
        return self._hide(" ".join(content[:2000].decode("utf-8", "replace").split()))[:200]

    def _hide(self, text: str) -> str:
        return text.replace(self._key, "***") if self._key else text


class ChatServer(Server):
    """Chat completions of a server."""

    def __init__(self, url: str, generation: GenerationSettings, *, key: str | None, timeout: float) -> None:
        super().__init__(url, key=key, timeout=timeout)
        self._generation = generation

    def complete(self, request: ChatRequest) -> ChatCompletion:
        """Return the target's answer.

        Raises:
            TryAgain, Refused, Unusable: see :meth:`exchange`.
        """
        body = json_line(request_body(request, self._generation))
        reply = self.exchange("POST", f"{self.url}/chat/completions", body)
        try:
            return read_answer(json.loads(reply), request.seed)
        except (ValueError, RecursionError) as error:  # RecursionError: nested too deeply
            raise TryAgain(f"its answer is not JSON: {self._quote(reply)}") from error
        except DataError as error:
            raise TryAgain(f"{error.message}: {self._quote(reply)}") from error


def request_body(request: ChatRequest, generation: GenerationSettings) -> dict[str, Any]:
    """Return the JSON of a chat completion; entries of ``generation.body`` override, None removes a key."""
    body: dict[str, Any] = {
        "model": generation.model,
        "messages": wire_messages(request.messages),
        "temperature": generation.temperature,
        "top_p": generation.top_p,
        "max_tokens": generation.max_tokens,
        "seed": request.seed,
    }
    if request.tools is not None:
        body["tools"] = list(request.tools)
    if arguments := {**generation.template_arguments, **request.variables}:
        body["chat_template_kwargs"] = arguments
    body |= generation.body
    return {name: value for name, value in body.items() if value is not None}


SENT = ("role", "content", "reasoning_content", "tool_calls", "tool_call_id", "name")
"""Keys of messages that servers accept."""


def wire_messages(messages: Sequence[Message]) -> list[Message]:
    """Return messages in the form that servers require: tool calls with ids and with arguments as text."""
    sent: list[Message] = []
    waiting: list[str] = []
    number = 0
    for message in messages:
        message = {key: value for key, value in message.items() if key in SENT}
        if message.get("tool_calls"):
            calls = []
            for call in message["tool_calls"]:
                calls.append(_wire_call(call, f"call_{number}"))
                number += 1
            message["tool_calls"], waiting = calls, [call["id"] for call in calls]
        elif message["role"] == "tool":
            if message.get("tool_call_id") is None and waiting:
                message["tool_call_id"] = waiting[0]
            if message.get("tool_call_id") in waiting:
                waiting.remove(message["tool_call_id"])
        sent.append(message)
    return sent


def _wire_call(call: Any, name: str) -> dict[str, Any]:
    call = dict(call) if isinstance(call, Mapping) else {}
    function = dict(call.get("function") or {key: call[key] for key in ("name", "arguments") if key in call})
    arguments = function.get("arguments", {})
    if not isinstance(arguments, str):
        function["arguments"] = json.dumps(arguments, ensure_ascii=False)
    return {"id": str(call.get("id") or name), "type": "function", "function": function}


def read_answer(reply: Any, seed: int) -> ChatCompletion:
    """Return the answer in a chat completion.

    Raises:
        DataError: the reply is not a chat completion.
    """
    try:
        choice = reply["choices"][0]
        said = choice["message"]
        content = said.get("content")
        usage = reply.get("usage") or {}
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise DataError(
            "its answer is not a chat completion",
            got=repr(error),
            expected="choices, with a message in the first",
        ) from error
    if not isinstance(usage, dict) or not (content is None or isinstance(content, str)):
        raise DataError(
            "its answer is not a chat completion", expected="content as text or null, usage as an object"
        )
    message: Message = {"role": "assistant", "content": content or ""}
    reasoning = said.get("reasoning_content") or said.get("reasoning")  # newer servers omit the suffix
    if isinstance(reasoning, str):
        message["reasoning_content"] = reasoning
    if calls := said.get("tool_calls"):
        check_message({**message, "tool_calls": calls})
        # The index in the stream is not part of a message.
        message["tool_calls"] = [{k: v for k, v in call.items() if k != "index"} for call in calls]
    return ChatCompletion(
        message=message,
        finish_reason=str(choice.get("finish_reason") or "unknown"),
        seed=seed,
        prompt_tokens=token_count(usage.get("prompt_tokens")),
        completion_tokens=token_count(usage.get("completion_tokens")),
    )


def _wait(text: str | None) -> float | None:
    """Return the seconds of a Retry-After header; its date form is ignored."""
    try:
        return min(max(float(text or ""), 0.0), _LONGEST_WAIT_S)
    except ValueError:
        return None
