"""What `eval` records of its inputs: two runs that differ in one of them must not be taken for the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.decode.recording import traced
from vocabforge.core.artifact import write_artifact
from vocabforge.decode.build.recipe import DecodingRecipe
from vocabforge.decode.spec import MethodSpec
from vocabforge.evaluate.run.recipe import parents_of, passes_of, settings_of

SETTINGS = {
    "proposer": "slrs",
    "shortlist": 7,
    "budget": "4",
    "head_rows": "own",
    "dynamic": "context:8",
    "tree": "chain",
    "draft_sampling": True,
    "depth": 0,
    "topk": 3,
    "total_nodes": 9,
    "tree_file": Path("tree.json"),
    "draft_window": 128,
    "exit_layers": 2,
    "ngram": (1, 3),
    "look_ahead": 5,
    "single_token": True,
    "drafter_tokenizer": Path("tokenizer"),
    "control": "adaptive",
    "verifier": "point",
    "confidence": 0.5,
}


@pytest.fixture(autouse=True)
def tree_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("tree.json").write_text("[[0]]", "utf-8")
    return Path("tree.json")


def test_every_way_to_make_methods_is_recorded(tree_file: Path) -> None:
    hashed = {"drafter", "vocab", "head", "overlap"}
    assert {*SETTINGS} | hashed == {*MethodSpec.model_fields}
    found = [settings_of(MethodSpec(**{name: value})) for name, value in SETTINGS.items()]
    assert len({*found, settings_of(MethodSpec())}) == len(SETTINGS) + 1
    assert settings_of(MethodSpec(head=Path("head"))) == "defaults"
    assert settings_of(MethodSpec(depth=0)) == "depth 0"
    with_file = settings_of(MethodSpec(tree_file=tree_file))
    tree_file.write_text("[[1]]", "utf-8")
    assert settings_of(MethodSpec(tree_file=tree_file)) != with_file
    wraps = (None, traced(), lambda name, function: function)
    assert [passes_of(wrap) for wrap in wraps] == ["as they are", "captured", "compiled"]


def test_every_drafter_has_a_hash_of_its_own(tmp_path: Path) -> None:
    """Two training runs keep their drafters in folders of the same name; a serving layout has no manifest."""
    target = tmp_path / "target"
    target.mkdir()
    save_file({"w": torch.zeros(2)}, target / "model.safetensors")
    (target / "config.json").write_text('{"model_type": "llama", "hidden_size": 2}', "utf-8")
    for run in ("one", "two"):
        with write_artifact(tmp_path / run / "drafter", "drafter", {"run": run}):
            pass
    served = tmp_path / "served"
    served.mkdir()
    save_file({"fc.weight": torch.zeros(3)}, served / "model.safetensors")
    drafters = {"one": tmp_path / "one" / "drafter", "two": tmp_path / "two" / "drafter", "mine": served}
    methods = {name: MethodSpec(drafter=path) for name, path in drafters.items()}
    recipe = DecodingRecipe(target=target, methods=methods)
    hashes = parents_of(recipe, list(methods))
    assert list(hashes) == ["target", "drafter one", "drafter two", "drafter mine"]
    assert len(set(hashes.values())) == 4
    save_file({"fc.weight": torch.ones(3)}, served / "model.safetensors")
    changed = parents_of(recipe, list(methods))
    assert [name for name in hashes if changed[name] != hashes[name]] == ["drafter mine"]
