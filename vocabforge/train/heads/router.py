"""Training a router on the drafting states of a frozen drafter (DynaSpec; docs/methods.md, Draft heads).

States are made anew from each batch of packed rows, at every draft step, never stored: the run's size on disk
does not grow with the data, and a resumed run sees the same states.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ...capture.online import CapturedBatch
from ...core.artifact import check_output
from ...core.console import ProgressBar, human_rate, say
from ...core.errors import DataError
from ...core.files import atomic_write_json
from ...core.journal import MetricsLog
from ...models.drafters.interface import Drafter
from ...models.heads.io import HeadOwner, save_head
from ...models.heads.registry import RouterHead, base_of, default_budgets
from ...models.heads.router import Router, cluster_rows
from ...models.target.head import TargetHead
from ...models.target.hf import HFTarget
from .. import checkpoint as checkpoints
from ..checkpoint import restore_state, state_of
from ..data import TrainData, batch_rows, to_tensors
from ..machine import TokenClock, stop_requested
from ..optim import learning_rate, make_optimizer, set_learning_rate
from .report import head_report, router_schedules
from .router_config import RouterTrainConfig
from .states import DraftingRows, average_precision, best_columns, drafting_rows, labels_of, router_loss

BestTokens = dict[tuple[str, int, int], Tensor]
_LABEL_BYTES = 128 * 2**20
ROUTER, REPORT = "router", "report.json"


@dataclass
class RouterTrainer:
    """Everything one run works on.

    Attributes:
        capture: packed rows and their names -> the target's states (``capture/``).
        identity: settings and input hashes that a resumed run must share.
        owner: what the router will belong to.
        parents: content hashes of what it is made from.
        best: the drafter's best tokens by what they follow from, step and draft step: routers that are trained one
            after the other on the same rows share them, as they are most of the work with a large vocabulary.
    """

    config: RouterTrainConfig
    target: HFTarget | TargetHead
    drafter: Drafter
    router: Router
    data: TrainData
    capture: Callable[..., CapturedBatch]
    device: torch.device
    identity: dict[str, Any]
    owner: HeadOwner
    parents: dict[str, str] = field(default_factory=dict)
    best: BestTokens | None = None

    def __post_init__(self) -> None:
        self._base = base_of(self.drafter)
        self._cluster = cluster_rows(self.router.assignment, self._base.target_ids)
        config = self.config
        decides = (self.owner.drafter, self.owner.target, self.data.digest(), config.run.seed)
        self._rows_key = repr((*decides, config.optim.batch_size, config.router.steps, config.router.top_n))

    def run(self) -> Path:
        """Train to the last step, resuming from the newest checkpoint.

        Returns:
            the folder of the router artefact.

        Raises:
            DataError: a loss that is not finite (the batch is named), or no row to learn from.
            MismatchError: the folder holds a run with other settings.
        """
        config, folder = self.config, self.config.output / "checkpoints"
        optimizer = make_optimizer(list(self.router.parameters()), config.optim)
        start = self._resume(folder, optimizer)
        total = config.optim.steps
        again = ("heldout",) if start == total else ()  # the last report follows the last checkpoint
        log = MetricsLog(config.output / "metrics.jsonl", keep_until=start, again=again)
        with stop_requested() as stop, ProgressBar("train-router", total, "steps", initial=start) as bar:
            clock = TokenClock()
            for step in range(start, total):
                figures = self.step(step, optimizer)
                clock.add(figures.pop("tokens"))
                done = step + 1
                bar.update(1)
                if done % config.run.log_every == 0 or done == total:
                    log.write(kind="train", step=done, lr=learning_rate(step, config.optim), **figures)
                    note = f"loss {figures['loss']:.4f} | {human_rate(clock.rate(), 'tokens')}"
                    bar.update(note=note)
                if done % config.run.eval_every == 0 and done < total:
                    with clock.paused():
                        self._look(done, log)
                stopping = bool(stop)
                if stopping or done % config.run.checkpoint_every == 0 or done == total:
                    self._keep(folder, done, optimizer)
                if stopping and done < total:
                    say(f"Stopped at step {done}; the same command goes on from there.")
                    raise KeyboardInterrupt
        return self._finish(log)

    def step(self, step: int, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """One optimiser step; returns its figures and the number of real tokens in the batch."""
        config = self.config
        rows = batch_rows(len(self.data.train), config.optim.batch_size, step, config.run.seed)
        batch = self.rows("train", rows)
        optimizer.zero_grad(set_to_none=True)
        sums = torch.zeros(3, dtype=torch.float64)  # loss, average precision, rows
        parts = list(drafting_rows(self.drafter, batch, config.router.steps))
        number = max(1, sum(len(part.hidden) for part in parts))
        for part in parts:
            scores, labels = self._scores(part), self._labels(part, step)
            loss = router_loss(scores, labels) / number
            if not torch.isfinite(loss):
                raise _not_finite("loss", loss, step, rows)
            loss.backward()
            ranked = average_precision(scores.detach(), labels).sum()
            sums += torch.tensor([float(loss.detach()) * number, float(ranked), len(labels)])
        norm = torch.nn.utils.clip_grad_norm_(self.router.parameters(), config.optim.clip)
        if not torch.isfinite(norm):
            raise _not_finite("gradient", norm, step, rows)
        set_learning_rate(optimizer, learning_rate(step, config.optim))
        optimizer.step()
        return {
            "loss": float(sums[0]) / number,
            "average_precision": float(sums[1]) / number,
            "rows": int(sums[2]),
            "grad_norm": float(norm),
            "tokens": int((batch.document != 0).sum()),
        }

    def rows(self, split: str, indices: Sequence[int]) -> CapturedBatch:
        """The target's states for these packed rows of a split."""
        rows = self.data.train if split == "train" else self.data.heldout
        return self.capture(to_tensors(rows, indices, self.device), [(split, i) for i in indices])

    def head(self) -> RouterHead:
        """The router as a draft head, each row with a shortlist of its own."""
        # For reports, which ask for probabilities only: without the sorted copy of the head that drafting reads.
        return RouterHead(self._base, self.router, default_budgets(self.router.clusters), "own", ops=False)

    def report(self, *, schedules: bool) -> dict[str, Any]:
        """Held-out figures; with ``schedules`` the budgets are compared too."""
        head = self.head()
        heads = {"router": head}
        if schedules:
            heads |= router_schedules(head, self._budgets(), self.config.router.steps, ("constant", "decay"))
        count = min(len(self.data.heldout), self.config.run.eval_rows)
        size = self.config.optim.batch_size
        batches = (self.rows("heldout", range(at, min(count, at + size))) for at in range(0, count, size))
        self.router.eval()
        found = head_report(
            self.drafter,
            self.target,
            heads,
            batches,
            self.config.router.steps,
            top_n=self.config.router.top_n,
        )
        self.router.train()
        return found

    def _budgets(self) -> list[int]:
        most = self.router.clusters
        given = self.config.run.budgets or tuple(max(1, most // part) for part in (16, 8, 4, 2))
        return sorted({min(most, budget) for budget in given})

    def _scores(self, part: DraftingRows) -> Tensor:
        """(M, clusters), with gradient."""
        return self.router(F.embedding(part.state.tokens, self._base.embedding), part.state.previous)

    @torch.no_grad()
    def _labels(self, part: DraftingRows, step: int) -> Tensor:
        """bool (M, clusters)."""
        key = (self._rows_key, step, part.state.step)
        best = None if self.best is None else self.best.get(key)
        if best is None:
            best = self._best(part.hidden)
            if self.best is not None:
                self.best[key] = best.to("cpu", torch.int32)
        return labels_of(best.to(self.device, torch.int64), self._cluster, self.router.clusters)

    def _best(self, hidden: Tensor) -> Tensor:
        """(M, n) columns of the drafter's best tokens, a few rows of (., R) logits at a time."""
        at_once = max(1, _LABEL_BYTES // (16 * len(self._base.weight)))
        made = [
            best_columns(
                F.linear(some, self._base.weight).float()[:, : len(self._cluster)], self.config.router.top_n
            )
            for some in hidden.split(at_once)
        ]
        return torch.cat(made)

    def _look(self, step: int, log: MetricsLog) -> None:
        overall = self.report(schedules=False)["heads"]["router"]["overall"]
        log.write(kind="heldout", step=step, **overall)
        say(
            f"step {step}: held-out average precision {overall['average_precision']:.3f} | "
            f"recall of the argmax {overall['argmax_recall']:.3f} with {overall['shortlist_share']:.0%} of V"
        )

    def _keep(self, folder: Path, step: int, optimizer: torch.optim.Optimizer) -> None:
        state = state_of(self.router, optimizer)
        checkpoints.save_checkpoint(folder, step, state, self.identity, self.config.run.keep)

    def _resume(self, folder: Path, optimizer: torch.optim.Optimizer) -> int:
        checkpoints.remove_remains(folder)
        found = checkpoints.load_latest(folder, self.identity)
        if found is None:
            return 0
        step, state = found
        restore_state(self.router, optimizer, state)
        checkpoints.remove_old(folder, step, self.config.run.keep)
        say(f"Resuming at step {step} of {self.config.optim.steps} ({folder})")
        return step

    def _finish(self, log: MetricsLog) -> Path:
        config, path = self.config, self.config.output / ROUTER
        check_output(path, overwrite=True)
        report = self.report(schedules=True)
        log.write(kind="heldout", step=config.optim.steps, **report["heads"]["router"]["overall"])
        atomic_write_json(config.output / REPORT, report)
        meta = {
            "steps": config.optim.steps,
            "top_n": config.router.top_n,
            "draft_steps": config.router.steps,
            "budgets": list(default_budgets(self.router.clusters)),
            "heldout": report["heads"]["router"]["overall"],
        }
        save_head(
            path,
            "router",
            self.router,
            self.owner,
            meta,
            parents=self.parents,
            config=config.model_dump(mode="json"),
            overwrite=True,
        )
        return path


def _not_finite(what: str, value: Tensor, step: int, rows: Sequence[int]) -> DataError:
    return DataError(
        f"the training {what} is not finite",
        got=f"{float(value.detach())} at step {step + 1}",
        source=f"packed rows {list(rows)}",
        remedy="lower optim.lr or inspect these rows; the last checkpoint is intact",
    )
