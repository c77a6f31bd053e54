"""Two hand-made vocabularies a situation, without tokenizers: what drafting over a bridge is proved on."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import torch

from tests.decode.bridges import LongestMatch, bridge
from tests.decode.markov import MarkovTarget
from tests.decode.probability import Distribution, all_ways, exactly
from tests.decode.proofs import Case, Walker, reference_distribution
from vocabforge.decode import sampling
from vocabforge.decode.cross_vocab.text import DraftText
from vocabforge.decode.interface import Draw
from vocabforge.decode.proposers.registry import Proposer, ProposerParts, make_proposer
from vocabforge.decode.request import SamplingParams
from vocabforge.decode.sampling import Chance
from vocabforge.decode.spec import MethodSpec
from vocabforge.decode.tree import Distribution as TreeDistribution
from vocabforge.decode.tree import DraftDistribution
from vocabforge.vocab.overlap.bridge import Bridge, BridgeSide

Forms = tuple[bytes | None, ...]
Rule = Literal["longest", "fewest"]


class FewestTokens(LongestMatch):
    """Spells bytes with as few tokens as possible."""

    def _spelled(self, form: bytes) -> list[int]:
        best: list[list[int] | None] = [[]]
        for end in range(1, len(form) + 1):
            ways = [
                [*before, self._ids[form[start:end]]]
                for start in range(end)
                if (before := best[start]) is not None and form[start:end] in self._ids
            ]
            best.append(min(ways, key=len, default=None))
        return best[-1] or []


@dataclass(frozen=True)
class Situation:
    """Two vocabularies.

    Attributes:
        target, drafter: bytes of every id; None for special tokens.
        prompt: in the target's ids.
        ends: end tokens of target and drafter.
        start: what stands before the drafter's text.
        opening: what the drafter's tokenizer puts before it.
        rule: by which both spell.
    """

    target: Forms
    drafter: Forms
    prompt: tuple[int, ...]
    ends: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    start: tuple[int, ...] = (0,)
    opening: bytes = b""
    rule: Rule = "longest"

    def bridge(self) -> Bridge:
        """Pairs of the same bytes, the lowest ids first, one to one; the first end tokens of both are a pair."""
        speller = LongestMatch if self.rule == "longest" else FewestTokens
        ours, theirs = (
            BridgeSide(forms, speller(forms), ends, start, self.opening)
            for forms, ends, start in zip((self.target, self.drafter), self.ends, ((), self.start))
        )
        return bridge(ours, theirs)


# The drafter's ids stand in another order than the target's wherever both have more than one.
SITUATIONS = {
    "drafter inside target": Situation((b"a", b"b", b"ab", b"c"), (b"b", b"a"), (0, 1, 3, 2)),
    "target inside drafter": Situation((b"a", b"b"), (b"ab", b"b", b"ba", b"a"), (0, 1, 1, 0)),
    "partial overlap": Situation((b"a", b"b", b"ab", b"ca"), (b"ab", b"c", b"a", b"b"), (0, 3, 2, 1)),
    "several spellings": Situation(
        (b"a", b"ab", b"aba", b"b"), (b"b", b"aba", b"ba", b"a"), (2, 0, 3, 1), rule="fewest"
    ),
    "incomplete characters": Situation(
        (b"\xc3", b"\xa9", b"\xc3\xa9", b"a"), (b"a", b"\xc3\xa9", b"\xa9", b"\xc3"), (3, 2, 0, 1)
    ),
    "whole characters only": Situation((b"\xc3", b"\xa9", b"a"), (b"a", b"\xc3\xa9"), (2, 0, 1, 2)),
    "leading spaces": Situation(
        (b" a", b"a", b" ", b"b"), (b"b", b"a", b" a", b" "), (1, 0, 2, 3), opening=b" ", rule="fewest"
    ),
    # SLEM holds a space back until its word comes.
    "words with their spaces": Situation((b" ", b"a", b"b"), (b" ab", b"b", b"a"), (1, 0, 1, 2)),
    "lower case": Situation((b"A", b"a", b"b", b"aB"), (b"b", b"a"), (0, 1, 3, 2)),
    "ends of both": Situation(
        (b"a", None, b"b", b"ab"), (b"b", b"a", None), (0, 2, 3, 0), ends=((1,), (2,)), start=(2,)
    ),
    "an end of the target": Situation((None, b"a", b"b"), (b"b", b"ab", b"a"), (1, 2, 2, 1), ends=((0,), ())),
    "an end of the drafter": Situation((b"a", b"b"), (b"b", None, b"a"), (0, 1, 0), ends=((), (1,))),
    "duplicates": Situation((b"a", b"b", b"a"), (b"b", b"a", b"b", b"a", b"a"), (2, 1, 0, 1)),
    # Both call the first one "<s>"; the texts of special tokens are no bytes.
    "special tokens": Situation((None, b"a", b"b", None), (b"b", None, b"a"), (0, 1, 2, 1), start=(1,)),
    # "a" and "b", where "abb" was not what followed: what the first token forbids reaches beyond the second.
    "a token two bytes longer": Situation((b"a", b"b", b"abb"), (b"b", b"a"), (2, 0, 1)),
    "a token beyond the target": Situation((b"a", b"b"), (b"x", b"b", b"a"), (1, 0, 0)),
}

CHAIN = MethodSpec(tree="chain", depth=1)
STATIC = MethodSpec(tree="static", topk=2, depth=1, total_nodes=5)
DYNAMIC = MethodSpec(tree="dynamic", topk=2, depth=1, total_nodes=5)
SIBLINGS = MethodSpec(tree="static", topk=2, depth=0, total_nodes=3)
# name -> proposer and how it drafts
WAYS: dict[str, tuple[str, MethodSpec]] = {
    "tli, chain": ("tli", CHAIN),
    "tli, static": ("tli", STATIC),
    "tli, dynamic": ("tli", DYNAMIC),
    "tli, drawn chain": ("tli", CHAIN.model_copy(update={"draft_sampling": True})),
    "tli, drawn siblings": ("tli", SIBLINGS.model_copy(update={"draft_sampling": True})),
    "slem, chain": ("slem", CHAIN.model_copy(update={"depth": 2})),
    "slem, static": ("slem", STATIC),
    "slem, dynamic": ("slem", DYNAMIC),
    "slrs": ("slrs", MethodSpec(depth=1, look_ahead=1)),
    "slrs, one draw": ("slrs", MethodSpec(depth=0, look_ahead=1)),
    "slrs, further ahead": ("slrs", MethodSpec(depth=2, look_ahead=2)),
    "slrs, one token": ("slrs", MethodSpec(depth=2, look_ahead=2, single_token=True)),
}

Kinds = tuple[str, str]  # of the tables of target and drafter, see ``markov.table``
FEW: Kinds = ("zeros", "zeros")  # two tokens may follow any text: few branches


@functools.cache
def target_of(name: str, kind: str) -> MarkovTarget:
    return _model(kind, len(SITUATIONS[name].target), 3)


@functools.cache
def drafter_of(name: str, kind: str) -> MarkovTarget:
    return _model(kind, len(SITUATIONS[name].drafter), 8)


def _model(kind: str, vocab: int, seed: int) -> MarkovTarget:
    # Of two tokens "zeros" would leave one, and nothing to decide.
    return MarkovTarget("plain" if vocab == 2 else kind, vocab, seed, layers=1)


def fits(name: str, way: str) -> bool:
    """Whether the situation has tokens enough for the way's trees."""
    proposer, options = WAYS[way]
    return proposer != "tli" or options.tree == "chain" or len(SITUATIONS[name].bridge().pairs) > 1


