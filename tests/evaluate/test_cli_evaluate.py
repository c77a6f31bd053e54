"""The command from its arguments to its output; the generators are fakes, everything else is real."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from tests.evaluate.eval_fakes import FakeGenerator, FakeMethod, make_tokenizer
from vocabforge.cli.app import build_app
from vocabforge.cli.decode.eval import evaluate
from vocabforge.core.artifact import open_artifact, write_artifact
from vocabforge.corpus.tokenizer.tokenizer import load_tokenizer
from vocabforge.decode.build.recipe import DecodingRecipe
from vocabforge.decode.build.spec import MethodSpec


@pytest.fixture
def calls() -> list[dict]:
    return []


@pytest.fixture
def arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: list[dict]) -> list[str]:
    target = tmp_path / "target"
    make_tokenizer(target)
    save_file({"model.embed_tokens.weight": torch.zeros(4, 2)}, target / "model.safetensors")
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 2, "vocab_size": 4}
    (target / "config.json").write_text(json.dumps(config), "utf-8")
    with write_artifact(tmp_path / "drafter", "drafter", {}):
        pass
    rows = [{"question_id": n, "category": "qa", "turns": ["w1 w2"]} for n in range(6)]
    questions = tmp_path / "questions.jsonl"
    questions.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")

    def recipe_of(grid, target, tokenizer, passes, **_):
        ((label, path),) = grid.drafters
        spec = grid.common.model_copy(update={"drafter": path})
        return DecodingRecipe(
            target=target, tokenizer=tokenizer, dtype=passes.dtype or "float32", methods={label: spec}
        ), SimpleNamespace(model=SimpleNamespace(device="cpu"), tokenizer=load_tokenizer(target))

    def recipe_methods(recipe, only, **_):
        calls.append(recipe.methods)
        return [FakeMethod("plain", FakeGenerator()), FakeMethod("mine", FakeGenerator((3, 2)))]

    monkeypatch.setattr("vocabforge.cli.decode.eval._recipe_of", recipe_of)
    monkeypatch.setattr("vocabforge.evaluate.run.recipe.recipe_methods", recipe_methods)
    return [
        *("eval", "--target", str(target), "--drafter", f"mine={tmp_path / 'drafter'}", "--device", "cpu"),
        *("--benchmark", str(questions), "--output", str(tmp_path / "out"), "--warmup", "0"),
    ]


def invoke(arguments: list[str]):
    app = build_app({"eval": evaluate, "other": lambda: None}, ["eval", "other"])
    return CliRunner().invoke(app, arguments)


def test_eval_writes_the_artefact_and_prints_the_table(
    arguments: list[str], tmp_path: Path, calls: list[dict]
) -> None:
    result = invoke([*arguments, "--depth", "5", "--limit", "3", "--max-new-tokens", "4"])
    assert result.exit_code == 0, result.output
    assert "mine" in result.stdout
    assert "3 of 3" in result.stdout
    assert "report.html" in result.stdout
    (call,) = calls
    assert call["mine"] == MethodSpec(drafter=tmp_path / "drafter", depth=5)
    artifact = open_artifact(tmp_path / "out", "evaluation")
    assert artifact.meta["settings"]["max_new_tokens"] == 4
    assert artifact.manifest["config"]["drafting of mine"]
    assert set(artifact.manifest["parents"]) == {"target", "drafter mine"}


def test_mistakes_end_before_any_work(arguments: list[str], tmp_path: Path, calls: list[dict]) -> None:
    benchmark = arguments.index("--benchmark") + 1
    unknown = invoke([*arguments[:benchmark], "spec-bank", *arguments[benchmark + 1 :]])
    assert unknown.exit_code == 2
    assert "did you mean spec-bench?" in unknown.output
    assert invoke([*arguments, "--prompt-format", "vicuna"]).exit_code == 2
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("keep", "utf-8")
    existing = invoke([*arguments, "--overwrite"])
    assert existing.exit_code == 2
    assert "not an artefact" in existing.output
    assert (tmp_path / "out" / "mine.txt").read_text("utf-8") == "keep"
    assert calls == []
