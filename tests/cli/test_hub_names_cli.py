"""Commands and recipes take names of the Hub, and what they write names the model and its commit."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml

from tests.cli.cli_support import invoke, succeeds
from tests.worlds import World, cached_model
from vocabforge.core.artifact import open_artifact
from vocabforge.core.config import parse_config
from vocabforge.core.hub import model_folder
from vocabforge.decode.build.recipe import DecodingRecipe, read_recipe, write_recipe
from vocabforge.decode.spec import MethodGrid, MethodSpec
from vocabforge.train.config import TrainConfig

NAME = "org/Tiny-Target"
AT = f"{NAME}@{'c' * 40}"


@pytest.fixture
def named(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The world's target is in the Hub's cache only; its drafter, too."""
    monkeypatch.chdir(tmp_path)
    cached_model(monkeypatch, tmp_path / "hub", "org/Tiny-Drafter", world.drafter)
    place = cached_model(monkeypatch, tmp_path / "hub", NAME, world.target)
    shutil.rmtree(world.target)
    return place


def test_generate_and_count(world: World, named: Path) -> None:
    words = ("--prompt", "once", "--max-new-tokens", 4, "--prompt-format", "raw", "--device", "cpu", "--json")
    plain = succeeds("generate", "--target", NAME, *words)
    drafted = succeeds("generate", "--target", AT, "--drafter", "org/Tiny-Drafter", *words)
    assert json.loads(drafted.stdout)["token_ids"] == json.loads(plain.stdout)["token_ids"]
    succeeds("count-freq", "--tokenizer", NAME, "--input", world.text, "--output", "counts")


def test_an_export_records_the_name_and_finds_the_target_by_it(world: World, named: Path) -> None:
    words = ("--drafter", world.drafter, "--format", "sglang-eagle3")
    succeeds("export", *words, "--target", NAME, "--output", "served")
    artifact = open_artifact(Path("served"))
    assert artifact.manifest["config"]["target"] == AT
    assert f"base_model: {NAME}\n" in Path("served/README.md").read_text("utf-8")
    succeeds("export", "--drafter", "served", "--format", "speculators-eagle3", "--output", "again")


def test_a_name_that_is_nowhere_is_one_error(named: Path) -> None:
    done = invoke("generate", "--target", "org/Nothing", "--prompt", "once")
    assert done.exit_code == 1
    assert "the model is neither here nor in the cache, and the Hub cannot be asked" in done.output
    assert "got:      org/Nothing: HF_HUB_OFFLINE is set" in done.output


def test_recipes(world: World, named: Path) -> None:
    recipe = DecodingRecipe(target=Path(NAME), methods={"a": MethodSpec(drafter=Path("org/Tiny-Drafter"))})
    assert recipe.target == named
    write_recipe(Path("recipe.yaml"), recipe)
    body = yaml.safe_load(Path("recipe.yaml").read_text())
    assert body["target"] == AT
    assert body["methods"]["a"]["drafter"].startswith("org/Tiny-Drafter@")
    assert read_recipe(Path("recipe.yaml")) == recipe
    assert recipe.methods["a"].label == "Tiny-Drafter"
    values = {
        "target": NAME,
        "tokenizer": NAME,
        "output": "run",
        "data": {"train": ["x.jsonl"]},
        "optim": {"steps": 1, "lr": 1.0},
    }
    config = parse_config(TrainConfig, values, source="test")
    assert (config.target, config.tokenizer) == (named, named)
    assert config.model_dump(mode="json")["target"] == AT


def test_labels_of_drafters(named: Path) -> None:
    grid = MethodGrid(drafter=["org/Tiny-Drafter", f"other={NAME}"])
    assert grid.drafters == [("Tiny-Drafter", model_folder(Path("org/Tiny-Drafter"))), ("other", named)]
