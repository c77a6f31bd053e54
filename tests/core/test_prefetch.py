"""Items come in order, errors in their turn, and the thread ends with the iteration."""

from __future__ import annotations

import threading

import pytest

from vocabforge.core import prefetch
from vocabforge.core.prefetch import prefetched


def threads() -> int:
    return sum(thread.name == "prefetch" for thread in threading.enumerate())


def test_order_and_end():
    assert list(prefetched(range(100), depth=3)) == list(range(100))
    assert list(prefetched([])) == []
    assert list(prefetched([None, 0, False])) == [None, 0, False]
    assert threads() == 0


def test_an_error_comes_after_the_items_before_it():
    def items():
        yield 1
        yield 2
        raise ValueError("here")

    source = prefetched(items())
    assert (next(source), next(source)) == (1, 2)
    with pytest.raises(ValueError, match="here"):
        next(source)
    assert threads() == 0


def test_it_runs_ahead_by_the_depth_only_and_stops_when_left():
    made = []

    def items():
        for number in range(1000):
            made.append(number)
            yield number

    source = prefetched(items(), depth=2)
    assert next(source) == 0
    source.close()
    assert len(made) <= 5
    assert threads() == 0


def test_leaving_does_not_wait_for_an_item_that_never_comes(monkeypatch):
    monkeypatch.setattr(prefetch, "_CLOSE_S", 0.0)
    hangs, returns, went_on = threading.Event(), threading.Event(), []

    def items():
        yield 1
        hangs.set()
        returns.wait(60)
        yield 2
        went_on.append(3)

    source = prefetched(items())
    assert next(source) == 1
    hangs.wait()
    source.close()
    (thread,) = (one for one in threading.enumerate() if one.name == "prefetch")
    assert thread.daemon, "the program ends without it"
    returns.set()
    thread.join()
    assert not went_on
