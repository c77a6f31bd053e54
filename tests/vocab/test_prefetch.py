"""Items come in order, errors in their turn, and the thread ends with the iteration."""

from __future__ import annotations

import threading

import pytest

from vocabforge.vocab.counts.tally import prefetched


def threads() -> int:
    return sum(thread.name.startswith("prefetch") for thread in threading.enumerate())


def test_order_and_end():
    assert list(prefetched(range(100))) == list(range(100))
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


def test_it_runs_one_item_ahead_and_stops_when_left():
    made = []

    def items():
        for number in range(1000):
            made.append(number)
            yield number

    source = prefetched(items())
    assert next(source) == 0
    source.close()
    assert len(made) <= 2
    assert threads() == 0
