from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from vocabforge.evaluate.results.intervals import (
    columns_of_mean,
    estimate,
    ratio,
    ratio_of_ratios,
    verdict_of,
)

TRIALS, QUESTIONS = 300, 120
# 300 trials at 95% stay within three or four standard errors (1.3%) of it. What is wrong shows in fewer.
COVERED = (0.9, 0.985)
FEW = 100


def pooled(lengths: np.ndarray, steps: np.ndarray) -> np.ndarray:
    return np.stack([lengths, steps], axis=-1).astype(float)


def speedup(speed: np.ndarray, base: np.ndarray) -> np.ndarray:
    return np.concatenate([columns_of_mean(speed), columns_of_mean(base)], axis=-1)


def test_ratios_divide_by_nothing_as_not_a_number() -> None:
    assert ratio(np.array([[6.0, 3.0], [0.0, 2.0]])).tolist() == [2.0, 0.0]
    assert np.isnan(ratio(np.array([1.0, 0.0])))
    assert ratio_of_ratios(np.array([6.0, 2.0, 3.0, 2.0])) == 2.0
    for sums in ([6, 0, 3, 2], [6, 2, 3, 0], [6, 2, 0, 2]):
        assert np.isnan(ratio_of_ratios(np.array(sums, dtype=float)))


def test_two_questions_have_their_own_figures_as_interval() -> None:
    # A quarter of the resamples holds the one question alone, a quarter the other.
    figure = estimate(pooled(np.array([[30], [20]]), np.array([[10], [10]])), ratio, pooled=True)
    assert (figure.value, figure.low, figure.high) == (2.5, 2.0, 3.0)
    assert figure.sd is None


def test_runs_are_averaged_or_pooled() -> None:
    lengths, steps = np.array([[30, 10], [20, 20]]), np.array([[10, 10], [10, 10]])
    figure = estimate(pooled(lengths, steps), ratio, pooled=True)
    assert figure.value == 80 / 40
    assert figure.sd == pytest.approx(np.sqrt(0.5))  # of 2.5 and 1.5
    speeds, base = np.array([[10.0, 30.0], [20.0, 30.0]]), np.array([[5.0, 10.0], [5.0, 20.0]])
    figure = estimate(speedup(speeds, base), ratio_of_ratios, pooled=False)
    assert figure.value == 2.5  # not 90 / 40
    assert figure.sd == pytest.approx(np.sqrt(0.5))  # of 3 and 2
    # The questions alone: (10 / 5 + 30 / 10) / 2 and (20 / 5 + 30 / 20) / 2.
    assert (figure.low, figure.high) == (2.5, 2.75)


def test_what_is_missing_is_left_out() -> None:
    nan = float("nan")
    speeds = np.array([[10.0, nan], [20.0, nan], [nan, 7.0]])
    figure = estimate(columns_of_mean(speeds), ratio, pooled=False)
    assert figure.value == 11.0  # of 15 and 7
    assert figure.low is not None
    nothing = estimate(columns_of_mean(np.full((4, 2), nan)), ratio, pooled=False)
    assert nothing.model_dump() == dict.fromkeys(("value", "sd", "low", "high"))
    # One question with steps says nothing about how questions differ.
    lone = estimate(pooled(np.array([[30], [0]]), np.array([[10], [0]])), ratio, pooled=True)
    assert (lone.value, lone.low, lone.high) == (3.0, None, None)
    one_run = estimate(columns_of_mean(np.array([[10.0, nan], [20.0, nan]])), ratio, pooled=False)
    assert (one_run.value, one_run.sd) == (15.0, None)


Trial = Callable[[np.random.Generator], tuple[float | None, float | None]]


def coverage(trial: Trial, truth: float, trials: int = TRIALS) -> float:
    generator = np.random.default_rng(8)
    found = [trial(generator) for _ in range(trials)]
    return float(np.mean([low <= truth <= high for low, high in found]))


def draw_accepted(generator: np.random.Generator, questions: int) -> tuple[np.ndarray, np.ndarray]:
    """Sum and number of accepted lengths: easy questions accept more and end in fewer steps."""
    ease = generator.standard_normal(questions)
    steps = np.round(40 * np.exp(-0.3 * ease)) + generator.integers(5, 20, questions)
    lengths = steps * (3 + 0.6 * ease) + np.sqrt(steps) * generator.standard_normal(questions)
    return lengths, steps


def test_accepted_length_is_covered_and_would_not_be_if_steps_were_drawn() -> None:
    lengths, steps = draw_accepted(np.random.default_rng(1), 500_000)
    truth = lengths.sum() / steps.sum()

    def by_questions(generator: np.random.Generator) -> tuple[float | None, float | None]:
        lengths, steps = draw_accepted(generator, QUESTIONS)
        figure = estimate(pooled(lengths, steps)[:, None], ratio, pooled=True)
        return figure.low, figure.high

    def by_steps(generator: np.random.Generator) -> tuple[float, float]:
        # The large-sample interval of independent steps, whose standard deviation is about 1.2.
        lengths, steps = draw_accepted(generator, QUESTIONS)
        middle, half = lengths.sum() / steps.sum(), 1.96 * 1.2 / np.sqrt(steps.sum())
        return middle - half, middle + half

    assert COVERED[0] < coverage(by_questions, truth) < COVERED[1]
    assert coverage(by_steps, truth, FEW) < 0.7


def draw_speeds(generator: np.random.Generator, runs: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """(Q, R) tokens/s of a method and of the baseline; the method is twice as fast, hard questions slow both."""
    common = np.exp(0.4 * generator.standard_normal(QUESTIONS))[:, None]
    noise = 1 + 0.1 * generator.standard_normal((2, QUESTIONS, runs))
    gain = 2 + 0.3 * generator.standard_normal(QUESTIONS)[:, None]
    return 40 * common * gain * noise[0], 40 * common * noise[1]


def test_speedup_is_covered_and_would_be_far_too_wide_unpaired() -> None:
    def paired(generator: np.random.Generator) -> tuple[float | None, float | None]:
        figure = estimate(speedup(*draw_speeds(generator)), ratio_of_ratios, pooled=False)
        return figure.low, figure.high

    def unpaired(generator: np.random.Generator) -> tuple[float | None, float | None]:
        speed, base = draw_speeds(generator)
        mixed = generator.permutation(base, axis=0)
        figure = estimate(speedup(speed, mixed), ratio_of_ratios, pooled=False)
        return figure.low, figure.high

    assert COVERED[0] < coverage(paired, 2.0) < COVERED[1]
    assert coverage(unpaired, 2.0, FEW) > 0.985


def test_where_nothing_differs_a_difference_is_shown_about_once_in_twenty() -> None:
    generator, shown = np.random.default_rng(11), 0
    for _ in range(200):
        hard = generator.normal(100, 20, size=(60, 1))
        sides = [hard + generator.normal(0, 5, size=(60, 1)) for _ in range(2)]
        found = estimate(speedup(*sides), ratio_of_ratios, pooled=False)
        shown += verdict_of(found) != "no difference shown"
    assert 2 <= shown <= 22, "of 200; 10 are expected"
