"""Chains that a CPU commits and drafts in one call are those that are drafted step by step."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.decode.drafting import PROMPT, make_drafter
from tests.decode.node_support import Alternating, plain
from tests.shares import by_default
from vocabforge.decode.engine import Decoder
from vocabforge.decode.proposers.registry import ProposerParts, make_proposer
from vocabforge.decode.request import Request, SamplingParams
from vocabforge.decode.spec import MethodSpec
from vocabforge.models.lean.model import LeanModel, load_target
from vocabforge.models.target.hf import HFTarget
from vocabforge.ops.draft_chain import runs_chains

pytestmark = pytest.mark.skipif(
    not runs_chains(torch.empty(1)), reason="the compiled ops are not built (make setup)"
)
PATTERNS = {  # of drafting, and the temperature
    "always": ((True,), 0.0),
    "plain between": ((True, False, False, None, True, False), 0.7),
    "more plain cycles than one call takes": ((True, *(False,) * 20), 0.0),
}


KINDS = ("eagle3", "peagle", "dflash", "dspark")


class Watched:
    """A proposer of chains of three, how often it drafted in one call, and whether it may."""

    def __init__(self, lean: LeanModel, drafter: Any, stepped: bool) -> None:
        parts = ProposerParts(lean, drafter, None, MethodSpec(tree="chain", depth=2))
        self.proposer, self.calls = make_proposer(drafter.kind, parts), 0
        backend = self.proposer.backend
        chains, call = backend.chains, backend.chain

        def counted(commit: Any, count: int) -> torch.Tensor:
            self.calls += 1
            return call(commit, count)

        backend.chain, backend.chains = counted, lambda head: chains(head) and not stepped


def drafts(
    lean: LeanModel, drafter: Any, pattern: tuple[bool | None, ...], temperature: float, stepped: bool
) -> tuple[list[list[int]], list[list[int]], int]:
    """Outputs of two requests after each other, all trees that were drafted, and calls."""
    watch = Watched(lean, drafter, stepped)
    proposer = watch.proposer
    trees: list[list[int]] = []
    propose = proposer.propose

    def watched(*args: Any) -> Any:
        tree = propose(*args)
        trees.append(tree.tokens[0].tolist())
        return tree

    proposer.propose = watched
    decoder = Decoder(lean, proposer, control=Alternating(proposer.plans(), pattern))
    asked = [
        Request(prompt, 60, (), SamplingParams(temperature=temperature, seed=1))
        for prompt in (PROMPT, PROMPT[:3])
    ]
    return [decoder.generate_batch([one])[0].token_ids for one in asked], trees, watch.calls


@pytest.mark.parametrize(
    ("kind", "pattern", "head"),
    by_default(
        itertools.product(KINDS, PATTERNS, ["target", "reduced"]),
        lambda case: case[2] == "reduced" and (case[0] == "eagle3" or case[1] == "plain between"),
    ),
)
def test_drafts_and_outputs_are_the_same(kind, pattern, head, tiny_folder, monkeypatch):
    monkeypatch.setattr("vocabforge.decode.proposers.model.FEW", 16)
    lean = load_target(tiny_folder)
    drafter = make_drafter(kind, tiny_folder, HFTarget.load(tiny_folder), head)
    given = lean, drafter, *PATTERNS[pattern]
    outputs, trees, calls = drafts(*given, stepped=False)
    expected, stepped, none = drafts(*given, stepped=True)
    assert (outputs, trees) == (expected, stepped)
    assert none == 0
    # After so many plain cycles one drafting reads more than few rows; the second request begins among them.
    assert calls < 3 if pattern == "more plain cycles than one call takes" else calls > 10


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_one_request_alone_is_drafted_in_one_call(kind: str, rows: int, tiny_folder: Path) -> None:
    """The head's time is told apart in either way."""
    lean = load_target(tiny_folder)
    drafter = make_drafter(kind, tiny_folder, HFTarget.load(tiny_folder), "reduced")
    watch, asked = Watched(lean, drafter, stepped=False), [Request(PROMPT, 20), Request(PROMPT[:3], 20)]
    made = Decoder(lean, watch.proposer, rows=rows).generate_batch(asked[:rows])
    assert [one.token_ids for one in made] == plain(lean, asked[:rows])
    assert (watch.calls > 0) == (rows == 1)
    if rows == 1:
        assert made[0].timings["head"] > 0 < made[0].timings["layers"]
        assert sum(made[0].timings.values()) == pytest.approx(made[0].prefill_s + made[0].decode_s, rel=0.05)