def foreign_proposer(name: str, way: str, kinds: Kinds = FEW, bridge: Bridge | None = None) -> Proposer:
    """A proposer over a situation's Markov models."""
    proposer, options = WAYS[way]
    bridge = bridge or SITUATIONS[name].bridge()
    parts = ProposerParts(target_of(name, kinds[0]), drafter_of(name, kinds[1]), None, options, bridge)
    return make_proposer(proposer, parts)


def case_of(name: str, sampling: SamplingParams, length: int = 3) -> Case:
    """A request of a situation; its end tokens are stop tokens."""
    situation = SITUATIONS[name]
    return Case(sampling, situation.prompt, length, situation.ends[0])


@functools.cache
def wanted(name: str, kind: str, case: Case) -> Distribution:
    return reference_distribution(target_of(name, kind), case)


def check_distribution(
    name: str,
    way: str,
    samplings: Sequence[SamplingParams],
    length: int = 3,
    *,
    kinds: Kinds = FEW,
    verifier: str | None = None,
    rows: int = 12,
) -> Walker:
    """The distribution of the output is the target's own: total variation exactly 0."""
    walker = Walker(target_of(name, kinds[0]), foreign_proposer(name, way, kinds), verifier, rows)
    cases = [case_of(name, sampling, length) for sampling in samplings]
    for case, distribution in zip(cases, walker.distributions(cases)):
        assert sum(distribution.values()) == 1, (name, way, case.sampling)
        assert distribution == wanted(name, kinds[0], case), (name, way, case.sampling)
    return walker


