"""SLRS with real tiny models and two vocabularies: output, distributions, counts, rows side by side, options."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.decode.bridges import LongestMatch
from tests.decode.markov import MarkovTarget
from tests.worlds import tiny_target
from vocabforge.decode.cross_vocab.slrs import proposer as proposer_slrs
from vocabforge.decode.cross_vocab.slrs.proposer import SlrsProposer
from vocabforge.decode.cross_vocab.text import DraftText
from vocabforge.decode.engine import Decoder
from vocabforge.decode.interface import Draw, Plan
from vocabforge.decode.proposers.registry import Proposer, ProposerParts, make_proposer
from vocabforge.decode.request import Request, SamplingParams
from vocabforge.decode.sampling import SeededChance
from vocabforge.decode.spec import MethodSpec
from vocabforge.decode.tree import DraftTree
from vocabforge.models.kv_cache import KVCache
from vocabforge.models.lean.model import LeanModel, load_target
from vocabforge.vocab.overlap.bridge import Bridge, BridgeSide

LETTERS = b"abcde "
TARGET_FORMS: list[bytes | None] = [
    None,
    None,
    None,
    *(bytes([letter]) for letter in LETTERS),
    *(first + second for first in (b"a", b"b", b" ") for second in (b"a", b"b", b"c")),
    b"abca",
    b" ab",
]
DRAFT_FORMS: list[bytes | None] = [None, *(bytes([letter]) for letter in LETTERS), None, b"a", b"ab"]
PROMPT = [1, 3, 4, 5, 8, 9, 12, 6]
HOT = SamplingParams(1.0)


def bridge_of(
    own: Sequence[bytes | None] = DRAFT_FORMS, ours: Sequence[bytes | None] = TARGET_FORMS
) -> Bridge:
    target = BridgeSide(tuple(ours), LongestMatch(ours), (2,), (1,))
    drafter = BridgeSide(tuple(own), LongestMatch(own), (7,), (0,))
    pairs = [(token, own.index(form)) for token, form in enumerate(ours) if form and form in own]
    return Bridge(target, drafter, np.array(pairs, dtype=np.int64).reshape(-1, 2), (2, 7))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[LeanModel, LeanModel]:
    small: dict[str, Any] = {"num_hidden_layers": 2, "initializer_range": 0.25}
    target = tiny_target(tmp_path_factory.mktemp("target"), vocab_size=len(TARGET_FORMS), **small)
    drafter = tiny_target(tmp_path_factory.mktemp("drafter"), vocab_size=len(DRAFT_FORMS), seed=1, **small)
    return load_target(target), load_target(drafter)


def proposer_of(models: tuple[LeanModel, LeanModel], **options: Any) -> SlrsProposer:
    parts = ProposerParts(*models, None, MethodSpec(**options), bridge_of())
    made = make_proposer("slrs", parts)
    assert isinstance(made, SlrsProposer)
    return made


WAYS: list[dict[str, Any]] = [
    {},
    {"depth": 0},
    {"depth": 7, "look_ahead": 1},
    {"single_token": True, "draft_sampling": True},
]


@pytest.mark.parametrize("options", WAYS, ids=str)
def test_greedy_output_is_plain_decoding(
    models: tuple[LeanModel, LeanModel], options: dict[str, Any]
) -> None:
    target = models[0]
    sampling = [SamplingParams(0.0), SamplingParams(0.0, repetition_penalty=1.3)]
    requests = [Request(PROMPT[:size], 24, [2], one) for one in sampling for size in (2, 8)][:3]
    plain = [Decoder(target).generate_batch([one])[0].token_ids for one in requests]
    for rows in (1, 3):
        results = Decoder(target, proposer_of(models, **options), rows=rows).generate_batch(requests)
        assert [one.token_ids for one in results] == plain
        assert all(one.counts["psi"] == one.counts["psi_contexts"] == 0 for one in results)
    assert sum(map(len, plain)) > 30


@pytest.mark.parametrize(
    ("options", "verifier"), [(WAYS[0], None), (WAYS[2], None), (WAYS[3], None), (WAYS[0], "match")], ids=str
)
def test_a_requests_output_depends_on_itself_alone(
    models: tuple[LeanModel, LeanModel], options: dict[str, Any], verifier: str | None
) -> None:
    """Greedy and sampled requests side by side, more than there are rows, as each alone."""
    samplings = [replace(HOT, seed=seed, top_k=seed * 5) for seed in range(2)] + [SamplingParams(0.0)]
    requests = [Request(PROMPT[: 3 + size], 16, [2], one) for size, one in enumerate(samplings)]
    decoder = Decoder(models[0], proposer_of(models, **options), rows=2, verifier=verifier)
    together = decoder.generate_batch(requests)
    alone = Decoder(models[0], proposer_of(models, **options), verifier=verifier)
    for request, result in zip(requests, together):
        single = alone.generate_batch([request])[0]
        assert single.token_ids == result.token_ids
        assert single.counts == result.counts


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_drafter_has_read_the_text_as_it_is(
    models: tuple[LeanModel, LeanModel], temperature: float
) -> None:
    """After any request, respelled words among it, the distribution behind the text is that of reading it afresh."""
    for seed in range(3):
        proposer = proposer_of(models, depth=3)
        decoder = Decoder(models[0], proposer)
        decoder.generate(PROMPT, max_new_tokens=16, stop_ids=[], temperature=temperature, seed=seed)
        contexts, text = proposer._contexts[0], proposer._texts[0]
        kept = contexts.distribution(()).heights
        contexts.restart(text.ids)
        np.testing.assert_allclose(kept, contexts.distribution(()).heights, atol=1e-5)


def drafted(
    proposer: Proposer, sampling: SamplingParams, seed: int = 0, plan: Plan | None = None
) -> DraftTree:
    draw = Draw(sampling, SeededChance(seed))
    root = torch.tensor([PROMPT[-1]])
    return proposer.propose(root, plan or proposer.plan, [draw], lambda part: None)


def begun(proposer: SlrsProposer) -> SlrsProposer:
    proposer.allocate(1, 64, KVCache(1, 1, 1, 1, 1))
    proposer.begin(0, PROMPT[:-1])
    proposer.prefill(0, torch.tensor(PROMPT[1:]), None)
    return proposer


def test_texts_get_shorter_where_strings_are_written_in_many_ways(
    models: tuple[LeanModel, LeanModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs of one letter under tokens of one to eight of it: the ways double with every letter."""
    runs = tuple(b"a" * size for size in range(1, 9))
    target_side = BridgeSide((*runs, b"b"), LongestMatch((*runs, b"b")), (), (8,))
    drafter_side = BridgeSide((*runs, b"b"), LongestMatch((*runs, b"b")), (), (8,))
    pairs = np.array([[token, token] for token in range(9)])
    between = Bridge(target_side, drafter_side, pairs, None)
    contexts, lengths = [], []
    for bound in (40, 10**6):
        monkeypatch.setattr(proposer_slrs, "CONTEXTS", bound)
        proposer = make_proposer("slrs", ProposerParts(*models, None, MethodSpec(depth=4), between))
        request = Request([8, 0, 0], 12, (), SamplingParams(1.0, seed=1))
        result = Decoder(models[0], proposer).generate_batch([request])[0]
        contexts.append(result.counts["psi_contexts"])
        lengths.append(proposer._most[0])
    assert contexts[0] < contexts[1]
    assert lengths[0] < lengths[1] == 5


