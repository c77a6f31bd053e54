"""The training steps of a small target, from the newest checkpoint to the last one."""

from __future__ import annotations

import contextlib
import itertools
import math
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..core.errors import DataError, MismatchError
from ..core.metrics_log import MetricsLog
from ..core.progress import ProgressBar, say
from . import checkpoint as checkpoints
from .candidates import CandidateSampler
from .checkpoint import restore_state, state_of
from .data import corpus_counts
from .machine import StopFlag, stop_requested
from .optim import learning_rate, make_optimizer, set_learning_rate
from .tiny_target_config import TinyTargetConfig
from .tiny_target_loss import batch_loss, candidate_loss
from .tiny_target_rows import Batch, Rows, batches

Counts = npt.NDArray[np.int64]
METRICS = "metrics.jsonl"
_LOG_EVERY, _KEEP, _RECENT = 10, 2, 20


def passes_in_bf16(mixed_precision: str, device: torch.device) -> bool:
    """Whether passes are in bf16; ``auto`` asks for CUDA, or for a CPU with AMX: others are slow at it."""
    if mixed_precision != "auto":
        return mixed_precision == "bf16"
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported()
    capabilities: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(capabilities.get("amx_bf16"))


@dataclass(frozen=True)
class WorkFolder:
    """What a run keeps until its target is finished.

    Attributes:
        path: folder beside the output.
        identity: settings and input hashes that a resumed run must share.
    """

    path: Path
    identity: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def beside(cls, output: Path, identity: dict[str, Any] | None = None) -> WorkFolder:
        """The folder of an output."""
        return cls(output.with_name(f"{output.name}.checkpoints"), identity or {})

    @property
    def rows(self) -> Path:
        """Cache of packed rows."""
        return self.path / "rows"

    @property
    def steps(self) -> Path:
        """Checkpoints."""
        return self.path / "steps"

    @property
    def metrics(self) -> Path:
        """Log of figures."""
        return self.path / METRICS

    def remove(self) -> None:
        """Remove what a finished run needs no more; what others put there stays."""
        checkpoints.discard(self.steps)
        shutil.rmtree(self.rows, ignore_errors=True)
        self.metrics.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.path.rmdir()


@dataclass
class Losses:
    """What is remembered of the steps' losses: the first one, and the last 20."""

    first: float = math.nan
    recent: list[float] = field(default_factory=list)

    def add(self, value: float) -> None:
        """The loss of the next step, in nats a token."""
        self.first = value if math.isnan(self.first) else self.first
        self.recent = [*self.recent[1 - _RECENT :], value]

    @property
    def mean(self) -> float:
        """Of the last 20."""
        return sum(self.recent) / len(self.recent)


class _Step(Protocol):
    """One optimiser step: its number and its batch on the CPU -> loss and norm of the gradient, on the device."""

    def __call__(self, step: int, batch: Batch) -> tuple[Tensor, Tensor]: ...


@dataclass
class _Exact:
    """Loss over all V tokens."""

    model: Any
    optimizer: torch.optim.Optimizer
    clip: float
    bf16: bool

    def __call__(self, step: int, batch: Batch) -> tuple[Tensor, Tensor]:
        device = self.model.device
        with torch.autocast(device.type, torch.bfloat16, enabled=self.bf16):
            loss, _ = batch_loss(self.model, batch.to(device))
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach(), norm


class _Sampled:
    """Loss on the candidates of the step.

    The table's gradient is one (V, H) tensor for the whole run: a step writes the rows of its candidates and clears
    them again, so that nothing V wide is made, filled or clipped. AdamW alone reads all of it.

    Ids that never occur are drawn a few times in a run, too seldom to be unlearnt one by one, and a hundred thousand of
    them together hold much of the mass. Their gradients hardly differ, so all of them take the estimate of the mean.

    Args:
        counts: (V,) how often each id occurs.
    """

    def __init__(self, exact: _Exact, sampler: CandidateSampler, counts: Counts) -> None:
        self._exact, self._sampler = exact, sampler
        self._table = exact.model.get_input_embeddings().weight  # (V, H), the LM head, too
        self._gradient = torch.zeros_like(self._table)
        self._never = torch.from_numpy(counts == 0).to(self._table.device)  # (V,)
        self._never_ids = self._never.nonzero()[:, 0]
        self._others = [p for p in exact.model.parameters() if p is not self._table]

    def __call__(self, step: int, batch: Batch) -> tuple[Tensor, Tensor]:
        own, device = self._exact, self._table.device
        candidates = self._sampler.draw(step, batch.input_ids, device)
        rows = self._table.detach().index_select(0, candidates.ids).requires_grad_()  # (C, H)
        with torch.autocast(device.type, torch.bfloat16, enabled=own.bf16):
            loss = candidate_loss(own.model, batch.to(device), rows, candidates, bf16=own.bf16)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_([*self._others, rows], own.clip)
        assert rows.grad is not None
        self._table.grad = self._gradient.index_copy_(0, candidates.ids, rows.grad)
        if len(self._never_ids):
            together = rows.grad[self._never[candidates.ids]].sum(0) / len(self._never_ids)  # (H,)
            self._gradient.index_copy_(0, self._never_ids, together.expand(len(self._never_ids), -1))
        own.optimizer.step()
        own.optimizer.zero_grad(set_to_none=True)
        self._gradient.index_fill_(0, candidates.ids, 0.0)
        return loss.detach(), norm


