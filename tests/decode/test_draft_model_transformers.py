"""Draft models that run by Transformers' own code: every architecture of the documentation drafts for itself."""

from __future__ import annotations

from itertools import cycle
from pathlib import Path

import pytest

from tests.decode.node_support import SHAPES, Alternating, check_always_right, shaped
from tests.decode.test_architectures import LEAN, prompts
from tests.models.architectures import ARCHITECTURES, make_architecture
from vocabforge.core.errors import UsageError
from vocabforge.decode.build.methods import kind_of
from vocabforge.decode.engine import Decoder
from vocabforge.decode.proposers.draft_model import build
from vocabforge.decode.proposers.registry import ProposerParts
from vocabforge.decode.request import Request
from vocabforge.decode.spec import DRAFT_MODEL
from vocabforge.models.hf.model import TransformersModel
from vocabforge.models.lean.model import load_target

WITH_MTP = ("glm-4-moe", "deepseek-v3")  # whose folder names the target's own module
TAKING_BACK = [name for name, row in ARCHITECTURES.items() if row.drafts != "chains"]


RIGHT = [name for name in TAKING_BACK if name != "llama-4"]


@pytest.mark.parametrize(("name", "shape"), zip(RIGHT, cycle(("stem", "static", "chain"))))
def test_it_is_right_after_any_cycles(name: str, shape: str) -> None:
    """Each architecture with one of the shapes: trees are the lean decoder's, which meets them all."""
    model = TransformersModel(make_architecture(name))
    rows = ARCHITECTURES[name].rows
    proposer = shaped(build, ProposerParts(model, model), shape)
    control = Alternating(proposer.plans(), (True, False, None, True))
    asked = [Request(prompt, 12 + 3 * at) for at, prompt in enumerate(prompts(rows))]
    check_always_right(Decoder(model, proposer, rows=rows, control=control), asked)


def test_a_table_of_positions_may_end_before_the_nodes() -> None:
    """GPT-2 learns a row for each position: nodes at the context's end, or a longer target's text, lie beyond."""
    model = TransformersModel(make_architecture("gpt-2", n_positions=64))
    for target, new in ((model, 60), (TransformersModel(make_architecture("llama")), 90)):
        asked = [Request(prompt, new) for prompt in prompts(3)]
        plain = [one.token_ids for one in Decoder(target, rows=3).generate_batch(asked)]
        drafted = Decoder(target, shaped(build, ProposerParts(target, model), "dynamic"), rows=3)
        assert [one.token_ids for one in drafted.generate_batch(asked)] == plain


def test_it_drafts_as_the_lean_decoder_does(tmp_path: Path) -> None:
    model = make_architecture("llama")
    model.save_pretrained(tmp_path)
    lean = load_target(tmp_path)
    asked = [Request(prompt, 20) for prompt in prompts(3)]
    drafted = [
        Decoder(lean, shaped(build, ProposerParts(lean, drafter), SHAPES["dynamic"]), rows=3).generate_batch(
            asked
        )
        for drafter in (lean, TransformersModel(model))
    ]
    assert [one.accept_lengths for one in drafted[0]] == [one.accept_lengths for one in drafted[1]]


@pytest.mark.parametrize(
    "name", [name for name in ARCHITECTURES if name not in TAKING_BACK or name == "llama-4"]
)
def test_what_cannot_be_taken_back_is_refused(name: str) -> None:
    model = TransformersModel(make_architecture(name))
    with pytest.raises(UsageError, match=r"recurrent layers|attention in chunks"):
        build(ProposerParts(model, model))


@pytest.mark.parametrize("name", [name for name in TAKING_BACK if name not in (*LEAN, *WITH_MTP)])
def test_a_folder_is_known_as_a_draft_model(name: str, tmp_path: Path) -> None:
    make_architecture(name).save_pretrained(tmp_path)
    assert kind_of(tmp_path) == DRAFT_MODEL
