"""The target's training step in a study: bf16 passes, and a cross-entropy that is estimated on candidates.

With V = 151,936 everything V wide costs more than the model. A step with candidates gathers the rows of its candidates
once, (C, H), and reads both the input embedding and the output weights from them; all of the batch's tokens are
candidates. The gathered rows are leaves of the graph, so that only (C, H) gradients are made.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from ..demo.target.config import TinyTargetConfig
from ..demo.target.train import Step, TextBatch, TextRows, counted_states, plain_step
from ..train.config import Precision
from ..train.data import corpus_counts
from ..train.loss.candidates import Candidates
from ..train.loss.fused import accumulation, product
from .candidates import CandidateSampler

# Of logits at once: on a CPU as much as its caches hold, elsewhere enough to keep the device busy.
_CHUNK_BYTES = {"cpu": 8 << 20}
_CHUNK_BYTES_ELSEWHERE = 1 << 30


class StudyTinyTargetConfig(TinyTargetConfig):
    """A study's target: see :class:`~.config.StudyTargetConfig`."""

    induction: bool = False
    candidates: int | None = None
    mixed_precision: Precision = "no"


def passes_in_bf16(mixed_precision: str, device: torch.device) -> bool:
    """Whether passes are in bf16; ``auto`` asks for CUDA, or for a CPU with AMX: others are slow at it."""
    if mixed_precision != "auto":
        return mixed_precision == "bf16"
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported()
    capabilities: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(capabilities.get("amx_bf16"))


def make_target_step(
    model: Any, optimizer: torch.optim.Optimizer, rows: TextRows, config: TinyTargetConfig
) -> Step:
    """The step that ``config`` (a :class:`StudyTinyTargetConfig`) asks for.

    Raises:
        UsageError: more candidates than rows of the embedding.
    """
    assert isinstance(config, StudyTinyTargetConfig)
    bf16 = passes_in_bf16(config.mixed_precision, model.device)
    if config.candidates is not None:
        table = len(model.get_input_embeddings().weight)
        counts = corpus_counts(rows.packed, table)
        sampler = CandidateSampler(counts, config.candidates, table, config.seed)
        return SampledStep(model, optimizer, sampler, counts, config.optim.clip, bf16=bf16)
    exact = plain_step(model, optimizer, rows, config)

    def step(number: int, batch: TextBatch) -> tuple[Tensor, Tensor]:
        with torch.autocast(model.device.type, torch.bfloat16, enabled=bf16):
            return exact(number, batch)

    return step


class SampledStep:
    """Loss on the candidates of the step.

    The table's gradient is one (V, H) tensor for the whole run: a step writes the rows of its candidates and clears
    them again, so that nothing V wide is made, filled or clipped. AdamW alone reads all of it.

    Ids that never occur are drawn a few times in a run, too seldom to be unlearnt one by one, and a hundred thousand of
    them together hold much of the mass. Their gradients hardly differ, so all of them take the estimate of the mean.

    Args:
        counts: (V,) how often each id occurs.
    """

    def __init__(
        self,
        model: Any,
        optimizer: torch.optim.Optimizer,
        sampler: CandidateSampler,
        counts: npt.NDArray[np.int64],
        clip: float,
        *,
        bf16: bool,
    ) -> None:
        self._model, self._optimizer, self._sampler = model, optimizer, sampler
        self._clip, self._bf16 = clip, bf16
        self._table = model.get_input_embeddings().weight  # (V, H), the LM head, too
        self._gradient = torch.zeros_like(self._table)
        self._never = torch.from_numpy(counts == 0).to(self._table.device)  # (V,)
        self._never_ids = self._never.nonzero()[:, 0]
        self._others = [p for p in model.parameters() if p is not self._table]

    def __call__(self, step: int, batch: TextBatch) -> tuple[Tensor, Tensor]:
        device = self._table.device
        candidates = self._sampler.draw(step, batch.input_ids, device)
        rows = self._table.detach().index_select(0, candidates.ids).requires_grad_()  # (C, H)
        with torch.autocast(device.type, torch.bfloat16, enabled=self._bf16):
            loss = candidate_loss(self._model, batch, rows, candidates, bf16=self._bf16)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_([*self._others, rows], self._clip)
        assert rows.grad is not None
        self._table.grad = self._gradient.index_copy_(0, candidates.ids, rows.grad)
        if len(self._never_ids):
            together = rows.grad[self._never[candidates.ids]].sum(0) / len(self._never_ids)  # (H,)
            self._gradient.index_copy_(0, self._never_ids, together.expand(len(self._never_ids), -1))
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._gradient.index_fill_(0, candidates.ids, 0.0)
        return loss.detach(), norm


def candidate_loss(
    model: Any, batch: TextBatch, rows: Tensor, candidates: Candidates, *, bf16: bool
) -> Tensor:
    """The same mean, estimated on candidates.

    Args:
        batch: on the model's device.
        rows: (C, H) the candidates' rows of the embedding, fp32.
        candidates: of the step, on the model's device; they hold all ids of the batch.
        bf16: the logits' products are in bf16.
    """
    places = torch.searchsorted(candidates.ids, batch.input_ids)  # (B, T)
    hidden = counted_states(model, batch, F.embedding(places, rows))
    labels = places[:, 1:][batch.keep]
    loss: Tensor = _CrossEntropy.apply(
        hidden, rows, candidates.offset, labels, torch.bfloat16 if bf16 else rows.dtype
    )
    return loss


class _CrossEntropy(torch.autograd.Function):
    """Mean of ``-log softmax(hidden @ rows.T + offset)[label]`` with its gradients, a few rows of logits at a time.

    The gradients are made with the loss (softmax less the label's one), so that no logits are kept.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, rows: Tensor, offset: Tensor, labels: Tensor, dtype: torch.dtype
    ) -> Tensor:
        """hidden (n, H), rows (C, H), offset (C,), labels (n,) -> the mean; products are in ``dtype``."""
        wide = accumulation(rows.dtype)
        weight = rows.to(dtype)
        by_hidden, by_rows = torch.empty_like(hidden), torch.zeros_like(rows)
        total = torch.zeros((), dtype=wide, device=rows.device)
        held = _CHUNK_BYTES.get(rows.device.type, _CHUNK_BYTES_ELSEWHERE)
        size = max(1, held // (wide.itemsize * len(rows)))
        for part, label, out in zip(hidden.split(size), labels.split(size), by_hidden.split(size)):
            states, label = part.to(dtype), label[:, None]
            logits = product(states, weight.t(), wide).add_(offset)  # (m, C)
            highest = logits.amax(-1, keepdim=True)
            total -= (logits.gather(1, label) - highest).sum()
            share = logits.sub_(highest).exp_()
            mass = share.sum(-1, keepdim=True)
            total += mass.log().sum()
            share.div_(mass).scatter_add_(1, label, torch.full_like(mass, -1.0))
            share = share.to(dtype)
            out.copy_(share @ weight)
            by_rows += product(share.t(), states, wide)
        ctx.save_for_backward(by_hidden, by_rows)
        ctx.count = max(len(hidden), 1)
        return total / ctx.count

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        by_hidden, by_rows = ctx.saved_tensors
        scale = gradient / ctx.count
        return by_hidden * scale, by_rows * scale, None, None, None
