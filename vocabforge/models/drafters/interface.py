"""The interface of drafters for training and decoding, and the code shared by all kinds."""

from __future__ import annotations

from abc import ABC, abstractmethod
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
    """A drafter over a frozen target, with the target's LM head or its own (``lm_head``).

    Args:
        config: sizes of the kind.
        embedding, target_head: (V, H) tensors of the target; shared buffers, never trained or saved.
        target_ids: (R,) ascending target ids of the rows of the drafter's own head; required if R is below V.
            Without an own head, they restrict the target's head to these rows.

    Attributes:
        kind: key in the drafter table.
        label: display name.
        sizes_type: class of ``config``.
        reads: input of :meth:`fuse`: ``aux`` for outputs of the auxiliary layers (B, T, n_aux * H),
            ``hidden`` for states after the final norm (B, T, H).
        target_ids: (R,) target ids of the head's rows (0..V-1 for the whole vocabulary).
        target_transform: transform of the target's logits.
        rows_by_token: names of further tensors with one row per draft token.

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
            target_ids = torch.arange(rows or config.vocab_size, device=embedding.device)
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
        """Whether the drafter uses a subset of the target head's rows, which are not stored with it."""
        return not self.has_own_head and len(self.target_ids) < self.config.vocab_size

    @property
    def head_weight(self) -> Tensor:
        """LM head rows (R, H) or (V, H) for draft tokens; an error if ``heads_differ``."""
        if self.has_own_head:
            return self.lm_head.weight
        return self.shared_rows if self.restricted else self.target_head

    @property
    def bias_weight(self) -> Tensor | None:
        """Additional columns (R, r) of the head, for states with r additional features (DSpark's W2)."""
        return None

    @property
    def heads_differ(self) -> bool:
        """Whether each draft step has a separate LM head (Medusa, as published)."""
        return False

    def head_rows(self, step: int) -> Tensor:
        """Return the ``head_weight`` of a draft step."""
        return self.head_weight

    @property
    def transform(self) -> LogitTransform:
        """Transform of the logits: the target's for its head, the identity for an own head (it learns it)."""
        return IDENTITY if self.has_own_head else self.target_transform

    @property
    def positions(self) -> int | None:
        """Current number of rotary positions; None if positions are not used."""
        return None

    @property
    def max_steps(self) -> int | None:
        """Maximum steps of an unroll (for Medusa, its heads); None for no limit."""
        return None

    def init_from_target(self, features: Tensor, hidden: Tensor) -> None:
        """Initialise at the target's scale from captured rows (N, .) of tokens; see ``train/setup.py``."""
        self.init_own_head()

    @torch.no_grad()
    def init_own_head(self) -> None:
        """Initialise an own LM head with the target's rows of the same tokens, times the target's scale."""
        if self.has_own_head:
            self.lm_head.weight.copy_(self.target_head[self.target_ids] * self.target_transform.scale)

    def ensure_positions(self, count: int) -> None:
        """Extend the tables to at least ``count`` positions; a no-op if positions are not used."""

    @property
    def cache_layers(self) -> int:
        """Number of layers of the key cache for decoding."""
        return int(getattr(self.config, "num_layers", 1))

    def new_cache(self, rows: int, capacity: int) -> KVCache:
        """Return an empty key cache for ``rows`` requests, with the dtype and device of the weights."""
        weight, c = next(self.parameters()), self.config
        sizes = self.cache_layers, rows, c.num_kv_heads, capacity, c.head_dim
        return KVCache(*sizes, weight.dtype, weight.device)

    def embed(self, ids: Tensor) -> Tensor:
        """Embed token ids: (B, T) -> (B, T, H)."""
        return F.embedding(ids, self.embedding)

    def fuse(self, features: Tensor) -> Tensor:
        """Compute the first step's input: (B, T, .) -> (B, T, H); by default the target's hidden states."""
        return features

    def ttt_step(self, ids: Tensor, g: Tensor, position: Tensor, state: TTTState) -> Tensor:
        """Run one step of the unroll for all rows; return the next g (B, T, H).

        Args:
            ids: (B, T) input tokens.
            g: (B, T, H) input states: the output of ``fuse`` in step 0, then the drafter's own.
            position: (B, T) rotary positions, already t + k.
            state: documents and keys of the earlier steps; this step's keys are appended.
        """
        raise NotImplementedError

    def read(self, g: Tensor) -> Tensor:
        """Return the LM head's input: (..., H) -> (..., H); by default g itself."""
        return g

    def confidence(self, state: Tensor) -> Tensor | None:
        """Compute acceptance logits (...) from the output of :meth:`read`; None if not supported."""
        return None

    def logits(self, g: Tensor, step: int = 0) -> Tensor:
        """Compute the logits of a draft step: (..., H) -> (..., R or V)."""
        return self.transform(linear(self.read(g), self.head_rows(step)))


class CachedDrafter(Drafter, ABC):
    """A drafter whose next state depends on its path, decoded step by step with a key cache."""

    @abstractmethod
    def extend(self, ids: Tensor, g: Tensor, position: Tensor, cached: CacheView) -> tuple[Tensor, Tensor]:
        """Run one cached decoding step; return the next g (B, N, H) and its :meth:`read`.

        Args:
            ids: (B, N) input tokens.
            g: (B, N, H) input states.
            position: (B, N) rotary positions.
            cached: the step's view of a cache with ``cache_layers`` layers.
        """

    def write_keys(self, ids: Tensor, g: Tensor, position: Tensor, cache: KVCache) -> bool:
        """Only write tokens' keys and values at their positions, if that costs less than :meth:`extend`.

        Args:
            ids, g, position: see :meth:`extend`.

        Returns:
            whether they were written.
        """
        return False


def is_autoregressive(drafter: Any) -> TypeGuard[CachedDrafter]:
    """Return whether the inputs of a draft step are the previous step's token and state."""
    return hasattr(drafter, "extend") and not getattr(drafter, "parallel", False)
