"""String-level rejection sampling (SLRS; Timor et al. 2025) of drafts from another vocabulary.

The draft model draws a text in its own tokens. Cut into the target's tokens, with the longest match at each
position, the text is a chain whose distribution psi is known exactly (``psi.py``). A token is accepted with
min(1, p / psi), as if both models had one vocabulary. psi costs passes of the draft model: few if its tokens
are bytes, which SLRS is meant for, and many if they are long. The paper drafts one target token; here the
text continues.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from torch import Tensor

from ....core.console import say
from ....models.kv_cache import KVCache
from ....models.target.interface import Target
from ....vocab.overlap.bridge import Bridge
from ...interface import Commit, Draw, Plan, Wrap
from ...proposers.ngram import chain_trees
from ...proposers.registry import Lap, Proposer, ProposerParts, unused_options
from ...request import SamplingParams
from ...tree import DraftTree, LazyDistribution, root_trees
from ...trees.policies import refuse_given
from ..proposer import check_parts, target_levels, text_room
from ..text import DraftText
from .contexts import SCRATCH, ContextModel, Path, RowContexts
from .psi import ChainDistributions, Streams
from .trie import DraftWords, TargetTrie, target_ids

TARGET_TOKENS = 4  # target tokens of a drafted text by default, approximately
DRAFT_TOKENS = 3, 12  # fewest and most draft tokens by default
LOOK_AHEAD = 3  # bytes
CONTEXTS = 512  # of a cycle; after more, the next one draws a shorter text
DISTRIBUTIONS_BYTES = 1 << 28  # maximum size of their distributions, which may lower this number
FIRST_LENGTH = 3  # draft tokens of a request's first texts if draft tokens are long
LONG_WORDS = 1.5  # mean bytes of draft tokens from which psi needs many contexts

# Target tokens, and the distributions of the nodes from the root on.
Drafted = tuple[list[int], list[LazyDistribution]]


class SlrsProposer(Proposer):
    """Proposer that draws texts with a draft model of another vocabulary and provides their distribution.

    At temperature 0 the text is the draft model's best, and no distribution is needed. A text has ``length``
    draft tokens, and ``look_ahead`` bytes after a target token are searched for a longer one; ``single``
    drafts one target token, as in the paper, and stops as soon as it is known.
    """

    kind, label = "slrs", "SLRS"
    samples = True

    def __init__(self, drafter: Target, bridge: Bridge, length: int, look_ahead: int, single: bool) -> None:
        self._bridge, self._drafter = bridge, drafter
        self.trie = TargetTrie(target_ids(bridge), look_ahead)
        self.words = DraftWords(bridge.drafter.forms, bridge.drafter.eos)
        self._model = ContextModel(drafter, self.words)
        self._end = None if bridge.eos is None else bridge.eos[0]
        self._lengths = _plans(bridge, length, single)
        self.plan = list(self._lengths)[-1]
        self.draft_tokens = self._lengths[self.plan]
        words = len(self.words) + len(self.words.eos)
        self._budget = max(min(CONTEXTS, DISTRIBUTIONS_BYTES // (8 * words)), 1)
        short = bridge.drafter.mean_bytes <= LONG_WORDS
        self._first = length if short else min(length, FIRST_LENGTH)
        self._even = False
        self._wrap: Wrap | None = None

    def plans(self) -> list[Plan]:
        return list(self._lengths)

    def wrap(self, wrap: Wrap) -> None:
        # Compiled passes of the target support a single tree size.
        self._even, self._wrap = True, wrap

    def allocate(self, rows: int, positions: int, cache: KVCache) -> None:
        # A text more than twice as long as the drafter's context loses its beginning there.
        self._room = text_room(self._bridge, self._drafter, positions)
        scratch = max(SCRATCH, *self._lengths.values())
        memory = self._drafter.new_cache(self._room + scratch, rows)
        self._contexts = [
            RowContexts(self._model, memory.row(row), scratch, self._wrap) for row in range(rows)
        ]
        self._texts = [DraftText(self._bridge) for _ in range(rows)]
        self._busy = [False] * rows
        self._drawn: list[list[int]] = [[] for _ in range(rows)]  # draft tokens of the last drafting
        self._distributions: list[ChainDistributions | None] = [None] * rows  # of the last drafting
        self._counts = [_no_counts() for _ in range(rows)]
        self._most = [self._first] * rows  # maximum draft tokens of a row's next text
        self._since = [0] * rows  # contexts evaluated before the last drafting

    def begin(self, row: int, ids: Sequence[int]) -> None:
        text = self._texts[row]
        text.begin(ids[:-1])
        text.add(ids[-1:])
        text.forget(self._room)
        self._contexts[row].begin(text.ids, SamplingParams())
        self._busy[row] = True
        self._drawn[row], self._distributions[row], self._counts[row] = [], None, _no_counts()
        self._most[row], self._since[row] = self._first, 0

    def commit(self, commit: Commit) -> None:
        # A row without tokens is idle until it begins again.
        for row, tokens in enumerate(commit.tokens):
            self._busy[row] = self._busy[row] and len(tokens) > 0
            if self._busy[row]:
                self._settle(row)
                text = self._texts[row]
                kept = text.add(tokens, [self._drawn[row]])
                self._drawn[row] = []
                if len(text.ids) > self._room:
                    text.forget(self._room // 2)
                    kept = 0
                self._contexts[row].restart(text.ids, kept=kept)

    def propose(self, roots: Tensor, plan: Plan, draws: Sequence[Draw] | None, lap: Lap) -> DraftTree:
        """Draft chains under the last committed tokens (B,), with distributions for rows that sample."""
        drafts: list[list[int]] = [[] for _ in self._texts]
        distributions: list[Mapping[int, LazyDistribution]] = [{} for _ in self._texts]
        for row, text in enumerate(self._texts):
            self._settle(row)
            self._drawn[row] = []
            if self._busy[row] and not text.held:
                draw = None if draws is None or draws[row].sampling.greedy else draws[row]
                drafts[row], token_distributions = self._draft(row, plan, draw)
                distributions[row] = dict(enumerate(token_distributions[: plan.levels]))
        lap("layers")
        length = plan.levels if self._even else max(map(len, drafts))
        tree = chain_trees(roots, drafts, length, masked=self._even) if length else root_trees(roots)
        lap("draft")
        return replace(tree, distributions=distributions) if any(distributions) else tree

    def _draft(self, row: int, plan: Plan, draw: Draw | None) -> Drafted:
        """Return the target tokens of a row's draft, and their distributions; none if ``draw`` is None."""
        contexts, words = self._contexts[row], self.words
        length = min(self._lengths[plan], self._most[row])
        sampling = SamplingParams() if draw is None else draw.sampling
        if sampling != contexts.sampling:
            text_ids = self._texts[row].ids
            contexts.restart(text_ids, sampling, kept=len(text_ids))
        before = contexts.evaluated
        path, text, ended = Path(), b"", False
        while len(path) < length and self.trie.segment(text, plan.levels).settled < plan.levels:
            weights = contexts.distribution(path).weights
            place = int(np.argmax(weights)) if draw is None else draw.chance.draw(weights)
            self._counts[row]["drafted"] += 1
            ended = place >= len(words)
            if ended:
                break
            path, text = (*path, words.ids[place]), text + words.form(place)
        self._counts[row]["draft_contexts"] += contexts.evaluated - before
        self._drawn[row] = list(path)
        segments = self.trie.segment(text, plan.levels)
        tokens = segments.tokens
        whole = ended and segments.written == len(text) and len(tokens) < plan.levels
        if whole and self._end is not None:
            tokens.append(self._end)
        if draw is None:
            return tokens, []
        distributions = self._distributions[row] = ChainDistributions(
            self.trie, Streams(words, contexts, length), self._end
        )
        return tokens, list(distributions.along(tokens))

    def _settle(self, row: int) -> None:
        """Count the probabilities that verification evaluated, and adjust the length of the row's next text.

        It becomes shorter if verification needed many contexts, and longer if few: the number of ways to
        write a string grows without bound with its draft tokens. The length depends only on finished cycles,
        so the distribution of the next draft is not affected.
        """
        self._counts[row] = self.counts(row)
        if self._distributions[row] is not None:
            used = self._contexts[row].evaluated
            fresh, self._since[row] = used - self._since[row], used
            if fresh > self._budget:
                self._most[row] = max(self._most[row] // 2, 1)
            elif fresh < self._budget // 8:
                self._most[row] = min(self._most[row] + 1, max(self._lengths.values()))
        self._distributions[row] = None

    def counts(self, row: int) -> dict[str, int]:
        """Return a request's counts: ``psi`` evaluated, tokens ``drafted``, and draft contexts of both."""
        counts, distributions = dict(self._counts[row]), self._distributions[row]
        counts["psi"] += 0 if distributions is None else distributions.asked
        counts["psi_contexts"] = self._contexts[row].evaluated - counts["draft_contexts"]
        return counts


def _no_counts() -> dict[str, int]:
    return {"psi": 0, "psi_contexts": 0, "draft_contexts": 0, "drafted": 0}


def _plans(bridge: Bridge, length: int, single: bool) -> dict[Plan, int]:
    """Return sizes in target tokens -> draft tokens, smallest first: the full length, repeatedly halved."""
    if single:
        return {Plan(1, 2): length}
    sizes = [length]
    while sizes[0] > 1:
        sizes.insert(0, sizes[0] // 2)
    plans = {}
    for size in sizes:
        levels = target_levels(bridge, size)
        plans[Plan(levels, levels + 1)] = size
    return plans


def build(parts: ProposerParts) -> SlrsProposer:
    """Build the SLRS proposer; its text is drawn whether or not ``--draft-sampling`` is given."""
    bridge, drafter = check_parts(parts)
    options, mean = parts.options, bridge.drafter.mean_bytes
    refuse_given(
        options,
        unused_options(options, "slrs"),
        "slrs drafts a single text per cycle, not a tree",
        expected="--tree chain, sized with --depth",
        remedy="--proposer slem or tli drafts trees",
    )
    if mean > LONG_WORDS:
        say(
            f"The draft model's tokens are {mean:.1f} bytes long on average: SLRS may need many of its contexts for "
            "each probability. It is meant for drafters whose tokens are bytes or characters; "
            "--proposer slem or tli costs less here."
        )
    if options.depth is None:
        fewest, most = DRAFT_TOKENS
        length = min(max(round(TARGET_TOKENS * bridge.target.mean_bytes / mean), fewest), most)
    else:
        length = options.depth + 1
    look_ahead = LOOK_AHEAD if options.look_ahead is None else options.look_ahead
    return SlrsProposer(drafter, bridge, length, look_ahead, options.single_token)
