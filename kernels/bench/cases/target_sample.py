"""Benchmark of ``target_sample``: the sampling transform and a draw for each node of a tree."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from vocabforge.ops.target_sample import (
    target_sample,
    target_sample_reference,
    target_weights_of,
    target_weights_reference,
)

from .types import Inputs, LibraryWay, ModelShape, OpCase, case_of_op, integers, normal

SETTINGS: Mapping[str, tuple[float, int, float, float]] = {  # temperature, top-k, top-p, min-p
    "temperature": (0.8, 0, 1.0, 0.0),
    "top-p": (0.8, 0, 0.95, 0.0),
    "top-k top-p min-p": (0.8, 50, 0.95, 0.02),
}


def cases(shape: ModelShape) -> list[OpCase]:
    """Return cases for one row and a verified tree under each transform, and for distributions alone."""
    made = [_case(shape, rows, kind) for kind in SETTINGS for rows in sorted({1, shape.nodes})]
    return [*made, _distributions(shape)]


def _inputs(
    shape: ModelShape, rows: int, kind: str, random: torch.Generator, dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    names = ("temperature", "top_k", "top_p", "min_p")
    settings = {
        name: torch.full(
            (rows,), value, dtype=torch.int64 if name == "top_k" else torch.float64, device=random.device
        )
        for name, value in zip(names, SETTINGS[kind])
    }
    return {"logits": normal((rows, shape.vocab), random, dtype, 3.0), **settings}


def _case(shape: ModelShape, rows: int, kind: str) -> OpCase:
    def make(random: torch.Generator, dtype: torch.dtype) -> Inputs:
        streams = integers(2**31, (2, rows), random)
        return _inputs(shape, rows, kind, random, dtype) | {"seeds": streams[0], "draws": streams[1]}

    def plain(inputs: Inputs) -> torch.Tensor:
        """Sample in torch, without top-k, top-p and min-p."""
        distribution = (inputs["logits"].float() / inputs["temperature"][:, None].float()).softmax(-1)
        return torch.multinomial(distribution, 1)

    def floor(inputs: Inputs) -> float:
        return float(rows * shape.vocab * inputs["logits"].element_size() + 57 * rows)

    return case_of_op(
        target_sample,
        target_sample_reference,
        name=f"R={rows} {kind}",
        sizes={"R": rows, "V": shape.vocab},
        make=make,
        floor_bytes=floor,
        baselines={"softmax and multinomial": plain},
        tolerance=0.0,
        dtypes=(torch.float32, torch.bfloat16, torch.float16),
        libraries={}
        if kind == "temperature"
        else {"FlashInfer": LibraryWay("flashinfer", _flashinfer, check=_in_support)},
    )


def _flashinfer(inputs: Inputs) -> Callable[[], torch.Tensor]:
    """Chain FlashInfer's ops as servers do: softmax, top-k, then top-p (and min-p) and the draw."""
    from flashinfer import sampling

    logits, top_k = inputs["logits"].float(), inputs["top_k"].int()
    temperature, top_p, min_p = (inputs[name].float() for name in ("temperature", "top_p", "min_p"))
    random = {
        "seed": inputs["seeds"],
        "offset": inputs["draws"],
    }  # on the device, so the call can be captured
    ranked, floored = bool(top_k.any()), bool(min_p.any())

    def draw() -> torch.Tensor:
        distribution = sampling.softmax(logits, temperature=temperature)
        distribution = sampling.top_k_renorm_probs(distribution, top_k) if ranked else distribution
        if not floored:
            return sampling.top_p_sampling_from_probs(distribution, top_p, **random)
        return sampling.min_p_sampling_from_probs(
            sampling.top_p_renorm_probs(distribution, top_p), min_p, **random
        )

    return draw


_SLACK = 1e-4  # tolerance of mass shares, which other libraries sum in fp32


def _in_support(
    inputs: Inputs, got: tuple[torch.Tensor, ...], expected: tuple[torch.Tensor, ...]
) -> str | None:
    """Check that every token is possible: another random stream draws other tokens."""
    top_p, min_p = (inputs["top_p"] + _SLACK).clamp(max=1.0), inputs["min_p"] * (1.0 - _SLACK)
    distribution = target_weights_reference(
        inputs["logits"], inputs["temperature"], inputs["top_k"], top_p, min_p
    )
    token = got[0].long()
    if token.shape != expected[0].shape or int(token.min()) < 0 or int(token.max()) >= distribution.shape[1]:
        return "no token of the vocabulary for each row"
    outside = int((distribution.gather(1, token[:, None]) == 0).sum())
    return (
        f"{outside} of {len(token)} tokens outside of what top-k, top-p and min-p leave" if outside else None
    )


def _distributions(shape: ModelShape) -> OpCase:
    rows, vocab = shape.nodes, shape.vocab

    def make(random: torch.Generator, dtype: torch.dtype) -> Inputs:
        return _inputs(shape, rows, "temperature", random, dtype)

    def floor(inputs: Inputs) -> float:
        return float(rows * vocab * (inputs["logits"].element_size() + 4) + 32 * rows)

    return case_of_op(
        target_weights_of,
        target_weights_reference,
        name=f"R={rows}",
        sizes={"R": rows, "V": vocab},
        make=make,
        floor_bytes=floor,
        baselines={"softmax": lambda inputs: inputs["logits"].float().softmax(-1)},
        tolerance=1e-7,
        dtypes=(torch.float32, torch.bfloat16, torch.float16),
    )
