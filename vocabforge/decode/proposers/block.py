"""Block proposers: all drafts of a cycle in one pass (DFlash, DSpark, P-EAGLE).

The drafter's cache holds the committed positions, slot s for position s. A block's rows take the slots after
them and are overwritten by the next commit: nothing computed from a mask token is kept.

The rows of a level do not depend on the path, so chains and trees are drafted the same way. DSpark adds a
bias to a row's scores that depends on the previous token.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from ...core.errors import UsageError
from ...models.drafters.parallel import ParallelDrafter
from ...models.heads.exact import FullHead, answer
from ...models.heads.registry import DraftHead, DraftState, exact_head
from ...models.kv_cache import CacheView, KVCache
from ...ops.decoder_layers import runs_layers
from ...ops.few_rows import linear
from ...ops.trees import bits_of
from ..accelerate.graphs import GraphCapture
from ..interface import Commit, DraftBackend, DraftStep, Frontier, Wrap
from ..positions import CapturedPositions, Positions, view_length
from ..trees.policies import choose_policy
from .levels import Answer, LevelHead, level_step
from .model import ModelProposer
from .registry import ProposerParts


class BlockBackend(DraftBackend):
    """Draft states of a parallel drafter: one pass computes ``states`` (B, levels, .) of all ``levels``."""

    positions: Positions

    def __init__(self, drafter: ParallelDrafter, levels: int) -> None:
        self.drafter, self.kind, self.label = drafter, drafter.kind, drafter.label
        self.reads = drafter.reads
        self.aux_layers = tuple(drafter.config.aux_layers)
        self.most_levels = drafter.max_steps
        self.levels = levels
        self._weight = next(iter(drafter.parameters()))
        self._positions: type[Positions] = Positions

    def allocate(self, rows: int, positions: int, scratch: int, cache: KVCache) -> None:
        c, weight, block = self.drafter.config, self._weight, self.drafter.block_rows
        # After the committed positions: a padded path while committing, or a block while drafting.
        capacity = positions + block + 2 * (scratch + 2)
        self.cache = self.drafter.new_cache(rows, capacity)
        self.drafter.ensure_positions(capacity)
        self.positions = self._positions(rows, capacity, weight.device)
        own = torch.ones(block, block, dtype=torch.bool, device=weight.device)
        self._own = own.tril() if self.drafter.config.causal else own
        self._own_bits = bits_of(self._own).repeat(rows, 1, 1)  # (B, b, words)
        self._context = torch.zeros(rows, c.hidden_size, dtype=weight.dtype, device=weight.device)
        # (B, H) state of the last position, if drafting needs it.
        self._last = torch.zeros_like(self._context) if self.drafter.first_everywhere else None

    def prefill(self, row: int, following: Tensor, states: Tensor | None) -> None:
        assert states is not None
        steps = self.positions.extend(row, len(following))
        view = self.positions.slots[: view_length(self.positions.lengths[row], self.cache.capacity)]
        cached = CacheView(self.cache.row(row), steps, view[None] <= steps[:, None])
        made = self.drafter.absorb(following[None], states[None], steps[None], cached)
        self._context[row] = self.drafter.fuse(states[-1:])[0]
        if made is not None and self._last is not None:
            self._last[row] = made[0, -1]

    def advance(self, following: Tensor, states: Tensor | None, counts: Tensor) -> None:
        assert states is not None
        steps = self.positions.ahead(0, following.shape[1])  # (B, L)
        mask = self.positions.line_mask(steps, 0, self.positions.view(steps.shape[1]))
        made = self.drafter.absorb(following, states, steps, CacheView(self.cache, steps, mask))
        last = (counts - 1).clamp(min=0)[:, None, None]
        idle = (counts == 0)[:, None]
        newest = self.drafter.fuse(states.gather(1, last.expand(-1, 1, states.shape[-1])))[:, 0]
        self._context.copy_(torch.where(idle, self._context, newest))
        if made is not None and self._last is not None:
            last_made = made.gather(1, last.expand(-1, 1, made.shape[-1]))[:, 0]
            self._last.copy_(torch.where(idle, self._last, last_made))
        self.positions.committed.add_(counts)

    def device_state(self) -> Sequence[Tensor]:
        return self.positions.committed, self._context, *(() if self._last is None else (self._last,))

    def wrap(self, wrap: Wrap) -> None:
        self._positions = CapturedPositions if isinstance(wrap, GraphCapture) else Positions

    def view(self) -> Tensor:
        return self.positions.view(self.drafter.block_rows)

    def chains(self, head: DraftHead) -> bool:
        # Fewer calls, for one row on a CPU.
        inner = head.head if isinstance(head, LevelHead) else None
        self._head = inner.table() if isinstance(inner, FullHead) else None
        if self._head is None or len(self.positions.lengths) > 1 or not runs_layers(self._weight):
            return False
        return {self._head[0].dtype, self._weight.dtype} == {torch.float32}

    def chain(self, commit: Commit, count: int) -> tuple[Tensor, float]:
        assert commit.states is not None
        assert self._head is not None
        drafter, kept = self.drafter, commit.following.shape[1]
        steps = self.positions.extend(0, kept)
        end = self.positions.lengths[0]
        view, ahead = self.positions.slots[:end], self.positions.slots[end : end + drafter.block_rows]
        cached = CacheView(self.cache, steps, end if kept == 1 else view <= steps[:, None])
        made = drafter.absorb(commit.following, commit.states, steps[None], cached)
        if made is not None and self._last is not None:
            self._last.copy_(made[:, -1])
        root = commit.following[:, -1]
        mask = F.pad(self._own, (end, 0), value=True)
        drafts = drafter.draft(root, self._last, ahead[None], CacheView(self.cache, ahead, mask))
        (rows, ids), began = self._head, time.perf_counter()
        logits = linear(drafter.read_rows(drafts[0, :count]), rows)
        bias = drafter.bias_weight
        if bias is None:
            best = logits.argmax(-1)
            tokens = torch.cat([root, best if ids is None else ids[best]])
            return tokens[None], time.perf_counter() - began
        drafted = [root]
        for row in logits:
            best = (row + linear(drafter.token_state(drafted[-1]), bias)).argmax(-1)
            drafted.append(best if ids is None else ids[best])
        return torch.cat(drafted)[None], time.perf_counter() - began

    def start_in(self, roots: Tensor, view: Tensor) -> DraftStep:
        slots = self.positions.ahead(0, self.drafter.block_rows)  # (B, b)
        own = self._own.expand(len(roots), -1, -1)
        mask = self.positions.tree_mask(own, self._own_bits, 0, slots, view)
        drafts = self.drafter.draft(roots, self._last, slots, CacheView(self.cache, slots, mask))
        self.fed_tokens = roots[:, None]
        self.states = self.drafter.read_rows(drafts[:, : self.levels])  # (B, levels, H)
        return DraftStep(self.states[:, :1], roots[:, None], self._context[:, None], None)

    def expand(self, frontier: Frontier, step: DraftStep, level: int) -> DraftStep:
        """Return the state of ``level`` for every node; ``fed_tokens`` are set to the nodes' tokens."""
        self.fed_tokens = frontier.tokens
        return level_step(self.states, frontier, step, level)


