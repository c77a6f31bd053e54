"""Every proposer, head, verifier and transform over Markov targets, and the exact distribution of what they give."""

from __future__ import annotations

import functools
import itertools
import math
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.decode.markov import MarkovTarget
from tests.decode.probability import AllBranches, Distribution, all_ways, fractions, p_value, plain_transform
from vocabforge.core.registry import resolve
from vocabforge.decode import sampling
from vocabforge.decode.control.control import Control, CycleFigures
from vocabforge.decode.engine import Decoder
from vocabforge.decode.interface import PLAIN_PLAN, Plan
from vocabforge.decode.proposers.hybrid import HybridProposer
from vocabforge.decode.proposers.registry import (
    FOREIGN,
    PROPOSERS,
    Proposer,
    ProposerParts,
    make_proposer,
    part_names,
)
from vocabforge.decode.request import Generation, Request, SamplingParams
from vocabforge.decode.spec import MethodSpec
from vocabforge.decode.tree import DraftTree, build_tree
from vocabforge.decode.verify.registry import VERIFIERS
from vocabforge.models.drafters.dflash import DFlashConfig
from vocabforge.models.drafters.dspark import DSparkConfig
from vocabforge.models.drafters.eagle1 import Eagle1Config
from vocabforge.models.drafters.eagle3 import Eagle3Config
from vocabforge.models.drafters.medusa import MedusaConfig
from vocabforge.models.drafters.mtp import MtpConfig
from vocabforge.models.drafters.peagle import PEagleConfig
from vocabforge.models.drafters.registry import new_drafter
from vocabforge.models.heads.registry import HEADS, DraftHead, HeadBase, HeadOptions, HeadSizes
from vocabforge.models.heads.router import Router

PROMPT = (1, 0, 2, 1, 0)

# The others draft over a bridge between vocabularies; ``cross_vocab.py`` makes them.
OWN = [name for name in PROPOSERS if name not in FOREIGN]

PENALTIES = {"repetition_penalty": 1.7, "presence_penalty": 0.8, "frequency_penalty": 0.6}
GREEDY = {
    "greedy": SamplingParams(0.0),
    "greedy, repetition": SamplingParams(0.0, repetition_penalty=1.7),
    "greedy, presence": SamplingParams(0.0, presence_penalty=0.8),
    "greedy, frequency": SamplingParams(0.0, frequency_penalty=0.6),
    "greedy, all": SamplingParams(0.0, top_k=2, top_p=0.5, min_p=0.1, **PENALTIES),
}
TRANSFORMS = {
    "plain": SamplingParams(1.0),
    "temperature": SamplingParams(0.7),
    "top-k": SamplingParams(1.0, top_k=2),
    "top-p": SamplingParams(1.0, top_p=0.75),
    "min-p": SamplingParams(1.0, min_p=0.35),
    "repetition": SamplingParams(1.0, repetition_penalty=1.7),
    "presence": SamplingParams(1.0, presence_penalty=0.8),
    "frequency": SamplingParams(1.0, frequency_penalty=0.6),
    "all": SamplingParams(
        0.8,
        top_k=3,
        top_p=0.9,
        min_p=0.05,
        repetition_penalty=1.3,
        presence_penalty=0.3,
        frequency_penalty=0.4,
    ),
}

HYBRIDS = ["eagle3+n-gram", "n-gram+early-exit", "draft-model+early-exit", "medusa+n-gram+early-exit"]

# How each proposer of the table drafts here; what is not named drafts a chain.
SHAPES = {
    "chain": MethodSpec(tree="chain", depth=1),
    "static": MethodSpec(tree="static", topk=2, depth=1, total_nodes=5),
    "dynamic": MethodSpec(tree="dynamic", topk=2, depth=1, total_nodes=5),
    "siblings": MethodSpec(tree="static", topk=2, depth=0, total_nodes=3),
}


