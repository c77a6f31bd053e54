"""TLI and SLEM over real small models: lossless, the drafter's cache that of a fresh reading, its distribution as
reported."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.decode.bridges import bridge, side
from tests.decode.node_support import PROMPTS, Alternating, fresh, load_tiny, noisy, plain, requests, sharp
from tests.folders import edit_folder
from tests.shares import by_default
from tests.worlds import tiny_target
from vocabforge.decode.cross_vocab import proposer as proposer_foreign
from vocabforge.decode.engine import Decoder
from vocabforge.decode.proposers.registry import FOREIGN, ProposerParts, make_proposer
from vocabforge.decode.request import Request, SamplingParams
from vocabforge.decode.spec import MethodSpec
from vocabforge.models.lean.model import LeanModel, load_target
from vocabforge.vocab.overlap.bridge import Bridge

V = 61  # tokens of the tiny target; 0 begins a text, 1 ends it
SHAPES = {
    "chain": MethodSpec(tree="chain", depth=3),
    "dynamic": MethodSpec(tree="dynamic", depth=3, topk=3, total_nodes=14),
    "static": MethodSpec(tree="static", depth=2, topk=3, total_nodes=9),
}
SINGLE = (None, None, *(bytes([48 + place]) for place in range(V - 2)))
_LETTERS = [bytes([97 + place]) for place in range(8)]
# Words of up to three letters of a few, so that most texts can be cut in several ways.
LONGER = (
    None,
    None,
    *_LETTERS,
    *(one + other for one in _LETTERS[:6] for other in _LETTERS[:6]),
    *(one + b"bc" for one in _LETTERS),
    *(b" " + one for one in _LETTERS[:7]),
)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> LeanModel:
    return load_tiny(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def drafter(tmp_path_factory: pytest.TempPathFactory) -> LeanModel:
    return noisy(load_tiny(tmp_path_factory.mktemp("drafter")))


def shuffled(model: LeanModel, order: np.ndarray) -> LeanModel:
    """The same model, whose token i is now token order[i]."""
    other = copy.deepcopy(model)
    for matrix in {id(one): one for one in (other.embedding, other.lm_head_weight)}.values():
        matrix.data[torch.from_numpy(order)] = matrix.data.clone()
    return other


def shuffled_forms(forms: Sequence[bytes | None], order: np.ndarray) -> list[bytes | None]:
    found: list[bytes | None] = [None] * len(forms)
    for token, form in enumerate(forms):
        found[order[token]] = form
    return found


def an_order(seed: int = 0) -> np.ndarray:
    order = np.arange(V)
    order[2:] = 2 + np.random.default_rng(seed).permutation(V - 2)
    return order


def parts(
    target: LeanModel, drafter: LeanModel, between: Bridge, options: MethodSpec | str = "chain"
) -> ProposerParts:
    options = SHAPES[options] if isinstance(options, str) else options
    return ProposerParts(target, drafter, None, options, between)


def same_words(forms: Sequence[bytes | None], order: np.ndarray) -> Bridge:
    """Both have the same words under other ids."""
    return bridge(side(forms, eos=(1,)), side(shuffled_forms(forms, order), eos=(1,)))


@torch.inference_mode()
def check_cache(proposer: Any, drafter: LeanModel, rows: int) -> None:
    """The keys that are said to hold are those of a fresh reading of the drafter's own spelling."""
    passes = proposer._backend.passes
    for row in range(rows):
        ids = proposer._texts[row].ids
        assert proposer._backend._text[row, : len(ids)].tolist() == ids
        held = min(proposer._held[row], len(ids) - 1)
        assert passes.lengths[row] == len(ids) - 1
        if held:
            cache = fresh(drafter, ids[:held])[1]
            torch.testing.assert_close(
                passes.cache.k[:, row, :, :held], cache.k[:, 0, :, :held], rtol=1e-4, atol=1e-4
            )
            torch.testing.assert_close(
                passes.cache.v[:, row, :, :held], cache.v[:, 0, :, :held], rtol=1e-4, atol=1e-4
            )


@pytest.mark.parametrize("rows", by_default([1, 3], lambda rows: rows == 3))
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["tli", "slem"])
def test_the_output_is_the_targets(name, shape, rows, target, drafter):
    """With words that most texts can be cut into in several ways, drafting, plain cycles and small plans in turn."""
    order = an_order()
    other = shuffled(drafter, order)
    proposer = make_proposer(name, parts(target, other, same_words(LONGER, order), shape))
    control = Alternating(proposer.plans(), (True, True, False, True, None, True))
    results = Decoder(target, proposer, rows=rows, control=control).generate_batch(requests())
    assert [one.token_ids for one in results] == plain(target, requests())
    assert max(length for one in results for length in one.accept_lengths) > 1
    check_cache(proposer, other, 1)


