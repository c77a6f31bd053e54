"""What training and decoding ask of every drafter, whatever its kind, and what the kinds share."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...core.errors import MismatchError
from ...ops.few_rows import linear
from ..kv_cache import CacheView, KVCache
from ..target.logits import IDENTITY, LogitTransform
from ..ttt.attention import TTTState


class Drafter(nn.Module):
    """A drafter over a frozen target, read by the target's LM head or by its own (``lm_head``).

    Args:
        config: sizes of the kind.
        embedding, target_head: (V, H) the target's; shared buffers, never trained, never saved.
        target_ids: (R,) ascending target ids of the own head's rows; required if R is below V. Without an own head
            they restrict the target's head to these rows.

    Attributes:
        kind: its row of the drafter table; ``label`` as people write it.
        sizes_type: class of ``config``.
        reads: what :meth:`fuse` takes: ``aux`` (B, T, n_aux * H) outputs of the auxiliary layers, ``hidden``
            (B, T, H) after the final norm.
        target_ids: (R,) target ids of the head's rows (0..V-1 over the whole vocabulary).
        target_transform: of the target's logits.
        rows_by_token: tensors with a row a draft token, beside the head.

    Raises:
        MismatchError: the target's tensors do not have the configured sizes, or the ids are missing.
    """

    kind: str
    label: str
    sizes_type: type[Any]
    reads: Literal["aux", "hidden"]
    config: Any
    embedding: Tensor
    target_head: Tensor
    target_ids: Tensor
    shared_rows: Tensor
    target_transform: LogitTransform = IDENTITY
    lm_head: nn.Linear
    rows_by_token: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self, config: Any, embedding: Tensor, target_head: Tensor, target_ids: Tensor | None = None
    ) -> None:
        super().__init__()
        self.config = config
        expected = (config.vocab_size, config.hidden_size)
        for name, tensor in (("input embedding", embedding), ("LM head", target_head)):
            if tuple(tensor.shape) != expected:
                raise MismatchError(
                    f"the target's {name} does not fit the drafter",
                    got=f"shape {tuple(tensor.shape)}",
                    expected=f"shape {expected}",
                    remedy="use the target that the drafter was trained for",
                )
        rows = config.draft_vocab_size
        if rows is not None and rows != config.vocab_size and (target_ids is None or len(target_ids) != rows):
            raise MismatchError(
                "the drafter's own head has no matching list of target ids",
                got="none" if target_ids is None else f"{len(target_ids)} ids",
                expected=f"{rows} ids",
            )
        if target_ids is None:
            target_ids = torch.arange(rows or config.vocab_size)
        self.register_buffer("embedding", embedding.detach(), persistent=False)
        self.register_buffer("target_head", target_head.detach(), persistent=False)
        self.register_buffer("target_ids", target_ids, persistent=False)
        if rows is None and len(target_ids) < config.vocab_size:
            self.register_buffer("shared_rows", target_head.detach()[target_ids], persistent=False)

    @property
    def has_own_head(self) -> bool:
        return self.config.draft_vocab_size is not None

    @property
    def restricted(self) -> bool:
        """Whether the drafter is read by some rows of the target's head, which are not stored with it."""
        return not self.has_own_head and len(self.target_ids) < self.config.vocab_size

    @property
    def head_weight(self) -> Tensor:
        """(R, H) or (V, H) rows that score draft tokens; an error if ``heads_differ``."""
        if self.has_own_head:
            return self.lm_head.weight
        return self.shared_rows if self.restricted else self.target_head

    @property
    def bias_weight(self) -> Tensor | None:
        """(R, r) further columns beside the head's rows, for states with r numbers more (DSpark's W2)."""
        return None

    @property
    def heads_differ(self) -> bool:
        """Whether draft steps have LM heads of their own (Medusa's, as published)."""
        return False

    def head_rows(self, step: int) -> Tensor:
        """``head_weight`` of a draft step."""
        return self.head_weight

    @property
    def transform(self) -> LogitTransform:
        """Of the logits of ``head_weight``: the target's where the head is; an own head learns what comes of it."""
        return IDENTITY if self.has_own_head else self.target_transform

    @property
    def positions(self) -> int | None:
        """How many rotary positions there are now; None where positions are not used."""
        return None

    @property
    def max_steps(self) -> int | None:
        """Most steps of an unroll (Medusa: its heads); None where there is no bound."""
        return None

    def init_from_target(self, features: Tensor, hidden: Tensor) -> None:
        """Start at the target's scale, from captured rows (N, .) of real tokens; see ``train/setup.py``."""
        self.init_own_head()

    @torch.no_grad()
    def init_own_head(self) -> None:
        """An own LM head takes the target's rows of the same tokens, with the target's scale."""
        if self.has_own_head:
            self.lm_head.weight.copy_(self.target_head[self.target_ids] * self.target_transform.scale)

    def ensure_positions(self, count: int) -> None:
        """Make room for at least this many positions; nothing where they are not used."""

    @property
    def cache_layers(self) -> int:
        """Layers of the key cache that it decodes against."""
        return int(getattr(self.config, "num_layers", 1))

    def new_cache(self, rows: int, capacity: int) -> KVCache:
        """An empty key cache for ``rows`` requests, of the dtype and device of the weights."""
        weight, c = next(self.parameters()), self.config
        sizes = self.cache_layers, rows, c.num_kv_heads, capacity, c.head_dim
        return KVCache(*sizes, weight.dtype, weight.device)

    def embed(self, ids: Tensor) -> Tensor:
        """(B, T) -> (B, T, H)."""
        return F.embedding(ids, self.embedding)

    def fuse(self, features: Tensor) -> Tensor:
        """What the first step is fed: (B, T, .) -> (B, T, H); here the target's hidden states as they are."""
        return features

    def ttt_step(self, ids: Tensor, g: Tensor, position: Tensor, state: TTTState) -> Tensor:
        """One step of the unroll for all rows: the next g (B, T, H).

        Args:
            ids: (B, T) tokens fed.
            g: (B, T, H) hidden states fed: of ``fuse``, later the drafter's own.
            position: (B, T) rotary positions, already t + k.
            state: documents and keys of the earlier steps; this step's are appended.
        """
        raise NotImplementedError

    def read(self, g: Tensor) -> Tensor:
        """What the LM head reads: (..., H) -> (..., H); here g itself."""
        return g

    def confidence(self, state: Tensor) -> Tensor | None:
        """Logits of acceptance (...) from what :meth:`read` gave, if the drafter estimates it."""
        return None

    def logits(self, g: Tensor, step: int = 0) -> Tensor:
        """(..., H) of a draft step -> (..., R or V)."""
        return self.transform(linear(self.read(g), self.head_rows(step)))


class CachedDrafter(Drafter):
    """A drafter whose next state depends on its path: it decodes a step at a time against a key cache."""

    def extend(self, ids: Tensor, g: Tensor, position: Tensor, cached: CacheView) -> tuple[Tensor, Tensor]:
        """One cached step of decoding: the next g (B, N, H), and :meth:`read` of it.

        Args:
            ids: (B, N) tokens fed.
            g: (B, N, H) hidden states fed.
            position: (B, N) rotary positions.
            cached: the cache of ``cache_layers`` layers, as this step uses it.
        """
        raise NotImplementedError


def is_autoregressive(drafter: Any) -> TypeGuard[CachedDrafter]:
    """Whether a draft step is fed the token drafted before it and the state that the step before made."""
    return hasattr(drafter, "extend") and not getattr(drafter, "parallel", False)
