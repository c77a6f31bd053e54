"""Chains of DSpark that its confidence ends: lossless, and of different lengths."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.decode.drafting import PROMPT, make_drafter
from tests.decode.probability import Distribution, total_variation
from tests.decode.test_lossless_drafters import engine_distribution, small_target, target_distribution
from tests.worlds import tiny_target
from vocabforge.core.errors import UsageError
from vocabforge.decode.engine import Decoder
from vocabforge.decode.proposers.block import ConfidentBackend
from vocabforge.decode.proposers.registry import ProposerParts, make_proposer
from vocabforge.decode.spec import MethodSpec
from vocabforge.models.lean.model import LeanModel, load_target
from vocabforge.models.target.hf import HFTarget


def decoder_of(folder: Path, lean: LeanModel, rows: int = 1, **options: Any) -> Decoder:
    drafter = make_drafter("dspark", folder, HFTarget.load(folder))
    with torch.no_grad():  # chances of all sizes
        drafter.confidence_head.proj.weight.mul_(3.0)
    spec = MethodSpec(tree="chain", **options)
    return Decoder(lean, make_proposer("dspark", ProposerParts(lean, drafter, None, spec)), rows=rows)


def test_greedy_output_is_plain_decodings_and_chains_differ(tmp_path: Path) -> None:
    folder = tiny_target(tmp_path / "target")
    lean = load_target(folder)
    plain = Decoder(lean).generate(PROMPT, max_new_tokens=30, stop_ids=()).token_ids
    lengths = {}
    for least in (None, 0.05, 0.3, 0.9):
        result = decoder_of(folder, lean, depth=4, confidence=least).generate(
            PROMPT, max_new_tokens=30, stop_ids=()
        )
        assert result.token_ids == plain
        lengths[least] = result.drafted / len(result.accept_lengths)
    assert lengths[None] == 5
    assert 5 > lengths[0.05] > lengths[0.3] > lengths[0.9] >= 1


def distribution_of(decoder: Decoder, length: int) -> tuple[Distribution, set[int]]:
    found: dict[tuple[int, ...], Fraction] = defaultdict(Fraction)
    drafted = set()
    for weight, result in engine_distribution(decoder, 1.0, length):
        found[tuple(result.token_ids)] += weight
        drafted.add(result.drafted)
    return dict(found), drafted


@pytest.mark.parametrize(
    ("drawn", "length"), [(True, 2), (False, 3), pytest.param(True, 3, marks=pytest.mark.proof)]
)
def test_every_way_of_sampling_adds_up_to_the_targets_distribution(
    drawn: bool, length: int, tmp_path: Path
) -> None:
    folder = small_target(tmp_path)
    lean = load_target(folder)
    expected = target_distribution(HFTarget.load(folder), [3, 1, 2], 1.0, length)
    decoder = decoder_of(folder, lean, depth=1, confidence=0.3, draft_sampling=drawn)
    found, drafted = distribution_of(decoder, length)
    assert len(drafted) > 1, "the test needs chains of several lengths"
    assert total_variation(found, expected) < 1e-6


def test_a_chain_that_ends_by_its_last_draft_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dropping a drawn draft because of what it is changes the distribution of the token after it: the proof sees
    it."""
    folder = small_target(tmp_path)
    lean = load_target(folder)
    expected = target_distribution(HFTarget.load(folder), [3, 1, 2], 1.0, 2)
    finish = ConfidentBackend.worth

    def too_late(self: ConfidentBackend, frontier: Any, level: int) -> bool:
        self.unwanted = frontier.tokens[0, 0] < 2  # type: ignore[attr-defined]
        return finish(self, frontier, level)

    from vocabforge.decode.trees import fixed

    tree = fixed.SampledGrowth.finish
    decoder = decoder_of(folder, lean, depth=1, confidence=0.05, draft_sampling=True)
    backend: Any = decoder.proposer.backend  # type: ignore[union-attr]

    def dropped(self: Any, roots: Any) -> Any:
        if len(self._tokens) == 1 or not backend.unwanted:
            return tree(self, roots)
        self._tokens = self._tokens[:1]
        self._dead = [{1}]  # the first draft, because of its token
        return tree(self, roots)

    monkeypatch.setattr(ConfidentBackend, "worth", too_late)
    monkeypatch.setattr(fixed.SampledGrowth, "finish", dropped)
    found, _ = distribution_of(decoder, 2)
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
