"""Draft-model proposer: a smaller language model with the target's vocabulary (Leviathan et al. 2023).

It drafts with its own key cache. Nodes use the slots after the committed ones (``node_passes.py``); those of
an accepted path keep their keys. Committed tokens that it has not read, such as an accepted leaf or the
output of plain decoding, are read together with the next root, in a pass whose width is a power of two.

A request may be longer than the draft model's context. The model then attends only to the last
``max_positions`` positions, so distances stay within its training range. Drafts get worse, but the output
stays the target's.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...core.errors import MismatchError, UsageError
from ...corpus.tokenizer.tokenizer import TextTokenizer
from ...models.heads.registry import HeadBase, exact_head_of
from ...models.kv_cache import KVCache
from ...models.target.interface import Target
from ..interface import Commit, DraftBackend, DraftStep, Frontier, Wrap
from ..trees.policies import choose_policy
from .model import ModelProposer
from .node_passes import NodePasses
from .registry import ProposerParts

CATCH_UP = 256  # most tokens of a catch-up pass


class DraftModelBackend(DraftBackend):
    """Draft states of a language model.

    Ids below ``target_vocab`` without an embedding in the drafter are read as its last id.
    """

    kind, label = "draft-model", "draft model"

    def __init__(self, drafter: Target, target_vocab: int) -> None:
        self.drafter = drafter
        self.passes = NodePasses(drafter, reach=drafter.config.max_positions)
        own = drafter.config.vocab_size
        self._last_id = own - 1 if own < target_vocab else None

    def allocate(self, rows: int, positions: int, scratch: int, cache: KVCache) -> None:
        # After the positions: a root with its nodes, or the padding of a catch-up pass.
        own = self.drafter.new_cache(positions + max(scratch + 1, CATCH_UP), rows)
        self.passes.allocate(own, rows, positions, scratch)
        self._text = torch.zeros(rows, own.capacity, dtype=torch.int64, device=self.drafter.device)
        self._unread = [0] * rows  # tokens before the root whose keys may be missing

    def wrap(self, wrap: Wrap) -> None:
        self.passes.wrap(wrap)

    def begin(self, row: int, ids: Sequence[int]) -> None:
        self.passes.forget(row, CATCH_UP)
        self.passes.set_length(row, 0)
        self._unread[row] = 0
        self._text[row, 0] = ids[0] if self._last_id is None else min(ids[0], self._last_id)

    def prefill(self, row: int, following: Tensor, states: Tensor | None) -> None:
        start = self.passes.lengths[row]
        end = start + len(following)
        self._text[row, start + 1 : end + 1] = self._known(following)
        self._read(row, start, end)
        self.passes.set_length(row, end)

    def _read(self, row: int, start: int, end: int) -> None:
        """Compute the keys of a row's tokens from ``start`` up to, but not including, ``end``."""
        tokens, slots = self._text[row : row + 1, start:end], self.passes.slots[None, start:end]
        self.passes.line(tokens, slots, self.passes.view(end), self.passes.cache.row(row))

    def commit(self, commit: Commit) -> None:
        if commit.path is not None:
            super().commit(commit)
            return
        counts = [len(tokens) for tokens in commit.tokens]
        self._write(commit.following)
        self.passes.add(commit.counts)
        self.passes.note(counts)
        self._unread = [old + count for old, count in zip(self._unread, counts)]

    def advance(self, following: Tensor, states: Tensor | None, counts: Tensor) -> None:
        self._write(following)
        self.passes.compact(following)
        self.passes.add(counts)

    def note(self, counts: Sequence[int]) -> None:
        self.passes.note(counts)
        # Every accepted node except the last has children, so it was expanded.
        self._unread = [int(count > 1) for count in counts]

    def device_state(self) -> Sequence[Tensor]:
        return (self.passes.committed,)

    def _write(self, following: Tensor) -> None:
        passes = self.passes
        places = (passes.committed[:, None] + 1) + passes.slots[: following.shape[1]]
        # A row's padding may reach beyond the text, where it is never read.
        self._text.scatter_(1, places.clamp_(max=self._text.shape[1] - 1), self._known(following))

    def rewrite(self, row: int, start: int, ids: Sequence[int]) -> None:
        """Replace the text of a row with ``ids``, root last; keys of the first ``start`` ids stay valid."""
        committed = len(ids) - 1
        # Tree nodes have keys before they are in the text.
        known = min(start, self.passes.lengths[row] + 1)
        self._text[row, known : len(ids)] = torch.tensor(ids[known:], device=self._text.device)
        self.passes.set_length(row, committed)
        self._unread[row] = max(committed - start, 0)

    def read(self, row: int) -> None:
        """Read the unread part of a row's text, up to the root."""
        end = self.passes.lengths[row]
        for start in range(end - self._unread[row], end, CATCH_UP):
            self._read(row, start, min(start + CATCH_UP, end))
        self._unread[row] = 0

    def view(self) -> Tensor:
        """Return the slots of the next draft; :meth:`start_in` reads at most one token before the root."""
        if max(self._unread) > 1:
            self._catch_up(max(self._unread) + 1)
        return self._begin()

    def _begin(self) -> Tensor:
        self._unread = [0] * len(self._unread)
        return self.passes.view()

    def start_in(self, roots: Tensor, view: Tensor) -> DraftStep:
        return self._step(roots, self._read_last(2, view), view)

    def start(self, roots: Tensor) -> DraftStep:
        missing, view = max(self._unread), self.passes.view()
        if missing > 1:
            hidden = self._catch_up(missing + 1)
        else:
            hidden = self._read_last(missing + 1, view)
        self._begin()
        return self._step(roots, hidden, view)

    def _step(self, roots: Tensor, hidden: Tensor, view: Tensor) -> DraftStep:
        tokens = roots[:, None]
        return DraftStep(hidden, tokens, self.drafter.embed(self._known(tokens)), self.passes.begin(view))

    def _catch_up(self, count: int) -> Tensor:
        """Run :meth:`_read_last` with a width that recurs; return the roots' states (B, 1, H)."""
        width = 1 << (count - 1).bit_length() if count <= CATCH_UP else -(-count // CATCH_UP) * CATCH_UP
        return self._read_last(width, self.passes.view(max(*self.passes.lengths, width - 1) + 1))

    def _read_last(self, width: int, view: Tensor) -> Tensor:
        """Read the last tokens of every row, root included; return the roots' states (B, 1, H)."""
        first = (self.passes.committed + (1 - width)).clamp_(min=0)  # shorter rows read beyond their root
        parts = []
        for part in self.passes.slots[:width].split(CATCH_UP):
            slots = first[:, None] + part
            parts.append(self.passes.line(self._text.gather(1, slots), slots, view).hidden)
        if width == 1:
            return parts[0]
        hidden = torch.cat(parts, 1) if len(parts) > 1 else parts[0]
        place = (self.passes.committed - first)[:, None, None]
        return hidden.gather(1, place.expand(-1, 1, hidden.shape[-1]))

    def expand(self, frontier: Frontier, step: DraftStep, level: int) -> DraftStep:
        states, carry = self.passes.expand(frontier, step.carry, level)
        return DraftStep(states.hidden, frontier.tokens, states.fed, carry)

    def _known(self, ids: Tensor) -> Tensor:
        return ids if self._last_id is None else ids.clamp(max=self._last_id)


def build(parts: ProposerParts) -> ModelProposer:
    """Build the proposer of a draft model (``parts.drafter``): a chain, or the tree of the options."""
    drafter = draft_model_of(parts)
    backend = DraftModelBackend(drafter, parts.target.config.vocab_size)
    head = parts.head or exact_head_of(head_base(parts.target, drafter))
    return ModelProposer(backend, head, choose_policy(parts.options, "chain", None))


def draft_model_of(parts: ProposerParts) -> Target:
    """Check and return the draft model of a proposer's parts."""
    drafter: Target = parts.drafter
    if drafter.config.recurrent or drafter.config.chunk is not None:
        kind = "recurrent layers" if drafter.config.recurrent else "attention in chunks"
        raise UsageError(
            "this model cannot draft: rejected drafts must be taken back, in layers that attend to all positions "
            "or to a window",
            got=f"{drafter.config.architecture}, with {kind}",
            expected="attention layers",
            remedy="choose another draft model",
        )
    if drafter.device != parts.target.device:
        raise MismatchError(
            "target and draft model are on different devices",
            got=f"draft model on {drafter.device}",
            expected=f"{parts.target.device}",
        )
    return drafter


def head_base(target: Target, drafter: Target) -> HeadBase:
    """Return the rows that draft heads over a draft model score: LM head rows of ids that the target has."""
    size = min(target.config.vocab_size, drafter.config.vocab_size)
    weight = drafter.lm_head_weight[:size]
    ids = torch.arange(size, device=weight.device)
    return HeadBase(weight, ids, target.embedding, drafter.transform)


def check_same_tokenizer(
    target: TextTokenizer, drafter: TextTokenizer | None, sizes: tuple[int, int], *, source: object
) -> None:
    """Reject a draft model whose token ids have other texts than the target's.

    If it has no tokenizer, its LM head must have as many rows as the target's (``sizes`` of both); padded
    heads of one tokenizer may differ.
    """
    if drafter is None and sizes[0] != sizes[1]:
        raise MismatchError(
            "the draft model's vocabulary is not the target's",
            got=f"{sizes[1]:,} tokens and no tokenizer.json",
            expected=f"{sizes[0]:,} tokens",
            source=source,
            remedy="put the draft model's tokenizer.json into its folder, or name another folder: "
            "--drafter-tokenizer",
        )
    if drafter is not None and drafter.fingerprint != target.fingerprint:
        raise MismatchError(
            "the draft model's tokenizer is not the target's",
            got=f"{drafter.fingerprint[:12]} in {drafter.source}",
            expected=f"{target.fingerprint[:12]} in {target.source}",
            source=source,
            remedy="--proposer tli, slem or slrs drafts with another tokenizer than the target's",
        )
