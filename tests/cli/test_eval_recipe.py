"""``vocabforge eval --recipe``: several trees and heads over one target, and nothing said twice."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from tests.worlds import byte_tokenizer, tiny_drafter, tiny_target
from vocabforge.cli.app import build_app
from vocabforge.cli.decode.eval import evaluate
from vocabforge.cli.decode.generate import generate
from vocabforge.cli.options.groups import signature
from vocabforge.core.artifact import open_artifact
from vocabforge.corpus.tokenizer.tokenizer import load_tokenizer
from vocabforge.decode.build.recipe import DecodingRecipe, write_recipe
from vocabforge.decode.build.spec import MethodSpec
from vocabforge.models.drafters.io import save_drafter
from vocabforge.models.target.fingerprint import target_fingerprint
from vocabforge.models.target.hf import HFTarget
from vocabforge.vocab.subset.subset import VocabSubset, save_subset


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``t``, ``d``, ``v``, questions, and ``recipe.yaml`` of a tree and a chain."""
    place = tmp_path_factory.mktemp("eval-recipe")
    tiny_target(place / "t", vocab_size=261)
    byte_tokenizer(place / "t")
    fingerprint = load_tokenizer(place / "t").fingerprint
    meta = {"target_fingerprint": target_fingerprint(place / "t"), "tokenizer_fingerprint": fingerprint}
    save_drafter(place / "d", tiny_drafter(HFTarget.load(place / "t")), meta)
    ids = np.arange(40, 120, 2, dtype=np.int64)
    save_subset(VocabSubset.from_ranked(ids, vocab_size=261, fingerprint=fingerprint), place / "v")
    rows = [{"question_id": n, "category": "qa", "turns": [f"Question {n}?"]} for n in range(3)]
    (place / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    recipe = DecodingRecipe(
        target=place / "t",
        methods={
            "tree": MethodSpec(drafter=place / "d", depth=1, topk=2, total_nodes=6),
            "chain": MethodSpec(drafter=place / "d", vocab=place / "v", tree="chain", depth=1),
        },
    )
    write_recipe(place / "recipe.yaml", recipe)
    return place


def invoke(place: Path, *more: str):
    arguments = ["eval", "--benchmark", str(place / "q.jsonl"), "--max-new-tokens", "6", "--warmup", "0"]
    app = build_app({"eval": evaluate, "other": lambda: None}, ["eval", "other"])
    return CliRunner().invoke(app, [*arguments, "--prompt-format", "raw", "--device", "cpu", *more])


def test_a_recipe_is_evaluated(place: Path, tmp_path: Path) -> None:
    result = invoke(place, "--recipe", str(place / "recipe.yaml"), "--output", str(tmp_path / "out"))
    assert result.exit_code == 0, result.output
    results = json.loads((tmp_path / "out" / "results.json").read_text("utf-8"))
    assert [one["name"] for one in results["methods"]] == ["plain", "tree", "chain"]
    manifest = open_artifact(tmp_path / "out", "evaluation").manifest
    roles = {"target", "drafter tree", "drafter chain", "vocabulary chain"}
    assert set(manifest["parents"]) == roles
    assert manifest["parents"]["drafter tree"] == manifest["parents"]["drafter chain"]
    assert manifest["config"]["recipe of tree"] == "depth 1, topk 2, total_nodes 6"
    assert manifest["config"]["recipe of chain"] == "tree chain, depth 1"


def test_some_of_a_recipe(place: Path, tmp_path: Path) -> None:
    base = ["--recipe", str(place / "recipe.yaml"), "--output", str(tmp_path / "out")]
    result = invoke(place, *base, "--method", "chain", "--json")
    assert result.exit_code == 0, result.output
    assert [one["name"] for one in json.loads(result.stdout)["methods"]] == ["plain", "chain"]
    unknown = invoke(
        place, "--recipe", str(place / "recipe.yaml"), "--output", str(tmp_path / "o"), "--method", "x"
    )
    assert unknown.exit_code == 2
    assert "tree, chain" in unknown.output


@pytest.mark.parametrize(
    "beside",
    [
        ("--target", "t"),
        ("--drafter", "d"),
        ("--dtype", "float32"),  # though it is the recipe's own
        ("--control", "fixed"),
        ("--depth", "2"),
        ("--vocab", "v"),
        ("--shortlist", "3"),
        ("--proposer", "n-gram"),
        ("--single-token",),
    ],
)
def test_what_a_recipe_says_is_not_said_again(place: Path, tmp_path: Path, beside: tuple[str, ...]) -> None:
    recipe = ["--recipe", str(place / "recipe.yaml"), "--output", str(tmp_path / "out")]
    result = invoke(place, *recipe, *beside)
    assert result.exit_code == 2
    assert f"{beside[0]} beside --recipe" in result.output.replace("\n", " ")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", [evaluate, generate])
def test_every_field_of_a_method_is_an_option(command) -> None:
    """One declaration: a new field is an option of both commands, and refused beside a recipe."""
    options = signature(command).parameters
    assert set(MethodSpec.model_fields) <= set(options)
    given = typer.main.get_command(build_app({"it": command}, ["it"])).commands["it"]
    helps = {one.name: getattr(one, "help", "") for one in given.params}
    for name, field in MethodSpec.model_fields.items():
        assert str(field.description) in helps[name]


def test_without_a_target_it_says_what_to_give(place: Path, tmp_path: Path) -> None:
    result = invoke(place, "--output", str(tmp_path / "out"), "--drafter", str(place / "d"))
    assert result.exit_code == 2
    assert "--target DIR, or --recipe FILE" in result.output