def drafter_of(name: str, target: MarkovTarget, seed: int = 0) -> Any:
    """A small real drafter with random weights and a head of its own; a wrong Markov model as draft model."""
    vocab, size = target.vocab, target.size
    common: dict[str, Any] = {
        "hidden_size": size,
        "vocab_size": vocab,
        "draft_vocab_size": vocab,
        "max_position_embeddings": 64,
    }
    attention = {"intermediate_size": 8, "num_heads": 2, "num_kv_heads": 1, "head_dim": 4}
    configs: dict[str, Any] = {
        "eagle1": lambda: Eagle1Config(**common, **attention),
        "eagle2": lambda: Eagle1Config(**common, **attention, fc_bias=True),
        "eagle3": lambda: Eagle3Config(**common, **attention, aux_layers=(0, 1, 1)),
        "mtp": lambda: MtpConfig(**common, **attention),
        "medusa": lambda: MedusaConfig(**common, medusa_heads=3),
        "peagle": lambda: PEagleConfig(
            **common, **attention, aux_layers=(0, 1, 1), num_layers=2, block_size=3
        ),
        "dflash": lambda: DFlashConfig(**common, **attention, aux_layers=(0, 1), num_layers=1, block_size=4),
        "dspark": lambda: DSparkConfig(
            **common, **attention, aux_layers=(0, 1), num_layers=1, block_size=3, markov_rank=2
        ),
    }
    if name == "draft-model":
        return MarkovTarget("zeros", vocab, seed + 50, layers=1)
    if name not in configs:
        return None
    torch.manual_seed(seed)
    config = configs[name]()
    drafter = new_drafter(config.kind, config, target.embedding, target.lm_head_weight, None).to(target.dtype)
    _randomise(drafter, 1.0)
    with torch.no_grad():  # draws of every probability
        drafter.lm_head.weight.mul_(2.0 * target.size**0.5)
    return drafter.eval()


def _randomise(module: nn.Module, scale: float) -> None:
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() == 1:
                parameter.uniform_(0.5, 1.5)
            elif parameter.is_floating_point():
                parameter.normal_(0.0, scale * parameter.shape[1] ** -0.5)


def base_for(drafter: Any, target: MarkovTarget, missing: Sequence[int] = ()) -> HeadBase:
    """The head rows of a drafter or model, without those of some tokens."""
    source = target if drafter is None else drafter
    weight = (source.lm_head_weight if isinstance(source, MarkovTarget) else source.head_weight).detach()
    ids = torch.tensor([token for token in range(target.vocab) if token not in missing])
    return HeadBase(weight[ids], ids, source.embedding.detach())


def head_options(kind: str, vocab: int) -> HeadOptions:
    """Shortlists of a few tokens: an argmax may be missing, and a head may have fewer than a node's children."""
    ranked = (1, 0)
    known: dict[str, dict[str, Any]] = {
        "ranker": {"shortlist": 2},
        "router": {"budgets": (2, 1)},
        "scheduled": {"ranked": (1, 0, 2), "schedule": (3, 2)},
        "context": {"ranked": ranked, "context": 2},
    }
    return HeadOptions(**known.get(kind, {}))


def make_head(kind: str, drafter: Any, target: MarkovTarget, seed: int = 0) -> DraftHead:
    """A head of the table, its trained part random; a static one misses the last token."""
    torch.manual_seed(seed + 7)
    base = base_for(drafter, target, [target.vocab - 1] if kind == "static" else [])
    found = resolve(HEADS, kind, "draft head")
    module = found.new_module(
        HeadSizes(base.weight.shape[1], target.vocab, rank=2, clusters=2, width=4, depth=1)
    )
    if module is not None:
        _randomise(module.to(target.dtype), 3.0)
    if isinstance(module, Router):
        module.assignment.copy_(torch.arange(target.vocab) % 2)
    return found.build(base, module, head_options(kind, target.vocab))


def proposer_for(
    name: str, target: MarkovTarget, head: str | None = None, shape: str = "chain", *, sample: bool = False
) -> Proposer:
    """A proposer of the table over a Markov target, or a hybrid of several."""
    if len(parts := part_names(name)) > 1:
        return HybridProposer(
            [proposer_for(part, target, None, shape, sample=sample and part != "n-gram") for part in parts]
        )
    drafter = drafter_of(name, target)
    options = SHAPES[shape].model_copy(update={"draft_sampling": sample})
    if name == "n-gram":
        options = options.model_copy(
            update={"ngram": (1, 2), "tree": "dynamic" if shape == "dynamic" else "chain"}
        )
        if shape != "dynamic":
            options = options.without("topk", "total_nodes")
    if name == "early-exit":
        options = options.model_copy(update={"exit_layers": 1})
    built = None if head is None else make_head(head, drafter, target)
    return make_proposer(name, ProposerParts(target, drafter, built, options))


@dataclass(frozen=True)
class Case:
    """What one enumeration asks of a decoder."""

    sampling: SamplingParams
    prompt: Sequence[int] = PROMPT
    length: int = 3
    stop_ids: Sequence[int] = ()

    def request(self, seed: int) -> Request:
        return Request(self.prompt, self.length, self.stop_ids, replace(self.sampling, seed=seed))


