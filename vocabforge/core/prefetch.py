"""Making the next item while the last one is worked on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")


def prefetched(items: Iterable[Item]) -> Iterator[Item]:
    """The items in their order, made by a thread that is one item ahead.

    It pays where the consumer releases the interpreter's lock. What making an item raises is raised here in its turn.
    When the iteration is left, the item that the thread is at is finished, and no other.
    """
    source, end = iter(items), object()
    with ThreadPoolExecutor(1, "prefetch") as pool:
        coming = pool.submit(next, source, end)
        while (item := coming.result()) is not end:
            coming = pool.submit(next, source, end)
            yield item  # type: ignore[misc]
