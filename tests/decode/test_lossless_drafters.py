"""Whatever drafter of the table drafts, greedy output is the target's and sampled output has its distribution."""

from __future__ import annotations

import itertools
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
from tests.decode.probability import AllBranches, Distribution, all_ways, total_variation
from tests.shares import by_default
from tests.worlds import tiny_target
from vocabforge.core.errors import UsageError
from vocabforge.decode import target_side
from vocabforge.decode.engine import Decoder
from vocabforge.decode.proposers.block import ConfidentBackend
from vocabforge.decode.proposers.registry import ProposerParts, make_proposer, tree_proposer
from vocabforge.decode.request import Generation
from vocabforge.decode.spec import MethodSpec
from vocabforge.decode.tree import TreeSettings
from vocabforge.decode.trees import fixed
from vocabforge.decode.trees.policies import tree_settings
from vocabforge.layouts.registry import load_drafter
from vocabforge.models.drafters.io import save_drafter
from vocabforge.models.lean.model import LeanModel, load_target
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


LAYERS = [(0,), (4,), (0, 2), (3, 1), (1, 2, 3), (0, 1, 2, 3, 4)]


@pytest.mark.parametrize(
    ("kind", "layers"), [*((kind, None) for kind in KINDS), *(("eagle3", layers) for layers in LAYERS)]
)
@torch.inference_mode()
def test_the_proposer_is_given_the_targets_states_of_what_is_committed(
    kind: str,
    layers: tuple[int, ...] | None,
    tiny_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every committed row: the states that training reads there, of the artefact's layers, and the next token."""
    monkeypatch.setattr(target_side, "PREFILL_CHUNK", 4)
    lean, target = load_target(tiny_folder), HFTarget.load(tiny_folder, aux_layers=layers)
    drafter = make_drafter(kind, tiny_folder, target, **({} if layers is None else {"aux_layers": layers}))
    if layers is not None:
        save_drafter(tmp_path / "d", drafter, {})
        shared = TargetTensors(lean.embedding, lean.lm_head_weight)
        drafter, _ = load_drafter(tmp_path / "d", shared, tiny_folder)
        assert drafter.config.aux_layers == layers
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


def engine_distribution(
    decoder: Decoder, temperature: float, length: int = LENGTH
) -> tuple[Distribution, list[Generation]]:
    """The distribution of a request's output, and the result of every way that the request can go."""

    def run(chance: AllBranches) -> Generation:
        decoder._chance = lambda seed: chance
        return decoder.generate([3, 1, 2], max_new_tokens=length, stop_ids=(), temperature=temperature)

    distribution: Distribution = {}
    ways = list(all_ways(run))
    for weight, result in ways:
        tokens = tuple(result.token_ids)
        distribution[tokens] = distribution.get(tokens, Fraction(0)) + weight
    return distribution, [result for _, result in ways]


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
def test_every_way_of_sampling_adds_up_to_the_targets_distribution(kind, head, shape, tmp_path):
    target = HFTarget.load(small_target(tmp_path))
    lean = load_target(tmp_path)
    drafter = make_drafter(kind, tmp_path, target, head)
    decoder = Decoder(lean, proposer_of(drafter, lean, shape_for(drafter, *shape)))
    distribution, results = engine_distribution(decoder, 0.8)
    assert abs(float(sum(distribution.values())) - 1) < 1e-9
    assert any(sum(one.accepted_by_depth) for one in results), "the test needs accepted drafts"
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


def confident(folder: Path, lean: LeanModel, rows: int = 1, **options: Any) -> Decoder:
    drafter = make_drafter("dspark", folder, HFTarget.load(folder))
    with torch.no_grad():  # chances of all sizes
        drafter.confidence_head.proj.weight.mul_(3.0)
    spec = MethodSpec(tree="chain", **options)
    return Decoder(lean, make_proposer("dspark", ProposerParts(lean, drafter, None, spec)), rows=rows)


def test_chains_that_their_confidence_ends_differ(tmp_path: Path) -> None:
    folder = tiny_target(tmp_path / "target")
    lean = load_target(folder)
    plain = Decoder(lean).generate(PROMPT, max_new_tokens=30, stop_ids=()).token_ids
    lengths = {}
    for least in (None, 0.05, 0.3, 0.9):
        result = confident(folder, lean, depth=4, confidence=least).generate(
            PROMPT, max_new_tokens=30, stop_ids=()
        )
        assert result.token_ids == plain
        lengths[least] = result.drafted / len(result.accept_lengths)
    assert lengths[None] == 5
    assert 5 > lengths[0.05] > lengths[0.3] > lengths[0.9] >= 1


@pytest.mark.parametrize(
    ("drawn", "length"), [(True, 2), (False, 3), pytest.param(True, 3, marks=pytest.mark.proof)]
)
def test_chains_that_their_confidence_ends_are_lossless(drawn: bool, length: int, tmp_path: Path) -> None:
    folder = small_target(tmp_path)
    lean = load_target(folder)
    expected = target_distribution(HFTarget.load(folder), [3, 1, 2], 1.0, length)
    decoder = confident(folder, lean, depth=1, confidence=0.3, draft_sampling=drawn)
    found, results = engine_distribution(decoder, 1.0, length)
    assert len({one.drafted for one in results}) > 1, "the test needs chains of several lengths"
    assert total_variation(found, expected) < 1e-6


def test_a_chain_that_ends_by_its_last_draft_is_found_out(tmp_path, monkeypatch):
    """Dropping a drawn draft because of what it is changes the distribution of the token after it: the proof sees
    it."""
    folder = small_target(tmp_path)
    lean = load_target(folder)
    expected = target_distribution(HFTarget.load(folder), [3, 1, 2], 1.0, 2)
    finish = ConfidentBackend.worth

    def too_late(self: ConfidentBackend, frontier: Any, level: int) -> bool:
        self.unwanted = frontier.tokens[0, 0] < 2  # type: ignore[attr-defined]
        return finish(self, frontier, level)

    tree = fixed.SampledGrowth.finish
    decoder = confident(folder, lean, depth=1, confidence=0.05, draft_sampling=True)
    backend: Any = decoder.proposer.backend  # type: ignore[union-attr]

    def dropped(self: Any, roots: Any) -> Any:
        if len(self._tokens) == 1 or not backend.unwanted:
            return tree(self, roots)
        self._tokens = self._tokens[:1]
        self._dead = [{1}]  # the first draft, because of its token
        return tree(self, roots)

    monkeypatch.setattr(ConfidentBackend, "worth", too_late)
    monkeypatch.setattr(fixed.SampledGrowth, "finish", dropped)
    found, _ = engine_distribution(decoder, 1.0, 2)
    assert total_variation(found, expected) > 1e-3


def test_what_has_no_confidence_is_refused(tmp_path: Path) -> None:
    folder = tiny_target(tmp_path / "target")
    lean, drafter = load_target(folder), make_drafter("dflash", folder, HFTarget.load(folder))
    spec = MethodSpec(tree="chain", depth=2, confidence=0.5)
    with pytest.raises(UsageError, match="confidence head"):
        make_proposer("dflash", ProposerParts(lean, drafter, None, spec))
    drafter = make_drafter("dspark", folder, HFTarget.load(folder))
    spec = MethodSpec(tree="dynamic", depth=2, topk=2, total_nodes=6, confidence=0.5)
    with pytest.raises(UsageError, match="chain"):
        make_proposer("dspark", ProposerParts(lean, drafter, None, spec))