class ConfidentBackend(BlockBackend):
    """Backend that ends a chain if its acceptance probability falls below ``least`` in every row (DSpark).

    The probability of a draft is estimated from the drafts before it, never from itself. Whether a draft is
    verified therefore does not depend on its token, and the output keeps the target's distribution.
    """

    ends_chains = True

    def __init__(self, drafter: ParallelDrafter, levels: int, least: float) -> None:
        super().__init__(drafter, levels)
        self._least = least

    def chains(self, head: DraftHead) -> bool:
        """Return False: the end of a chain is decided level by level."""
        return False

    def start(self, roots: Tensor) -> DraftStep:
        step = super().start(roots)
        self._chance = self._confidence(0, roots)
        return step

    def worth(self, frontier: Frontier, level: int) -> bool:
        self._chance = self._chance * self._confidence(level, frontier.tokens[:, 0])
        return bool((self._chance >= self._least).any())

    def _confidence(self, level: int, before: Tensor) -> Tensor:
        """Return the probability (B,) that draft ``level`` is accepted if those before it are."""
        state = self.states[:, level]
        logits = self.drafter.confidence(
            torch.cat([state, self.drafter.token_state(before).to(state.dtype)], -1)
        )
        assert logits is not None
        return logits.float().sigmoid()


class BiasedHead(LevelHead):
    """Draft head with a bias by the previous token (DSpark), on the tokens of its shortlist."""

    def __init__(self, head: DraftHead, backend: BlockBackend, width: int, weight: Tensor) -> None:
        super().__init__(head, backend, width)
        self._block, self._weight = backend, weight

    def topk(self, hidden: Tensor, k: int, state: DraftState | None = None) -> Answer:
        return answer(*self.scores(hidden, k, state), k)

    def scores(self, hidden: Tensor, k: int, state: DraftState | None = None) -> Answer:
        logits, ids = super().scores(hidden, k, state)  # (N, C), (C,) or (N, C)
        drafter, weight, rows = self._block.drafter, self._weight, ids
        before = drafter.token_state(self._block.fed_tokens.flatten())  # (N, r)
        if len(weight) != drafter.config.vocab_size:
            known = drafter.target_ids
            rows = torch.searchsorted(known, ids).clamp(max=len(known) - 1)
        if ids.dim() == 1:
            bias = F.linear(before, weight if len(ids) == len(weight) else weight[rows])
        else:
            bias = (weight[rows] @ before[:, :, None])[..., 0]
        return logits + bias.float(), ids

    def log_probs(self, hidden: Tensor, state: DraftState | None = None) -> Tensor:
        """Return dense log-probabilities; see ``DraftHead``.

        Raises:
            UsageError: the rows have separate shortlists.
        """
        logits, ids = self.scores(hidden, 1, state)
        if ids.dim() != 1:
            raise UsageError("a biased head has dense probabilities over one shortlist only")
        dense = logits.new_full((len(logits), self.size), float("-inf"))
        return dense.index_copy_(1, torch.searchsorted(self.target_ids, ids), logits).log_softmax(-1)


def build(parts: ProposerParts) -> ModelProposer:
    """Build the proposer of a block drafter: a chain, or a dynamic tree if a width is given.

    Raises:
        UsageError: the tree is deeper than the drafter's block, or a chain cannot end early.
    """
    drafter: ParallelDrafter = parts.drafter
    wide = parts.options.topk or parts.options.total_nodes
    policy = choose_policy(parts.options, "dynamic" if wide else "chain", drafter.max_steps)
    backend, least = BlockBackend(drafter, policy.plan.levels), parts.options.confidence
    if least is not None:
        if not getattr(drafter.config, "confidence", False) or policy.plan.nodes != policy.plan.levels + 1:
            raise UsageError(
                "only chains of a drafter with a confidence head can end early",
                got=f"--confidence {least} with {policy.plan.nodes} nodes on {policy.plan.levels} levels",
                expected="--tree chain, and a DSpark drafter that was trained with its confidence head",
            )
        backend = ConfidentBackend(drafter, policy.plan.levels, least)
    head, bias = parts.head or exact_head(drafter), drafter.bias_weight
    if bias is None:
        return ModelProposer(backend, LevelHead(head, backend, policy.width), policy)
    return ModelProposer(backend, BiasedHead(head, backend, policy.width, bias), policy)
