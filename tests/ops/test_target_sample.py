"""The target's sampled choice: the same tokens as the decoder's own sampling, and the same bits everywhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.decode.probability import p_value
from vocabforge.decode.request import SamplingParams
from vocabforge.decode.sampling import SeededChance, TokenHistory, target_weights
from vocabforge.ops.target_sample import target_sample, target_weights_of

INF, NAN = float("inf"), float("nan")
ROUNDING = 1e-6  # numpy's fp32 exponential is off by a few units in the last place
TRANSFORMS = [
    SamplingParams(0.0),
    SamplingParams(1.0),
    SamplingParams(0.7, top_k=5),
    SamplingParams(1.3, top_p=0.9),
    SamplingParams(0.9, top_k=20, top_p=0.8, min_p=0.02),
    SamplingParams(1.0, min_p=0.2),
    SamplingParams(2.0, top_k=1),
    SamplingParams(1.0, top_p=1e-9),
    SamplingParams(1e-3, top_p=0.5),
    SamplingParams(5.0, top_k=3000, top_p=0.999),
    SamplingParams(0.5, min_p=1.0),
]


def logits_of(vocab: int, kind: str, rows: int, seed: int) -> Tensor:
    """Random rows; ``ties`` has few different scores, so that all borders fall among equals."""
    stream = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, vocab, generator=stream) * 3
    if kind == "ties":
        logits = (logits / 2).round() * 0.5
    if kind == "flat":
        logits = torch.where(logits > 0, 0.0, -0.0)
    if kind == "infinite":
        logits[0, vocab // 2 :], logits[-1, ::3] = INF, -INF
    return logits


def odd_rows(vocab: int) -> Tensor:
    """NaN, nothing above -inf, one finite number, huge ones, an infinite one."""
    logits = torch.randn(6, vocab, generator=torch.Generator().manual_seed(1))
    logits[0, vocab // 3], logits[1], logits[2] = NAN, -INF, -INF
    logits[2, -1] = -3e38
    logits[3] *= 1e38
    logits[4, 0] = INF
    return logits


def tensors(settings: list[SamplingParams], device: str = "cpu") -> tuple[Tensor, Tensor, Tensor, Tensor]:
    def column(name: str, dtype: torch.dtype) -> Tensor:
        return torch.tensor([getattr(one, name) for one in settings], dtype=dtype, device=device)

    fp64 = torch.float64
    return (
        column("temperature", fp64),
        column("top_k", torch.int64),
        column("top_p", fp64),
        column("min_p", fp64),
    )


def agree(logits: Tensor, settings: list[SamplingParams], backend: str) -> None:
    rows = len(logits)
    given = (logits, *tensors(settings, logits.device.type))
    streams = torch.arange(rows, device=logits.device) * 2**40, torch.arange(rows, device=logits.device) * 3
    assert torch.equal(
        target_weights_of(*given, backend=backend), target_weights_of(*given, backend="reference")
    )
    for ours, theirs in zip(
        target_sample(*given, *streams, backend=backend), target_sample(*given, *streams, backend="reference")
    ):
        assert torch.equal(ours, theirs)


def numpy_weights(row: Tensor, settings: SamplingParams) -> np.ndarray:
    return target_weights(row, settings, TokenHistory([0], len(row)), [])


def cut_gap(row: Tensor, settings: SamplingParams) -> float:
    """How near to a border of top-p the mass of some number of tokens comes, or a weight to min-p."""
    before = numpy_weights(row, SamplingParams(settings.temperature, top_k=settings.top_k))
    heights = np.sort(before)[::-1].cumsum()
    gaps = [1.0]
    if settings.top_p < 1:
        gaps.append(float(np.abs(heights / heights[-1] - settings.top_p).min()))
    if settings.min_p > 0:
        gaps.append(float(np.abs(before - settings.min_p).min()))
    return min(gaps)


@pytest.mark.parametrize("kind", ["plain", "ties", "flat", "infinite"])
@pytest.mark.parametrize("vocab", [3, 50, 5000])
def test_weights_are_those_of_the_decoder(vocab: int, kind: str) -> None:
    for settings in TRANSFORMS:
        logits = logits_of(vocab, kind, 4, seed=vocab)
        got = target_weights_of(logits, *tensors([settings] * 4)).double().numpy()
        for row, ours in zip(logits, got):
            theirs = numpy_weights(row, settings)
            if ((ours > 0) != (theirs > 0)).any():
                assert cut_gap(row, settings) < ROUNDING, settings
                continue
            np.testing.assert_allclose(ours, theirs, rtol=ROUNDING, atol=1e-44)


@pytest.mark.parametrize("kind", ["plain", "ties"])
@pytest.mark.parametrize("vocab", [5, 300])
def test_tokens_are_those_of_the_decoder(vocab: int, kind: str) -> None:
    """Equal, but for numbers that lie within rounding of the border between two tokens."""
    rows, differ = 300, 0
    for settings in TRANSFORMS:
        logits = logits_of(vocab, kind, 1, seed=vocab)
        weights = numpy_weights(logits[0], settings)
        seeds = torch.arange(rows) * 12_345_678_912_345
        places = torch.arange(rows) % 4
        ours, valid = target_sample(logits.expand(rows, -1), *tensors([settings] * rows), seeds, places)
        assert bool(valid.all())
        heights = weights.cumsum() / weights.sum()
        for seed, place, token in zip(seeds.tolist(), places.tolist(), ours.tolist()):
            chance = SeededChance(seed)
            numbers = [chance._uniform() for _ in range(place + 1)]
            chance._uniform = lambda number=numbers[-1]: number  # type: ignore[method-assign, assignment, misc]
            if token != chance.draw(weights):
                differ += 1
                gap = min(abs(numbers[-1] - heights).min(), cut_gap(logits[0], settings))
                assert gap < ROUNDING, (settings, seed, gap)
    assert differ < rows // 20


def test_an_infinite_logit_and_unlawful_rows() -> None:
    logits = odd_rows(12)
    given = (logits, *tensors([SamplingParams(1.0)] * 6))
    weights = target_weights_of(*given)
    choices, valid = target_sample(*given, torch.arange(6), torch.arange(6))
    assert valid.tolist() == [False, False, True, True, True, True]
    assert weights.sum(1)[:3].tolist() == [0.0, 0.0, 1.0]
    assert weights[4].tolist() == [1.0] + [0.0] * 11
    assert choices[2:5].tolist() == [11, int(logits[3].argmax()), 0]


@pytest.mark.parametrize("number", [0.0, 1 - 2**-53])
def test_the_ends_of_the_unit_interval(number: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first and the last token of weight above 0, never one of weight 0."""
    monkeypatch.setattr(
        "vocabforge.ops.target_sample.philox_uniform",
        lambda seeds, _: torch.full(seeds.shape, number, dtype=torch.float64),
    )
    for seed in range(50):
        logits = torch.full((1, 9), -INF)
        logits[0, 2:6] = torch.randn(4, generator=torch.Generator().manual_seed(seed))
        choices, _ = target_sample(
            logits, *tensors([SamplingParams(1.0)]), torch.zeros(1).long(), torch.zeros(1).long()
        )
        assert choices.tolist() == [2 if number == 0.0 else 5]


