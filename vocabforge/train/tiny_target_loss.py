"""Cross-entropy of a small target: over all V tokens, or estimated on the candidates of a step.

With V = 151,936 whatever is V wide costs more than the model. A step with candidates gathers the rows of its candidates
once, (C, H), and reads both the input embedding and the output weights from them; all of the batch's tokens are
candidates. The gathered rows are leaves of the graph, so that only (C, H) gradients are made.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..models.document_passes import document_mask
from .candidates import Candidates
from .tiny_target_rows import Batch, Rows
from .vocab_loss_terms import accumulation, product

# Of logits at once: on a CPU as much as its caches hold, elsewhere enough to keep the device busy.
_CHUNK_BYTES = {"cpu": 8 << 20}
_CHUNK_BYTES_ELSEWHERE = 1 << 30
_EXACT_BYTES = 128 << 20
_PLAIN_BYTES = 256 << 20  # logits of a step that are simply held


def batch_loss(model: Any, batch: Batch) -> tuple[Tensor, int]:
    """Mean cross-entropy over the counted predictions of a batch, and their number.

    Only the counted positions go through the LM head: it is a third of a tiny model's work. Where their logits would be
    more than 256 MiB, they are made a few rows at a time.
    """
    hidden, head = _counted(model, batch), model.lm_head.weight
    count = len(hidden)
    if 4 * count * len(head) > _PLAIN_BYTES:
        kind = hidden.device.type
        low = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else head.dtype
        return _CrossEntropy.apply(hidden, head, head.new_zeros(1), batch.labels, low), count
    logits = model.lm_head(hidden).float()  # (n, V)
    # A batch of rows cut before their answer has nothing to count: its loss is 0, not NaN.
    return F.cross_entropy(logits, batch.labels, reduction="sum") / max(count, 1), count


def _counted(model: Any, batch: Batch, embedded: Tensor | None = None) -> Tensor:
    """(n, H): states behind the final norm where a prediction counts."""
    entry = {"input_ids": batch.input_ids} if embedded is None else {"inputs_embeds": embedded}
    output = model.model(
        **entry,
        attention_mask=document_mask(batch.document),
        position_ids=batch.position,
        use_cache=False,
    )
    return output.last_hidden_state[:, :-1][batch.keep]


def candidate_loss(model: Any, batch: Batch, rows: Tensor, candidates: Candidates, *, bf16: bool) -> Tensor:
    """The same mean, estimated on candidates.

    Args:
        batch: on the model's device.
        rows: (C, H) the candidates' rows of the embedding, fp32.
        candidates: of the step, on the model's device; they hold all ids of the batch.
        bf16: the logits' products are in bf16.
    """
    places = torch.searchsorted(candidates.ids, batch.input_ids)  # (B, T)
    hidden = _counted(model, batch, F.embedding(places, rows))
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


@torch.no_grad()
def heldout_loss(model: Any, rows: Rows, chosen: Tensor, batch_size: int = 8) -> tuple[float, int]:
    """Sum of the exact cross-entropy (nats) over the counted predictions of the chosen rows, and their number."""
    head = model.lm_head.weight
    size = max(1, _EXACT_BYTES // (4 * len(head)))
    total, count = 0.0, 0
    for part in chosen.split(batch_size):
        batch = rows.batch(part).to(head.device)
        hidden, labels = _counted(model, batch), batch.labels
        for states, label in zip(hidden.split(size), labels.split(size)):
            total += float(F.cross_entropy(F.linear(states, head), label, reduction="sum"))
        count += len(labels)
    return total, count