class Walker:
    """A decoder whose rows each walk a script of random decisions."""

    def __init__(
        self,
        target: MarkovTarget,
        proposer: Proposer | None,
        verifier: str | None = None,
        rows: int = 12,
        control: str | Control = "fixed",
    ) -> None:
        self._sources: list[AllBranches] = []
        self.results: list[Generation] = []
        self.decoder = Decoder(
            target,
            proposer,
            rows=rows,
            control=control,
            verifier=verifier,
            chance=lambda seed: self._sources[seed],
        )

    @property
    def accepted(self) -> int:
        """Draft tokens that were accepted in all walks."""
        return sum(sum(result.accepted_by_depth) for result in self.results)

    def distributions(self, cases: Sequence[Case]) -> list[Distribution]:
        """The exact distributions of requests' outputs, from every way that they can go, open ones side by side."""
        distributions: list[Distribution] = [{} for _ in cases]
        waiting: list[tuple[int, list[int]]] = [(number, []) for number in range(len(cases))]
        while waiting:
            self._sources = [AllBranches(script) for _, script in waiting]
            numbers, waiting = [number for number, _ in waiting], []
            requests = [cases[number].request(seed) for seed, number in enumerate(numbers)]
            # Of one row, each way is walked alone: a control begins anew with it.
            batches = [[one] for one in requests] if self.decoder.rows == 1 else [requests]
            results = [result for batch in batches for result in self.decoder.generate_batch(batch)]
            self.results += results
            for number, source, result in zip(numbers, self._sources, results):
                distribution, tokens = distributions[number], tuple(result.token_ids)
                distribution[tokens] = distribution.get(tokens, Fraction(0)) + source.weight
                waiting += [(number, script) for script in source.open]
        return distributions

    def distribution(self, case: Case) -> Distribution:
        """The exact distribution of one request's output."""
        return self.distributions([case])[0]


def exact_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that decides at random computes with the float weights as fractions."""
    real_target, real_draft = sampling.target_weights, sampling.draft_weights

    def target_weights(*args: Any, **kwargs: Any) -> np.ndarray[Any, Any]:
        return fractions(real_target(*args, **kwargs))

    def draft_weights(*args: Any, **kwargs: Any) -> np.ndarray[Any, Any]:
        return fractions(real_draft(*args, **kwargs))

    for places in (VERIFIERS, PROPOSERS):  # their modules are read when they are first asked for
        for name in places:
            resolve(places, name, "row")
    exact = {id(real_target): target_weights, id(real_draft): draft_weights}
    for module in [found for name, found in sys.modules.items() if name.startswith("vocabforge.decode.")]:
        for name, value in list(vars(module).items()):
            if id(value) in exact and module is not sampling:
                monkeypatch.setattr(module, name, exact[id(value)])


def reference_distribution(target: MarkovTarget, case: Case) -> Distribution:
    """The distribution of plain sampling: token after token from the transformed distribution of the whole text
    before."""
    distribution: Distribution = {(): Fraction(1)}
    for _ in range(case.length):
        longer: Distribution = {}
        for tokens, weight in distribution.items():
            if tokens and tokens[-1] in case.stop_ids:
                longer[tokens] = longer.get(tokens, Fraction(0)) + weight
                continue
            weights = next_weights(target, case, tokens)
            total = sum(weights)
            for token, part in enumerate(weights):
                if part > 0:
                    longer[(*tokens, token)] = weight * part / total
        distribution = longer
    return distribution


def next_weights(target: MarkovTarget, case: Case, tokens: Sequence[int]) -> list[Fraction]:
    """Weights (V,) of the token after prompt and output, the transform's floats as fractions."""
    logits = target.reference([*case.prompt, *tokens])
    history = sampling.TokenHistory(case.prompt, target.vocab)
    history.add(tokens)
    weights = sampling.target_weights(logits, case.sampling, history, [])
    return [Fraction(float(weight)) for weight in weights]


def check_transform(target: MarkovTarget, case: Case, output: Sequence[int]) -> None:
    """The package's transform behind an output, against the one in plain Python."""
    ours = next_weights(target, case, output)
    logits = target.reference([*case.prompt, *output]).tolist()
    plain = plain_transform(logits, case.sampling, case.prompt, output)
    for found, expected in zip(ours, plain):
        assert float(found / sum(ours)) == pytest.approx(expected / sum(plain), abs=1e-6), output


HEADLESS = ("n-gram",)
PAIRS: list[tuple[str, str | None]] = [
    (name, head) for name in OWN for head in ((None,) if name in HEADLESS else HEADS)
]
SAMPLERS = [
    name
    for name in VERIFIERS
    for found in [resolve(VERIFIERS, name, "verifier")]
    if found.samples and found.lossless
]
CASES = [Case(sampling) for sampling in (*TRANSFORMS.values(), *GREEDY.values())]


@functools.cache
def targets(kind: str, vocab: int = 3, layers: int = 2) -> MarkovTarget:
    return MarkovTarget(kind, vocab, 1, layers)


