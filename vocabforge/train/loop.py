"""The training loop: capture, unroll, step, log, evaluate, checkpoint."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core.console import say
from ..core.distributed import Group
from ..core.journal import MetricsLog
from ..core.progress import ProgressBar, human_rate
from ..core.threads import ThreadChoice, thread_counts
from .capture.online import Key, OnlineCapture, to_tensors
from .capture.server import ServerCapture
from .checkpoint import trained
from .data import batch_rows
from .heads.states import RouterLoss
from .loss.rows import StepFigures
from .loss.vocab import RowLoss
from .machine import stop_requested, threads_given
from .metrics import TTTTotals
from .monitoring.heldout import finish, look
from .monitoring.trackers import Trackers
from .optim import learning_rate
from .resume import is_finished, keep, resume, start_facts, write_record
from .trainer import Trainer, check_finite

_WORTH_MEASURING = 200  # minimum steps of a run; measuring takes the time of 4 to 10 steps


class Window:
    """Sums over the steps since the last logged line, kept on the device until they are read."""

    def __init__(self, steps: int, device: torch.device) -> None:
        self._totals = TTTTotals.zeros(steps, device)
        self._heads: dict[str, Tensor] = {}
        self._loss = torch.zeros((), device=device)
        self._norm = torch.zeros((), device=device)
        self._steps = 0

    def add(self, figures: Sequence[StepFigures], heads: Mapping[str, RowLoss | RouterLoss]) -> None:
        self._totals.add(figures)
        for name, loss in heads.items():
            rows = loss.losses.new_tensor(len(loss.losses))
            sums = torch.stack([loss.losses.sum(), loss.correct.sum().float(), rows])
            self._heads[name] = self._heads.get(name, torch.zeros_like(sums)) + sums

    def close_step(self, loss: Tensor, norm: Tensor) -> None:
        self._loss += loss
        self._norm = norm.detach()
        self._steps += 1

    def read(self, group: Group) -> dict[str, Any]:
        """Return figures over all processes, averaged over the window's steps."""
        names = sorted(self._heads)
        parts = [self._totals.sums.flatten(), self._loss.double().reshape(1)]
        parts += [self._heads[name].double() for name in names]
        summed = torch.from_numpy(group.sum(torch.cat([part.cpu() for part in parts]).numpy()))
        totals = TTTTotals(summed[: parts[0].numel()].view_as(self._totals.sums))
        rest, summary = summed[parts[0].numel() :], totals.summary()
        heads = {
            name: {"loss": float(loss / rows.clamp(min=1)), "accuracy": float(right / rows.clamp(min=1))}
            for name, (loss, right, rows) in zip(names, rest[1:].reshape(-1, 3))
        }
        counted = totals.counted()  # rows of each draft step
        figures: dict[str, Any] = {
            "loss": summary["loss"][0] if counted[0] else None,  # type: ignore[index]
            "ttt_loss": float(rest[0]) / self._steps if self._steps else None,
            "accuracy": [
                round(value, 4) if rows else None
                for value, rows in zip(summary["accuracy"], counted)  # type: ignore[call-overload]
            ],
            "grad_norm": float(self._norm) if self._steps else None,
            "steps": self._steps,  # steps averaged; may be fewer in the first line of a resumed run
        }
        return {**figures, "heads": heads} if heads else figures


def train(trainer: Trainer) -> Path:
    """Train to the last step, resuming from the newest checkpoint; return the drafter's folder. Collective.

    Raises:
        DataError: the loss is not finite; names the rows.
        UsageError: the folder contains a run with other settings.
        KeyboardInterrupt: a signal stopped the run after writing a checkpoint.
    """
    config, steps = trainer.config, trainer.config.optim.steps
    start, source = resume(trainer), trainer.captured
    try:
        if start == steps and is_finished(trainer):
            MetricsLog(config.output / "metrics.jsonl")  # removes a truncated last line
            say(f"This run is finished: {config.output / 'drafter'}")
            return config.output / "drafter"
        write_record(trainer)
        choose_threads(trainer, start)
        log = MetricsLog(config.output / "metrics.jsonl", keep_until=start, again=("heads", "end"))
        names, values = config.run.trackers, config.model_dump(mode="json")
        with Trackers(names, config.output, values, resume_step=start, removed=log.removed) as trackers:
            log.listener = trackers.log
            log.write(kind="start", step=start, time=time.time(), facts=start_facts(trainer))
            if isinstance(source, ServerCapture):
                source.expect(coming_rows(trainer, start))
            run_steps(trainer, start, log)
            path = finish(trainer, log)
            log.write(kind="end", step=steps, time=time.time())
            return path
    finally:
        if isinstance(source, ServerCapture):
            source.close()
        trainer.strategy.close()


def choose_threads(trainer: Trainer, start: int) -> None:
    """Measure the best number of CPU threads once; it affects the last bits, so a resumed run keeps it.

    Passes of the last step are timed without updating weights. Short runs use the number of
    :func:`set_threads`.
    """
    config, facts = trainer.config, trainer.facts
    if trainer.device.type != "cpu" or trainer.group.size > 1 or threads_given(config):
        return
    long = config.optim.steps >= _WORTH_MEASURING and not isinstance(trainer.captured, ServerCapture)
    if "threads" not in facts and start == 0 and long:
        choice = ThreadChoice(thread_counts(torch.get_num_threads()), torch.set_num_threads)
        last = config.optim.steps - 1
        rows = batch_rows(len(trainer.data.train), config.optim.batch_size, last, config.run.seed)
        parameters = trained(trainer.step_module).values()
        while not choice.settled:
            began = time.perf_counter()
            add_gradients(trainer, last, rows, Window(trainer.steps, trainer.device))
            choice.observe("step", time.perf_counter() - began)
            for parameter in parameters:
                parameter.grad = None
    torch.set_num_threads(facts.setdefault("threads", torch.get_num_threads()))


