"""How fast a drafter trains and how much memory it takes, against the plain formulas in the same run.

A step is all of it: the target's pass, the unroll, the vocabulary loss, backward pass, clipping and optimiser. The
variants take turns, round after round; figures are medians.
"""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from ..capture.online import CapturedBatch
from ..core.config import Positive, StrictModel, apply_overrides, parse_config
from ..core.progress import ProgressBar
from ..models.device import choose_device
from ..models.drafters import drafter_sizes, new_drafter
from ..models.target import HFTarget
from ..train.config import OptimConfig
from ..train.optim import make_optimizer
from ..train.step import StepSettings, TrainStep
from ..train.ttt import rows_by_step
from ..train.vocab_loss import LossOptions, vocab_loss
from ..train.vocab_loss_terms import LossInputs
from .tensor_memory import TensorMemory
from .training_shapes import CPU_SHAPES, CUDA_SHAPES, Shape, find_shape, random_rows, random_target

_MB = 1e6


class TrainingBenchConfig(StrictModel):
    """Settings of ``vocabforge bench training``, given as ``key=value``.

    Attributes:
        shapes: rows of ``evaluate/training_shapes.py``; None takes those that suit the device.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        batch, length, loss_rows: in the place of the shape's own.
        steps: the same, K of the training-time test (not optimiser steps).
        weights: of the drafter, as ``memory.weights``.
        chunk_mb: workspace of the fused loss, MiB.
        threads: of a CPU; None leaves them as they are.
    """

    shapes: tuple[str, ...] | None = None
    device: str = "auto"
    batch: Positive | None = None
    length: Positive | None = None
    steps: Positive | None = None
    loss_rows: Positive | None = None
    weights: Literal["fp32", "bf16"] = "fp32"
    chunk_mb: Positive = 256
    threads: Positive | None = None


@dataclass(frozen=True)
class Variant:
    """What is compared: implementations of loss and attention, and activation checkpointing."""

    loss: str
    attention: str
    checkpointing: bool = False


@dataclass(frozen=True)
class Measured:
    """One variant's figures; None where the memory did not suffice.

    Attributes:
        seconds: median of the rounds; ``all_seconds`` are the rounds.
        extra_mb: highest memory above what was held before, megabytes: allocated on CUDA, on a CPU the tensors
            that live at once.
        peak_mb: highest allocated memory on CUDA, with weights and optimiser state.
        tokens_per_s: tokens of the rows (target's pass included) a second.
    """

    seconds: float | None
    all_seconds: Sequence[float]
    extra_mb: float | None
    peak_mb: float | None = None
    tokens_per_s: float | None = None


def bench_training(settings: Sequence[str] = (), *, repeats: int = 3) -> dict[str, Any]:
    """Measure whole training steps and the vocabulary loss alone at each shape.

    Args:
        settings: ``key=value`` of :class:`TrainingBenchConfig`.
        repeats: rounds, after one that does not count.

    Returns:
        plain JSON: device, versions, and for every shape rows of ``step`` and ``loss``.

    Raises:
        UsageError: an unknown shape or device; ConfigError: an unknown setting.
    """
    config = parse_config(TrainingBenchConfig, apply_overrides({}, settings), source="the command line")
    device = choose_device(config.device)
    names = config.shapes or (CUDA_SHAPES if device.type == "cuda" else CPU_SHAPES)
    shapes = {name: _adjusted(find_shape(name), config) for name in names}
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(config.threads or threads)
        return _measure(shapes, config, device, repeats)
    finally:
        torch.set_num_threads(threads)


def _measure(
    shapes: Mapping[str, Shape], config: TrainingBenchConfig, device: torch.device, repeats: int
) -> dict[str, Any]:
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "repeats": repeats,
        "weights": config.weights,
        "chunk_mb": config.chunk_mb,
        "shapes": [
            {"name": name} | _measure_shape(name, shape, config, device, repeats)
            for name, shape in shapes.items()
        ],
    }


def _adjusted(shape: Shape, config: TrainingBenchConfig) -> Shape:
    wishes = {key: getattr(config, key) for key in ("batch", "length", "steps", "loss_rows")}
    return dataclasses.replace(shape, **{key: value for key, value in wishes.items() if value is not None})