@functools.cache
def wanted(kind: str, sampling: SamplingParams, length: int, stop_ids: tuple[int, ...]) -> Distribution:
    return reference_distribution(targets(kind), Case(sampling, length=length, stop_ids=stop_ids))


def check(walker: Walker, kind: str, cases: Sequence[Case]) -> None:
    """Total variation 0, exactly."""
    for case, distribution in zip(cases, walker.distributions(cases)):
        expected = wanted(kind, case.sampling, case.length, tuple(case.stop_ids))
        assert sum(distribution.values()) == 1
        assert distribution == expected, case.sampling


def check_independent(target: MarkovTarget, proposer: Proposer, cases: Sequence[Case]) -> None:
    """Requests of one source of chance side by side: their joint distribution is the product of their own."""
    sources = [AllBranches([])]
    decoder = Decoder(target, proposer, rows=len(cases), chance=lambda seed: sources[0])

    def run(chance: AllBranches) -> tuple[tuple[int, ...], ...]:
        sources[0] = chance
        results = decoder.generate_batch([case.request(0) for case in cases])
        return tuple(tuple(one.token_ids) for one in results)

    joint: dict[tuple[tuple[int, ...], ...], Fraction] = {}
    for weight, outcome in all_ways(run):
        joint[outcome] = joint.get(outcome, Fraction(0)) + weight
    each = [reference_distribution(target, case).items() for case in cases]
    assert joint == {
        tuple(tokens for tokens, _ in ways): math.prod((share for _, share in ways), start=Fraction(1))
        for ways in itertools.product(*each)
    }


def sequences_p_value(target: MarkovTarget, proposer: Proposer, case: Case, count: int) -> float:
    """p-value of the outputs of a real decoder of 32 rows, each request with its own seed."""
    results = Decoder(target, proposer, rows=32).generate_batch([case.request(seed) for seed in range(count)])
    distribution = {tokens: float(weight) for tokens, weight in reference_distribution(target, case).items()}
    return p_value(Counter(tuple(result.token_ids) for result in results), distribution)


class Switching:
    """A control that drafts another size in every cycle, plain decoding among them."""

    def __init__(self, plans: Sequence[Plan]) -> None:
        self._plans, self._cycles = [PLAIN_PLAN, *plans][::-1], 0

    def begin(self) -> None:
        self._cycles = 0

    def plan(self, ready: object = None) -> Plan:
        self._cycles += 1
        return self._plans[(self._cycles - 1) % len(self._plans)]

    def observe(self, cycle: CycleFigures) -> None:
        pass


class Following:
    """A control whose arm follows from all that one row has accepted so far."""

    def __init__(self, plans: Sequence[Plan]) -> None:
        self._plans, self._seen = [*plans, PLAIN_PLAN], 0

    def begin(self) -> None:
        self._seen = 0

    def plan(self, ready: object = None) -> Plan:
        return self._plans[self._seen % len(self._plans)]

    def observe(self, cycle: CycleFigures) -> None:
        self._seen = 5 * self._seen + 1 + sum(cycle.accepted)


class FixedTree(Proposer):
    """Proposes the same tree whatever was said: duplicates, impossible tokens, dead nodes, all of V."""

    kind = label = "fixed"

    def __init__(self, tokens: Sequence[int], parents: Sequence[int], dead: Sequence[int] = ()) -> None:
        self._tokens, self._parents, self._dead = tokens, torch.tensor([parents]), list(dead)
        self._chain = list(parents) == [0, *range(len(parents) - 1)]
        self.levels = int(build_tree(self._parents, self._parents, len(parents)).depths.max())
        self.plan = Plan(self.levels, len(parents))

    def plans(self) -> list[Plan]:
        return [self.plan]

    def propose(self, roots: Tensor, plan: Plan, draws: Any, lap: Any) -> DraftTree:
        rows = len(roots)
        tokens = torch.cat([roots[:, None], torch.tensor([self._tokens[1:]]).expand(rows, -1)], 1)
        tree = build_tree(tokens, self._parents.expand(rows, -1).contiguous(), self.levels)
        alive = torch.ones_like(tokens, dtype=torch.bool)
        alive[:, self._dead] = False
        return replace(tree, alive=alive if self._dead else None, chain=self._chain)


TREES = {
    "duplicates": ((0, 1, 1, 0, 1, 0, 0), (0, 0, 0, 1, 1, 2, 2), ()),
    "the whole vocabulary": ((0, 2, 0, 1, 1), (0, 0, 0, 0, 3), ()),
    "dead nodes": ((0, 1, 2, 0, 1, 2, 2), (0, 0, 0, 0, 1, 2, 4), (2, 5)),
    "out of level order": ((0, 1, 0, 2, 2, 0), (0, 0, 1, 2, 0, 4), ()),
}
