"""From folders to named methods, and ``vocabforge generate`` on top of them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.cli.cli_support import ok
from tests.decode.build_support import grid_methods, methods_of, outputs_of
from tests.worlds import byte_tokenizer, tiny_target
from vocabforge.cli.app import build_app
from vocabforge.cli.drafting.export import export
from vocabforge.cli.drafting.generate import generate
from vocabforge.core.errors import DataError, MismatchError, UsageError
from vocabforge.decode.build.recipe import DecodingRecipe
from vocabforge.decode.interface import Plan


def test_methods_are_named_after_run_and_vocabulary(place: Path) -> None:
    asked = {"depth": 1, "topk": 2, "total_nodes": 5}
    methods = methods_of(place, "run/drafter", vocabs=["small=v"], **asked)
    assert list(methods) == ["plain", "run", "run+small"]
    assert "261 tokens" in methods["run"].description
    assert "40 tokens" in methods["run+small"].description
    assert methods["run+small"].generator.proposer.plan == Plan(2, 5)
    outputs_of(methods, 12)


def test_what_does_not_belong_together_is_refused(place: Path, tmp_path: Path) -> None:
    drafter = str(place / "a")
    with pytest.raises(MismatchError, match="tokenizer"):
        methods_of(place, "a", vocabs=["w"])
    with pytest.raises(MismatchError, match="another target"):
        grid_methods(place / "small", [drafter])
    tiny_target(tmp_path / "short", vocab_size=200)
    byte_tokenizer(tmp_path / "short")
    with pytest.raises(MismatchError, match="does not match the target"):
        grid_methods(tmp_path / "short")
    with pytest.raises(MismatchError, match="vocabulary is not the target's"):
        methods_of(place, str(tiny_target(tmp_path / "bare", vocab_size=200)))
    with pytest.raises(UsageError, match=r"(?s)no drafter that drafts so.*medusa with eagle3"):
        methods_of(place, "a", proposer=["medusa"])
    for asked, words in (
        ({"dtype": "int8"}, "no dtype of this name"),
        ({"device": "tpu9"}, "no such device"),
        ({"proposer": ["ngram"]}, r"(?s)no proposer of this name.*ngram.*early-exit.*did you mean n-gram"),
    ):
        with pytest.raises(UsageError, match=words):
            methods_of(place, **asked)
    run = tmp_path / "run"
    shutil.copytree(place / "a", run / "drafter")
    (run / "config.json").write_text("{}")
    with pytest.raises(DataError, match=r"(?s)a training run.*give .*drafter"):
        methods_of(place, str(run))


def test_an_exported_folder_decodes_like_the_drafter_it_came_from(place: Path, tmp_path: Path) -> None:
    app = build_app({"export": export, "generate": generate}, ["export", "generate"])
    line = ["--drafter", place / "a", "--format", "sglang-eagle3", "--vocab", place / "v"]
    line = ["export", *line, "--output", tmp_path / "served"]
    ok(CliRunner().invoke(app, [*map(str, line)]))
    shutil.copytree(tmp_path / "served", tmp_path / "foreign")
    (tmp_path / "foreign" / "manifest.json").unlink()
    methods = methods_of(place, "a", vocabs=["v"]) | methods_of(
        place, str(tmp_path / "served"), str(tmp_path / "foreign")
    )
    results = outputs_of(methods, 20)
    expected = results["a+v"].accept_lengths
    assert [results[name].accept_lengths for name in ("served", "foreign")] == [expected] * 2


def test_proposers_without_a_drafter_are_methods_of_their_own(place: Path) -> None:
    asked = {"proposer": ["n-gram", "early-exit"], "exit_layers": 2, "depth": 3}
    methods = methods_of(place, vocabs=["v"], **asked)
    assert list(methods) == ["plain", "n-gram", "early-exit", "early-exit+v"]
    assert all(one.drafted > 0 for name, one in outputs_of(methods).items() if name != "plain")
    assert list(methods_of(place, "run/drafter", proposer=["eagle3", "n-gram"])) == ["plain", "n-gram", "run"]


def test_a_model_of_the_same_vocabulary_drafts(place: Path) -> None:
    methods = methods_of(place, "s=small", "self=t", vocabs=["v"])
    assert list(methods) == ["plain", "s", "s+v", "self", "self+v"]
    always = outputs_of(methods)["self"].accept_lengths[:-1]
    assert min(always) == 6, "a target that drafts for itself is always right"


def test_hybrids(place: Path) -> None:
    asked = ["eagle3+n-gram", "draft-model+early-exit", "n-gram", "n-gram+early-exit"]
    drafters = ["run/drafter", "small=small"]
    found = methods_of(place, *drafters, vocabs=["v"], proposer=asked, exit_layers=2, control=None)
    assert list(found) == ["plain", "n-gram", "n-gram+early-exit", "run", "run+v", "small", "small+v"]
    plans = {name: one.generator.proposer.plans() for name, one in found.items() if name != "plain"}
    assert {plan.by for plan in plans["run+v"]} == {"eagle3", "n-gram"}
    # Each has its own length: a chain of 5 by EAGLE-3 on a CPU, the n-gram proposer's 10.
    assert {plan.by: plan.levels for plan in plans["run"]} == {"eagle3": 5, "n-gram": 10}
    assert "EAGLE-3 + n-gram" in found["run"].description
    assert "40 tokens" in found["run+v"].description
    assert "adaptive control" in found["run"].description
    assert "adaptive control" in found["n-gram"].description
    outputs_of(found)
    spec = {"drafter": str(place / "a"), "proposer": "eagle3+n-gram", "control": "bandit"}  # its former name
    recipe = DecodingRecipe.model_validate({"target": str(place / "t"), "methods": {"both": spec}})
    assert recipe.methods["both"].hybrid
    assert {recipe.methods["both"].on(one, trained=True).control for one in ("cpu", "cuda")} == {"adaptive"}


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"proposer": ["n-gram+eagle9"]}, "no proposer of this name"),
        ({"proposer": ["n-gram+n-gram"]}, "make no hybrid"),
        ({"proposer": ["slem+n-gram"]}, "make no hybrid"),
        ({"proposer": ["n-gram+early-exit"], "control": "fixed"}, "choice of the proposer"),
        ({"proposer": ["eagle3+n-gram"]}, "no drafter that drafts so"),
    ],
)
def test_what_makes_no_hybrid_is_refused(place: Path, asked: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        methods_of(place, **{"control": None, **asked})
