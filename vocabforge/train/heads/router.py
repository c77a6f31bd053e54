"""Training of a router on the drafting states of a frozen drafter (DynaSpec; docs/methods.md, Draft heads).

States are recomputed from each batch of packed rows at every draft step and never stored. Disk use does not
grow with the data, and a resumed run uses the same states.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ...core.artifact import check_output
from ...core.console import say
from ...core.files import atomic_write_json
from ...core.journal import MetricsLog
from ...models.drafters.interface import Drafter
from ...models.drafters.parallel import is_parallel
from ...models.heads.io import HeadOwner, save_head
from ...models.heads.registry import RouterHead, base_of
from ...models.heads.router import Router, cluster_rows, default_budgets
from ...models.ttt.blocks import every_anchor
from ..capture.online import to_tensors
from ..config import RouterTrainConfig
from ..data import batch_rows, divide
from ..loop import run_steps
from ..optim import learning_rate
from ..parallel.strategy import make_strategy, wanted_strategy
from ..resume import resume
from ..trainer import Run, check_finite
from ..ttt import rows_by_step
from .report import head_report
from .states import DraftingRows, average_precision, best_tokens, drafting_rows, labels_of, router_losses

ROUTER, REPORT = "router", "report.json"


@dataclass(kw_only=True)
class RouterTrainer(Run):
    """Training run of a router.

    Attributes:
        owner: drafter, target and tokenizer that the router belongs to.
        parents: content hashes of the source artefacts.
    """

    config: RouterTrainConfig
    drafter: Drafter
    router: Router
    owner: HeadOwner
    parents: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        config, group = self.config, self.group
        self.division = divide(config.optim, group.rank, group.size)
        strategy = wanted_strategy("auto", group)
        self.strategy = make_strategy(strategy, self.router, config, group, self.device)
        self._base = base_of(self.drafter)
        self._cluster = cluster_rows(self.router.assignment, self._base.target_ids)
        self._sums = np.zeros(3)  # loss, average precision and rows of the last step
        self._norm = torch.zeros(())

    def run(self) -> Path:
        """Train to the last step, resuming from the newest checkpoint; return the output folder. Collective.

        Raises:
            DataError: the loss is not finite; names the batch.
            UsageError: the folder contains a run with other settings.
            KeyboardInterrupt: a signal stopped the run after writing a checkpoint.
        """
        try:
            start = resume(self)
            # The report is written after the checkpoint.
            again = ("heldout",) if start == self.config.optim.steps else ()
            log = MetricsLog(self.config.output / "metrics.jsonl", keep_until=start, again=again)
            run_steps(self, self, "train-router", start, log)
            return self._finish(log)
        finally:
            self.strategy.close()

    def unrolled(self, step: int) -> int:
        return self.config.router.steps

    def take_step(self, step: int) -> int:
        config, steps = self.config, self.config.router.steps
        rows = batch_rows(len(self.data.train), config.optim.batch_size, step, config.run.seed)
        everyone = to_tensors(self.data.train, rows, torch.device("cpu"))  # (B, T) of all processes
        anchors = every_anchor(everyone.input_ids) if is_parallel(self.drafter) else None
        counts = rows_by_step(everyone.loss_mask, everyone.document, steps, anchors)
        number = max(1.0, float(counts.sum()))
        self._sums, total = np.zeros(3), 0.0
        passes, tokens = self.division.own(rows), int((everyone.document != 0).sum())
        if not counts.any():  # skip the step: weight decay and momentum would still change the weights
            for own in passes:
                self.capture("train", own)
            return tokens
        for index, own in enumerate(passes):
            # Every process makes the same number of passes, even if none of its rows are counted.
            parts = list(drafting_rows(self.drafter, self.capture("train", own), steps))
            for part in parts:
                last = index == len(passes) - 1 and part is parts[-1]
                with self.strategy.syncing(last=last):
                    embedded = F.embedding(part.state.tokens, self._base.embedding)
                    scores = self.strategy.forward(embedded, part.state.previous)  # (M, clusters)
                labels = self._labels(part)
                loss = router_losses(scores, labels).sum() / number
                self.strategy.backward(loss, last=last)
                total += float(loss.detach())
                ranked = average_precision(scores.detach(), labels).sum()
                self._sums += (float(loss.detach()) * number, float(ranked), len(labels))

        check = partial(check_finite, self, step, rows, torch.tensor(total))
        self._norm = self.strategy.update(learning_rate(step, config.optim), config.optim.clip, check)
        return tokens

    def figures(self) -> dict[str, Any]:
        """Return the figures of the last step over all processes."""
        loss, precision, rows = self.group.sum(self._sums).tolist()
        return {
            "loss": loss / rows if rows else None,
            "average_precision": precision / rows if rows else None,
            "rows": int(rows),
            "grad_norm": float(self._norm),
        }

    def evaluate(self, done: int, log: MetricsLog) -> None:
        """Log the router's held-out figures; after the last step they are part of the report."""
        if done == self.config.optim.steps:
            return
        if (report := self.report()) is not None:
            overall = report["heads"]["router"]["overall"]
            log.write(kind="heldout", step=done, **overall)
            say(
                f"step {done}: held-out average precision {overall['average_precision']:.3f} | "
                f"recall of the argmax {overall['argmax_recall']:.3f} with {overall['shortlist_share']:.0%} of V"
            )
        self.group.wait()

    def plain(self) -> Router:
        """Return the router as an ordinary module with its current weights. Collective."""
        weights = self.strategy.weights()
        copied = self.router.blank().to(self.device)
        copied.load_state_dict(weights)
        return copied.eval().requires_grad_(False)

    def report(self, router: Router | None = None) -> dict[str, Any] | None:
        """Return held-out figures with the default budgets on rank 0, None on other ranks. Collective.

        Args:
            router: result of :meth:`plain`, if already computed.
        """
        router = self.plain() if router is None else router
        count, size = min(len(self.data.heldout), self.config.run.eval_rows), self.division.micro
        starts = range(0, count, size)
        batches = (self.capture("heldout", list(range(at, min(count, at + size)))) for at in starts)
        if self.group.rank == 0:
            heads = {"router": self._head(router)}
            steps, top_n = self.config.router.steps, self.config.router.top_n
            return head_report(
                self.drafter, self.target, heads, batches, steps, count=len(starts), top_n=top_n
            )
        if getattr(self.target, "tensor_parallel", False):  # every process must take part in its passes
            for _ in batches:
                pass
        return None

    def _head(self, router: Router) -> RouterHead:
        # Reports need only probabilities, so no sorted copy of the head is made.
        budgets = default_budgets(router.clusters, decaying=self._base.autoregressive)
        return RouterHead(self._base, router, budgets, "own", ops=False)

    @torch.no_grad()
    def _labels(self, part: DraftingRows) -> Tensor:
        """Return the labels, bool (M, clusters)."""
        best = best_tokens(part.hidden, self._base.weight, len(self._cluster), self.config.router.top_n)
        return labels_of(best, self._cluster, self.router.clusters)

    def _finish(self, log: MetricsLog) -> Path:
        config, path = self.config, self.config.output / ROUTER
        router = self.plain()
        report = self.report(router)
        if report is not None:
            check_output(path, overwrite=True)
            heldout = report["heads"]["router"]["overall"]
            log.write(kind="heldout", step=config.optim.steps, **heldout)
            atomic_write_json(config.output / REPORT, report)
            meta = {
                "steps": config.optim.steps,
                "top_n": config.router.top_n,
                "draft_steps": config.router.steps,
                "budgets": list(self._head(router).budgets),
                "heldout": heldout,
            }
            save_head(
                path,
                "router",
                router,
                self.owner,
                meta,
                parents=self.parents,
                config=config.model_dump(mode="json"),
                overwrite=True,
            )
        self.group.wait()
        return path
