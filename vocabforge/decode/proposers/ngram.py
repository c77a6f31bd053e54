"""N-gram (prompt lookup) drafting: what followed the text's last tokens before is likely to follow again.

Saxena, "Prompt Lookup Decoding" (2023). Drafts are copied from prompt and output, without a model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ...core.errors import UsageError
from ...models.kv_cache import KVCache
from ..interface import Commit, Draw, Plan, shallower_plans
from ..tree import DraftTree, build_tree, root_trees
from ..trees.policies import refuse_given
from .registry import Lap, Proposer, ProposerParts, unused_options


def chain_trees(
    roots: Tensor, drafts: Sequence[Sequence[int]], length: int, *, masked: bool = False
) -> DraftTree:
    """Build chains of ``length`` draft tokens under roots (B,); a shorter draft is padded with dead nodes.

    With ``masked``, ``alive`` is set even if all nodes are alive: compiled passes support a single form.
    """
    rows = len(roots)
    padded = [[*draft, *[0] * (length - len(draft))] for draft in drafts]
    tokens = torch.cat([roots[:, None], torch.tensor(padded, dtype=torch.int64, device=roots.device)], 1)
    steps = torch.arange(length + 1, device=roots.device)
    alive: Tensor | None = None
    if masked or any(len(draft) < length for draft in drafts):
        alive = steps <= torch.tensor([[len(draft)] for draft in drafts], device=roots.device)
    return DraftTree(
        tokens,
        (steps - 1).clamp(min=0).expand(rows, -1),
        steps.expand(rows, -1),
        (steps <= steps[:, None]).expand(rows, -1, -1),
        alive=alive,
        chain=True,
    )


def merged_trees(
    roots: Tensor, branches: Sequence[Sequence[Sequence[int]]], levels: int, nodes: int
) -> DraftTree:
    """Merge the continuations of each row at their common prefixes; pad rows to ``nodes``, root included."""
    merged = [_merge(continuations, nodes) for continuations in branches]
    tokens = torch.zeros(len(roots), nodes, dtype=torch.int64)
    parents = torch.zeros_like(tokens)
    for row, merged_nodes in enumerate(merged):
        for node, (parent, token) in enumerate(merged_nodes, 1):
            tokens[row, node], parents[row, node] = token, parent
    counts = torch.tensor([len(merged_nodes) + 1 for merged_nodes in merged], device=roots.device)
    tokens, parents = tokens.to(roots.device), parents.to(roots.device)
    tokens[:, 0] = roots
    tree = build_tree(tokens, parents, levels)
    return replace(tree, alive=torch.arange(nodes, device=roots.device) < counts[:, None])


def count_nodes(branches: Sequence[Sequence[int]], most: int) -> int:
    """Return the number of nodes of the tree over a row's continuations, root included."""
    return len(_merge(branches, most)) + 1


def _merge(branches: Sequence[Sequence[int]], most: int) -> list[tuple[int, int]]:
    """Return (parent, token) of nodes 1, 2, ... of a tree over token paths; ``most`` includes the root."""
    places: dict[tuple[int, int], int] = {}
    for branch in branches:
        node = 0
        for token in branch:
            if (node, token) not in places:
                if len(places) + 1 == most:
                    return list(places)
                places[node, token] = len(places) + 1
            node = places[node, token]
    return list(places)


DEFAULT_NGRAM = (2, 4)  # shortest and longest suffix
DEFAULT_LENGTH = 10  # draft tokens of a continuation
DEFAULT_BRANCHES = 4  # continuations of a tree
NO_PLACE = -1


class NgramIndex:
    """End positions of each n-gram in a text, updated token by token.

    The positions of an n-gram (of ``shortest`` to ``longest`` tokens) are a linked list, latest first: a
    token costs one look-up for every n, and finding the positions of the text's own suffix costs none.
    """

    def __init__(self, shortest: int, longest: int) -> None:
        self.lengths = range(longest, shortest - 1, -1)
        self.text: list[int] = []
        self._latest: dict[tuple[int, ...], int] = {}  # n-gram -> where it last ended
        # For each n and position, where the n-gram that ends there ended before.
        self._before: dict[int, list[int]] = {n: [] for n in self.lengths}

    def add(self, tokens: Iterable[int]) -> None:
        text, latest = self.text, self._latest
        for token in tokens:
            place = len(text)
            text.append(token)
            for n in self.lengths:
                if place + 1 < n:
                    self._before[n].append(NO_PLACE)
                    continue
                gram = tuple(text[-n:])
                self._before[n].append(latest.get(gram, NO_PLACE))
                latest[gram] = place

    def matches(self) -> Iterator[int]:
        """Yield where the text's suffixes ended before: longest suffix first, then latest position first."""
        if not self.text:
            return
        last, seen = len(self.text) - 1, set()
        for n in self.lengths:
            place = self._before[n][last]
            while place != NO_PLACE:
                if place not in seen:
                    seen.add(place)
                    yield place
                place = self._before[n][place]

    def continuation(self, place: int, length: int) -> list[int]:
        """Return what followed ``place``; beyond the text's end, the continuation repeats itself."""
        period = len(self.text) - 1 - place
        return [self.text[place + 1 + step % period] for step in range(length)]


