"""The training loop: capture, unroll, step; look, write, keep."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from ..capture.online import CapturedBatch, OnlineCapture
from ..core.artifact import check_output
from ..core.errors import DataError
from ..core.metrics_log import MetricsLog
from ..core.progress import ProgressBar, human_rate, say
from ..models.drafter_io import save_drafter
from ..models.eagle3 import Eagle3Drafter
from ..models.target import HFTarget
from . import checkpoint as checkpoints
from .config import TrainConfig
from .data import TrainData, batch_rows, to_tensors
from .losses import step_figures, ttt_loss
from .metrics import TTTTotals
from .optim import learning_rate, make_optimizer, set_learning_rate
from .ttt import unroll

# glibc's <malloc.h>
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


@dataclass
class Trainer:
    """Everything one training run works on.

    Attributes:
        identity: settings and input hashes that a resumed run must share.
    """

    config: TrainConfig
    target: HFTarget
    drafter: Eagle3Drafter
    data: TrainData
    device: torch.device
    identity: dict[str, Any]
    meta: dict[str, Any]

    def __post_init__(self) -> None:
        self._capture = OnlineCapture(self.target, int(self.config.capture.memory_gb * 2**30))

    def run(self) -> Path:
        """Train to the last step, resuming from the newest checkpoint.

        Returns:
            the folder of the finished drafter artefact.

        Raises:
            DataError: the loss is not finite (the batch is named).
            MismatchError: the folder holds a run with other settings.
        """
        config, output = self.config, self.config.output
        folder = output / "checkpoints"
        optimizer = make_optimizer(self.drafter, config.optim)
        start = checkpoints.load_latest(folder, self.drafter, optimizer, self.identity)
        if start:
            say(f"Resuming at step {start} of {config.optim.steps} ({folder})")
        log = MetricsLog(output / "metrics.jsonl")
        with (
            stop_requested() as stop,
            ProgressBar("train-drafter", config.optim.steps, "steps", initial=start) as bar,
        ):
            clock = Clock()
            for step in range(start, config.optim.steps):
                figures = self.step(step, optimizer)
                clock.add(figures.pop("tokens"))
                done = step + 1
                bar.update(1)
                if done % config.run.log_every == 0 or done == config.optim.steps:
                    figures["tokens_per_s"] = clock.rate()
                    log.write(kind="train", step=done, lr=learning_rate(step, config.optim), **figures)
                    bar.update(note=f"loss {figures['loss']:.3f} | {human_rate(clock.rate(), 'tokens')}")
                if done % config.run.eval_every == 0 or done == config.optim.steps:
                    with clock.paused():
                        self.report(done, log)
                stopping = bool(stop)  # read once: a signal from here on waits for the next step
                if stopping or done % config.run.checkpoint_every == 0 or done == config.optim.steps:
                    checkpoints.save_checkpoint(
                        folder, done, self.drafter, optimizer, self.identity, config.run.keep
                    )
                if stopping and done < config.optim.steps:
                    say(f"Stopped at step {done}; the same command goes on from there.")
                    raise KeyboardInterrupt
        return self.finish()

    def step(self, step: int, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """One optimiser step; returns its figures and the number of real tokens in the batch."""
        config = self.config
        rows = batch_rows(len(self.data.train.input_ids), config.optim.batch_size, step, config.run.seed)
        batch = self.capture("train", rows)
        warm = step < config.ttt.warmup_fraction * config.optim.steps
        set_learning_rate(optimizer, learning_rate(step, config.optim))
        self.drafter.train()
        with self.autocast():
            loss, figures = ttt_loss(
                self.drafter,
                self.target,
                batch,
                steps=1 if warm else config.ttt.steps,
                decay=config.ttt.decay,
            )
        _check_finite("loss", loss, step, rows)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.drafter.parameters(), config.optim.clip)
        _check_finite("gradient", norm, step, rows)  # before it spoils weights that a checkpoint would keep
        optimizer.step()
        return {
            "loss": float(figures[0].loss.detach()),
            "ttt_loss": float(loss.detach()),
            "accuracy": [round(float(f.correct / f.rows.clamp(min=1)), 4) for f in figures],
            "grad_norm": float(norm),
            "tokens": int((batch.document != 0).sum()),
        }

    def capture(self, split: Literal["train", "heldout"], indices: list[int]) -> CapturedBatch:
        """The target's states for these packed rows of a split."""
        rows = self.data.train if split == "train" else self.data.heldout
        with self.autocast():
            return self._capture(to_tensors(rows, indices, self.device), [(split, i) for i in indices])

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        return torch.autocast(
            self.device.type, dtype=torch.bfloat16, enabled=uses_bf16(self.config, self.device)
        )

    def report(self, step: int, log: MetricsLog) -> dict[str, object]:
        """Held-out figures of every TTT step, into the log and one line for people."""
        summary = heldout_figures(self)
        log.write(kind="heldout", step=step, **summary)
        accuracy = " ".join(f"{a:.2f}" for a in summary["accuracy"])  # type: ignore[attr-defined]
        say(
            f"step {step}: held-out accuracy by draft step {accuracy} | "
            f"accepted length of a chain {summary['chain_accepted_length']:.2f}"
        )
        return summary

    def finish(self) -> Path:
        path = self.config.output / "drafter"
        check_output(path, overwrite=True)
        summary = heldout_figures(self)
        save_drafter(
            path,
            self.drafter,
            {**self.meta, "steps": self.config.optim.steps, "heldout": summary},
            config=self.config.model_dump(mode="json"),
            overwrite=True,
        )
        return path


