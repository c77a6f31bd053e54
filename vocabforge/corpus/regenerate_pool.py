"""Requests spread over several servers: bounded for each, tried again with back-off, dead servers left out."""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ..core.errors import VocabForgeError
from ..core.progress import say
from .regenerate_http import Refused, TryAgain, Unusable
from .regenerate_rows import Answer, Request

_HOPELESS = 4  # requests that fail at a server which has answered none, while others answer theirs


class Server(Protocol):
    """What a pool needs of a server; see :class:`~vocabforge.corpus.regenerate_http.ChatServer`."""

    url: str

    def complete(self, request: Request) -> Answer:
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
class Outcome:
    """What became of a request: an answer, or why there is none."""

    request: Request
    answer: Answer | None
    reason: str = ""


@dataclass
class _Task:
    request: Request
    failed_at: set[str] = field(default_factory=set)


@dataclass
class _Member:
    """A server in the pool; what is counted here, and ``out``, change under the pool's lock.

    Attributes:
        server: the server.
        answers: requests that it answered.
        failures: requests that found no answer here in all their attempts.
        out: why it was left out, None while it is in.
    """

    server: Server
    answers: int = 0
    failures: int = 0
    out: str | None = None


class ServerPool:
    """Worker threads over servers.

    A request that fails all its attempts at a server goes to the others; when it has failed at all, it is
    given up. A server that answers nothing meanwhile, not even a look at its list of models, is dead: it is
    left out, and what it holds goes to the others.

    Args:
        servers: at least one.
        options: see :class:`PoolOptions`.
    """

    def __init__(self, servers: Sequence[Server], options: PoolOptions) -> None:
        self._options = options
        self._members = [_Member(server) for server in servers]
        self._tasks: list[_Task] = []
        self._changed = threading.Condition()
        self._stopped = False
        self._results: queue.SimpleQueue[Outcome | None] = queue.SimpleQueue()
        self.under_way = 0
        self._threads = [
            threading.Thread(target=self._work, args=(member,), daemon=True)
            for member in self._members
            for _ in range(options.concurrency)
        ]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> ServerPool:
        return self

    def __exit__(self, *_: object) -> None:
        """Stop: requests under way are given up, threads end by themselves."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        for member in self._members:
            member.server.close()

    @property
    def room(self) -> int:
        """Requests that can be handed in before workers have more than enough."""
        return 2 * len(self._alive()) * self._options.concurrency - self.under_way

    def submit(self, request: Request) -> None:
        """Hand in a request."""
        self.under_way += 1
        with self._changed:
            self._tasks.append(_Task(request))
            self._changed.notify()

    def next(self) -> Outcome:
        """Wait for a request to be over.

        Raises:
            VocabForgeError: no server is left.
        """
        while True:
            try:  # with a time limit, so that an interrupt from the keyboard is heard everywhere
                outcome = self._results.get(timeout=1.0)
            except queue.Empty:
                continue
            if outcome is None:
                raise self._nobody_left()
            self.under_way -= 1
            return outcome

    def _nobody_left(self) -> VocabForgeError:
        reasons = "; ".join(f"{member.server.url}: {member.out}" for member in self._members)
        return VocabForgeError(
            "no server is left to ask",
            got=reasons,
            remedy="mend or restart a server and run the same command again; finished answers are kept",
        )

    def _work(self, member: _Member) -> None:
        while (task := self._take(member)) is not None:
            self._serve(member, task)

    def _take(self, member: _Member) -> _Task | None:
        """The next task for a server, None when it or the pool is done."""
        with self._changed:
            while not self._stopped and member.out is None:
                for at, task in enumerate(self._tasks):
                    if member.server.url not in task.failed_at:
                        return self._tasks.pop(at)
                self._changed.wait()
        return None

    def _serve(self, member: _Member, task: _Task) -> None:
        before, reason = member.answers, ""
        for attempt in range(self._options.retries + 1):
            try:
                answer = member.server.complete(task.request)
            except TryAgain as error:
                reason = str(error)
                if attempt < self._options.retries and not self._pause(member, attempt, error.wait):
                    break
            except Refused as error:
                self._results.put(Outcome(task.request, None, str(error)))
                return
            except Unusable as error:
                self._drop(member, str(error))
                break
            except Exception as error:  # noqa: BLE001 (a thread that dies in silence would hang the run)
                reason = f"{type(error).__name__}: {error}"
                break
            else:
                with self._changed:
                    member.answers += 1
                self._results.put(Outcome(task.request, answer))
                return
        else:
            if member.answers == before and not self._is_well(member):
                self._drop(member, reason)
        self._hand_on(member, task, reason)

    def _pause(self, member: _Member, attempt: int, wanted: float | None) -> bool:
        """Wait before the next attempt; False when it is not worth while any more."""
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
        """Whether a request that found no answer here is to blame itself."""
        with self._changed:
            member.failures += 1
            others = any(one.out is None and one.answers for one in self._members if one is not member)
            hopeless = others and not member.answers and member.failures >= _HOPELESS
        return not hopeless and member.server.alive()

    def _drop(self, member: _Member, reason: str) -> None:
        with self._changed:
            if self._stopped or member.out is not None:
                return
            member.out = reason
            alive = self._alive()
            left = len(alive)
            for task in [task for task in self._tasks if alive and alive <= task.failed_at]:
                self._tasks.remove(task)  # the dead one was its last hope
                self._results.put(Outcome(task.request, None, "it failed at every server"))
            # Under the lock, so that it is said before what the server held is answered elsewhere.
            say(f"{member.server.url} is left out: {reason} ({left} of {len(self._members)} servers left)")
            self._changed.notify_all()

    def _alive(self) -> set[str]:
        return {one.server.url for one in self._members if one.out is None}

    def _hand_on(self, member: _Member, task: _Task, reason: str) -> None:
        """Give an unanswered task to the other servers, or up."""
        with self._changed:
            if self._stopped:
                return
            if member.out is None:
                task.failed_at.add(member.server.url)
            alive = self._alive()
            if not alive:
                self._results.put(None)
            elif alive <= task.failed_at:
                self._results.put(Outcome(task.request, None, reason))
            else:
                self._tasks.insert(0, task)
                self._changed.notify_all()


def give_up_when_all_refuse(limit: int) -> Callable[[Outcome], None]:
    """Watches outcomes: when the first ``limit`` are all refusals, something is wrong with every request.

    Raises (the returned function):
        VocabForgeError: quotes the last refusal.
    """
    refused, answered = 0, False

    def look(outcome: Outcome) -> None:
        nonlocal refused, answered
        answered = answered or outcome.answer is not None
        refused += outcome.answer is None
        if not answered and refused >= limit:
            raise VocabForgeError(
                "the servers refuse every request",
                got=outcome.reason,
                remedy="check --model, --max-tokens and the other settings of requests",
            )

    return look
