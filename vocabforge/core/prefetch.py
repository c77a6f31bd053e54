"""Making the next items while the last ones are worked on."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")
_POLL_S = 0.1
_CLOSE_S = 5.0  # an item takes less, unless a read hangs


def prefetched(items: Iterable[Item], depth: int = 2) -> Iterator[Item]:
    """The items in their order, made by a thread that is at most ``depth`` items ahead.

    It pays where the consumer releases the interpreter's lock. What making an item raises is raised here in its
    turn. When the iteration is left, the thread makes the item that it is at to its end and no other. Leaving waits for
    that, but only seconds: a read may never return. The thread then stays behind; what it makes is dropped, and the
    program's end does not wait for it.
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
        thread.join(_CLOSE_S)
