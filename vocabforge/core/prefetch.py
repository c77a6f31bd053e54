"""Making the next items while the last ones are worked on."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")
_POLL_S = 0.1


def prefetched(items: Iterable[Item], depth: int = 2) -> Iterator[Item]:
    """The items in their order, made by a thread that is at most ``depth`` items ahead.

    It pays where the consumer releases the interpreter's lock. What making an item raises is raised here in its
    turn; the thread ends when the iteration is left.
    """
    ready: queue.Queue[tuple[Item | None, BaseException | None, bool]] = queue.Queue(depth)
    left = threading.Event()

    def put(entry: tuple[Item | None, BaseException | None, bool]) -> None:
        while not left.is_set():
            try:
                ready.put(entry, timeout=_POLL_S)
            except queue.Full:
                continue
            return

    def make() -> None:
        try:
            for item in items:
                put((item, None, False))
                if left.is_set():
                    return
            put((None, None, True))
        except BaseException as error:  # noqa: BLE001 (raised again by the consumer)
            put((None, error, True))

    thread = threading.Thread(target=make, name="prefetch", daemon=True)
    thread.start()
    try:
        while True:
            item, error, done = ready.get()
            if error is not None:
                raise error
            if done:
                return
            yield item  # type: ignore[misc]  # None only together with an error or the end
    finally:
        left.set()
        thread.join()
