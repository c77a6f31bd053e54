"""The training loop: capture, unroll, step; look, write, keep."""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from ..capture.online import CapturedBatch
from ..core.distributed import Group
from ..core.metrics_log import MetricsLog
from ..core.progress import ProgressBar, human_rate, say
from .batches import divide
from .candidates import CandidateSampler
from .config import TrainConfig
from .data import TrainData, batch_rows, corpus_counts, to_tensors
from .finish import finish, name_bad_rows
from .heldout import Live, look
from .keeping import is_finished, keep, resume, start_facts, write_record
from .losses import feature_noise
from .machine import Clock, stop_requested, uses_bf16
from .optim import learning_rate
from .step import TrainStep
from .strategy import Strategy, make_strategy, wanted_strategy
from .trackers import Trackers
from .ttt import rows_by_step
from .window import Window


@dataclass
class Trainer:
    """Everything one training run works on.

    Attributes:
        target: has ``embedding``, ``head_weight`` and ``logits``.
        captured: a capture source: packed rows and their keys to a captured batch.
        identity: settings and input hashes that a resumed run must share.
        meta: facts about target and tokenizer for the finished artefacts.
        live: decodes held-out prompts at every evaluation; None does not.
        facts: what the run remembers beside its weights: the best evaluation so far.
        summary: step and held-out figures of the last evaluation.
    """

    config: TrainConfig
    target: Any
    step_module: TrainStep
    data: TrainData
    captured: Any
    device: torch.device
    group: Group
    identity: dict[str, Any]
    meta: dict[str, Any]
    live: Live | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    summary: tuple[int, dict[str, Any]] | None = None

    def __post_init__(self) -> None:
        self.division = divide(self.config.optim, self.group.rank, self.group.size)
        bound = self.drafter.max_steps
        # Medusa trains every head that it has: decoding drafts with all of them.
        self.steps = self.config.ttt.steps if bound is None else bound
        self.strategy: Strategy = make_strategy(
            wanted_strategy(self.config.run.strategy, self.group),
            self.step_module,
            self.config,
            self.group,
            self.device,
        )
        self.sampler = self._sampler()

    def _sampler(self) -> CandidateSampler | None:
        size, rows = self.config.memory.candidates, len(self.target.head_weight)
        if size is None:
            return None
        return CandidateSampler(corpus_counts(self.data.train, rows), size, rows, self.config.run.seed)

    @property
    def drafter(self) -> Any:
        return self.step_module.drafter

    @property
    def run_digest(self) -> str:
        """SHA-256 of what makes this run what it is."""
        return hashlib.sha256(json.dumps(self.identity, sort_keys=True).encode()).hexdigest()

    def run(self) -> Path:
        """Train to the last step, resuming from the newest checkpoint.

        Returns:
            the folder of the finished drafter artefact.

        Raises:
            DataError: the loss is not finite (the rows are named).
            MismatchError: the folder holds a run with other settings.
        """
        config = self.config
        start = resume(self)
        if start == config.optim.steps and is_finished(self):
            MetricsLog(config.output / "metrics.jsonl")  # takes away a last line that was cut short
            say(f"This run is finished: {config.output / 'drafter'}")
            self.strategy.close()
            return config.output / "drafter"
        write_record(self)
        log = MetricsLog(config.output / "metrics.jsonl", keep_until=start, again=("heads", "end"))
        trackers = Trackers.open(
            config.run.trackers,
            config.output,
            config.model_dump(mode="json"),
            resume_step=start,
            removed=log.removed,
        )
        log.listener = trackers.log
        log.write(kind="start", step=start, time=time.time(), facts=start_facts(self))
        try:
            with stop_requested() as stop, self._bar(start) as bar:
                self._train(start, log, bar, stop)
            path = finish(self, log)
            log.write(kind="end", step=config.optim.steps, time=time.time())
            return path
        finally:
            trackers.close()
            self.strategy.close()

    def _bar(self, start: int) -> Any:
        if self.group.rank:
            return contextlib.nullcontext()
        return ProgressBar("train-drafter", self.config.optim.steps, "steps", initial=start)

    def _train(self, start: int, log: MetricsLog, bar: Any, stop: Any) -> None:
        config, steps = self.config, self.config.optim.steps
        clock, window = Clock(), Window(self.steps, self.device)
        for step in range(start, steps):
            clock.add(self.step(step, window))
            done = step + 1
            if bar is not None:
                bar.update(1)
            if done % config.run.log_every == 0 or done == steps:
                figures = window.read(self.group)
                log.write(
                    kind="train",
                    step=done,
                    time=time.time(),
                    lr=learning_rate(step, config.optim),
                    **figures,
                    tokens_per_s=clock.lap(),
                )
                if bar is not None:
                    bar.update(note=f"loss {figures['loss']:.3f} | {human_rate(clock.rate(), 'tokens')}")
                window = Window(self.steps, self.device)
            if done % config.run.eval_every == 0 or done == steps:
                if bar is not None:
                    bar.update(note="evaluating")
                with clock.paused():
                    self.report(done, log)
            stopping = self.group.any(bool(stop))  # read once: a signal from here on waits for the next step
            if stopping or done % config.run.checkpoint_every == 0 or done == steps:
                keep(self, done)
            if stopping and done < steps:
                say(f"Stopped at step {done}; the same command goes on from there.")
                raise KeyboardInterrupt

    def step(self, step: int, window: Window) -> int:
        """One optimiser step, its figures added to ``window``; returns the real tokens of the whole batch."""
        config = self.config
        rows = batch_rows(len(self.data.train), config.optim.batch_size, step, config.run.seed)
        everyone = to_tensors(self.data.train, rows, torch.device("cpu"))
        warm = step < config.ttt.warmup_fraction * config.optim.steps
        steps = 1 if warm and self.drafter.max_steps is None else self.steps
        counts = rows_by_step(everyone.loss_mask, everyone.document, steps).to(self.device)
        # Of the whole batch, so that all its parts are estimated on the same tokens.
        sampler = self.sampler
        candidates = None if sampler is None else sampler.draw(step, everyone.input_ids, self.device)
        parts = self.division.own(rows)
        total = torch.zeros((), device=self.device)
        for index, part in enumerate(parts):
            batch, last = self.capture("train", part), index == len(parts) - 1
            with self.strategy.syncing(last=last):
                with self.autocast():
                    loss, figures, heads = self.strategy.forward(
                        batch, steps, counts, self._noise(batch, step, part), candidates
                    )
                self.strategy.backward(loss, last=last)
            total += loss.detach()
            window.add(figures, heads)

        def check(norm: Tensor) -> None:
            finite = torch.isfinite(torch.stack([total.float(), norm.detach().float()])).tolist()
            if self.group.any(not all(finite)):  # together: naming the rows asks every process
                name_bad_rows(self, step, rows, "gradient" if finite[0] else "loss")

        norm = self.strategy.update(learning_rate(step, config.optim), config.optim.clip, check)
        window.close_step(total, norm)
        return int((everyone.document != 0).sum())

    def _noise(self, batch: CapturedBatch, step: int, rows: list[int]) -> Tensor | None:
        width = self.step_module.settings.feature_noise
        if not width:
            return None
        shape = batch.states(self.drafter.reads).shape
        return feature_noise(shape, width, self.config.run.seed, step, rows).to(self.device)

    def capture(self, split: Literal["train", "heldout"], indices: list[int]) -> CapturedBatch:
        """The target's states for these packed rows of a split."""
        rows = self.data.train if split == "train" else self.data.heldout
        return self.captured(to_tensors(rows, indices, self.device), [(split, i) for i in indices])

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        return torch.autocast(
            self.device.type, dtype=torch.bfloat16, enabled=uses_bf16(self.config, self.device)
        )

    def report(self, step: int, log: MetricsLog) -> None:
        """Look at the drafter on held-out rows and prompts; keeps the best one."""
        self.summary = (step, look(self, step, log))
