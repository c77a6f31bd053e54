"""A draft head in a drafter for a server: its entry in ``config.json`` and its tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ...core.errors import ArtifactError
from ...core.registry import resolve
from ..target.logits import LogitTransform
from .exact import ShortlistHead
from .interface import DraftHead, DraftState, HeadBase, HeadOptions, HeadSizes
from .io import fill_head, head_tensors
from .on_ops import fits, in_parts
from .registry import HEADS, build_head

KEY = "vocabforge_head"  # key in config.json
PREFIX = "draft_head."  # prefix of the tensor names
_RANKED = "ranked"  # name of a context head's hot core


@dataclass(frozen=True)
class ServedHead:
    """A draft head and its options; ``module`` is None for kinds without a trained part."""

    kind: str
    module: nn.Module | None
    options: HeadOptions
    transform: LogitTransform

    def body(self) -> dict[str, Any]:
        """Return the ``config.json`` entry under :data:`KEY`; ``ranked`` is stored as a tensor instead."""
        options = {name: value for name, value in asdict(self.options).items() if value is not None}
        options.pop("ranked", None)
        sizes: Any = None if self.module is None else self.module.head_sizes
        return {
            "kind": self.kind,
            "sizes": None if sizes is None else sizes.to_dict(),
            "options": options,
            "transform": asdict(self.transform),
        }

    def tensors(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """Return every tensor by its name in the folder, weights in ``dtype``."""
        tensors = {} if self.module is None else head_tensors(self.module, dtype)
        if self.options.ranked is not None:
            tensors[_RANKED] = torch.tensor(self.options.ranked, dtype=torch.int32)
        return {PREFIX + name: tensor for name, tensor in tensors.items()}

    def over(self, base: HeadBase) -> DraftHead:
        """Create the head over a drafter's exact head, with its device and dtype."""
        module = None if self.module is None else self.module.to(base.weight.device, base.weight.dtype)
        return build_head(self.kind, base, module, self.options)


def read_served(body: Mapping[str, Any], tensors: Mapping[str, Tensor], source: object) -> ServedHead:
    """Read back the output of :class:`ServedHead`; the names of ``tensors`` start with :data:`PREFIX`.

    Raises:
        ArtifactError: entry and tensors are invalid, or do not match.
    """
    stored = {name.removeprefix(PREFIX): tensor for name, tensor in tensors.items()}
    try:
        if body["kind"] not in HEADS:
            raise ValueError(f"a head of kind {body['kind']}, which is none of {', '.join(HEADS)}")
        kind, options = resolve(HEADS, body["kind"], "draft head"), dict(body["options"])
        sizes = body["sizes"]
        module = None if sizes is None else kind.new_module(HeadSizes.from_dict(sizes))
        if "budgets" in options:
            options["budgets"] = tuple(options["budgets"])
        if (ranked := stored.pop(_RANKED, None)) is not None:
            options["ranked"] = tuple(ranked.tolist())
        if module is not None:
            fill_head(module, stored, source)
        return ServedHead(
            body["kind"],
            None if module is None else module.eval().requires_grad_(False),
            HeadOptions(**options),
            LogitTransform(**body["transform"]),
        )
    except (KeyError, TypeError, RuntimeError, ValueError) as error:
        raise ArtifactError(
            "the drafter's draft head cannot be read",
            got=error,
            expected=f"the output of export --format vllm: {KEY} in config.json and tensors {PREFIX}*",
            source=source,
            remedy="export it again",
        ) from error


def without_head(
    weights: Iterable[tuple[str, Tensor]], own: dict[str, Tensor]
) -> Iterator[tuple[str, Tensor]]:
    """Yield the drafter's tensors; collect copies of its draft head's in ``own``."""
    for name, tensor in weights:
        if name.startswith(PREFIX):
            own[name] = tensor.clone()
        else:
            yield name, tensor


def dense_logits(head: DraftHead, hidden: Tensor, state: DraftState, vocab_size: int) -> Tensor:
    """Return logits (N, V) fp32 over the target's ids, -inf for those that the head does not score.

    On the ops, shapes are static and nothing is read on the host, as in :meth:`DraftHead.topk`.
    """

    def scattered(logits: Tensor, ids: Tensor) -> Tensor:
        dense = logits.new_full((len(logits), vocab_size), float("-inf"))
        # Padding, with logits of -inf, changes nothing at the id that it is mapped to.
        return dense.scatter_reduce_(-1, ids.expand(len(logits), -1), logits, "amax")

    if not (isinstance(head, ShortlistHead) and head.on_ops and fits(hidden, 1, state.requests)):
        return scattered(*head.scores(hidden, 1, state))

    def on_ops(some: Tensor, part: DraftState | None) -> tuple[Tensor]:
        logits, rows, target_ids = head.logits_on_ops(some, 1, part)
        unknown = (rows < 0) | (rows >= len(target_ids))
        ids = target_ids[rows.long().clamp(0, len(target_ids) - 1)]
        return (scattered(logits.masked_fill(unknown, float("-inf")), ids),)

    return in_parts(on_ops, hidden, state)[0]
