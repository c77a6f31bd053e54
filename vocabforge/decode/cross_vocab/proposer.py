"""A draft model with another vocabulary than the target's: TLI and SLEM (Timor et al. 2025).

The draft model drafts in its own tokens, on its own spelling of the text (``text.py``). The draft is then
converted to the target's tokens. TLI drafts only common tokens and maps token by token, so the distribution
of every draw is known. SLEM drafts any text and spells it with the target's tokens: a token is accepted if it
is the target's own choice, so the drafter's distribution is not needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from ...core.errors import DataError, UsageError
from ...models.heads.registry import StaticHead
from ...models.kv_cache import KVCache
from ...models.target.interface import Target
from ...vocab.overlap.bridge import Bridge
from ..interface import Commit, Draw, Plan, Wrap
from ..proposers.draft_model import DraftModelBackend, draft_model_of
from ..proposers.model import ModelProposer
from ..proposers.registry import Lap, Proposer, ProposerParts, unused_options
from ..tree import DraftTree
from ..trees.policies import choose_policy, refuse_given
from .text import DraftText
from .trees import NO_TOKEN, Drafted, Respelling, TokenMap, Translation, paths_of

if TYPE_CHECKING:
    from ..spec import MethodSpec

LEAST_ROOM = 512  # minimum positions of the drafter's cache
TARGET_TOKENS = 5  # drafted by SLEM by default, approximately
MOST_DRAFTED = 12  # maximum draft tokens by default
SLACK = 1.25  # how many more target tokens than average a drafted text may have


class ForeignProposer(Proposer):
    """Proposer with a model of another vocabulary: ``inner`` drafts, ``translate`` converts the draft.

    ``plans`` maps sizes in the target's tokens to sizes in the drafter's, smallest first; ``draft_tokens`` is
    the length of the longest text that a cycle drafts, in the drafter's tokens.
    """

    def __init__(
        self,
        names: tuple[str, str],
        inner: ModelProposer,
        bridge: Bridge,
        translate: Translation,
        plans: dict[Plan, Plan],
    ) -> None:
        backend = inner.backend
        assert isinstance(backend, DraftModelBackend)
        self.kind, self.label = names
        self.samples = inner.samples
        self.head = inner.head
        self._inner, self._backend, self._bridge, self._translate = inner, backend, bridge, translate
        self._plans = plans
        # TLI's drafts continue at the end of the text, so nothing may be held back.
        self._hold_space = isinstance(translate, Respelling) and bridge.drafter.words
        self.plan = list(plans)[-1]
        self.draft_tokens = plans[self.plan].levels
        self._drafted: Drafted | None = None
        self._even = False

    def plans(self) -> list[Plan]:
        return list(self._plans)

    def wrap(self, wrap: Wrap) -> None:
        self._even = True
        self._inner.wrap(wrap)

    def allocate(self, rows: int, positions: int, cache: KVCache) -> None:
        # A text more than twice as long as the drafter's context loses its beginning there.
        self._room = text_room(self._bridge, self._backend.drafter, positions)
        self._inner.allocate(rows, self._room, cache)
        self._texts = [DraftText(self._bridge, self._hold_space) for _ in range(rows)]
        self._held = [0] * rows  # leading ids of each text whose keys are valid
        self._drafted = None

    def begin(self, row: int, ids: Sequence[int]) -> None:
        text = self._texts[row]
        text.begin(ids[:-1])
        self._backend.begin(row, text.ids)
        text.add(ids[-1:])
        self._held[row] = 0
        self._rewrite(row)
        self._backend.read(row)
        self._held[row] = len(text.ids) - 1

    def commit(self, commit: Commit) -> None:
        """Append accepted tokens to the texts; keep the keys of accepted draft tokens."""
        drafted = self._drafted if commit.path is not None else None
        levels = self._inner.plan.levels
        following = torch.full((len(commit.tokens), levels), NO_TOKEN)
        for row, tokens in enumerate(commit.tokens):
            if not tokens:
                continue
            text, before = self._texts[row], len(self._texts[row].ids)
            paths = drafted.paths[row] if drafted is not None else []
            kept = text.add(tokens, paths)
            self._held[row] = min(self._held[row], kept)
            if kept == before == self._held[row]:
                new = text.ids[before:][:levels]
                following[row, : len(new)] = torch.tensor(new)
                self._held[row] += max((_expanded(path, new) for path in paths), default=0)
        if drafted is not None:
            self._backend.passes.compact(following.to(commit.following.device))
        for row, tokens in enumerate(commit.tokens):
            if tokens:
                self._rewrite(row)
        self._drafted = None

    def _rewrite(self, row: int) -> None:
        text = self._texts[row]
        if len(text.ids) > self._room:
            text.forget(self._room // 2)
            self._held[row] = 0
        self._backend.rewrite(row, self._held[row], text.ids)

    def propose(self, roots: Tensor, plan: Plan, draws: Sequence[Draw] | None, lap: Lap) -> DraftTree:
        """Draft trees in the target's tokens under the last committed tokens (B,)."""
        own = torch.tensor([text.ids[-1] for text in self._texts], device=roots.device)
        tree = self._inner.propose(own, self._plans[plan], draws, lap)
        self._held = [len(text.ids) for text in self._texts]
        self._drafted = Drafted(tree, paths_of(tree), self._texts, self._even)
        translated = self._translate(self._drafted, roots, plan)
        lap("draft")
        return translated


