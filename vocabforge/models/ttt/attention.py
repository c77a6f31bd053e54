"""Attention of the training-time test (TTT): causal step-0 keys and a row's own later keys.

Query t of step n attends to the step-0 keys s <= t of its document and to its own keys of steps 1..n
(Li et al. 2025, "EAGLE-3"; docs/methods.md, The training-time test). With a sliding window of W positions, only
step-0 keys with t + n - s < W are visible, because the query is at position t + n.

``eager`` is the reference and holds all (T, T) weights; ``merged`` (CPU) and ``flex`` (CUDA) work in blocks and
merge the causal part with the row's own keys by log-sum-exp.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from ...core.errors import ConfigError
from ..device import has_triton
from ..target.documents import document_mask

if TYPE_CHECKING:
    from .merged import Documents

# Smallest head size that the flex attention kernel supports.
FLEX_HEAD_DIM = 16
# Up to this length, computing all weights at once is faster on a CPU.
EAGER_LENGTH = 64


@dataclass
class TTTState:
    """The state of an unroll.

    Attributes:
        document: (B, T) document number in its row, 0 for padding.
        attention: ``auto``, ``eager``, ``merged`` or ``flex``.
        k, v: one (B, kv, T, D) pair per step; entry 0 holds the causal keys, later entries the diagonal keys.
        deeper: states of the second and later layers.
    """

    document: Tensor
    attention: str = "auto"
    k: list[Tensor] = field(default_factory=list)
    v: list[Tensor] = field(default_factory=list)
    documents: Documents | None = None
    deeper: list[TTTState] = field(default_factory=list)

    def layer(self, index: int) -> TTTState:
        """Return the state of a layer; layer 0 is this object."""
        while len(self.deeper) < index:
            self.deeper.append(TTTState(self.document, self.attention, documents=self.documents))
        return self.deeper[index - 1] if index else self

    def copy(self) -> TTTState:
        """Return a copy that can be extended independently; the tensors are shared."""
        deeper = [state.copy() for state in self.deeper]
        return replace(self, k=list(self.k), v=list(self.v), deeper=deeper)


def ttt_attention(q: Tensor, k: Tensor, v: Tensor, state: TTTState, window: int | None = None) -> Tensor:
    """Attend to the step-0 keys s <= t of a row's document and to the row's own keys of later steps.

    Under autocast, q, k and v are cast to its dtype, as in torch's attention.

    Args:
        q: (B, h, T, D) queries of the next step.
        k, v: (B, kv, T, D) its keys and values, which are appended to ``state``.
        window: number of positions that a query attends to, its own included; None for all. Above the steps.

    Returns:
        (B, h, T, D).

    Raises:
        ConfigError: see :func:`choose_attention`.
        DataError: a document is not contiguous in its row (``merged`` and ``flex``).
    """
    if torch.is_autocast_enabled(q.device.type):
        dtype = torch.get_autocast_dtype(q.device.type)
        q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    state.k.append(k)
    state.v.append(v)
    # Step-0 keys that the newest step's queries still reach.
    reach = None if window is None else window - (len(state.k) - 1)
    kind = choose_attention(state.attention, q.device, *q.shape[2:])
    reach = None if reach is None or reach >= q.shape[2] else reach
    if kind == "eager" or (kind == "merged" and reach is not None):  # the CPU's flash kernel has no windows
        return _eager(q, state, reach)
    if state.documents is None:
        from .merged import Documents

        state.documents = Documents.find(state.document)
    if kind == "merged":
        from .merged import merged_attention

        return merged_attention(q, state.k, state.v, state.documents)
    from .flex import flex_attention

    return flex_attention(q, state.k, state.v, state.documents, reach)


def choose_attention(asked: str, device: torch.device, length: int, head_dim: int) -> str:
    """Choose the implementation for rows of ``length`` tokens.

    Raises:
        ConfigError: the name is unknown, or the implementation does not support this device.
    """
    if asked == "auto":
        if device.type == "cuda":
            return "flex" if head_dim >= FLEX_HEAD_DIM and has_triton() else "eager"
        return "eager" if length <= EAGER_LENGTH else "merged"
    if asked not in ("eager", "merged", "flex"):
        raise ConfigError("there is no such attention", got=asked, expected="auto, eager, merged or flex")
    if asked != "eager" and (asked == "flex") != (device.type == "cuda"):
        raise ConfigError(
            f"{asked} attention does not train on this device",
            got=f"device {device.type}",
            expected="merged on a CPU, flex on CUDA, eager on both",
            source="memory.attention",
            remedy="use memory.attention: auto",
        )
    return asked


def _eager(q: Tensor, state: TTTState, reach: int | None) -> Tensor:
    """Compute the reference with all (T, T + n - 1) weights at once."""
    visible = document_mask(state.document)
    if reach is not None:
        visible = visible & torch.ones(q.shape[2], q.shape[2], dtype=torch.bool, device=q.device).triu(
            1 - reach
        )
    group = q.shape[1] // state.k[0].shape[1]
    if len(state.k) == 1:  # no diagonal part: plain attention, which has a fused kernel
        return F.scaled_dot_product_attention(
            q, state.k[0], state.v[0], attn_mask=visible, enable_gqa=group > 1
        )
    k = [key.repeat_interleave(group, dim=1) for key in state.k]
    v = [value.repeat_interleave(group, dim=1) for value in state.v]
    q = q * q.shape[-1] ** -0.5
    length = k[0].shape[2]
    hidden = torch.zeros_like(visible, dtype=q.dtype).masked_fill_(~visible, torch.finfo(q.dtype).min)
    causal = q @ k[0].transpose(-1, -2) + hidden  # (B, h, T, T)
    diagonal = [(q * key).sum(-1, keepdim=True) for key in k[1:]]  # each (B, h, T, 1)
    precise = torch.promote_types(q.dtype, torch.float32)
    weights = torch.cat([causal, *diagonal], dim=-1).to(precise).softmax(-1).to(q.dtype)
    shared, *own = weights.split([length] + [1] * len(diagonal), dim=-1)  # (B, h, T, T), (B, h, T, 1) each
    attended = shared @ v[0]
    for weight, value in zip(own, v[1:]):
        attended = attended + weight * value
    return attended
