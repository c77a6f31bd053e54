"""The one transform against the logits processors of transformers and against plain formulas."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from vocabforge.core.errors import DataError
from vocabforge.decode.request import SamplingParams
from vocabforge.decode.sampling import TokenHistory, draft_weights, target_weights

VOCAB = 40
SETTINGS = [
    SamplingParams(temperature, top_k, top_p, min_p, repetition)
    for temperature, top_k, top_p, min_p, repetition in [
        (1.0, 0, 1.0, 0.0, 1.0),
        (0.6, 0, 1.0, 0.0, 1.0),
        (1.0, 7, 1.0, 0.0, 1.0),
        (1.0, 1, 1.0, 0.0, 1.0),
        (1.0, 90, 1.0, 0.0, 1.0),
        (1.0, 0, 0.7, 0.0, 1.0),
        (1.0, 0, 1e-6, 0.0, 1.0),
        (1.0, 0, 1.0, 0.2, 1.0),
        (1.0, 0, 1.0, 1.0, 1.0),
        (1.0, 0, 1.0, 0.0, 1.8),
        (1.0, 0, 1.0, 0.0, 0.5),
        (1.6, 12, 0.8, 0.05, 1.3),
        (0.5, 9, 0.95, 0.1, 1.1),
        (2.5, 5, 0.5, 0.3, 0.7),
    ]
]


def history_of(prompt: list[int], output: list[int], vocab: int = VOCAB) -> TokenHistory:
    history = TokenHistory(prompt, vocab)
    history.add(output)
    return history


def hugging_face(logits: Tensor, sampling: SamplingParams, text: list[int]) -> Tensor:
    from transformers import (
        LogitsProcessorList,
        MinPLogitsWarper,
        RepetitionPenaltyLogitsProcessor,
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )

    steps = LogitsProcessorList(
        [
            RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty),
            TemperatureLogitsWarper(sampling.temperature),
        ]
    )
    if sampling.top_k:
        steps.append(TopKLogitsWarper(sampling.top_k))
    steps.append(TopPLogitsWarper(sampling.top_p))
    steps.append(MinPLogitsWarper(sampling.min_p))
    return steps(torch.tensor([text]), logits[None].clone()).softmax(-1)[0]


@pytest.mark.parametrize("sampling", SETTINGS, ids=str)
def test_weights_are_those_of_transformers(sampling: SamplingParams) -> None:
    prompt, output = [3, 3, 9, 17], [5, 9, 21, 5]
    for seed in range(40):
        torch.manual_seed(seed)
        logits = torch.randn(VOCAB) * 3
        weights = target_weights(logits, sampling, history_of(prompt, output), [])
        expected = hugging_face(logits, sampling, prompt + output)
        assert weights.dtype == np.float64
        assert (weights > 0).tolist() == (expected > 0).tolist()
        np.testing.assert_allclose(weights / weights.sum(), expected.numpy(), atol=2e-6)


def test_tiny_temperatures_are_greedy_and_finite() -> None:
    for temperature in (1e-6, 1e-30, 1e-44, 1e-300, 5e-324):
        sampling = SamplingParams(temperature)
        assert draft_weights(torch.tensor([3.0, 1.0, 2.999]), sampling).tolist() == [1.0, 0.0, 0.0]
        assert draft_weights(torch.tensor([2.0, -torch.inf, 2.0]), sampling).tolist() == [1.0, 0.0, 1.0]


def test_infinite_logits_share_all_of_the_weight() -> None:
    logits = torch.tensor([1.0, torch.inf, -torch.inf, torch.inf])
    assert draft_weights(logits, SamplingParams(0.8)).tolist() == [0.0, 1.0, 0.0, 1.0]
    assert draft_weights(logits, SamplingParams(0.8, top_k=1)).tolist() == [0.0, 1.0, 0.0, 0.0]
    assert draft_weights(logits, SamplingParams()).tolist() == [0.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    "sampling", [SamplingParams(), SamplingParams(1.0), SamplingParams(0.7, 3, 0.9, 0.1, 1.2)]
)
def test_logits_that_are_no_distribution_are_one_clear_error(sampling: SamplingParams) -> None:
    broken = torch.randn(VOCAB)
    broken[17] = torch.nan
    for logits in (broken, torch.full((VOCAB,), torch.nan), torch.full((VOCAB,), -torch.inf)):
        with pytest.raises(DataError, match="the target's logits hold no largest number") as error:
            target_weights(logits, sampling, history_of([1, 2, 3], [4, 5]), [6])
        assert "for token 6 (from 0)" in str(error.value)
        with pytest.raises(DataError, match="the drafter's logits"):
            draft_weights(logits.numpy(), sampling)
