"""A server as a decoding method: streamed requests over HTTP, with its counters read before and after."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from typing import Any

from ...core.console import say
from ...core.errors import DataError
from ...corpus.regenerate.rows import json_line, token_count
from ...corpus.regenerate.server import Refused, Server, TooSlow, TryAgain, Unusable
from ...decode.request import Generation, SamplingParams
from ..results.schema import ServerFacts
from ..run.request import MustStop
from .counters import Reading, Speculation, read_details, read_metrics, read_timings, total_of

_ATTEMPTS = 5
_LATE_S = 5.0  # counters may lag behind a finished answer
_AGAIN = "run the same command again: finished answers are kept"


@dataclass
class ServedGeneration(Generation):
    """An answer of a server.

    ``prefill_s`` is the time to the first token, ``decode_s`` the time from the first to the last token.
    """

    text: str = ""
    ids_known: bool = False  # if not, the server did not return them, and ``token_ids`` is empty
    prompt_tokens: int | None = None  # as counted by the server, as are the new tokens
    new_tokens: int = 0
    speculation: Speculation | None = None  # counts of this answer alone; None if unknown


@dataclass
class LoadWindow:
    """Answers to a group of questions, ``concurrency`` at a time."""

    concurrency: int
    spans: list[tuple[float, float]] = field(default_factory=list)  # begin and end of each turn, by one clock
    answered: list[ServedGeneration] = field(default_factory=list)
    speculation: Speculation | None = None  # counts of all answers together; None if unknown
    foreign: int = 0  # tokens that the server generated for other clients meanwhile

    @property
    def new_tokens(self) -> int:
        return sum(answer.new_tokens for answer in self.answered)

    def seconds(self) -> float:
        """Return the time during which at least one request was in progress."""
        busy, end = 0.0, float("-inf")
        for begin, finish in sorted(self.spans):
            busy += max(0.0, finish - max(begin, end))
            end = max(end, finish)
        return busy

    def row(self, facts: ServerFacts) -> dict[str, Any]:
        """Return the window as JSON values."""
        return {
            "concurrency": self.concurrency,
            "new_tokens": self.new_tokens,
            "seconds": self.seconds(),
            "speculation": None if self.speculation is None else asdict(self.speculation),
            "foreign_tokens": self.foreign,
            "server": facts.model_dump(),
        }


class ServerGenerator:
    """Generates answers with a server.

    Args:
        running: context manager that yields the server's address; it also starts and stops our own servers.
        chat: request chat completions instead of plain completions.
        model: name of the model; None: the only model that the server has.
        timeout: seconds without a byte after which the server is considered to hang.
    """

    def __init__(
        self,
        name: str,
        running: Callable[[], AbstractContextManager[str]],
        *,
        chat: bool,
        model: str | None,
        key: str | None,
        timeout: float,
    ) -> None:
        self.name, self._running, self._chat, self._wanted = name, running, chat, model
        self._key, self._timeout = key, timeout
        self._window = LoadWindow(1)
        self._last: Reading | None = None
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def serving(self, before: Mapping[str, Any] | None) -> Iterator[None]:
        """Enter the server and check that it is reachable; ``before`` describes the earlier answers' server.

        Raises:
            MustStop: it is unreachable, does not serve the model, or differs from ``before``.
        """
        with self._running() as url:
            self._server, self._window = Server(url, key=self._key, timeout=self._timeout), LoadWindow(1)
            try:
                self.facts = self._describe()
                if before is not None and before != self.facts.model_dump():
                    raise MustStop(
                        f"the server of {self.name} is not the one that gave the answers so far",
                        got=self.facts.model_dump(),
                        expected=dict(before),
                        source=url,
                        remedy="serve the same model with the same version, or start over with --fresh",
                    )
                self._last = self._reading()
                yield
            finally:
                self._server.close()

    @contextlib.contextmanager
    def window(self, concurrency: int) -> Iterator[LoadWindow]:
        """Count answers together; with a concurrency of 1 each answer is also counted separately."""
        window = self._window = LoadWindow(concurrency)
        before = self._check_reading() if concurrency > 1 else None
        try:
            yield window
            if before is not None:
                after, window.foreign = self._settled(before, window.new_tokens)
                self._refuse_restart(after, before)
                window.speculation, self._last = after.since(before), after
            else:
                window.speculation = total_of([answer.speculation for answer in window.answered])
        except BaseException:
            # On an error, the answers so far still count if each was counted separately.
            window.speculation = total_of([answer.speculation for answer in window.answered])
            raise
        finally:
            if window.foreign:
                say(
                    f"{self.name}: others asked this server meanwhile ({window.foreign:,} tokens): its accepted "
                    "length and times include them"
                )

    def generate(
        self, prompt_ids: Any, *, max_new_tokens: int, stop_ids: Collection[int], sampling: SamplingParams
    ) -> ServedGeneration:
        """Answer a prompt, given as a list of messages or a text.

        Raises:
            DataError: the server rejects this prompt.
            MustStop: the server is down, hangs, was restarted, or answers as another model.
        """
        body = self._body(prompt_ids, max_new_tokens, sampling)
        alone = self._window.concurrency == 1
        before = self._check_reading() if alone else None
        reason = ""
        for attempt in range(_ATTEMPTS):
            try:
                made, span = self._stream(body, max_new_tokens)
                break
            except Refused as error:
                raise DataError(
                    "the server refuses the request", got=error, source=self._server.url
                ) from error
            except Unusable as error:
                raise self._stop(
                    "does not answer our requests", str(error), "check --model, --api-key-env and the path"
                ) from error
            except TooSlow as error:
                raise self._stop(
                    "hangs", f"no byte in {self._timeout:g} s", f"{_AGAIN}; --timeout S waits longer"
                ) from error
            except TryAgain as error:
                reason, wait = str(error), error.wait
                if not self._server.alive():
                    raise self._stop("is gone", reason, f"restart the server and {_AGAIN}") from error
            time.sleep(wait or 0.25 * 2**attempt)
        else:
            raise self._stop(f"failed {_ATTEMPTS} times", reason, _AGAIN)
        if before is not None:
            after, foreign = self._settled(before, made.new_tokens)
            self._refuse_restart(after, before)
            made.speculation, self._last = after.since(before), after
            self._window.foreign += foreign
        if (speculation := made.speculation) is not None:
            made.drafted = speculation.drafted
            made.accepted_by_depth = list(speculation.accepted_by_depth)
            made.drafted_by_depth = list(speculation.offered)
        with self._lock:
            self._window.spans.append(span)
            self._window.answered.append(made)
        return made

    def _stop(self, what: str, got: str, remedy: str) -> MustStop:
        return MustStop(f"the server {self.name} {what}", got=got, source=self._server.url, remedy=remedy)

    def _describe(self) -> ServerFacts:
        url = self._server.url
        try:
            entries = self._server.model_entries()
        except (TryAgain, Unusable) as error:
            raise self._stop("cannot be reached", str(error), "check --server and --api-key-env") from error
        names = [_text(entry["id"]) for entry in entries or ()]
        if self._wanted is None and len(names) != 1:
            raise MustStop(
                "the server does not say which model is meant",
                got=", ".join(names) or "no list of models",
                source=url,
                remedy="name it with --model",
            )
        model = self._wanted or names[0]
        if names and model not in names:
            raise MustStop(
                "the server does not serve this model", got=", ".join(names), expected=model, source=url
            )
        entry = next((listed for listed in entries or () if listed["id"] == model), {})
        version = None
        for path in ("/version", "/server_info"):
            with contextlib.suppress(
                TryAgain, Refused, Unusable, ValueError, KeyError, TypeError, RecursionError
            ):
                version = _text(json.loads(self._get(path))["version"])
                break
        longest = entry.get("max_model_len")
        return ServerFacts(
            kind=_text(entry.get("owned_by") or "unknown"),
            version=version,
            model=model,
            max_model_len=longest if isinstance(longest, int) else None,
        )

    def _get(self, path: str) -> str:
        root = self._server.url.removesuffix("/v1")
        return self._server.exchange("GET", root + path, None).decode("utf-8", "replace")

    def _reading(self) -> Reading | None:
        try:
            return read_metrics(self._get("/metrics"))
        except (Refused, Unusable, TryAgain):
            return None

    def _check_reading(self) -> Reading | None:
        """Return the current counters, None if the server has none; stop if it was restarted."""
        if self._last is None:
            return None
        now = self._known_reading()
        self._refuse_restart(now, self._last)
        self._last = now
        return now

    def _known_reading(self) -> Reading:
        if (now := self._reading()) is None:
            raise self._stop(
                "is gone", "its /metrics do not answer any more", f"restart the server and {_AGAIN}"
            )
        return now

    def _refuse_restart(self, now: Reading, before: Reading) -> None:
        if now.restarted_since(before):
            raise self._stop("was restarted", "its counters went back", _AGAIN)

    def _settled(self, before: Reading, new_tokens: int) -> tuple[Reading, int]:
        """Wait until the counters include the tokens just answered; return them and the foreign tokens."""
        until = time.monotonic() + _LATE_S
        while True:
            now = self._known_reading()
            missing = before.generated + new_tokens - now.generated
            if missing <= 0 or now.restarted_since(before) or time.monotonic() > until:
                return now, max(0, -missing)
            time.sleep(0.02)

    def _body(self, prompt: Any, max_new_tokens: int, sampling: SamplingParams) -> bytes:
        body: dict[str, Any] = {
            "model": self.facts.model,
            "messages" if self._chat else "prompt": prompt,
            "max_tokens": max_new_tokens,
            **sampling.chosen(),
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.facts.kind == "vllm":
            body["return_token_ids"] = True
        elif self.facts.kind == "sglang":
            body["return_spec_tokens_details"] = True
            body["return_output_ids_in_sglext" if self._chat else "return_token_ids"] = True
        return json_line(body)

    def _stream(self, body: bytes, max_new_tokens: int) -> tuple[ServedGeneration, tuple[float, float]]:
        """Send one request; return the answer and its begin and end times."""
        made = ServedGeneration(finish="stop")
        usage: Mapping[str, Any] = {}
        ids: list[int] | None = None
        url = f"{self._server.url}/{'chat/completions' if self._chat else 'completions'}"
        first = last = None
        start = time.perf_counter()
        try:
            for event in self._server.events(url, body):
                now = time.perf_counter()
                if (other := event.get("model")) is not None and other != self.facts.model:
                    raise self._stop(
                        "answers as another model",
                        f"{other}, expected {self.facts.model}",
                        "ask the server itself, not a router of several models",
                    )
                usage = dict(event.get("usage") or usage)
                if (timings := event.get("timings")) is not None:
                    made.speculation = read_timings(timings)
                extra = event.get("sglext") or {}
                if (details := extra.get("spec_tokens_details")) is not None:
                    made.speculation = read_details(details)
                if extra.get("output_ids"):
                    ids = _whole_numbers(extra["output_ids"][0])
                for choice in event.get("choices") or ():
                    text = _text_of(choice)
                    if choice.get("token_ids") is not None:
                        ids = [*(ids or ()), *_whole_numbers(choice["token_ids"])]
                    if text or choice.get("token_ids"):
                        first, last = first or now, now
                    made.text += (choice.get("delta") or {}).get("content") or choice.get("text") or ""
                    if choice.get("finish_reason") == "length":
                        made.finish = "length"
        except (TypeError, ValueError, LookupError, AttributeError) as error:
            # Caused by the server, so another attempt may succeed.
            raise TryAgain(f"its answer is not read: {type(error).__name__}: {error}"[:300]) from error
        end = last or time.perf_counter()
        count = token_count(usage.get("completion_tokens"))
        if count is None:
            raise Unusable("its answers have no usage, so that their tokens cannot be counted")
        if ids is not None and len(ids) != count:  # truncated in transit, so not the complete answer
            ids = None
        made.new_tokens, made.prompt_tokens = count, token_count(usage.get("prompt_tokens"))
        made.token_ids, made.ids_known = ids or [], ids is not None
        if made.finish == "length" and count < max_new_tokens:
            made.finish = "cache"
        made.prefill_s = (first or end) - start
        made.decode_s = end - start - made.prefill_s
        made.timings = {"to the first token": made.prefill_s, "further tokens": made.decode_s}
        return made, (start, end)


def _text(value: Any) -> str:
    """Replace lone surrogates by question marks, so that the text can be written to any file."""
    return str(value).encode("utf-8", "replace").decode()


def _whole_numbers(ids: Any) -> list[int]:
    if not isinstance(ids, list) or not all(type(token) is int for token in ids):
        raise ValueError("token ids that are not a list of whole numbers")
    return ids


def _text_of(choice: Mapping[str, Any]) -> str:
    delta = choice.get("delta") or {}
    parts = (delta.get("content"), delta.get("reasoning_content"), delta.get("reasoning"), choice.get("text"))
    return "".join(part for part in parts if isinstance(part, str))