def _expanded(path: Sequence[int], new: Sequence[int]) -> int:
    """Count a path's leading tokens that the text has and whose keys were computed; leaves have none."""
    same = 0
    while same < min(len(path) - 1, len(new)) and path[same] == new[same]:
        same += 1
    return same


def build_tli(parts: ProposerParts) -> ForeignProposer:
    """Build the TLI proposer (token-level intersection; Timor et al. 2025), which drafts common tokens.

    The draft model's LM head is restricted to their rows, in a copy. Drawn drafts have q'(x) = q(x) / sum of
    q over the intersection.
    """
    bridge, drafter = check_parts(parts)
    if not len(bridge.pairs):
        raise UsageError(
            "the vocabularies of target and draft model have no token in common",
            got="an empty intersection",
            expected="tokens with the same bytes in both",
            remedy="--proposer slem drafts whatever the vocabularies are",
        )
    pairs = np.concatenate(
        [bridge.pairs, np.array([bridge.eos] if bridge.eos else [], dtype=np.int64).reshape(-1, 2)]
    )
    inner = _inner(parts.options, drafter, np.unique(pairs[:, 1]))
    translate = TokenMap(pairs, drafter.config.vocab_size, drafter.device)
    plans = {plan: plan for plan in inner.plans()}
    return ForeignProposer(("tli", "TLI"), inner, bridge, translate, plans)


def build_slem(parts: ProposerParts) -> ForeignProposer:
    """Build the SLEM proposer (string-level exact match; Timor et al. 2025), which respells drafts."""
    bridge, drafter = check_parts(parts)
    options = parts.options
    refuse_given(
        options,
        unused_options(options, "slem"),
        "slem has no use for drawn drafts: it compares texts, and the drafter's distribution plays no part",
        expected="--proposer tli or slrs with it, or slem without",
    )
    ratio = bridge.target.mean_bytes / bridge.drafter.mean_bytes
    if options.depth is None and options.tree in (None, "chain") and options.tree_file is None:
        tokens = min(max(round(TARGET_TOKENS * ratio), 2), MOST_DRAFTED)
        options = options.model_copy(update={"depth": tokens - 1})
    inner = _inner(
        options, drafter, np.union1d(bridge.drafter.text_ids, np.array(bridge.drafter.eos, np.int64))
    )
    plans = {}
    for plan in inner.plans():
        levels = target_levels(bridge, plan.levels)
        chain = plan.nodes == plan.levels + 1
        plans[Plan(levels, levels + 1 if chain else levels + plan.nodes)] = plan
    return ForeignProposer(("slem", "SLEM"), inner, bridge, Respelling(bridge), plans)


def text_room(bridge: Bridge, drafter: Target, positions: int) -> int:
    """Return the drafter positions kept for ``positions`` target tokens, at most twice its context."""
    growth = max(1.0, bridge.target.mean_bytes / max(bridge.drafter.mean_bytes, 1.0))
    return max(LEAST_ROOM, min(math.ceil(positions * growth), 2 * drafter.config.max_positions))


def target_levels(bridge: Bridge, tokens: int) -> int:
    """Return the maximum number of target tokens for ``tokens`` draft tokens; the rest is left out."""
    return math.ceil(tokens * bridge.drafter.mean_bytes / max(bridge.target.mean_bytes, 1.0) * SLACK)


def check_parts(parts: ProposerParts) -> tuple[Bridge, Target]:
    """Check and return the bridge and the draft model of a proposer for two vocabularies.

    Raises:
        DataError: the draft model has no tokens of text.
    """
    drafter = draft_model_of(parts)
    assert parts.bridge is not None  # made with the way of drafting, see ``build/foreign.py``
    if not len(parts.bridge.drafter.text_ids):
        raise DataError(
            "the draft model has no text tokens",
            got="special tokens only",
            expected="a tokenizer with tokens of text",
            remedy="check the draft model's tokenizer",
        )
    return parts.bridge, drafter


def _inner(options: MethodSpec, drafter: Target, ids: np.ndarray) -> ModelProposer:
    """Build a proposer for the drafter's own tokens ``ids`` (ascending); the model is not changed."""
    chosen = torch.from_numpy(ids).to(drafter.device)
    rows = nn.Parameter(drafter.lm_head_weight.detach()[chosen], requires_grad=False)  # (R, H), a copy
    backend = DraftModelBackend(drafter, drafter.config.vocab_size)
    head = StaticHead(rows, chosen, transform=drafter.transform)
    return ModelProposer(backend, head, choose_policy(options, "chain", None))
