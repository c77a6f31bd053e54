"""Greedy tokens are plain decoding's for every proposer over a real model; other roundings decide near ties alone."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from torch import Tensor

from tests.decode.drafting import KINDS, knowing, make_drafter
from tests.decode.mutants import mistake
from tests.decode.node_support import fresh, noisy
from tests.decode.proofs import OWN
from tests.shares import by_default
from tests.worlds import DATA, needs_data, tiny_target
from vocabforge.decode.engine import Decoder
from vocabforge.decode.proposers.registry import FITTING, Proposer, ProposerParts, make_proposer
from vocabforge.decode.request import Generation, Request, SamplingParams
from vocabforge.decode.spec import MethodSpec
from vocabforge.models.lean.model import LeanModel, load_target
from vocabforge.models.target.hf import HFTarget

VOCAB = 512
DRAFTERS = {name: kind for kind in KINDS for name in FITTING[kind]}
OPTIONS = {
    "n-gram": MethodSpec(depth=3, ngram=(1, 4)),
    "draft-model": MethodSpec(depth=3),
    "early-exit": MethodSpec(depth=2, exit_layers=3),
    "eagle1": MethodSpec(tree="static", topk=3, depth=2, total_nodes=9),
    "medusa": MethodSpec(tree="static", topk=3, depth=2, total_nodes=9),
}
DYNAMIC = MethodSpec(tree="dynamic", topk=3, depth=2, total_nodes=10)


def prompts_for(count: int, longest: int = 40) -> list[list[int]]:
    """First turns of Spec-Bench in ids of a 512-token tokenizer, evenly spread and cut; random ids without data."""
    if (DATA / "SOURCES.md").is_file():
        tokenizer = Tokenizer.from_file(str(DATA / "models" / "tok512" / "tokenizer.json"))
        lines = (DATA / "spec_bench" / "question.jsonl").read_text(encoding="utf-8").splitlines()
        chosen = lines[:: max(1, len(lines) // count)][:count]
        return [tokenizer.encode(json.loads(line)["turns"][0]).ids[:longest] for line in chosen]
    draw = random.Random(5)
    prompts = []
    for _ in range(count):
        phrase = [draw.randrange(VOCAB) for _ in range(draw.randint(1, 9))]
        prompts.append((phrase * 9)[: draw.randint(1, longest)])
    return prompts


class Models:
    """A tiny target in one dtype, and every proposer over it."""

    def __init__(self, folder: Path, dtype: torch.dtype) -> None:
        if not (folder / "config.json").is_file():
            tiny_target(folder, vocab_size=VOCAB, num_hidden_layers=5, initializer_range=0.4)
        self.folder, self.dtype = folder, dtype
        self.lean = load_target(folder, dtype=dtype)
        self.plain: dict[Any, list[list[int]]] = {}  # what plain decoding gave
        self.drafters: dict[str, Any] = {}

    def proposer(self, name: str) -> Proposer:
        if name not in self.drafters:
            self.drafters[name] = self._drafter(name)
        parts = ProposerParts(self.lean, self.drafters[name], None, OPTIONS.get(name, DYNAMIC))
        return make_proposer(name, parts)

    def _drafter(self, name: str) -> Any:
        if name == "draft-model":
            return noisy(load_target(self.folder, dtype=self.dtype))
        if name not in DRAFTERS:
            return None
        return make_drafter(DRAFTERS[name], self.folder, HFTarget.load(self.folder), "own").to(self.dtype)


NAMES = sorted(OWN)
# One of each way of drafting: no model, a model, the target's layers, a tree, a block, heads.
SOME_NAMES = by_default(
    NAMES, ("n-gram", "draft-model", "early-exit", "eagle3", "dspark", "medusa").__contains__
)
LENGTH = 14


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained model of 260,000 parameters; a random one where there are no data."""
    real = DATA / "models" / "stories260K"
    return real if real.is_dir() else tmp_path_factory.mktemp("target")


@pytest.fixture(scope="module")
def pairs(folder: Path) -> dict[torch.dtype, Models]:
    return {dtype: Models(folder, dtype) for dtype in (torch.float32, torch.float64, torch.bfloat16)}


def requests(prompts: list[list[int]], length: int) -> list[Request]:
    return [Request(prompt, length) for prompt in prompts]


def tokens_of(results: list[Generation]) -> list[list[int]]:
    return [result.token_ids for result in results]


def plain_tokens(pair: Models, prompts: list[list[int]], length: int, rows: int) -> list[list[int]]:
    """Plain decoding's, kept for the next test."""
    key = (tuple(map(tuple, prompts)), length, rows)
    if key not in pair.plain:
        decoder = Decoder(pair.lean, rows=rows)
        pair.plain[key] = tokens_of(decoder.generate_batch(requests(prompts, length)))
    return pair.plain[key]


def told_proposer(pair: Models, name: str, prompts: list[list[int]], truth: list[list[int]]) -> Any:
    """The proposer, which knows what plain decoding makes of the prompts."""
    return knowing(pair.proposer(name), *([*prompt, *rest] for prompt, rest in zip(prompts, truth)), seed=11)


def check_equal(pair: Models, name: str, prompts: list[list[int]], length: int, rows: int) -> None:
    """The proposer as it is, and told a part of the answer, gives plain decoding's tokens."""
    longer = plain_tokens(pair, prompts, length + 8, rows)
    plain = [tokens[:length] for tokens in longer]
    honest = Decoder(pair.lean, pair.proposer(name), rows=rows)
    assert tokens_of(honest.generate_batch(requests(prompts, length))) == plain
    told = Decoder(pair.lean, told_proposer(pair, name, prompts, longer), rows=rows)
    results = told.generate_batch(requests(prompts, length))
    assert tokens_of(results) == plain
    deepest = max(length for result in results for length in result.accept_lengths)
    assert deepest > 2, "the test needs accepted drafts"


