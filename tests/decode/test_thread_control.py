"""Cycles that try another number of threads: the output stays, and adaptive control learns nothing from them."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

import pytest
import torch

from tests.decode.drafting import PROMPT, Pair, hf_greedy
from vocabforge.core.threads import ThreadChoice
from vocabforge.decode.accelerate.compiled import compile_passes
from vocabforge.decode.control.control import CycleFigures, FixedControl
from vocabforge.decode.engine import Decoder
from vocabforge.decode.interface import PLAIN_PLAN
from vocabforge.decode.threads import ThreadControl, choose_threads


@pytest.fixture(autouse=True)
def _same_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


class Alternating(ThreadChoice):
    """Two threads are on trial in every second cycle."""

    def __init__(self) -> None:
        super().__init__([1, 2], torch.set_num_threads)
        self.seen: list[Hashable] = []

    @property
    def trying(self) -> bool:
        return len(self.seen) % 2 == 1

    def observe(self, kind: Hashable, seconds: float) -> None:
        assert seconds > 0
        self.seen.append(kind)
        torch.set_num_threads(1 + self.trying)


class Listening(FixedControl):
    def __init__(self) -> None:
        super().__init__([PLAIN_PLAN])
        self.seconds: list[float] = []

    def observe(self, cycle: CycleFigures) -> None:
        self.seconds.append(cycle.seconds)


def test_the_output_stays_and_trials_teach_the_control_nothing(pair: Pair) -> None:
    control = Listening()
    decoder = Decoder(pair.lean, control=ThreadControl(control, threads := Alternating()))
    result = decoder.generate(PROMPT, max_new_tokens=21, stop_ids=())
    assert result.token_ids == hf_greedy(pair.hf, PROMPT, 21)
    assert threads.seen == [(PLAIN_PLAN, 1)] * 20
    assert [seconds > 0 for seconds in control.seconds] == [True, False] * 10


def test_only_decoders_on_a_cpu_choose_and_only_where_nothing_is_fixed(pair, monkeypatch):
    decoder = Decoder(pair.lean)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert not choose_threads([decoder], None, sampled=False)
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    assert not choose_threads([decoder], compile_passes(), sampled=False)
    assert not choose_threads([decoder], None, sampled=True)
    assert isinstance(decoder.control, FixedControl)
    assert choose_threads([object(), decoder], None, sampled=False)  # a server's generator, too
    assert isinstance(decoder.control, ThreadControl)
