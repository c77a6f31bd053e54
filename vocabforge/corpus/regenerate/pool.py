"""Requests spread over several servers: bounded for each, tried again with back-off, dead servers left out."""

from __future__ import annotations

import contextlib
import queue
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ...core.console import say
from ...core.errors import VocabForgeError
from .rows import ChatCompletion, ChatRequest
from .server import Refused, TryAgain, Unusable

_HOPELESS = 4  # requests that fail at a server which has answered none, while others answer theirs


class Server(Protocol):
    """What a pool needs of a server; see :class:`~vocabforge.corpus.regenerate.server.ChatServer`."""

    url: str

    def complete(self, request: ChatRequest) -> ChatCompletion:
        """The answer; raises :class:`TryAgain`, :class:`Refused` or :class:`Unusable` where there is none."""
        ...

    def alive(self) -> bool:
        """Whether it answers anything at all."""
        ...

    def close(self) -> None:
        """Close connections; requests under way fail."""
        ...


@dataclass(frozen=True)
class PoolOptions:
    """How hard servers are pressed.

    Attributes:
        concurrency: requests under way at each server.
        retries: further attempts after the first, at one server.
        first_wait: seconds before the second attempt; each further one waits twice as long, and a little
            more or less, so that the requests of a server that was away do not come back all at once.
        longest_wait: seconds before an attempt at most.
    """

    concurrency: int = 32
    retries: int = 7
    first_wait: float = 0.5
    longest_wait: float = 30.0


@dataclass(frozen=True)
class RequestOutcome:
    """What became of a request: an answer, or why there is none."""

    request: ChatRequest
    answer: ChatCompletion | None
    reason: str = ""


@dataclass(eq=False)
class _Member:
    """A server in the pool; everything but ``server`` changes under the pool's lock."""

    server: Server
    under_way: int = 0
    answers: int = 0
    failures: int = 0  # requests that found no answer here in all attempts
    out: str | None = None  # why it was left out


class ServerPool:
    """Worker threads that send requests to servers.

    A request that fails all attempts at one server goes to the others, and is given up when it has failed at all.
    A server that answers nothing any more, not even its list of models, is left out.
    """

    def __init__(self, servers: Sequence[Server], options: PoolOptions) -> None:
        self._options = options
        self._members = [_Member(server) for server in servers]
        self._changed = threading.Condition()
        self._stopped = False
        self._requests: queue.SimpleQueue[ChatRequest | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[RequestOutcome | VocabForgeError] = queue.SimpleQueue()
        self.under_way = 0
        # Daemons: an interrupted command does not wait for answers that take minutes.
        self._threads = [
            threading.Thread(target=self._work, daemon=True)
            for _ in range(len(servers) * options.concurrency)
        ]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> ServerPool:
        return self

    def __exit__(self, *_: object) -> None:
        """Give up requests under way; threads end by themselves."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        for _thread in self._threads:
            self._requests.put(None)
        for member in self._members:
            member.server.close()

    @property
    def room(self) -> int:
        """Requests that can be submitted before workers have more than enough."""
        return 2 * len(self._living()) * self._options.concurrency - self.under_way

    def submit(self, request: ChatRequest) -> None:
        """Add a request."""
        self.under_way += 1
        self._requests.put(request)

    def next(self) -> RequestOutcome:
        """Wait for a request to be over.

        Raises:
            VocabForgeError: no server is left.
        """
        while True:
            with contextlib.suppress(
                queue.Empty
            ):  # the time limit lets an interrupt from the keyboard through
                outcome = self._results.get(timeout=1.0)
                if isinstance(outcome, VocabForgeError):
                    raise outcome
                self.under_way -= 1
                return outcome

    def _work(self) -> None:
        while (request := self._requests.get()) is not None:
            self._results.put(self._ask(request))

    def _ask(self, request: ChatRequest) -> RequestOutcome | VocabForgeError:
        failed: set[_Member] = set()
        reason = "it failed at every server"
        while (member := self._take(failed)) is not None:
            before = member.answers
            try:
                answer = self._attempts(member, request)
            except Refused as error:
                return RequestOutcome(request, None, str(error))
            except Unusable as error:
                reason = str(error)
                self._drop(member, reason)
            except TryAgain as error:
                reason = str(error)
                if member.answers == before and not self._is_well(member):
                    self._drop(member, reason)
            except Exception as error:  # noqa: BLE001 (a thread that dies in silence would hang the run)
                reason = f"{type(error).__name__}: {error}"
            else:
                with self._changed:
                    member.answers += 1
                return RequestOutcome(request, answer)
            finally:
                with self._changed:
                    member.under_way -= 1
                    self._changed.notify_all()
            failed.add(member)
        return RequestOutcome(request, None, reason) if self._living() else self._nobody_left()

    def _take(self, failed: set[_Member]) -> _Member | None:
        """The living server with the fewest requests under way; None if the request has failed at all of them."""
        with self._changed:
            while not self._stopped and (left := [one for one in self._living() if one not in failed]):
                member = min(left, key=lambda one: one.under_way)
                if member.under_way < self._options.concurrency:
                    member.under_way += 1
                    return member
                self._changed.wait()
        return None

    def _attempts(self, member: _Member, request: ChatRequest) -> ChatCompletion:
        for attempt in range(self._options.retries + 1):
            try:
                return member.server.complete(request)
            except TryAgain as error:
                if attempt == self._options.retries or not self._pause(member, attempt, error.wait):
                    raise
        raise AssertionError("unreachable")

    def _pause(self, member: _Member, attempt: int, wanted: float | None) -> bool:
        """Wait before the next attempt; False when the server or the pool has stopped."""
        wait = min(self._options.first_wait * 2**attempt, self._options.longest_wait)
        until = time.monotonic() + max(wait * random.uniform(0.75, 1.25), wanted or 0.0)
        with self._changed:
            while not self._stopped and member.out is None:
                left = until - time.monotonic()
                if left <= 0:
                    return True
                self._changed.wait(left)
        return False

    def _is_well(self, member: _Member) -> bool:
        """Whether the request is to blame, not the server."""
        with self._changed:
            if self._stopped or member.out is not None:
                return True
            member.failures += 1
            others = any(one.answers for one in self._living() if one is not member)
            hopeless = others and not member.answers and member.failures >= _HOPELESS
        return not hopeless and member.server.alive()

    def _drop(self, member: _Member, reason: str) -> None:
        with self._changed:
            if self._stopped or member.out is not None:
                return
            member.out = reason
            left = f"{len(self._living())} of {len(self._members)} servers left"
            say(f"{member.server.url} is left out: {reason} ({left})")
            self._changed.notify_all()

    def _living(self) -> list[_Member]:
        return [one for one in self._members if one.out is None]

    def _nobody_left(self) -> VocabForgeError:
        reasons = "; ".join(f"{member.server.url}: {member.out}" for member in self._members)
        return VocabForgeError(
            "no server is left to ask",
            got=reasons,
            remedy="mend or restart a server and run the same command again; finished answers are kept",
        )