def train_model(
    model: Any, rows: Rows, config: TinyTargetConfig, log: Path, work: WorkFolder | None
) -> Losses:
    """Run all steps, from the newest checkpoint of ``work`` if there is one.

    Args:
        model: on its device; it is trained in place.
        log: of figures, one line every ten steps.
        work: where checkpoints are kept; None keeps none.

    Raises:
        DataError: a loss that is not finite.
        MismatchError: the checkpoints are of other settings or inputs.
        UsageError: more candidates than rows.
    """
    optim, device = config.optim, model.device
    optimizer = make_optimizer(model.parameters(), optim)
    exact = _Exact(model, optimizer, optim.clip, passes_in_bf16(config.mixed_precision, device))
    take: _Step = exact
    if config.candidates is not None:
        table = len(model.get_input_embeddings().weight)
        counts = corpus_counts(rows.packed, table)
        sampler = CandidateSampler(counts, config.candidates, table, config.seed)
        take = _Sampled(exact, sampler, counts)
    start, losses = (0, Losses()) if work is None else _resume(work, model, optimizer, optim.steps)
    run = _Run(model, optimizer, config, MetricsLog(log, keep_until=start), losses, work)
    tokens = optim.batch_size * rows.length
    chosen = itertools.islice(batches(len(rows), optim, config.seed), start, None)
    with (
        _stopping(work) as stop,
        ProgressBar("Training the target", optim.steps * tokens, "tokens", initial=start * tokens) as bar,
    ):
        for step, numbers in enumerate(chosen, start):
            set_learning_rate(optimizer, learning_rate(step, optim))
            run.took(step + 1, *take(step, rows.batch(numbers)), stopping=bool(stop))
            bar.update(tokens, note=f"loss {losses.mean:.3f}" if losses.recent else None)
            if stop and step + 1 < optim.steps:
                say(f"Stopped at step {step + 1}; the same command goes on from there.")
                raise KeyboardInterrupt
    return losses


@dataclass
class _Run:
    """What is done between two steps: figures and checkpoints."""

    model: Any
    optimizer: torch.optim.Optimizer
    config: TinyTargetConfig
    log: MetricsLog
    losses: Losses
    work: WorkFolder | None
    # Losses stay on the device until they are read: reading waits for it.
    _waiting: list[Tensor] = field(default_factory=list)

    def took(self, done: int, loss: Tensor, norm: Tensor, *, stopping: bool) -> None:
        """Step number ``done`` is behind us."""
        optim, every = self.config.optim, self.config.checkpoint_every
        self._waiting.append(loss)
        last = done == optim.steps
        keeps = self.work is not None and every is not None and (stopping or last or done % every == 0)
        logs = last or done % _LOG_EVERY == 0
        if not (keeps or logs or loss.device.type == "cpu"):
            return
        self._read(done)
        if logs:
            rate = learning_rate(done - 1, optim)
            self.log.write(kind="train", step=done, lr=rate, loss=self.losses.mean, grad_norm=float(norm))
        if keeps:
            self._keep(done)

    def _read(self, done: int) -> None:
        values = torch.stack(self._waiting).tolist()
        for at, value in enumerate(values, done - len(values) + 1):
            if not math.isfinite(value):
                raise DataError(
                    "the training loss is not finite",
                    got=f"{value} at step {at}",
                    remedy="lower optim.lr; the last checkpoint, if there is one, is intact",
                )
            self.losses.add(value)
        self._waiting.clear()

    def _keep(self, done: int) -> None:
        assert self.work is not None
        facts = {"first": self.losses.first, "recent": self.losses.recent}
        state = state_of(self.model, self.optimizer, facts)
        checkpoints.save_checkpoint(self.work.steps, done, state, self.work.identity, _KEEP)


@contextlib.contextmanager
def _stopping(work: WorkFolder | None) -> Iterator[StopFlag]:
    """Where nothing is kept, a signal simply ends the run."""
    if work is None:
        yield StopFlag()
        return
    with stop_requested() as flag:
        yield flag


def _resume(work: WorkFolder, model: Any, optimizer: torch.optim.Optimizer, steps: int) -> tuple[int, Losses]:
    checkpoints.remove_remains(work.steps)
    try:
        found = checkpoints.load_latest(work.steps, work.identity)
    except MismatchError as error:
        raise MismatchError(
            error.message,
            got=error.got,
            expected=error.expected,
            source=error.source,
            remedy=f"undo the change, or remove {work.path} to begin again",
        ) from error
    if found is None:
        return 0, Losses()
    step, state = found
    restore_state(model, optimizer, state)
    say(f"Resuming at step {step} of {steps} ({work.steps})")
    return step, Losses(**state.facts)
