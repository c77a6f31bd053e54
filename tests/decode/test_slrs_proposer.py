"""SLRS with real tiny models and two vocabularies: rows side by side, what the drafter has read, costs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.decode.bridges import bridge, side
from tests.decode.node_support import fresh
from tests.worlds import tiny_target
from vocabforge.decode.cross_vocab.slrs import proposer as proposer_slrs
from vocabforge.decode.cross_vocab.slrs.contexts import ContextModel, RowContexts
from vocabforge.decode.cross_vocab.slrs.proposer import SlrsProposer
from vocabforge.decode.cross_vocab.slrs.trie import DraftWords
from vocabforge.decode.engine import Decoder
from vocabforge.decode.proposers.registry import ProposerParts, make_proposer
from vocabforge.decode.request import Request, SamplingParams
from vocabforge.decode.spec import MethodSpec
from vocabforge.models.lean.model import LeanModel, load_target

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
BRIDGE = bridge(side(TARGET_FORMS, eos=(2,), start=(1,)), side(DRAFT_FORMS, eos=(7,)))
PROMPT = [1, 3, 4, 5, 8, 9, 12, 6]
HOT = SamplingParams(1.0)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[LeanModel, LeanModel]:
    small: dict[str, Any] = {"num_hidden_layers": 2, "initializer_range": 0.25}
    target = tiny_target(tmp_path_factory.mktemp("target"), vocab_size=len(TARGET_FORMS), **small)
    drafter = tiny_target(tmp_path_factory.mktemp("drafter"), vocab_size=len(DRAFT_FORMS), seed=1, **small)
    return load_target(target), load_target(drafter)


def proposer_of(models: tuple[LeanModel, LeanModel], **options: Any) -> SlrsProposer:
    parts = ProposerParts(*models, None, MethodSpec(**options), BRIDGE)
    made = make_proposer("slrs", parts)
    assert isinstance(made, SlrsProposer)
    return made


@pytest.mark.parametrize(
    ("options", "verifier"),
    [
        ({}, None),
        ({}, "match"),
        ({"depth": 7, "look_ahead": 1}, None),
        ({"single_token": True, "draft_sampling": True}, None),
    ],
    ids=str,
)
def test_a_requests_output_depends_on_itself_alone(models, options, verifier):
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
def test_the_drafter_has_read_the_text_as_it_is(models, temperature):
    """After any request, respelled words among it, the distribution behind the text is that of reading it afresh."""
    for seed in range(3):
        proposer = proposer_of(models, depth=3)
        decoder = Decoder(models[0], proposer)
        decoder.generate(PROMPT, max_new_tokens=16, stop_ids=[], temperature=temperature, seed=seed)
        contexts, text = proposer._contexts[0], proposer._texts[0]
        kept = contexts.distribution(()).heights
        contexts.restart(text.ids)
        np.testing.assert_allclose(kept, contexts.distribution(()).heights, atol=1e-5)


def test_texts_get_shorter_where_strings_are_written_in_many_ways(models, monkeypatch):
    """Runs of one letter under tokens of one to eight of it: the ways double with every letter."""
    runs = tuple(b"a" * size for size in range(1, 9))
    both = side((*runs, b"b"), start=(8,))
    contexts, lengths = [], []
    for bound in (40, 10**6):
        monkeypatch.setattr(proposer_slrs, "CONTEXTS", bound)
        proposer = make_proposer(
            "slrs", ProposerParts(*models, None, MethodSpec(depth=4), bridge(both, both))
        )
        request = Request([8, 0, 0], 12, (), SamplingParams(1.0, seed=1))
        result = Decoder(models[0], proposer).generate_batch([request])[0]
        contexts.append(result.counts["psi_contexts"])
        lengths.append(proposer._most[0])
    assert contexts[0] < contexts[1]
    assert lengths[0] < lengths[1] == 5


def test_distributions_stay_when_keys_are_dropped(models: tuple[LeanModel, LeanModel]) -> None:
    """Room for four keys: something may have been drawn from what was known, and the rest is computed anew."""
    drafter, words = models[1], DraftWords(DRAFT_FORMS, [7])
    contexts = RowContexts(ContextModel(drafter, words), drafter.new_cache(64), scratch=4)
    contexts.begin([0, 1, 2], HOT)
    contexts.evaluate([(1, 2, 3)])
    first = contexts.known((1, 2))
    contexts.evaluate([(2, 3, 4), (3, 4, 5)])
    contexts.evaluate([(1, 2, 4)])
    assert contexts.known((1, 2)) is first
    hidden, _ = fresh(drafter, [0, 1, 2, 1, 2, 4])
    expected = drafter.logits(hidden)[-1, [*words.ids, *words.eos]].double().softmax(-1)
    found = contexts.known((1, 2, 4))
    assert found is not None
    np.testing.assert_allclose(found.weights, expected.numpy(), atol=2e-5)
