"""The training loop: capture, unroll, step; look, write, keep."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from ..capture.online import CapturedBatch
from ..core.artifact import check_output
from ..core.distributed import Group
from ..core.metrics_log import MetricsLog
from ..core.progress import ProgressBar, human_rate, say
from ..models.drafter_io import save_drafter
from . import checkpoint as checkpoints
from .batches import divide
from .config import TrainConfig
from .data import TrainData, batch_rows, to_tensors
from .draft_heads import save_heads
from .eval_line import eval_line
from .finish import capture_heldout, head_figures, name_bad_rows
from .heldout import Live, heldout_figures, plain_copy
from .losses import feature_noise
from .machine import Clock, stop_requested, uses_bf16
from .optim import learning_rate
from .step import TrainStep
from .strategy import Strategy, make_strategy, trained, wanted_strategy
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

    @property
    def drafter(self) -> Any:
        return self.step_module.drafter

    def run(self) -> Path:
        """Train to the last step, resuming from the newest checkpoint.

        Returns:
            the folder of the finished drafter artefact.

        Raises:
            DataError: the loss is not finite (the rows are named).
            MismatchError: the folder holds a run with other settings.
        """
        config = self.config
        start = self._resume()
        log = MetricsLog(config.output / "metrics.jsonl", keep_until=start)
        trackers = Trackers.open(
            config.run.trackers,
            config.output,
            config.model_dump(mode="json"),
            resume_step=start,
            removed=log.removed,
        )
        log.listener = trackers.log
        log.write(kind="start", step=start, time=time.time(), facts=self._start_facts())
        try:
            with stop_requested() as stop, self._bar(start) as bar:
                self._train(start, log, bar, stop)
            path = self._finish(log)
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
                    lr=learning_rate(step, config.optim),
                    **figures,
                    tokens_per_s=clock.lap(),
                )
                if bar is not None:
                    bar.update(note=f"loss {figures['loss']:.3f} | {human_rate(clock.rate(), 'tokens')}")
                window = Window(self.steps, self.device)
            if done % config.run.eval_every == 0 or done == steps:
                with clock.paused():
                    self.report(done, log)
            stopping = self.group.any(bool(stop))  # read once: a signal from here on waits for the next step
            if stopping or done % config.run.checkpoint_every == 0 or done == steps:
                self._keep(done)
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
        parts = self.division.own(rows)
        total = torch.zeros((), device=self.device)
        for index, part in enumerate(parts):
            batch, last = self.capture("train", part), index == len(parts) - 1
            with self.strategy.syncing(last=last):
                with self.autocast():
                    loss, figures, heads = self.strategy.forward(
                        batch, steps, counts, self._noise(batch, step, part)
                    )
                self.strategy.backward(loss, last=last)
            total += loss.detach()
            window.add(figures, heads)

        def check(norm: Tensor) -> None:
            finite = torch.isfinite(torch.stack([total.float(), norm.detach().float()])).tolist()
            if not all(finite):
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
        """Held-out figures of every TTT step and the real decoder's, into the log; keeps the best drafter."""
        summary = heldout_figures(self)
        log.write(kind="heldout", step=step, time=time.time(), **summary)
        weights = self.strategy.weights()
        if self.group.rank == 0:
            live: dict[str, Any] = {}
            if self.live is not None:
                live = dict(self.live(*plain_copy(self, weights)))
            if live:
                log.write(kind="live", step=step, **live)
            name = "accepted_length" if live else "chain_accepted_length"
            value = float((live or summary)[name])  # type: ignore[arg-type]
            best = value > self.facts.get("best", {}).get("value", 0.0)
            say(eval_line(step, self.config.optim.steps, summary, live, best=best))
            if best:
                self.facts["best"] = {"step": step, "value": value, "name": name}
                self._save(self.config.output / "best", weights, {"steps": step, "heldout": summary})
        self.group.wait()

    def _start_facts(self) -> dict[str, Any]:
        return {
            "device": str(self.device),
            "precision": "bf16 passes" if uses_bf16(self.config, self.device) else "fp32",
            "processes": self.group.size,
            "strategy": self.strategy.name,
            "training rows": f"{len(self.data.train):,}",
            "trained parameters": f"{sum(p.numel() for p in trained(self.step_module).values()):,}",
        }

    def _save(self, path: Path, weights: dict[str, Tensor], meta: dict[str, Any]) -> Any:
        check_output(path, overwrite=True)
        drafter, heads = plain_copy(self, weights)
        config = self.config.model_dump(mode="json")
        save_drafter(path, drafter, {**self.meta, **meta}, config=config, overwrite=True)
        return drafter, heads

    def _keep(self, step: int) -> None:
        weights, optimizer = self.strategy.weights(), self.strategy.optimizer_state()
        rng = checkpoints.joined_rng(self.group.gather(checkpoints.rng_state(self.group.rank)))
        if self.group.rank == 0:
            state = checkpoints.RunState(
                weights,
                optimizer,
                rng,
                {**self.facts, "processes": self.group.size, "strategy": self.strategy.name},
            )
            folder = self.config.output / "checkpoints"
            checkpoints.save_checkpoint(folder, step, state, self.identity, self.config.run.keep)
        self.group.wait()

    def _resume(self) -> int:
        folder = self.config.output / "checkpoints"
        if self.group.rank == 0:
            checkpoints.remove_remains(folder)
        self.group.wait()
        found = checkpoints.load_latest(folder, self.identity)
        if found is None:
            return 0
        step, state = found
        self.strategy.load(state.weights, state.optimizer, step)
        whole = checkpoints.restore_rng(state.rng, self.group.rank)
        self.facts = {key: value for key, value in state.facts.items() if key == "best"}
        if self.group.rank == 0:
            say(f"Resuming at step {step} of {self.config.optim.steps} ({folder})")
            before = (state.facts.get("processes"), state.facts.get("strategy"))
            if before != (self.group.size, self.strategy.name) or not whole:
                say(
                    f"It ran as {before[0]} process(es), {before[1]}, and goes on as {self.group.size}, "
                    f"{self.strategy.name}: the batches are the same, the last bits need not be."
                )
        return step

    def _finish(self, log: MetricsLog) -> Path:
        path = self.config.output / "drafter"
        summary = heldout_figures(self)
        weights = self.strategy.weights()
        if self.group.rank == 0:
            drafter, heads = self._save(
                path, weights, {"steps": self.config.optim.steps, "heldout": summary, **self.facts}
            )
            if heads:
                figures = head_figures(self, drafter, heads)
                log.write(kind="heads", step=self.config.optim.steps, heads=figures)
                save_heads(
                    self.config.output,
                    heads,
                    self.config.heads,
                    drafter=path,
                    meta={**self.meta, "report": figures},
                    resolved=self.config.model_dump(mode="json"),
                )
        elif getattr(self.target, "tensor_parallel", False) and len(self.step_module.heads):
            capture_heldout(self)  # every process must take part in the target's passes
        self.group.wait()
        return path