@pytest.mark.parametrize("family", [None, "mistral-window", "short"])
@pytest.mark.parametrize("name", FOREIGN)
def test_the_target_under_other_ids_is_always_right(name: str, family: str | None, tmp_path: Path) -> None:
    """After any cycles, in rows of different lengths, with a window; or with a context as short as one."""
    folder = tiny_target(tmp_path / "target")
    ours = theirs = sharp(load_target(folder))
    if family is not None:
        window = {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 24}
        ours = theirs = sharp(load_target(edit_folder(folder, **window)))
    if family == "short":
        theirs = sharp(load_tiny(tmp_path / "short", max_position_embeddings=24))
    order, slrs = an_order(), name == "slrs"
    options = MethodSpec(depth=3) if slrs else SHAPES["chain"]
    proposer = make_proposer(name, parts(ours, shuffled(theirs, order), same_words(SINGLE, order), options))
    control = Alternating(proposer.plans(), (True, True, False, None, True))
    decoder = Decoder(ours, proposer, rows=2, control=control)
    asked = requests(30, [[0, *prompt] for prompt in PROMPTS])
    results = decoder.generate_batch(asked)
    assert [one.token_ids for one in results] == plain(ours, asked)
    if slrs:  # the probability of a drawn text is the target's own
        hot = [replace(one, sampling=SamplingParams(1.0, seed=at)) for at, one in enumerate(asked)]
        results += decoder.generate_batch(hot)
    for one in results:
        assert one.accepted_by_depth == one.drafted_by_depth


@pytest.mark.parametrize("name", FOREIGN)
def test_long_texts_lose_their_beginning_in_the_drafters_cache_alone(name, target, drafter, monkeypatch):
    monkeypatch.setattr(proposer_foreign, "LEAST_ROOM", 24)
    order = an_order()
    short = shuffled(drafter, order)
    short.config = replace(short.config, max_positions=12)
    options = MethodSpec(depth=3) if name == "slrs" else "chain"
    proposer = make_proposer(name, parts(target, short, same_words(LONGER, order), options))
    asked = [Request(PROMPTS[2], 60), Request(PROMPTS[0], 40)]
    results = Decoder(target, proposer, rows=2).generate_batch(asked)
    assert [one.token_ids for one in results] == plain(target, asked)
    assert len(proposer._texts[0].ids) <= 24
    assert max(results[0].accept_lengths) > 1


@pytest.mark.parametrize("name", ["tli", "slem"])
def test_nan_of_one_request_never_reaches_the_next(name: str, target: LeanModel, drafter: LeanModel) -> None:
    """The best of NaN logits is a token like any other, so that nothing fails and no cache is made anew."""
    order = an_order()
    other = shuffled(drafter, order)
    other.embedding.data[order[40]] = torch.nan
    between = same_words(SINGLE, order)
    used = Decoder(target, make_proposer(name, parts(target, other, between)))
    asked = Request([0, 5, 6, 7], 12)
    wanted = Decoder(target, make_proposer(name, parts(target, other, between))).generate_batch([asked])[0]
    used.generate_batch([Request([0, 40, 5, 9, 12, 30, 8], 12)])
    result = used.generate_batch([asked])[0]
    assert (result.token_ids, result.accept_lengths) == (wanted.token_ids, wanted.accept_lengths)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["tli", "slem"])
def test_compiled_passes_meet_one_size_of_trees(name, shape, target, drafter):
    """Whatever could be translated: a drafter half of whose words the target cannot spell."""
    order = an_order()
    forms = shuffled_forms(SINGLE, order)
    forms = [form if place % 2 or form is None else "ü".encode() + form for place, form in enumerate(forms)]
    between = bridge(side(SINGLE, eos=(1,)), side(forms, eos=(1,)))
    proposer = make_proposer(name, parts(target, shuffled(drafter, order), between, shape))
    proposer.wrap(lambda name, function: function)
    seen = set()
    propose = proposer.propose

    def watched(*given: Any) -> Any:
        tree = propose(*given)
        seen.add((tuple(tree.tokens.shape), tree.chain, tree.alive is None))
        return tree

    proposer.propose = watched
    results = Decoder(target, proposer, rows=2).generate_batch(requests())
    assert [one.token_ids for one in results] == plain(target, requests())
    assert len(seen) == 1