def test_half_a_character_stops_drafting() -> None:
    forms = (b"\xc3", b"\xa9", b"\xc3\xa9", b"a")
    side = BridgeSide(forms, LongestMatch(forms), (), (3,))
    bridge = Bridge(side, side, np.array([[token, token] for token in range(4)]), None)
    models = MarkovTarget("plain", 4, 3, layers=2), MarkovTarget("plain", 4, 8, layers=1)
    proposer = make_proposer("slrs", ProposerParts(*models, None, MethodSpec(depth=2), bridge))
    assert isinstance(proposer, SlrsProposer)
    proposer.allocate(1, 20, KVCache(1, 1, 1, 1, 1))
    for last, held in ((0, True), (3, False)):
        proposer.begin(0, [3, 2])
        proposer.prefill(0, torch.tensor([2, last]), None)
        trees = [drafted(proposer, HOT, seed) for seed in range(12)]
        assert (max(tree.tokens.shape[1] for tree in trees) == 1) == held
        assert all((tree.distributions is None) == held for tree in trees)


def test_long_texts_lose_their_beginning(models: tuple[LeanModel, LeanModel], monkeypatch: Any) -> None:
    """Room for few positions: output stays the target's at temperature 0, and drafting goes on."""
    monkeypatch.setattr("vocabforge.decode.cross_vocab.proposer.LEAST_ROOM", 20)
    monkeypatch.setattr(models[1], "config", replace(models[1].config, max_positions=10))
    forget, forgotten = DraftText.forget, list[int]()

    def noted(text: DraftText, most: int) -> None:
        forgotten.append(most)
        forget(text, most)

    monkeypatch.setattr(DraftText, "forget", noted)
    draw = random.Random(0)
    prompt = [draw.randint(3, 8) for _ in range(40)]
    plain = Decoder(models[0]).generate(prompt, max_new_tokens=40, stop_ids=[])
    found = Decoder(models[0], proposer_of(models)).generate(prompt, max_new_tokens=40, stop_ids=[])
    assert found.token_ids == plain.token_ids
    assert found.counts["drafted"] > 30
    assert forgotten.count(10) > 1  # half of the room