NOTHING = -1  # in place of a token where a drafting ends
Shares = dict[tuple[int, ...], Fraction]  # beginnings of drafted chains -> their probability


@dataclass(frozen=True)
class Drafting:
    """A proposer over a situation, to draft behind its prompt and one token."""

    proposer: Proposer
    bridge: Bridge
    prompt: tuple[int, ...]
    size: int


def new_drafting(name: str, way: str, kind: str, said: int = 0) -> Drafting:
    """Behind the prompt and the token ``said``; the drafter's table is one of ``kind``."""
    situation, bridge = SITUATIONS[name], SITUATIONS[name].bridge()
    proposer = foreign_proposer(name, way, ("plain", kind), bridge)
    proposer.allocate(1, 24, target_of(name, "plain").new_cache(24))
    return Drafting(proposer, bridge, (*situation.prompt, said), len(situation.target))


@torch.inference_mode()
def draft(
    drafting: Drafting, params: SamplingParams, chance: Chance
) -> tuple[tuple[int, ...], Mapping[int, TreeDistribution]]:
    """The chain drafted, and the distributions that came with it."""
    proposer, prompt = drafting.proposer, drafting.prompt
    proposer.begin(0, prompt)
    root = torch.tensor(prompt[-1:])
    tree = proposer.propose(root, proposer.plan, [Draw(params, chance)], lambda part: None)
    alive = [True] * tree.tokens.shape[1] if tree.alive is None else tree.alive[0].tolist()
    tokens = [token for token, real in zip(tree.tokens[0].tolist(), alive) if real]
    return tuple(tokens[1:]), {} if tree.distributions is None else tree.distributions[0]


def distributions_of(distributions: Mapping[int, TreeDistribution], size: int) -> dict[int, dict[int, Any]]:
    """Of each node, token -> probability, those above 0."""
    found = {}
    for node, distribution in distributions.items():
        if isinstance(distribution, DraftDistribution):
            shares = dict(zip(distribution.ids.tolist(), distribution.weights / distribution.weights.sum()))
        else:
            shares = {token: distribution.probability(token) for token in range(size)}
            assert sum(shares.values()) <= 1 + 1e-12
        found[node] = {token: share for token, share in shares.items() if share > 0}
    return found


def check_drafting(name: str, way: str, params: SamplingParams, kind: str, said: int = 0) -> None:
    """Reported, drawn and expected are one, exactly."""
    drafting = new_drafting(name, way, kind, said)
    shares: Shares = {}
    reported: dict[tuple[int, ...], dict[int, Any]] = {}
    for weight, (tokens, distributions) in all_ways(lambda chance: draft(drafting, params, chance)):
        for size in range(len(tokens) + 1):
            shares[tokens[:size]] = shares.get(tokens[:size], Fraction(0)) + weight
        if len(tokens) < drafting.proposer.plan.levels:
            nothing = (*tokens, NOTHING)
            shares[nothing] = shares.get(nothing, Fraction(0)) + weight
        for node, distribution in distributions_of(distributions, drafting.size).items():
            if node > len(tokens) or (
                node == len(tokens) and isinstance(distributions[node], DraftDistribution)
            ):
                continue  # nobody asks for the distribution of a node whose children are not drafted
            assert reported.setdefault(tokens[:node], distribution) == distribution, (
                "the distribution changes with what is drawn"
            )
    assert shares[()] == 1
    for path, distribution in reported.items():
        drawn = {
            token: shares[(*path, token)] / shares[path]
            for token in range(drafting.size)
            if (*path, token) in shares
        }
        assert distribution == drawn, (name, way, path)
    plain = expected_shares(name, way, params, kind, drafting)
    assert {path: share for path, share in shares.items() if NOTHING not in path} == plain, (name, way)
    assert all(path[:-1] in reported for path in plain if path)


