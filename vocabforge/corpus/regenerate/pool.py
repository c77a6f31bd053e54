"""Distribute requests over several servers: limits per server, retries, exclusion of dead servers."""

from __future__ import annotations

import queue
import random
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.pool import ThreadPool

from ...core.console import say
from ...core.errors import VocabForgeError
from .rows import ChatCompletion, ChatRequest
from .server import ChatServer, Refused, TryAgain, Unusable


@dataclass(frozen=True)
class PoolOptions:
    """Limits for the load on servers.

    Attributes:
        concurrency: concurrent requests per server.
        retries: further attempts at a server after the first.
        first_wait: seconds before the second attempt; the wait doubles with each attempt, with jitter to
            spread retries.
        longest_wait: maximum seconds before an attempt, unless the server requests more.
    """

    concurrency: int = 32
    retries: int = 7
    first_wait: float = 0.5
    longest_wait: float = 30.0


@dataclass(frozen=True)
class RequestOutcome:
    """Outcome of a request: an answer, or the reason why there is none."""

    request: ChatRequest
    answer: ChatCompletion | None
    reason: str = ""


class ServerPool:
    """Worker threads that send requests to servers.

    A request that fails all attempts at one server is sent to the others, and is abandoned once it has failed
    at all. A server is excluded if it no longer responds, not even with its list of models, or if it has
    answered no request while another server has.
    """

    def __init__(self, servers: Sequence[ChatServer], options: PoolOptions) -> None:
        self._options, self._servers = options, list(servers)
        self._slots = {server.url: threading.Semaphore(options.concurrency) for server in servers}
        self._load: Counter[str] = Counter()
        self._answered: set[str] = set()
        self._out: dict[str, str] = {}  # reasons for excluded servers
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._results: queue.SimpleQueue[RequestOutcome | VocabForgeError] = queue.SimpleQueue()
        self.under_way = 0
        # Daemon threads: an interrupted command does not wait for answers that take minutes.
        self._pool = ThreadPool(len(servers) * options.concurrency)

    def __enter__(self) -> ServerPool:
        return self

    def __exit__(self, *_: object) -> None:
        """Abandon requests in progress; threads end by themselves."""
        self._stopped.set()
        self._pool.terminate()
        for server in self._servers:
            server.close()

    @property
    def room(self) -> int:
        """Number of further requests to submit, enough to keep all workers busy."""
        return 2 * len(self._living()) * self._options.concurrency - self.under_way

    def submit(self, request: ChatRequest) -> None:
        """Submit a request."""
        self.under_way += 1
        self._pool.apply_async(self._ask, (request,), callback=self._results.put)

    def next(self) -> RequestOutcome:
        """Wait for a request to finish.

        Raises:
            VocabForgeError: no server is left.
        """
        outcome = self._results.get()
        if isinstance(outcome, VocabForgeError):
            raise outcome
        self.under_way -= 1
        return outcome

    def _ask(self, request: ChatRequest) -> RequestOutcome | VocabForgeError:
        tried: set[str] = set()
        reason = "it failed at every server"
        while (server := self._take(tried)) is not None:
            tried.add(server.url)
            try:
                with self._slots[server.url]:
                    answer = self._attempts(server, request)
                self._answered.add(server.url)
                return RequestOutcome(request, answer)
            except Refused as error:
                return RequestOutcome(request, None, str(error))
            except Unusable as error:
                reason = str(error)
                self._drop(server, reason)
            except TryAgain as error:
                reason = str(error)
                silent = server.url not in self._answered and bool(self._answered)
                if not self._stopped.is_set() and (silent or not server.alive()):
                    self._drop(server, reason)
            except Exception as error:  # noqa: BLE001 (a thread that dies silently would hang the run)
                reason = f"{type(error).__name__}: {error}"
            finally:
                with self._lock:
                    self._load[server.url] -= 1
        if self._living():
            return RequestOutcome(request, None, reason)
        return VocabForgeError(
            "no server is left to ask",
            got="; ".join(f"{server.url}: {self._out[server.url]}" for server in self._servers),
            remedy="fix or restart a server and run the same command again; finished answers are kept",
        )

    def _take(self, tried: set[str]) -> ChatServer | None:
        """Return the living server with the fewest requests, or None if the request has failed at all."""
        with self._lock:
            left = [server for server in self._living() if server.url not in tried]
            if not left or self._stopped.is_set():
                return None
            server = min(left, key=lambda server: self._load[server.url])
            self._load[server.url] += 1
            return server

    def _attempts(self, server: ChatServer, request: ChatRequest) -> ChatCompletion:
        for attempt in range(self._options.retries + 1):
            if (reason := self._out.get(server.url)) is not None:
                raise Unusable(reason)
            try:
                return server.complete(request)
            except TryAgain as error:
                if attempt == self._options.retries:
                    raise
                wait = min(self._options.first_wait * 2**attempt, self._options.longest_wait)
                wait = max(wait * random.uniform(0.75, 1.25), error.wait or 0.0)
                if self._stopped.wait(wait):
                    raise
        raise AssertionError("unreachable")

    def _drop(self, server: ChatServer, reason: str) -> None:
        with self._lock:
            if self._stopped.is_set() or server.url in self._out:
                return
            self._out[server.url] = reason
            left = f"{len(self._living())} of {len(self._servers)} servers left"
        say(f"{server.url} is left out: {reason} ({left})")

    def _living(self) -> list[ChatServer]:
        return [server for server in self._servers if server.url not in self._out]