class NgramProposer(Proposer):
    """Proposer that drafts what followed the longest suffix of the text that occurred before.

    A cycle's trees have the plan's size, or only the root if no row has a match.

    Suffixes of ``shortest`` to ``longest`` tokens are looked up. A tree has at most ``branches``
    continuations; 1 is a chain.
    """

    kind, label = "n-gram", "n-gram"

    def __init__(self, shortest: int, longest: int, plan: Plan, branches: int = 1) -> None:
        self.shortest, self.longest, self.plan, self.branches = shortest, longest, plan, branches
        self._index: list[NgramIndex] = []

    def plans(self) -> list[Plan]:
        return shallower_plans(self.plan)

    def allocate(self, rows: int, positions: int, cache: KVCache) -> None:
        self._device = cache.device
        self._index = [NgramIndex(self.shortest, self.longest) for _ in range(rows)]
        self._busy = [False] * rows

    def begin(self, row: int, ids: Sequence[int]) -> None:
        self._index[row] = NgramIndex(self.shortest, self.longest)
        self._index[row].add(ids)
        self._busy[row] = True

    def commit(self, commit: Commit) -> None:
        # A row without tokens is idle until it begins again.
        for row, tokens in enumerate(commit.tokens):
            self._index[row].add(tokens)
            self._busy[row] = self._busy[row] and len(tokens) > 0

    def ready(self, plan: Plan) -> bool:
        return any(
            busy and next(index.matches(), None) is not None for index, busy in zip(self._index, self._busy)
        )

    def propose(self, roots: Tensor, plan: Plan, draws: Sequence[Draw] | None, lap: Lap) -> DraftTree:
        branches = [
            self._branches(index, plan) if busy else [] for index, busy in zip(self._index, self._busy)
        ]
        if not any(branches):
            return root_trees(roots)
        if plan.nodes == plan.levels + 1:
            return chain_trees(
                roots, [continuations[0] if continuations else [] for continuations in branches], plan.levels
            )
        return merged_trees(roots, branches, plan.levels, plan.nodes)

    def _branches(self, index: NgramIndex, plan: Plan) -> list[list[int]]:
        continuations: list[list[int]] = []
        # Many positions may have the same continuation: the limit keeps the work independent of the text's
        # length.
        for _, place in zip(range(4 * self.branches), index.matches()):
            continuation = index.continuation(place, plan.levels)
            if continuation not in continuations:
                continuations.append(continuation)
            if len(continuations) == self.branches:
                break
        return continuations


def build(parts: ProposerParts) -> NgramProposer:
    """Build the n-gram proposer.

    ``tree``: ``chain`` (the default) drafts one continuation of depth + 1 tokens; ``dynamic`` merges up to
    topk different ones into a tree of at most ``total_nodes``.
    """
    options = parts.options
    refuse_given(
        options,
        unused_options(options, "n-gram"),
        "n-gram drafting does not support this",
        expected="--ngram, --depth and --tree chain, or --tree dynamic with --topk and --total-nodes",
    )
    shortest, longest = options.ngram or DEFAULT_NGRAM
    levels = DEFAULT_LENGTH if options.depth is None else options.depth + 1
    if options.tree != "dynamic":
        return NgramProposer(shortest, longest, Plan(levels, levels + 1))
    branches = DEFAULT_BRANCHES if options.topk is None else options.topk
    nodes = branches * levels + 1 if options.total_nodes is None else options.total_nodes
    if not levels < nodes <= branches * levels + 1:
        raise UsageError(
            "the draft tree's node count does not fit its depth and width",
            got=f"{nodes} nodes, topk {branches}",
            expected=f"{levels + 1} to {branches * levels + 1} nodes",
            remedy="change --total-nodes, --depth or --topk",
        )
    return NgramProposer(shortest, longest, Plan(levels, nodes), branches)