@pytest.mark.parametrize(
    "dtype", by_default([torch.float32, torch.float64], lambda one: one == torch.float32)
)
@pytest.mark.parametrize("name", NAMES)
def test_greedy_tokens_are_plain_decodings(name, dtype, pairs):
    prompts = prompts_for(12)
    check_equal(pairs[dtype], name, prompts[:2], LENGTH, 1)
    check_equal(pairs[dtype], name, prompts, LENGTH, 6)


@pytest.mark.parametrize("name", SOME_NAMES)
def test_sampled_tokens_follow_from_the_seed_alone(name: str, pairs: dict[torch.dtype, Models]) -> None:
    """Verification by the target's own draw: the tokens are those of plain decoding with the same seeds."""
    pair, prompts = pairs[torch.float64], prompts_for(12)
    sampling = SamplingParams(0.9, top_p=0.95, repetition_penalty=1.1)

    def asked(length: int) -> list[Request]:
        return [Request(p, length, (), replace(sampling, seed=i)) for i, p in enumerate(prompts)]

    plain = tokens_of(Decoder(pair.lean, rows=4).generate_batch(asked(LENGTH + 8)))
    told = Decoder(pair.lean, told_proposer(pair, name, prompts, plain), rows=4, verifier="match")
    results = told.generate_batch(asked(LENGTH))
    assert tokens_of(results) == [tokens[:LENGTH] for tokens in plain]
    assert max(length for result in results for length in result.accept_lengths) > 2


@needs_data
@pytest.mark.proof
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["fp32", "fp64"])
@pytest.mark.parametrize("name", NAMES)
def test_greedy_tokens_on_all_of_spec_bench(name, dtype, pairs):
    prompts = prompts_for(480, 150)
    assert len(prompts) == 480
    check_equal(pairs[dtype], name, prompts, 40, 16)


@pytest.mark.parametrize("name", SOME_NAMES)
def test_requests_leave_nothing_behind(name: str, pairs: dict[torch.dtype, Models]) -> None:
    """After other requests, and in rows that others used, a request drafts what it drafts alone."""
    pair, prompts = pairs[torch.float64], prompts_for(4)
    used = Decoder(pair.lean, pair.proposer(name), rows=2)
    used.generate_batch(requests(prompts[::-1], LENGTH))
    for again, request in zip(used.generate_batch(requests(prompts, LENGTH)), requests(prompts, LENGTH)):
        alone = Decoder(pair.lean, pair.proposer(name)).generate_batch([request])[0]
        assert (again.token_ids, again.accept_lengths) == (alone.token_ids, alone.accept_lengths)


def exact_twin(pair: Models) -> LeanModel:
    """The same rounded weights, computed in fp64."""
    twin = load_target(pair.folder, dtype=torch.float64)
    with torch.no_grad():
        for ours, theirs in zip(twin.parameters(), pair.lean.parameters()):
            ours.copy_(theirs.double())
    return twin


@torch.inference_mode()
def divergences(pair: Models, name: str, prompts: list[list[int]], length: int) -> list[tuple[float, float]]:
    """(top-2 margin, epsilon) where a drafted request first leaves plain decoding.

    Both passes compute the same function with other roundings. With E the largest error of a plain pass's logits
    there (against fp64 with the same weights), and a tree pass's no larger than that, a token is chosen in another
    way only where two logits, each wrong by at most E in each of two passes, change places: a margin below
    epsilon = 4 E.
    """
    plain = tokens_of(Decoder(pair.lean, rows=6).generate_batch(requests(prompts, length + 8)))
    told = Decoder(pair.lean, told_proposer(pair, name, prompts, plain), rows=6)
    twin = exact_twin(pair)
    found = []
    for prompt, wanted, result in zip(prompts, plain, told.generate_batch(requests(prompts, length))):
        place = next((i for i, (a, b) in enumerate(zip(wanted, result.token_ids)) if a != b), None)
        if place is None:
            continue
        text = [*prompt, *wanted[:place]]
        rounded, exact = last_logits(pair.lean, text).double(), last_logits(twin, text)
        best = exact.topk(2).values
        found.append((float(best[0] - best[1]), 4 * float((rounded - exact).abs().max())))
    return found


def last_logits(lean: LeanModel, text: list[int]) -> Tensor:
    """Logits (V,) after a text, in one pass."""
    return lean.logits(fresh(lean, text)[0][-1])


@pytest.mark.parametrize("name", ["eagle3", "n-gram", "draft-model"])
def test_bf16_diverges_only_where_rounding_decides(name: str, pairs: dict[torch.dtype, Models]) -> None:
    found = divergences(pairs[torch.bfloat16], name, prompts_for(24), LENGTH)
    assert all(margin <= bound for margin, bound in found), found
    assert len(found) < 12, "rounding decides few of the tokens"


@needs_data
def test_the_bf16_bound_sees_a_wrong_mask(pairs: dict[torch.dtype, Models]) -> None:
    with mistake("vocabforge.decode.positions", "(behind < 0)[:, None]", "(behind < -1)[:, None]"):
        found = divergences(pairs[torch.bfloat16], "eagle3", prompts_for(24), LENGTH)
    assert any(margin > bound for margin, bound in found)