def coming_rows(trainer: Trainer, start: int) -> Iterator[Key]:
    """Yield the rows that this process will capture from step ``start`` on, in order."""
    optim, count = trainer.config.optim, len(trainer.data.train)
    for step in range(start, optim.steps):
        for part in trainer.division.own(batch_rows(count, optim.batch_size, step, trainer.config.run.seed)):
            yield from (("train", row) for row in part)


def run_steps(trainer: Trainer, start: int, log: MetricsLog) -> None:
    """Run the steps from ``start`` on, with figures, evaluations and checkpoints; see :func:`train`."""
    optim, often = trainer.config.optim, trainer.config.run
    ahead, tokens, seconds = range(start, optim.steps), 0, 0.0  # the last two since the last logged line
    window, evaluated = Window(trainer.steps, trainer.device), time.monotonic()
    keeps = isinstance(trainer.captured, OnlineCapture) and trainer.captured.keeps_rows

    def kind(step: int) -> tuple[int, bool]:
        """Return the draft steps, and whether the target's states are in memory."""
        return trainer.steps_at(step), keeps and step * optim.batch_size >= len(trainer.data.train)

    kinds = Counter(map(kind, ahead))
    asides = {
        name: sum(step + 1 == optim.steps or (step + 1) % every == 0 for step in ahead)
        for name, every in (
            ("evaluating", often.eval_every),
            ("writing a checkpoint", often.checkpoint_every),
        )
    }
    progress = ProgressBar(
        "train-drafter",
        optim.steps,
        "steps",
        initial=start,
        kinds=kinds,
        # K draft steps take 1 (the target's pass dominates) to K times as long as one step. Skipping the
        # target's pass saves about half of a step.
        weights={(count, kept): count**0.5 * (0.5 if kept else 1.0) for count, kept in kinds},
        asides=asides,
    )
    with stop_requested() as stop, progress as bar:
        for step in ahead:
            torch.manual_seed(often.seed + step)  # makes dropout reproducible in a resumed run
            began = time.monotonic()
            tokens += take_step(trainer, step, window)
            seconds += time.monotonic() - began
            done, last = step + 1, step + 1 == optim.steps
            bar.update(1, kind=kind(step))
            if last or done % often.log_every == 0:
                lr, figures = learning_rate(step, optim), window.read(trainer.group)
                rate, tokens, seconds = tokens / max(seconds, 1e-9), 0, 0.0
                window = Window(trainer.steps, trainer.device)
                log.write(kind="train", step=done, time=time.time(), lr=lr, **figures, tokens_per_s=rate)
                loss = "none" if figures["loss"] is None else f"{figures['loss']:.3f}"
                bar.update(note=f"loss {loss} | {human_rate(rate, 'tokens')}")
            if last or done % often.eval_every == 0:
                with bar.aside("evaluating"):
                    trainer.summary = done, look(trainer, done, log, time.monotonic() - evaluated)
                    evaluated = time.monotonic()
            stopping = trainer.group.any(stop.is_set())  # read once: a later signal waits for the next step
            if stopping or last or done % often.checkpoint_every == 0:
                with bar.aside("writing a checkpoint"):
                    keep(trainer, done)
            if stopping and not last:
                say(f"Stopped at step {done}; the same command resumes there.")
                raise KeyboardInterrupt


def take_step(trainer: Trainer, step: int, window: Window) -> int:
    """Take one optimiser step, add its figures to ``window``, return the batch's tokens. Collective.

    Batches without a counted row are skipped, because weight decay and momentum would still change the
    weights.

    Raises:
        DataError: loss or gradient is not finite; raised on every process.
    """
    config = trainer.config
    rows = batch_rows(len(trainer.data.train), config.optim.batch_size, step, config.run.seed)
    total, tokens = add_gradients(trainer, step, rows, window)
    if total is None:
        return tokens
    check = partial(check_finite, trainer, step, rows, total)
    norm = trainer.strategy.update(learning_rate(step, config.optim), config.optim.clip, check)
    window.close_step(total, norm)
    return tokens


def add_gradients(trainer: Trainer, step: int, rows: list[int], window: Window) -> tuple[Tensor | None, int]:
    """Run the forward and backward passes of a step; return the loss and the batch's tokens. Collective.

    Tokens exclude padding. If the batch has no counted row, no pass runs and the loss is None.
    """
    strategy, steps = trainer.strategy, trainer.steps_at(step)
    everyone = to_tensors(trainer.data.train, rows, torch.device("cpu"))  # (B, T) of all processes
    blocks = trainer.anchors(step, everyone, rows)
    counts = trainer.rows_by_step(everyone, steps, blocks).to(trainer.device)  # (K,)
    parts, tokens = trainer.division.own(rows), int((everyone.document != 0).sum())
    if not counts.any():
        for part in parts:
            trainer.capture("train", part)  # a server's rows must be read in order
        return None, tokens
    total = torch.zeros((), device=trainer.device)
    for index, part in enumerate(parts):
        batch, last = trainer.capture("train", part), index == len(parts) - 1
        noise, anchors = trainer.noise(batch, step, part), trainer.anchors(step, batch, part)
        with strategy.syncing(last=last):
            with trainer.autocast():
                loss, figures, heads = strategy.forward(batch, steps, counts, noise, anchors)
            strategy.backward(loss, last=last)
        total += loss.detach()
        window.add(figures, heads)
    return total, tokens
