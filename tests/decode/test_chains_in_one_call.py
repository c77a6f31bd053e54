"""Chains that a CPU commits and drafts in one call are those that are drafted step by step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.decode.drafting import PROMPT, head_of, make_drafter
from tests.decode.node_support import Alternating
from vocabforge.decode.engine import Decoder
from vocabforge.decode.proposers.eagle import EagleBackend
from vocabforge.decode.proposers.model import ModelProposer
from vocabforge.decode.request import Request, SamplingParams
from vocabforge.decode.trees.fixed import ShapePolicy
from vocabforge.decode.trees.shapes import chain
from vocabforge.models.lean.model import LeanModel, load_target
from vocabforge.models.target.hf import HFTarget
from vocabforge.ops.draft_chain import runs_chains

pytestmark = pytest.mark.skipif(
    not runs_chains(torch.empty(1)), reason="the compiled ops are not built (make setup)"
)
PATTERNS = {
    "always": (True,),
    "plain between": (True, False, False, None, True, False),
    "more plain cycles than one call takes": (True, *(False,) * 20),
}


class Watched(EagleBackend):
    """Remembers what was drafted, and how."""

    def __init__(self, drafter: Any, stepped: bool) -> None:
        super().__init__(drafter, "eagle3", "EAGLE-3")
        self.stepped, self.calls = stepped, 0

    def chains(self, head: Any) -> bool:
        return super().chains(head) and not self.stepped

    def chain(self, commit: Any, count: int) -> torch.Tensor:
        self.calls += 1
        return super().chain(commit, count)


def drafts(
    lean: LeanModel, drafter: Any, pattern: tuple[bool | None, ...], stepped: bool, temperature: float
) -> tuple[list[list[int]], list[list[int]], int]:
    """Outputs of two requests after each other, all trees that were drafted, and calls."""
    backend = Watched(drafter, stepped)
    proposer = ModelProposer(backend, head_of(drafter), ShapePolicy(chain(3)))
    trees: list[list[int]] = []
    propose = proposer.propose

    def watched(*args: Any) -> Any:
        tree = propose(*args)
        trees.append(tree.tokens[0].tolist())
        return tree

    proposer.propose = watched  # type: ignore[method-assign]
    decoder = Decoder(lean, proposer, control=Alternating(proposer.plans(), pattern))
    asked = [
        Request(prompt, 60, (), SamplingParams(temperature=temperature, seed=1))
        for prompt in (PROMPT, PROMPT[:3])
    ]
    return [decoder.generate_batch([one])[0].token_ids for one in asked], trees, backend.calls


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("head", ["target", "reduced"])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_drafts_and_outputs_are_the_same(
    pattern: str, head: str, temperature: float, tiny_folder: Path
) -> None:
    lean = load_target(tiny_folder)
    drafter = make_drafter("eagle3", tiny_folder, HFTarget.load(tiny_folder), head)
    given = lean, drafter, PATTERNS[pattern]
    outputs, trees, calls = drafts(*given, stepped=False, temperature=temperature)
    expected, stepped, none = drafts(*given, stepped=True, temperature=temperature)
    assert (outputs, trees) == (expected, stepped)
    assert none == 0
    # After so many plain cycles one drafting reads more than few rows; the second request begins among them.
    assert calls < 3 if pattern == "more plain cycles than one call takes" else calls > 10


def test_several_requests_are_drafted_step_by_step(tiny_folder: Path) -> None:
    lean = load_target(tiny_folder)
    drafter = make_drafter("eagle3", tiny_folder, HFTarget.load(tiny_folder), "reduced")
    backend = Watched(drafter, stepped=False)
    decoder = Decoder(lean, ModelProposer(backend, head_of(drafter), ShapePolicy(chain(3))), rows=2)
    asked = [Request(prompt, 20, ()) for prompt in (PROMPT, PROMPT[:3])]
    expected = [
        Decoder(lean).generate(one.prompt_ids, max_new_tokens=20, stop_ids=()).token_ids for one in asked
    ]
    assert [one.token_ids for one in decoder.generate_batch(asked)] == expected
    assert backend.calls == 0