def expected_shares(name: str, way: str, params: SamplingParams, kind: str, drafting: Drafting) -> Shares:
    """What the drafter alone would draft, from its distributions and the bytes of the tokens."""
    text: DraftText = drafting.proposer._texts[0]  # type: ignore[attr-defined]
    if text.held:
        return {(): Fraction(1)}
    proposer, options = WAYS[way]
    length, levels = (options.depth or 0) + 1, drafting.proposer.plan.levels
    streams = Streams(SITUATIONS[name], drafter_of(name, kind), params, text.ids)
    if proposer == "tli":
        chains = streams.mapped(drafting.bridge, length)
    else:
        chains = streams.cut(drafting.bridge, length, options, levels)
    found: Shares = {}
    for chain, weight in chains:
        for size in range(len(chain) + 1):
            found[chain[:size]] = found.get(chain[:size], Fraction(0)) + weight
    return found


class Streams:
    """Every text that a drafter may draw behind its context, token by token."""

    def __init__(
        self, situation: Situation, drafter: MarkovTarget, params: SamplingParams, ids: list[int]
    ) -> None:
        self._situation, self._drafter, self._params, self._ids = situation, drafter, params, ids

    def _distribution(self, path: tuple[int, ...], tokens: list[int]) -> list[tuple[int, Fraction]]:
        logits = self._drafter.reference([*self._ids, *path])[tokens]
        logits = logits.masked_fill(logits == -torch.inf, -1e9)  # as the rows of its LM head have it
        weights = [exactly(one) for one in PLAIN_WEIGHTS(logits, self._params)]
        return [(token, weight / sum(weights)) for token, weight in zip(tokens, weights) if weight > 0]

    def mapped(self, bridge: Bridge, length: int) -> Iterator[tuple[tuple[int, ...], Fraction]]:
        """TLI: texts of tokens that both have, in the target's tokens."""
        pairs = [tuple(pair) for pair in bridge.pairs.tolist()] + ([bridge.eos] if bridge.eos else [])
        ours = {theirs: token for token, theirs in pairs}
        for path, weight in self._paths(length, sorted(ours), ()):
            yield tuple(ours[token] for token in path), weight

    def cut(
        self, bridge: Bridge, length: int, options: MethodSpec, levels: int
    ) -> Iterator[tuple[tuple[int, ...], Fraction]]:
        """SLRS: texts of any tokens, cut into target tokens by the longest match."""
        forms, ends = self._situation.drafter, self._situation.ends[1]
        tokens = sorted(
            {token for token, form in enumerate(forms) if form and token not in ends} | {*ends},
            key=lambda token: (token in ends, forms[token] or b""),
        )
        kept = pruned(target_forms(self._situation), options.look_ahead or 0)
        for path, weight in self._paths(length, tokens, ends):
            written = b"".join(forms[token] or b"" for token in path if token not in ends)
            chain, covered = longest_matches(kept, written, levels)
            ended = bool(path) and path[-1] in ends and covered == len(written)
            if ended and bridge.eos is not None and len(chain) < levels:
                chain = (*chain, bridge.eos[0])
            yield chain, weight

    def _paths(
        self, length: int, tokens: list[int], ends: tuple[int, ...]
    ) -> Iterator[tuple[tuple[int, ...], Fraction]]:
        waiting: list[tuple[tuple[int, ...], Fraction]] = [((), Fraction(1))]
        while waiting:
            path, weight = waiting.pop()
            if len(path) == length or (path and path[-1] in ends):
                yield path, weight
                continue
            waiting += [((*path, token), weight * share) for token, share in self._distribution(path, tokens)]


PLAIN_WEIGHTS = sampling.draft_weights  # not what tests put into its place


def target_forms(situation: Situation) -> dict[bytes, int]:
    """One id for each byte form, the lowest; end tokens stand for the end."""
    found: dict[bytes, int] = {}
    for token, form in enumerate(situation.target):
        if form and token not in situation.ends[0]:
            found.setdefault(form, token)
    return found


def pruned(forms: Mapping[bytes, int], look_ahead: int) -> dict[bytes, int]:
    """Without the tokens that end too far behind the longest kept one that begins them."""
    kept: dict[bytes, int] = {}
    for form in sorted(forms, key=len):
        below = [len(other) for other in kept if form.startswith(other)]
        if not below or len(form) - max(below) <= look_ahead:
            kept[form] = forms[form]
    return kept


def longest_matches(kept: Mapping[bytes, int], text: bytes, most: int) -> tuple[tuple[int, ...], int]:
    """The target tokens at the beginning of a text, at most ``most``, and the bytes that they cover."""
    chain, at = list[int](), 0
    while len(chain) < most:
        fitting = [form for form in kept if text.startswith(form, at)]
        if not fitting:
            break
        best = max(fitting, key=len)
        chain.append(kept[best])
        at += len(best)
    return tuple(chain), at
