"""The time that is left, over durations as they were recorded."""

from __future__ import annotations

import pytest

from tests.core.progress_support import Clock, Forecasts, fake_clock
from tests.evaluate.eval_fakes import FakeGenerator, FakeMethod, make_benchmark, run_fakes
from vocabforge.evaluate.run.runner import in_turns

# Seconds of plain decoding and two drafters over the demo's questions (45 of 9 categories, one thread, 2026-11-23), in
# the order of the file. The first four categories have two turns a question.
RECORDED = {
    "writing": [(0.39, 0.8, 0.72), (0.48, 0.66, 0.57), (0.41, 0.64, 0.66), (0.35, 0.65, 0.55), (0.48, 0.64, 0.71)],
    "roleplay": [(0.29, 0.35, 0.32), (0.32, 0.52, 0.38), (0.29, 0.37, 0.33), (0.3, 0.38, 0.35), (0.29, 0.43, 0.3)],
    "coding": [(0.54, 0.79, 0.59), (0.61, 0.69, 0.6), (0.42, 0.76, 0.57), (0.98, 2.09, 1.44), (0.77, 1.13, 0.94)],
    "extraction": [
        (0.41, 0.57, 0.49), (0.45, 0.96, 0.92), (0.28, 0.56, 0.55), (0.48, 1.07, 0.86), (0.44, 1.18, 0.76)
    ],
    "translation": [(0.07, 0.2, 0.13), (0.08, 0.2, 0.15), (0.09, 0.22, 0.19), (0.09, 0.13, 0.11), (0.06, 0.08, 0.08)],
    "summarization": [(0.1, 0.15, 0.15), (0.1, 0.2, 0.19), (0.1, 0.32, 0.3), (0.17, 0.27, 0.21), (0.07, 0.28, 0.17)],
    "qa": [(0.09, 0.09, 0.08), (0.35, 0.54, 0.55), (0.04, 0.13, 0.09), (0.04, 0.14, 0.13), (0.03, 0.15, 0.12)],
    "math": [(0.23, 0.34, 0.28), (0.21, 0.3, 0.24), (0.21, 0.36, 0.26), (0.25, 0.36, 0.28), (0.18, 0.29, 0.26)],
    "rag": [(0.1, 0.18, 0.16), (0.09, 0.14, 0.11), (0.08, 0.17, 0.13), (0.1, 0.19, 0.14), (0.09, 0.17, 0.14)],
}  # fmt: skip
FACTORS = (1.0, 1.0, 1.0), (1.0, 12.0, 0.4)  # as recorded; methods whose speeds are far apart


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return fake_clock(monkeypatch)


class Recorded(FakeGenerator):
    """Takes its recorded time for a question, in equal parts over its turns; the first prompt also compiles."""

    def __init__(self, clock: Clock, seconds: dict[str, float], start_s: float) -> None:
        super().__init__(length=2)
        self._clock, self._seconds, self._start_s = clock, seconds, start_s

    def generate(self, prompt_ids, **given):
        words = [f"w{token - 5}" for token in prompt_ids if token >= 5]
        self._clock.now += self._start_s + self._seconds[words[0] + words[1]]
        self._start_s = 0.0
        return super().generate(prompt_ids, **given)


@pytest.mark.parametrize("factors", FACTORS)
@pytest.mark.parametrize("warmup", [0, 3])
def test_eval_with_methods_of_different_speed(tmp_path, monkeypatch, clock, factors, warmup):
    rows, seconds = [], [{}, {}, {}]
    for number, (category, times) in enumerate(RECORDED.items()):
        turns = 2 if number < 4 else 1
        for place, found in enumerate(times):
            rows.append((10 * number + place, category, (f"w{number} w{place}", "w39")[:turns]))
            for of, one, factor in zip(seconds, found, factors):
                of[f"w{number}w{place}"] = one * factor / turns
    methods = [
        FakeMethod(name, Recorded(clock, of, start_s=15.0))
        for name, of in zip(("plain", "tree", "chain"), seconds)
    ]
    forecasts = Forecasts(monkeypatch, clock)
    run_fakes(tmp_path, methods, rows=rows, warmup=warmup)
    assert len(forecasts.made["Evaluating 3 methods"]) == 135
    assert forecasts.worst("Evaluating 3 methods") <= 2


def test_every_category_comes_up_in_the_first_round() -> None:
    rows = [(n, "few" if n < 3 else "many", ("w1",)) for n in range(33)]
    asked = [one.category for one in in_turns(make_benchmark(rows).questions)]
    assert [asked[at : at + 11].count("few") for at in (0, 11, 22)] == [1, 1, 1]
    ids = [one.question_id for one in in_turns(make_benchmark(rows).questions) if one.category == "many"]
    assert ids == sorted(ids)
