"""Whatever drafter of the table drafts, greedy output is the target's and sampled output has its distribution."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.decode.drafting import (
    KINDS,
    OWN_HEADS,
    PROMPT,
    VARIANTS,
    check_figures,
    head_of,
    knowing,
    make_drafter,
    shape_for,
    watch_rows,
)
from tests.decode.probability import AllBranches, Distribution, total_variation
from tests.shares import by_default
from tests.worlds import tiny_target
from vocabforge.core.errors import UsageError
from vocabforge.decode import target_side
from vocabforge.decode.engine import Decoder
from vocabforge.decode.proposers.registry import tree_proposer
from vocabforge.decode.tree import TreeSettings
from vocabforge.decode.trees.policies import tree_settings
from vocabforge.layouts.registry import load_drafter
from vocabforge.models.drafters.io import save_drafter
from vocabforge.models.lean.model import load_target
from vocabforge.models.target.head import TargetTensors
from vocabforge.models.target.hf import HFTarget

SHAPES = {"chain": (1, 4, 6), "wide": (7, 1, 8), "tree": (3, 4, 17), "smallest": (1, 1, 2)}
LENGTH = 3  # tokens whose joint distribution is compared


def proposer_of(drafter: Any, lean: Any, settings: TreeSettings) -> Any:
    return tree_proposer(lean, drafter, head_of(drafter), settings)


OTHER_MODULES = [case for case in VARIANTS if case.startswith("mtp of ")][1:]
GREEDY = [
    *itertools.product(KINDS, ["target", "reduced"]),
    *((case, "reduced") for case in (*VARIANTS, OWN_HEADS)),
]


# Every family of MTP modules drafts losslessly in tests/pipeline/test_mtp_run.py, too: one is enough here.
SOME = [one for one in GREEDY if one[1] == "reduced" and one[0] not in OTHER_MODULES]


@pytest.mark.parametrize(("case", "head"), by_default(GREEDY, SOME.__contains__))
def test_greedy_output_is_plain_decodings(case: str, head: str, tiny_folder: Path) -> None:
    lean = load_target(tiny_folder)
    drafter = make_drafter(case, tiny_folder, HFTarget.load(tiny_folder), head)
    expected = Decoder(lean).generate(PROMPT, max_new_tokens=24, stop_ids=()).token_ids
    for seed, name in enumerate(SHAPES if case in KINDS else ("chain", "tree")):
        settings = shape_for(drafter, *SHAPES[name])
        honest = Decoder(lean, proposer_of(drafter, lean, settings))
        assert honest.generate(PROMPT, max_new_tokens=24, stop_ids=()).token_ids == expected, name
        proposer = knowing(proposer_of(drafter, lean, settings), PROMPT + expected, seed=seed)
        decoder = Decoder(lean, proposer)
        for _ in range(2):  # nothing is remembered of the first request
            result = decoder.generate(PROMPT, max_new_tokens=24, stop_ids=())
            assert result.token_ids == expected, name
            assert max(result.accept_lengths) > 1, "the test needs accepted drafts"
            check_figures(result, decoder, PROMPT)


@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_the_proposer_is_given_the_targets_states_of_what_is_committed(
    kind: str, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every committed row: the states that training reads there, and the token that follows."""
    monkeypatch.setattr(target_side, "PREFILL_CHUNK", 4)
    lean, target = load_target(tiny_folder), HFTarget.load(tiny_folder)
    drafter = make_drafter(kind, tiny_folder, target)
    expected = Decoder(lean).generate(PROMPT, max_new_tokens=40, stop_ids=()).token_ids
    proposer = proposer_of(drafter, lean, shape_for(drafter, *SHAPES["tree"]))
    proposer = knowing(proposer, PROMPT + expected, seed=3)
    rows, tokens = watch_rows(proposer)
    result = Decoder(lean, proposer).generate(PROMPT, max_new_tokens=30, stop_ids=())
    assert max(result.accept_lengths) > 2
    text = (PROMPT + expected)[: len(tokens) + 1]
    assert tokens == text[1:]
    ids = torch.tensor([text[:-1]])
    states = target.capture(ids, torch.arange(ids.shape[1])[None], torch.ones_like(ids))
    wanted = states.features if drafter.reads == "aux" else states.hidden
    torch.testing.assert_close(torch.cat(rows), wanted[0], rtol=0, atol=5e-4)


def small_target(folder: Path) -> Path:
    return tiny_target(folder, vocab_size=4, num_hidden_layers=2, initializer_range=0.3)


def fractions(probabilities: Tensor) -> list[Fraction]:
    weights = [Fraction(float(p)) for p in probabilities.double()]
    return [weight / sum(weights) for weight in weights]


