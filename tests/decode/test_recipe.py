"""Recipes of decoding: read and written strictly, and the methods that they make."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.decode.build_support import methods_of
from vocabforge.core.errors import ConfigError, MismatchError, UsageError
from vocabforge.decode.build import models as build_models
from vocabforge.decode.build.methods import recipe_methods
from vocabforge.decode.build.recipe import DecodingRecipe, read_recipe, write_recipe
from vocabforge.decode.engine import Decoder
from vocabforge.decode.spec import MethodSpec


def recipe_of(place: Path, **methods: dict) -> DecodingRecipe:
    return DecodingRecipe(
        target=place / "t", methods={name: MethodSpec(**values) for name, values in methods.items()}
    )


def drafted(method, prompt=(72, 101, 108)) -> tuple[list[int], list[int]]:
    done = method.generator.generate(list(prompt), max_new_tokens=24, stop_ids=())
    return done.token_ids, done.accept_lengths


def test_what_is_written_is_read_again(place: Path, tmp_path: Path) -> None:
    recipe = DecodingRecipe(
        target=place / "t",
        tokenizer=place / "t",
        dtype="bfloat16",
        methods={
            "wide tree": MethodSpec(drafter=place / "a", topk=4, depth=0, total_nodes=5),
            "naïve: 'chain' #1": MethodSpec(
                drafter=place / "a", vocab=place / "v", tree="chain", control="adaptive"
            ),
            "r": MethodSpec(drafter=place / "a", head=place / "ranker-a", shortlist=30, head_rows="shared"),
            "n": MethodSpec(proposer="n-gram", ngram="1:4"),
        },
    )
    write_recipe(tmp_path / "recipe.yaml", recipe)
    assert read_recipe(tmp_path / "recipe.yaml") == recipe
    assert list(read_recipe(tmp_path / "recipe.yaml").methods) == list(recipe.methods)
    text = (tmp_path / "recipe.yaml").read_text("utf-8")
    assert "null" not in text  # what is not given is not there
    assert "depth: 0" in text  # and a given zero is
    assert "# topk: Children of a node" in text
    assert "# exit_layers" not in text


def test_keys_of_former_recipes_are_read(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(
        "target: t\nmethods:\n  a: {drafter: d, head: h, rows: own, ngram: 3, control: adaptive}\n"
    )
    (method,) = read_recipe(tmp_path / "recipe.yaml").methods.values()
    assert (method.head_rows, method.ngram) == ("own", (3, 3))


@pytest.mark.parametrize("key", ["fp8", "ranker_fp8"])
def test_a_removed_key_is_answered_with_what_to_do(tmp_path: Path, key: str) -> None:
    (tmp_path / "recipe.yaml").write_text(f"target: t\nmethods:\n  a: {{drafter: d, head: h, {key}: true}}\n")
    with pytest.raises(ConfigError, match=rf"methods\.a: the key '{key}' was removed: leave it out"):
        read_recipe(tmp_path / "recipe.yaml")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("methods: {a: {drafter: d}}", "missing key 'target'"),
        ("target: t", "missing key 'methods'"),
        ("target: t\nmethods: {}", "no method to compare"),
        ("target: t\nmethods: {plain: {drafter: d}}", "always runs"),
        ("target: t\nmethods: {a: {}}", "neither a drafter nor a proposer"),
        ("target: t\nmethods: {a: {draftr: d}}", "did you mean 'drafter'"),
        ("target: t\nmethods: {a: {drafter: d, vocab: v, head: h}}", "two ways of drafting"),
        ("target: t\nmethods: {a: {drafter: d, dynamic: context}}", "give vocab"),
        ("target: t\nmethods: {a: {drafter: d, vocab: v, head: h, dynamic: ranker}}", "ranker was removed"),
        ("target: t\nmethods: {a: {drafter: d, shortlist: 30}}", "give head"),
        ("target: t\nmethods: {a: {drafter: d, topk: 0}}", "methods.a.topk"),
        ("target: t\nmethods: {a: {drafter: d, tree: wide}}", "methods.a.tree"),
        ("target: t\ndtype: int8\nmethods: {a: {drafter: d}}", "dtype"),
        ("target: t\nmethods: {a: {drafter: d}, a: {drafter: e}}", "is given twice"),
        ("target: t\nmethods: {1: {drafter: d}}", "valid string"),
        ('target: t\nmethods: {"a\\nb": {drafter: d}}', "name of a method"),
    ],
)
def test_what_is_wrong_with_a_recipe_is_said(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "recipe.yaml").write_text(text)
    with pytest.raises(ConfigError, match=words) as error:
        read_recipe(tmp_path / "recipe.yaml")
    assert error.value.exit_code == 2
    assert str(tmp_path / "recipe.yaml") in str(error.value)


def test_its_methods_are_those_of_the_command_line(place: Path) -> None:
    recipe = recipe_of(
        place,
        small={"drafter": place / "a", "depth": 1, "topk": 2, "total_nodes": 6, "control": "fixed"},
        cut={"drafter": place / "a", "vocab": place / "v", "tree": "chain", "depth": 2, "control": "fixed"},
        ranked={"drafter": place / "a", "head": place / "ranker-a", "shortlist": 40},
        core={"drafter": place / "a", "vocab": place / "v", "dynamic": "context:16"},
        said={"proposer": "n-gram"},
    )
    found = {method.name: method for method in recipe_methods(recipe)}
    assert list(found) == ["plain", "small", "cut", "ranked", "core", "said"]

    small = methods_of(place, "a", depth=1, topk=2, total_nodes=6)["a"]
    cut = methods_of(place, "a", vocabs=["v"], tree="chain", depth=2)["a+v"]
    for mine, theirs in ((found["small"], small), (found["cut"], cut)):
        assert mine.description == theirs.description
        assert drafted(mine) == drafted(theirs)
    plain = drafted(found["plain"])[0]
    assert all(drafted(method)[0] == plain for method in found.values())
    assert found["ranked"].head is not None
    assert "shortlist of 40" in found["ranked"].head
    assert "up to 16 of the text" in str(found["core"].head)
    assert found["said"].generator.proposer.kind == "n-gram"


def test_a_tree_that_suits_the_device(place: Path) -> None:
    auto = MethodSpec(drafter=place / "a", tree="auto", topk=4)
    fixed, adaptive, short = {"control": "fixed"}, {"control": "adaptive"}, {"tree": "chain", "depth": 3}
    assert auto.on("cuda") == MethodSpec(drafter=place / "a", topk=4, **fixed)
    assert auto.on("cpu") == MethodSpec(drafter=place / "a", **short, **adaptive)
    assert MethodSpec(tree="auto", depth=4).on("cpu").depth == 4
    assert MethodSpec(topk=4).on("cpu", trained=True) == MethodSpec(topk=4, **adaptive)
    assert MethodSpec().on("cpu", trained=True) == MethodSpec(**short, **adaptive)
    assert MethodSpec().on("cpu") == MethodSpec(**adaptive)
    assert MethodSpec().on("cpu", sampled=True) == MethodSpec(**fixed)
    assert MethodSpec().on("cuda", trained=True) == MethodSpec(**fixed)
    assert MethodSpec().on("cpu", trained=True, most_levels=2).depth == 1
    assert MethodSpec(control="fixed").on("cpu") == MethodSpec(**fixed)
    found = recipe_methods(recipe_of(place, auto=auto.given()), device="cpu")[1]
    assert "5 nodes on 4 levels" in found.description
    assert "adaptive control" in found.description
    assert drafted(found)[0] == drafted(recipe_methods(recipe_of(place, a={"drafter": place / "a"}))[0])[0]


def test_everything_is_loaded_once(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loads = {"target": 0, "drafter": 0, "head": 0}

    def counted(name: str, function):
        def run(*given, **named):
            loads[name] += 1
            return function(*given, **named)

        return run

    for name, attribute in (
        ("target", "load_decoding_target"),
        ("drafter", "load_drafter"),
        ("head", "load_head"),
    ):
        monkeypatch.setattr(build_models, attribute, counted(name, getattr(build_models, attribute)))
    recipe = recipe_of(
        place,
        a={"drafter": place / "a"},
        b={"drafter": place / "a", "depth": 1, "topk": 3, "vocab": place / "v"},
        c={"drafter": place / "a", "depth": 2, "topk": 3, "vocab": place / "v"},
        d={"drafter": place / "a", "head": place / "ranker-a", "shortlist": 20},
        e={"drafter": place / "a", "head": place / "ranker-a", "shortlist": 30},
    )
    methods = recipe_methods(recipe)
    assert loads == {"target": 1, "drafter": 1, "head": 1}
    decoders = [method.generator for method in methods]
    assert all(isinstance(one, Decoder) and one.target is decoders[0].target for one in decoders)
    heads = [one.proposer.head for one in decoders[1:]]
    assert heads[1] is heads[2]  # one copy of the vocabulary's rows
    assert [one.shortlist for one in heads[3:]] == [20, 30]
    plans = [one.proposer.plan for one in decoders[1:]]
    assert plans[1] != plans[2]


def test_only_what_is_asked_for_is_built(place: Path) -> None:
    recipe = recipe_of(place, a={"drafter": place / "a"}, b={"drafter": place / "missing"})
    assert [one.name for one in recipe_methods(recipe, ["a"])] == ["plain", "a"]
    assert [one.name for one in recipe_methods(recipe, ["plain", "a"])] == ["plain", "a"]
    with pytest.raises(UsageError, match="no method of this name") as error:
        recipe_methods(recipe, ["c"])
    assert "a, b" in str(error.value)


def test_what_does_not_belong_together_names_the_method(place: Path) -> None:
    recipe = recipe_of(
        place, fine={"drafter": place / "a"}, odd={"drafter": place / "a", "vocab": place / "w"}
    )
    with pytest.raises(MismatchError, match="tokenizer") as error:
        recipe_methods(recipe)
    assert "method odd" in str(error.value)