def _check_finite(what: str, value: torch.Tensor, step: int, rows: list[int]) -> None:
    if not torch.isfinite(value):
        raise DataError(
            f"the training {what} is not finite",
            got=f"{float(value.detach())} at step {step + 1}",
            source=f"packed rows {rows}",
            remedy="lower optim.lr or inspect these rows; the last checkpoint is intact",
        )


@torch.no_grad()
def heldout_figures(trainer: Trainer) -> dict[str, object]:
    """Figures over the first ``eval_rows`` held-out rows; see :meth:`TTTTotals.summary`."""
    config, rows = trainer.config, trainer.data.heldout
    totals = TTTTotals.zeros(config.ttt.steps)
    trainer.drafter.eval()
    count = min(len(rows.input_ids), config.run.eval_rows)
    for first in range(0, count, config.optim.batch_size):
        batch = trainer.capture("heldout", list(range(first, min(count, first + config.optim.batch_size))))
        with trainer.autocast():
            steps = list(unroll(trainer.drafter, batch, config.ttt.steps))
            figures = [step_figures(trainer.drafter, trainer.target, batch, s) for s in steps]
        totals.add(figures, [s.counted for s in steps])
    return totals.summary()


class Clock:
    """Tokens a second of training proper; evaluation time is left out."""

    def __init__(self) -> None:
        self._tokens, self._start, self._pause = 0, time.monotonic(), 0.0

    def add(self, tokens: int) -> None:
        self._tokens += tokens

    def rate(self) -> float:
        return self._tokens / max(time.monotonic() - self._start - self._pause, 1e-9)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        begin = time.monotonic()
        yield
        self._pause += time.monotonic() - begin


class StopFlag:
    """True once a signal asked the run to stop."""

    def __init__(self) -> None:
        self.set = False

    def __bool__(self) -> bool:
        return self.set


@contextlib.contextmanager
def stop_requested() -> Iterator[StopFlag]:
    """SIGINT and SIGTERM finish the current step and write a checkpoint; a second one stops at once."""
    flag = StopFlag()

    def handle(number: int, _frame: Any) -> None:
        if flag.set:
            raise KeyboardInterrupt
        flag.set = True
        say("Stopping after this step; a checkpoint will be written.")

    try:
        old = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread: leave the signals alone
        yield flag
        return
    try:
        yield flag
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def uses_bf16(config: TrainConfig, device: torch.device) -> bool:
    """bf16 autocast: asked for, or ``auto`` on CUDA. Many CPUs run bf16 a hundred times slower than fp32."""
    wanted = config.run.mixed_precision
    return wanted == "bf16" or (wanted == "auto" and device.type == "cuda")


def set_threads(config: TrainConfig) -> None:
    """Launchers set one OpenMP thread a process; a single process may use what it is allowed to run on."""
    count = config.run.threads
    if count is None:
        count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    torch.set_num_threads(max(1, count or 1))
    keep_freed_memory()


def keep_freed_memory() -> None:
    """Ask glibc to keep large freed blocks, which a step allocates again at once.

    By default it returns them to the kernel, which hands them back page by page, zeroed: about a tenth of a
    CPU training step. Elsewhere than on glibc nothing happens.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, 1 << 30)
        mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)
