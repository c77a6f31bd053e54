"""Two hand-made vocabularies a situation, without tokenizers: what drafting over a bridge is proved on.

Target and drafter are Markov models (``markov.py``), whose laws are exact and which notice a wrong cache.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tests.decode.enumeration import Law
from tests.decode.markov import MarkovTarget
from tests.decode.proof_support import Case, Walker, reference_law
from vocabforge.decode.build.spec import MethodSpec
from vocabforge.decode.proposers.registry import Proposer, ProposerParts, make_proposer
from vocabforge.decode.request import SamplingParams
from vocabforge.vocab.overlap.bridge import Bridge, BridgeSide

Forms = tuple[bytes | None, ...]
Rule = Literal["longest", "fewest"]


class ToySpeller:
    """Spells bytes with the tokens of a few byte forms: by the longest match, or by the fewest tokens."""

    def __init__(self, forms: Forms, rule: Rule) -> None:
        self._rule = rule
        self._ids: dict[bytes, int] = {}
        for token, form in enumerate(forms):
            if form:
                self._ids.setdefault(form, token)

    def spell(self, wanted: Sequence[bytes | None]) -> list[list[int] | None]:
        spell = self._longest if self._rule == "longest" else self._fewest
        return [spell(form) if form else None for form in wanted]

    def _longest(self, form: bytes) -> list[int]:
        ids, at = list[int](), 0
        while at < len(form):
            end = next((end for end in range(len(form), at, -1) if form[at:end] in self._ids), None)
            if end is None:
                return []
            ids.append(self._ids[form[at:end]])
            at = end
        return ids

    def _fewest(self, form: bytes) -> list[int]:
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
        ours, theirs = (
            BridgeSide(forms, ToySpeller(forms, self.rule), ends, start, self.opening)
            for forms, ends, start in zip((self.target, self.drafter), self.ends, ((), self.start))
        )
        pairs, free = [], list(enumerate(self.drafter))
        for token, form in enumerate(self.target):
            same = next(((other, found) for other, found in free if form and found == form), None)
            if same is not None:
                free.remove(same)
                pairs.append((token, same[0]))
        eos = (self.ends[0][0], self.ends[1][0]) if all(self.ends) else None
        return Bridge(ours, theirs, np.array(pairs, dtype=np.int64).reshape(-1, 2), eos)


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
def wanted(name: str, kind: str, case: Case) -> Law:
    return reference_law(target_of(name, kind), case)


def check_law(
    name: str,
    way: str,
    samplings: Sequence[SamplingParams],
    length: int = 3,
    *,
    kinds: Kinds = FEW,
    verifier: str | None = None,
    rows: int = 12,
) -> Walker:
    """The law of the output is the target's own: total variation exactly 0."""
    walker = Walker(target_of(name, kinds[0]), foreign_proposer(name, way, kinds), verifier, rows)
    cases = [case_of(name, sampling, length) for sampling in samplings]
    for case, law in zip(cases, walker.laws(cases)):
        assert sum(law.values()) == 1, (name, way, case.sampling)
        assert law == wanted(name, kinds[0], case), (name, way, case.sampling)
    return walker
