"""What training and decoding ask of every drafter, whatever its kind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Literal, Protocol, TypeGuard

from torch import Tensor, nn

from ..kv_cache import KVCache, Sight
from ..target.logits import LogitTransform
from ..ttt.attention import TTTState


class Drafter(Protocol):
    """A drafter over a frozen target (all are ``nn.Module``).

    Attributes:
        kind: its row of the drafter table; ``label`` as people write it.
        reads: what :meth:`fuse` takes: ``aux`` (B, T, n_aux * H) outputs of the auxiliary layers, ``hidden``
            (B, T, H) after the final norm.
        embedding, target_head: (V, H) the target's, frozen and shared; never among the parameters.
        target_ids: (R,) ascending target ids of the head's rows (0..V-1 over the whole vocabulary).
    """

    kind: str
    label: str
    reads: Literal["aux", "hidden"]
    config: Any
    embedding: Tensor
    target_head: Tensor
    target_ids: Tensor
    target_transform: LogitTransform
    rows_by_token: ClassVar[tuple[str, ...]]

    @property
    def transform(self) -> LogitTransform:
        """Of the logits of ``head_weight``: the target's where the head is; an own head learns what comes of it."""
        ...

    @property
    def has_own_head(self) -> bool: ...
    @property
    def bias_weight(self) -> Tensor | None:
        """(R, r) further columns beside the head's rows, for states with r numbers more; None for most kinds."""
        ...

    @property
    def head_weight(self) -> Tensor:
        """(R, H) or (V, H) rows that score draft tokens; an error if ``heads_differ``."""
        ...

    @property
    def heads_differ(self) -> bool:
        """Whether draft steps have LM heads of their own (Medusa's, as published)."""
        ...

    def head_rows(self, step: int) -> Tensor:
        """``head_weight`` of a draft step."""
        ...

    @property
    def positions(self) -> int | None:
        """How many rotary positions there are now; None where positions are not used."""
        ...

    @property
    def max_steps(self) -> int | None:
        """Most steps of an unroll (Medusa: its heads); None where there is no bound."""
        ...

    def init_from_target(self, features: Tensor, hidden: Tensor) -> None:
        """Start at the target's scale, from captured rows (N, .) of real tokens; see ``train/setup.py``."""
        ...

    def ensure_positions(self, count: int) -> None:
        """Make room for at least this many positions; nothing where they are not used."""
        ...

    def fuse(self, features: Tensor) -> Tensor:
        """What the first step is fed: (B, T, .) -> (B, T, H)."""
        ...

    def ttt_step(self, ids: Tensor, g: Tensor, position: Tensor, state: TTTState) -> Tensor:
        """One step of the unroll for all rows: the next g (B, T, H).

        Args:
            ids: (B, T) tokens fed.
            g: (B, T, H) hidden states fed: of ``fuse``, later the drafter's own.
            position: (B, T) rotary positions, already t + k.
            state: documents and keys of the earlier steps; this step's are appended.
        """
        ...

    def read(self, g: Tensor) -> Tensor:
        """What the LM head reads: (..., H) -> (..., H)."""
        ...

    def confidence(self, state: Tensor) -> Tensor | None:
        """Logits of acceptance (...) from what :meth:`read` gave, if the drafter estimates it."""
        ...

    def logits(self, g: Tensor, step: int = 0) -> Tensor:
        """(..., H) of a draft step -> (..., R or V)."""
        ...

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]: ...
    def parameters(self) -> Iterator[nn.Parameter]: ...
    def buffers(self) -> Iterator[Tensor]: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: Any) -> Any: ...
    def to(self, *args: Any, **kwargs: Any) -> Any: ...
    def train(self, mode: bool = True) -> Any: ...
    def eval(self) -> Any: ...
    def requires_grad_(self, requires_grad: bool = True) -> Any: ...


class CachedDrafter(Drafter, Protocol):
    """A drafter whose next state depends on its path: it decodes a step at a time against a key cache."""

    @property
    def cache_layers(self) -> int:
        """Layers of that cache."""
        ...

    def extend(
        self,
        ids: Tensor,
        g: Tensor,
        position: Tensor,
        *,
        cache: KVCache,
        slots: Tensor,
        mask: Tensor | Sight | int,
    ) -> tuple[Tensor, Tensor]:
        """One cached step of decoding: the next g (B, N, H), and :meth:`read` of it.

        Args:
            ids: (B, N) tokens fed.
            g: (B, N, H) hidden states fed.
            position: (B, N) rotary positions.
            cache: of ``cache_layers`` layers; this step's keys go to ``slots`` (N,).
            mask: bool (N, S') over the first S' cache slots, True = visible; or a ``Sight`` of all; or S' for
                one token that sees them all.
        """
        ...


def is_autoregressive(drafter: Any) -> TypeGuard[CachedDrafter]:
    """Whether a draft step is fed the token drafted before it and the state that the step before made."""
    return hasattr(drafter, "extend") and not getattr(drafter, "parallel", False)
