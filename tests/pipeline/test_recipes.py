"""Every recipe of recipes/models, on a tiny random target of its architecture, through the command itself."""

from __future__ import annotations

import json
import math
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.cli_support import facts_of, invoke
from tests.pipeline.recipe_targets import ARCHITECTURES, make_chat, make_recipe_target
from tests.shares import by_default
from tests.worlds import ROOT
from vocabforge.core.artifact import open_artifact

pytestmark = pytest.mark.long

RECIPES = sorted((ROOT / "recipes" / "models").glob("*.yaml"))
NAMES = [file.stem for file in RECIPES]
# Another recipe differs in numbers only, or has the same part.
ALIKE = ("llama3-8b-instruct", "qwen3-0.6b", "qwen3-8b")

# All that is changed to run a recipe in seconds on a CPU: sizes and how often it looks. No section is switched off.
SHRUNKEN = {
    "data.heldout_documents": 4,
    "data.heldout_prompts": 2,
    "data.sequence_length": 128,
    "optim.steps": 3,
    "optim.batch_size": 2,
    "optim.micro_batch_size": 1,
    "run.device": "cpu",
    "run.threads": 1,
    "run.log_every": 1,
    "run.eval_every": 2,
    "run.eval_rows": 2,
    "run.checkpoint_every": 2,
    "run.trackers": "[]",
    "run.live.prompts": 1,
    "run.live.max_new_tokens": 4,
    "run.live.depth": 2,
    "run.live.topk": 2,
    "run.live.total": 4,
}
SHRUNKEN_HEADS = {"heads.{}.shortlist": 16}


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested sections as ``section.key``."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        inner = flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
        found |= inner
    return found


def recipe_keys(recipe: Path) -> dict[str, Any]:
    return flat(yaml.safe_load(recipe.read_text("utf-8")))


def overrides(recipe: Path) -> dict[str, Any]:
    return {**SHRUNKEN, **head_overrides(recipe)}


def head_overrides(recipe: Path) -> dict[str, Any]:
    """A shortlist may not be larger than the vocabulary, which is tiny here."""
    heads = yaml.safe_load(recipe.read_text("utf-8")).get("heads", {})
    return {key.format(head): value for head in heads for key, value in SHRUNKEN_HEADS.items()}


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("recipes")
    make_chat(folder / "chat.jsonl")
    for name in ARCHITECTURES:
        make_recipe_target(name, folder / name)
    return folder


def run(recipe: Path, place: Path, *words: object, **changes: Any):
    given = {
        "target": place / recipe.stem,
        "data.train": f"[{place / 'chat.jsonl'}]",
        "output": place / "runs" / recipe.stem,
        **changes,
    }
    return invoke(
        "train-drafter", *(f"{key}={value}" for key, value in given.items()), "--config", recipe, *words
    )


def test_there_is_a_target_for_every_recipe():
    assert sorted(ARCHITECTURES) == sorted(NAMES)


@pytest.mark.parametrize("recipe", RECIPES, ids=NAMES)
def test_the_documented_command_is_right(recipe):
    """The one command in the recipe's head names files that exist, this recipe, and all that must be given."""
    head = recipe.read_text("utf-8").split("\n")
    commands = [line.removeprefix("# ") for line in head if line.startswith("# accelerate launch")]
    assert len(commands) == 1
    words = shlex.split(commands[0])
    launcher = ROOT / words[words.index("--config_file") + 1]
    assert launcher.parent == ROOT / "recipes" / "accelerate"
    assert launcher.is_file()
    assert words[words.index("--config") + 1] == f"recipes/models/{recipe.name}"
    assert words[words.index("-m") : words.index("-m") + 3] == ["-m", "vocabforge", "train-drafter"]
    given = [word.partition("=")[0] for word in words if re.match(r"[a-z.]+=", word)]
    assert given == ["target", "data.train", "output"]
    processes = yaml.safe_load(launcher.read_text("utf-8"))["num_processes"]
    optim = yaml.safe_load(recipe.read_text("utf-8"))["optim"]
    share = optim["batch_size"] // processes
    assert share * processes == optim["batch_size"]
    assert share % min(optim["micro_batch_size"], share) == 0


@pytest.mark.parametrize("recipe", RECIPES, ids=NAMES)
def test_plan_resolves_every_key(recipe, place):
    changed = head_overrides(recipe)
    plan = facts_of(run(recipe, place, "--plan", "--json", **changed))
    resolved = flat(plan["config"])
    for key, value in {**recipe_keys(recipe), **changed}.items():
        assert resolved[key] == value, key
    target = json.loads((place / recipe.stem / "config.json").read_text("utf-8"))
    assert plan["target"]["architectures"] == target["architectures"]
    config = plan["config"]
    a_step = config["optim"]["batch_size"] * config["data"]["sequence_length"]
    assert plan["tokens_at_most"] == config["optim"]["steps"] * a_step
    assert plan["drafter"]["trained_parameters"] > 0
    assert not (place / "runs" / recipe.stem).exists()


@pytest.mark.parametrize("recipe", RECIPES, ids=NAMES)
def test_a_recipe_without_data_or_target_says_so(recipe):
    done = invoke("train-drafter", "--config", recipe, "output=x")
    assert done.exit_code == 2
    assert "missing key 'target'" in done.output
    assert "data.train is empty" in done.output


@pytest.mark.slow
@pytest.mark.parametrize("recipe", by_default(RECIPES, lambda recipe: recipe.stem not in ALIKE), ids=NAMES)
def test_a_shrunken_run_trains(recipe, place):
    changed = overrides(recipe)
    done = run(recipe, place, **changed)
    assert done.exit_code == 0, (done.output, done.exception)
    output = place / "runs" / recipe.stem
    drafter = open_artifact(output / "drafter", "drafter")
    resolved = flat(json.loads((output / "config.json").read_text("utf-8")))
    for key, value in {**recipe_keys(recipe), **changed}.items():
        assert resolved[key] == (yaml.safe_load(value) if isinstance(value, str) else value), key
    rows = [json.loads(line) for line in (output / "metrics.jsonl").read_text("utf-8").splitlines()]
    trained = [row for row in rows if row["kind"] == "train"]
    assert [row["step"] for row in trained] == [1, 2, 3]
    assert all(math.isfinite(row["loss"]) and row["loss"] > 0 for row in trained)
    steps = recipe_keys(recipe)["ttt.steps"]
    assert all(len(row["loss"]) == steps for row in rows if row["kind"] == "heldout")
    assert {row["kind"] for row in rows} >= {"train", "heldout", "live"}
    sizes = json.loads((output / "drafter" / "drafter.json").read_text("utf-8"))
    # EAGLE-3's rule for 8 layers, unless the recipe names its own.
    assert sizes["aux_layers"] == recipe_keys(recipe).get("drafter.aux_layers", [1, 3, 4])
    assert drafter.meta["target_name"] == recipe.stem
    heads = yaml.safe_load(recipe.read_text("utf-8")).get("heads", {})
    assert all(set(row.get("heads", {})) == set(heads) for row in trained)
    assert sorted(folder.name for folder in (output / "heads").glob("*")) == sorted(heads)
    for folder in (output / "heads").glob("*"):
        assert math.isfinite(trained[-1]["heads"][folder.name]["loss"])
        open_artifact(folder, "draft-head")
