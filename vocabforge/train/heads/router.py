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

from ...capture.online import CapturedBatch, to_tensors
from ...core.artifact import check_output
from ...core.console import say
from ...core.distributed import Group
from ...core.errors import DataError
from ...core.files import atomic_write_json
from ...core.journal import MetricsLog
from ...models.drafters.interface import Drafter
from ...models.heads.io import HeadOwner, save_head
from ...models.heads.registry import RouterHead, base_of, default_budgets
from ...models.heads.router import Router, cluster_rows
from ...models.target.head import TargetHead
from ...models.target.hf import HFTarget
from ..data import TrainData, batch_rows
from ..loop import run_steps
from ..optim import learning_rate
from ..parallel.replicated import Replicated
from ..parallel.strategy import Strategy
from ..resume import resume
from .report import head_report
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
        identity, facts: see :class:`~vocabforge.train.resume.Resumable`.
        owner: what the router will belong to.
        parents: content hashes of what it is made from.
        best: the drafter's best tokens by rows and steps, shared by routers trained on the same rows: with a large
            vocabulary they are most of the work.
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
    facts: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.group = Group(0, 1)
        self.strategy: Strategy = Replicated("single", self.router, self.config, self.group, self.device)
        self._base = base_of(self.drafter)
        self._cluster = cluster_rows(self.router.assignment, self._base.target_ids)
        config = self.config
        decides = (self.owner.drafter, self.owner.target, self.data.digest(), config.run.seed)
        self._rows_key = repr((*decides, config.optim.batch_size, config.router.steps, config.router.top_n))

    def run(self) -> Path:
        """Train to the last step, resuming from the newest checkpoint; returns the router's folder.

        Raises:
            DataError: a loss that is not finite (the batch is named), or no row to learn from.
            MismatchError: the folder holds a run with other settings.
            KeyboardInterrupt: a signal asked the run to stop; a checkpoint is written.
        """
        start = resume(self)
        again = ("heldout",) if start == self.config.optim.steps else ()  # the report follows the checkpoint
        log = MetricsLog(self.config.output / "metrics.jsonl", keep_until=start, again=again)
        run_steps(self, self, "train-router", start, log)
        return self._finish(log)

    def unrolled(self, step: int) -> int:
        """See :class:`~vocabforge.train.loop.Steps`."""
        return self.config.router.steps

    def take_step(self, step: int) -> int:
        """See :class:`~vocabforge.train.loop.Steps`."""
        config = self.config
        rows = batch_rows(len(self.data.train), config.optim.batch_size, step, config.run.seed)
        batch = self.rows("train", rows)
        sums = torch.zeros(3, dtype=torch.float64)  # loss, average precision, rows
        parts = list(drafting_rows(self.drafter, batch, config.router.steps))
        number = max(1, sum(len(part.hidden) for part in parts))

        def check(what: str, value: Tensor) -> None:
            if not torch.isfinite(value):
                raise DataError(
                    f"the training {what} is not finite",
                    got=f"{float(value.detach())} at step {step + 1}",
                    source=f"packed rows {list(rows)}",
                    remedy="lower optim.lr or inspect these rows; the last checkpoint is intact",
                )

        for part in parts:
            scores, labels = self._scores(part), self._labels(part, step)
            loss = router_loss(scores, labels) / number
            check("loss", loss)
            self.strategy.backward(loss, last=part is parts[-1])
            ranked = average_precision(scores.detach(), labels).sum()
            sums += torch.tensor([float(loss.detach()) * number, float(ranked), len(labels)])
        lr = learning_rate(step, config.optim)
        norm = self.strategy.update(lr, config.optim.clip, lambda norm: check("gradient", norm))
        self._figures = {
            "loss": float(sums[0]) / number,
            "average_precision": float(sums[1]) / number,
            "rows": int(sums[2]),
            "grad_norm": float(norm),
        }
        return int((batch.document != 0).sum())

    def figures(self) -> dict[str, Any]:
        """Of the last step."""
        return self._figures

    def evaluate(self, done: int, log: MetricsLog) -> None:
        """The router's held-out figures; those after the last step come with the report."""
        if done == self.config.optim.steps:
            return
        overall = self.report()["heads"]["router"]["overall"]
        log.write(kind="heldout", step=done, **overall)
        say(
            f"step {done}: held-out average precision {overall['average_precision']:.3f} | "
            f"recall of the argmax {overall['argmax_recall']:.3f} with {overall['shortlist_share']:.0%} of V"
        )

    def rows(self, split: str, indices: Sequence[int]) -> CapturedBatch:
        """The target's states for these packed rows of a split."""
        rows = self.data.train if split == "train" else self.data.heldout
        return self.capture(to_tensors(rows, indices, self.device), [(split, i) for i in indices])

    def report(self) -> dict[str, Any]:
        """Held-out figures of the router with its default budget."""
        # Reports ask for probabilities only: no sorted copy of the head, which drafting reads.
        head = RouterHead(self._base, self.router, default_budgets(self.router.clusters), "own", ops=False)
        count = min(len(self.data.heldout), self.config.run.eval_rows)
        size = self.config.optim.batch_size
        starts = range(0, count, size)
        batches = (self.rows("heldout", range(at, min(count, at + size))) for at in starts)
        steps, top_n, heads = self.config.router.steps, self.config.router.top_n, {"router": head}
        self.router.eval()
        found = head_report(self.drafter, self.target, heads, batches, steps, count=len(starts), top_n=top_n)
        self.router.train()
        return found

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
        weight, top_n, known = self._base.weight, self.config.router.top_n, len(self._cluster)
        logits = (F.linear(some, weight).float()[:, :known] for some in hidden.split(at_once))
        return torch.cat([best_columns(some, top_n) for some in logits])

    def _finish(self, log: MetricsLog) -> Path:
        config, path = self.config, self.config.output / ROUTER
        check_output(path, overwrite=True)
        report = self.report()
        heldout = report["heads"]["router"]["overall"]
        log.write(kind="heldout", step=config.optim.steps, **heldout)
        atomic_write_json(config.output / REPORT, report)
        meta = {
            "steps": config.optim.steps,
            "top_n": config.router.top_n,
            "draft_steps": config.router.steps,
            "budgets": list(default_budgets(self.router.clusters)),
            "heldout": heldout,
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
