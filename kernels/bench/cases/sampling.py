"""Benchmarks of the target's choices: the largest logit, or a draw after temperature, top-k, top-p and min-p."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from vocabforge.ops.target_choice import target_choice, target_choice_reference
from vocabforge.ops.target_sample import (
    target_sample,
    target_sample_reference,
    target_weights_of,
    target_weights_reference,
)

from .types import Inputs, ModelShape, OpCase, case_of_op, integers, normal

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SETTINGS: Mapping[str, tuple[float, int, float, float]] = {  # temperature, top-k, top-p, min-p
    "temperature": (0.8, 0, 1.0, 0.0),
    "top-p": (0.8, 0, 0.95, 0.0),
    "top-k top-p min-p": (0.8, 50, 0.95, 0.02),
}


def choice_cases(shape: ModelShape) -> list[OpCase]:
    rows, vocab = shape.rows, shape.vocab
    case = case_of_op(
        target_choice,
        target_choice_reference,
        name=f"R={rows} V={vocab}",
        make=lambda random, dtype: {"logits": normal((rows, vocab), random, dtype)},
        floor_bytes=lambda inputs: float(inputs["logits"].nbytes + 9 * rows),
        plain=lambda inputs: inputs["logits"].argmax(-1),
        tolerance=0.0,
        dtypes=_DTYPES,
    )
    return [case]


def sample_cases(shape: ModelShape) -> list[OpCase]:
    """Return cases of the rows of a step under each transform, and for distributions alone."""
    rows, vocab = shape.rows, shape.vocab
    distributions = case_of_op(
        target_weights_of,
        target_weights_reference,
        name=f"R={rows} V={vocab}",
        make=lambda random, dtype: _inputs(rows, vocab, "temperature", random, dtype),
        floor_bytes=lambda inputs: float(inputs["logits"].nbytes + 4 * rows * vocab + 32 * rows),
        plain=lambda inputs: inputs["logits"].float().softmax(-1),
        tolerance=1e-7,
        dtypes=_DTYPES,
    )
    return [*(_sample(rows, vocab, kind) for kind in SETTINGS), distributions]


def _inputs(
    rows: int, vocab: int, kind: str, random: torch.Generator, dtype: torch.dtype
) -> dict[str, Tensor]:
    inputs = {"logits": normal((rows, vocab), random, dtype, 3.0)}
    for name, value in zip(("temperature", "top_k", "top_p", "min_p"), SETTINGS[kind]):
        kept = torch.int64 if name == "top_k" else torch.float64
        inputs[name] = torch.full((rows,), value, dtype=kept, device=random.device)
    return inputs


def _sample(rows: int, vocab: int, kind: str) -> OpCase:
    def make(random: torch.Generator, dtype: torch.dtype) -> Inputs:
        streams = integers(2**31, (2, rows), random)
        return _inputs(rows, vocab, kind, random, dtype) | {"seeds": streams[0], "draws": streams[1]}

    def plain(inputs: Inputs) -> Tensor:
        """Sample in torch, without top-k, top-p and min-p."""
        distribution = (inputs["logits"].float() / inputs["temperature"][:, None].float()).softmax(-1)
        return torch.multinomial(distribution, 1)

    return case_of_op(
        target_sample,
        target_sample_reference,
        name=f"R={rows} V={vocab} {kind}",
        make=make,
        floor_bytes=lambda inputs: float(inputs["logits"].nbytes + 57 * rows),
        plain=plain,
        tolerance=0.0,
        dtypes=_DTYPES,
    )
