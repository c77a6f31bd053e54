"""``vocabforge doctor`` on a drafter's folder as servers read it: the options and the table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.cli_support import World, assert_user_error, invoke
from tests.cli.test_doctor_cli import examine, export


@pytest.fixture(autouse=True)
def _quick_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vocabforge.evaluate.doctor.environment._BF16_BUDGET_S", 0.001)


def test_a_folder_is_read_as_servers_read_it(pristine: World, tmp_path: Path) -> None:
    folder = export(pristine, tmp_path / "x")
    code, rows = examine("--target", pristine.target, "--drafter", folder)
    assert code == 0
    served = {key: row for key, row in rows.items() if key.startswith("served by")}
    assert {key.partition(": ")[0] for key in served} == {"served by SGLang", "served by vLLM"}
    untold = {key for key, row in served.items() if row["state"] != "ok" and "acceptance" not in key}
    assert untold == set(), "a random drafter hardly drafts, which is all there is to say"
    assert "4 draft steps" in served["served by SGLang: logits"]["found"]
    _, rows = examine("--target", pristine.target, "--drafter", folder, "--server", "vllm")
    assert "served by SGLang: logits" not in rows
    result = invoke("doctor", "--target", pristine.target, "--drafter", folder, "--keys")
    assert "norm.weight [32] float32" in " ".join(result.stdout.split())


def test_prompts_of_a_file(pristine: World, tmp_path: Path) -> None:
    file = tmp_path / "questions.jsonl"
    rows = [
        {"question_id": i, "category": "a", "turns": [f"What is {i}?"], "reference": None} for i in range(3)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    folder = export(pristine, tmp_path / "x")
    _, found = examine("--target", pristine.target, "--drafter", folder, "--prompts", file)
    assert found["servers: texts"]["found"].startswith("3 texts")


@pytest.mark.parametrize("option", [("--server", "vllm"), ("--keys",), ("--prompts", "x.jsonl")])
def test_options_of_a_drafters_folder_need_one(pristine: World, option: tuple[str, ...]) -> None:
    assert_user_error(invoke("doctor", "--target", pristine.target, *option), 2, "--drafter")


def test_an_unknown_server(pristine: World) -> None:
    result = invoke("doctor", "--target", pristine.target, "--drafter", pristine.drafter, "--server", "sgl")
    assert_user_error(result, 2, "sglang")


def test_a_draft_model_is_no_folder_of_a_server(pristine: World) -> None:
    options = ("--target", pristine.target, "--drafter", pristine.target)
    assert_user_error(invoke("doctor", *options, "--server", "vllm"), 2, "language model")


def test_prompts_need_a_tokenizer(world: World, tmp_path: Path) -> None:
    folder = export(world, tmp_path / "x")
    (world.target / "tokenizer.json").unlink()
    options = ("--target", world.target, "--drafter", folder, "--prompts", tmp_path / "q.jsonl")
    assert_user_error(invoke("doctor", *options), 2, "--tokenizer")