def target_distribution(
    target: HFTarget, prompt: list[int], temperature: float, length: int = LENGTH
) -> Distribution:
    """The joint distribution of the next tokens, each from the whole text before it."""
    distribution: Distribution = {}
    for tokens in itertools.product(range(4), repeat=length):
        with torch.no_grad():
            logits = target.model(torch.tensor([[*prompt, *tokens]])).logits[0]
        weight = Fraction(1)
        for place, token in enumerate(tokens):
            p = (logits[len(prompt) + place - 1] / temperature).softmax(-1)
            weight *= fractions(p)[token]
        distribution[tokens] = weight
    return distribution


def engine_distribution(decoder: Decoder, temperature: float, length: int = LENGTH) -> Iterator[Any]:
    """Every way that a request can go: its probability and its result."""
    waiting: list[list[int]] = [[]]
    while waiting:
        chance = AllBranches(waiting.pop())
        decoder._chance = lambda seed, chance=chance: chance
        result = decoder.generate([3, 1, 2], max_new_tokens=length, stop_ids=(), temperature=temperature)
        waiting += chance.open
        yield chance.weight, result


MORE_DISTRIBUTIONS = [("target", (1, 2, 3)), ("target", (2, 1, 3))]


@pytest.mark.parametrize(
    ("kind", "head", "shape"),
    [
        *((kind, "reduced", (2, 1, 3)) for kind in KINDS),
        *(
            pytest.param(kind, *distribution, marks=pytest.mark.proof)
            for kind in KINDS
            for distribution in MORE_DISTRIBUTIONS
        ),
        ("eagle3.1 of two layers", "reduced", (2, 1, 3)),
        (OWN_HEADS, "reduced", (2, 1, 3)),
    ],
)
def test_every_way_of_sampling_adds_up_to_the_targets_distribution(
    kind: str, head: str, shape: tuple[int, int, int], tmp_path: Path
) -> None:
    target = HFTarget.load(small_target(tmp_path))
    lean = load_target(tmp_path)
    drafter = make_drafter(kind, tmp_path, target, head)
    decoder = Decoder(lean, proposer_of(drafter, lean, shape_for(drafter, *shape)))
    distribution: Distribution = {}
    accepted = 0
    for weight, result in engine_distribution(decoder, 0.8):
        tokens = tuple(result.token_ids)
        distribution[tokens] = distribution.get(tokens, Fraction(0)) + weight
        accepted += sum(result.accepted_by_depth)
    assert abs(float(sum(distribution.values())) - 1) < 1e-9
    assert accepted > 0, "the test needs accepted drafts"
    assert total_variation(distribution, target_distribution(target, [3, 1, 2], 0.8)) < 1e-5


def test_the_default_tree_stays_within_a_drafters_levels() -> None:
    assert tree_settings(None, None, None) == TreeSettings()
    assert tree_settings(None, None, None, 5) == TreeSettings(10, 4, 60)
    assert tree_settings(None, 10, None, 1) == TreeSettings(10, 0, 11)
    assert tree_settings(2, 3, 9, 5) == TreeSettings(3, 2, 9)
    assert tree_settings(None, 2, 4, 5) == TreeSettings(2, 2, 4)
    assert tree_settings(None, 2, None) == TreeSettings(2, 5, 23)
    with pytest.raises(UsageError, match="does not fit its depth"):
        tree_settings(None, None, 1)


@pytest.mark.parametrize("layers", [(0,), (4,), (0, 2), (3, 1), (1, 2, 3), (0, 1, 2, 3, 4)])
@torch.inference_mode()
def test_the_engine_feeds_the_layers_of_the_artefact(
    layers: tuple[int, ...], tiny_folder: Path, tmp_path: Path
) -> None:
    target, lean = HFTarget.load(tiny_folder, aux_layers=layers), load_target(tiny_folder)
    drafter = make_drafter("eagle3", tiny_folder, target, aux_layers=layers)
    assert drafter.fc.weight.shape == (32, 32 * len(layers))
    save_drafter(tmp_path / "d", drafter, {})
    loaded, _ = load_drafter(tmp_path / "d", TargetTensors(lean.embedding, lean.lm_head_weight), tiny_folder)
    assert loaded.config.aux_layers == layers
    proposer = tree_proposer(lean, loaded, head_of(loaded), TreeSettings(2, 2, 7))
    rows, _ = watch_rows(proposer)
    result = Decoder(lean, proposer).generate(PROMPT, max_new_tokens=12, stop_ids=())
    found = torch.cat(rows)
    text = torch.tensor([(PROMPT + result.token_ids)[: len(found)]])
    states = target.capture(text, torch.arange(text.shape[1])[None], torch.ones_like(text))
    torch.testing.assert_close(found[: text.shape[1]], states.features[0], rtol=0, atol=5e-4)
    torch.testing.assert_close(
        loaded.fuse(found[: text.shape[1]]), drafter.fuse(states.features[0]), rtol=1e-3, atol=2e-3
    )