EMULATED = [
    (1, "plain", TRANSFORMS[:1] + TRANSFORMS[4:5], torch.float32),
    (7, "ties", TRANSFORMS[2:5] + TRANSFORMS[-1:], torch.bfloat16),
    (7, "infinite", TRANSFORMS[3:5], torch.float16),
    (50, "flat", TRANSFORMS[2:4], torch.float32),
    (5000, "ties", TRANSFORMS[4:6], torch.float32),
    (5000, "flat", TRANSFORMS[9:10], torch.bfloat16),  # more tokens in the border's bin than are listed
    (33_000, "plain", TRANSFORMS[3:5] + TRANSFORMS[9:10], torch.float32),  # several blocks a row
    (33_000, "flat", TRANSFORMS[3:4], torch.float16),
]


@pytest.mark.parametrize("case", EMULATED, ids=lambda case: f"{case[1]} {case[0]}")
def test_emulated_kernels_equal_the_reference(
    emulated: Callable[[str], None],
    schedule: int,
    monkeypatch: pytest.MonkeyPatch,
    case: tuple[int, str, list[SamplingParams], torch.dtype],
) -> None:
    emulated("target_sample")
    monkeypatch.setenv("VOCABFORGE_EMULATED_SMS", "16")
    vocab, kind, settings, dtype = case
    agree(logits_of(vocab, kind, len(settings), seed=schedule).to(dtype), settings, "emulated")


def test_emulated_kernels_on_odd_rows(emulated: Callable[[str], None]) -> None:
    emulated("target_sample")
    agree(odd_rows(7), [SamplingParams(1.0, top_k=2, top_p=0.9)] * 6, "emulated")


def test_cpu_implementation_equals_the_reference(native_cpu: None) -> None:
    for vocab in (1, 7, 5000):
        for kind in ("plain", "ties", "flat", "infinite"):
            agree(logits_of(vocab, kind, len(TRANSFORMS), seed=3), TRANSFORMS, "native")
    agree(odd_rows(9), [SamplingParams(1.0, top_k=2, top_p=0.9)] * 6, "native")
    agree(odd_rows(9).half(), TRANSFORMS[:6], "native")


def check_distribution(rows: int, backend: str) -> None:
    """Draws of many streams against the distribution, by a chi-square test."""
    settings = SamplingParams(0.8, top_k=4)
    logits = torch.tensor([[0.3, 1.0, -0.5, 1.0, 0.9, 0.3]]).expand(rows, -1)
    given = (*tensors([settings] * rows), torch.arange(rows), torch.full((rows,), 7))
    choices, _ = target_sample(logits, *given, backend=backend)
    weights = numpy_weights(logits[0], settings)
    distribution = dict(enumerate((weights / weights.sum()).tolist()))
    assert [distribution[i] > 0 for i in range(6)] == [True, True, False, True, True, False]
    assert p_value(Counter(choices.tolist()), distribution) > 1e-4


def test_draws_follow_the_distribution() -> None:
    check_distribution(20_000, "reference")


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["plain", "ties", "flat", "infinite"])
@pytest.mark.parametrize("vocab", [1, 7, 5000, 128_256, 151_936])
def test_cuda_kernels_equal_the_reference(native_cuda: None, vocab: int, kind: str) -> None:
    agree(logits_of(vocab, kind, len(TRANSFORMS), seed=vocab).cuda(), TRANSFORMS, "native")