def _measure_shape(
    name: str, shape: Shape, config: TrainingBenchConfig, device: torch.device, repeats: int
) -> dict[str, Any]:
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    target = random_target(shape, device, dtype)
    blocks = "flex" if device.type == "cuda" else "merged"
    variants = [Variant(loss, attention) for loss in ("fused", "naive") for attention in (blocks, "eager")]
    variants.insert(1, Variant("fused", blocks, checkpointing=True))
    make = _training(shape, target, config, device)
    steps: dict[Any, Callable[[], None]] = {variant: make(variant) for variant in variants}
    losses: dict[Any, Callable[[], None]] = {
        impl: _loss_alone(shape, target, impl, config.chunk_mb) for impl in ("fused", "naive")
    }
    tokens = shape.batch * shape.length
    return {
        "vocab": target.vocab_size,
        "batch": shape.batch,
        "length": shape.length,
        "steps": shape.steps,
        "loss_rows": shape.loss_rows,
        "step": [
            vars(variant) | vars(_with_rate(row, tokens))
            for variant, row in _take_turns(f"{name}, steps", steps, device, repeats).items()
        ],
        "loss": [
            {"impl": impl} | vars(row)
            for impl, row in _take_turns(f"{name}, loss", losses, device, repeats).items()
        ],
    }


def _with_rate(row: Measured, tokens: int) -> Measured:
    return dataclasses.replace(row, tokens_per_s=None if row.seconds is None else tokens / row.seconds)


def _training(
    shape: Shape, target: HFTarget, config: TrainingBenchConfig, device: torch.device
) -> Callable[[Variant], Callable[[], None]]:
    """Makes, for a variant, a function that does one training step; all share one drafter and optimiser."""
    torch.manual_seed(1)
    sizes = drafter_sizes("eagle3", target.model.config.to_dict())
    with torch.device(device):
        drafter = new_drafter("eagle3", sizes, target.embedding, target.head_weight).to(device)
    parameters = [p for p in drafter.parameters() if p.requires_grad]
    low = config.weights == "bf16"
    optimizer = make_optimizer(parameters, OptimConfig(steps=1), lower=torch.bfloat16 if low else None)
    rows = random_rows(shape, device, 0)
    counted = rows_by_step(rows.loss_mask, rows.document, shape.steps)

    def steps_of(variant: Variant) -> Callable[[], None]:
        settings = StepSettings(
            decay=0.8,
            attention=variant.attention,
            checkpointing=variant.checkpointing,
            loss=LossOptions(variant.loss, config.chunk_mb),  # type: ignore[arg-type]
        )
        module = TrainStep(drafter, nn.ModuleDict(), target.head_weight, settings)

        def step() -> None:
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=low or device.type == "cuda"):
                states = target.capture(rows.input_ids, rows.position, rows.document)
                batch = CapturedBatch(**vars(rows), features=states.features, hidden=states.hidden)
                loss = module(batch, shape.steps, counted)[0]
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, 0.5)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        return step

    return steps_of


def _loss_alone(shape: Shape, target: HFTarget, impl: str, chunk_mb: int) -> Callable[[], None]:
    """The vocabulary loss with its backward pass, one teacher a row."""
    head = target.head_weight
    draft, teacher = (
        torch.randn(shape.loss_rows, head.shape[1], device=head.device).to(head.dtype) for _ in "ab"
    )
    draft.requires_grad_()
    weight = torch.full((shape.loss_rows,), 1 / shape.loss_rows, device=head.device)
    row = torch.arange(shape.loss_rows, device=head.device)
    options = LossOptions(impl, chunk_mb)  # type: ignore[arg-type]

    def run() -> None:
        result = vocab_loss(LossInputs(draft, head, teacher, row, head, None, weight), options)
        result.total.backward()
        draft.grad = None

    return run


def _take_turns(
    label: str, runs: Mapping[Any, Callable[[], None]], device: torch.device, repeats: int
) -> dict[Any, Measured]:
    """Memory in a first round, then ``repeats`` timed rounds in which everyone has a turn."""
    memory: dict[Any, tuple[float, float | None]] = {}
    seconds: dict[Any, list[float]] = {key: [] for key in runs}
    with ProgressBar(label, len(runs) * (repeats + 2), "runs") as bar:
        for key, run in runs.items():
            with _enough_memory():
                run()  # makes and compiles what later runs find
                memory[key] = _memory_of(run, device)
            bar.update(2)
        for _ in range(repeats):
            for key, run in runs.items():
                if key in memory:
                    seconds[key].append(_seconds(run, device))
                bar.update(1)
    return {
        key: Measured(statistics.median(seconds[key]), seconds[key], *memory[key])
        if key in memory
        else Measured(None, (), None)
        for key in runs
    }


@contextlib.contextmanager
def _enough_memory() -> Iterator[None]:
    """A variant that does not fit is reported as such, and the others go on."""
    try:
        yield
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()


def _seconds(run: Callable[[], None], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def _memory_of(run: Callable[[], None], device: torch.device) -> tuple[float, float | None]:
    """Megabytes above what is held before, and on CUDA the highest in all."""
    if device.type != "cuda":
        with TensorMemory() as counted:
            run()
        return counted.peak / _MB, None
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    run()
    torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_allocated(device)
    return (peak - before) / _MB, peak / _MB
