"""``vocabforge tune``: a search, its tables, and ``eval`` with the recipe that it writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.cli_support import invoke, ok, succeeds
from tests.tune.support import make_place

SMALL = ["--depth", "0,1", "--topk", "2", "--total-nodes", "6", "--max-new-tokens", "8"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_place(tmp_path_factory.mktemp("tune-cli"), questions=3)


def run(place: Path, output: Path, *more: object):
    common = [
        *("--target", place / "t", "--drafter", place / "d", "--prompts", place / "q.jsonl"),
        *("--device", "cpu"),
    ]
    return invoke("tune", *common, "--prompt-format", "raw", "--output", output, *SMALL, *more)


def test_it_recommends_and_eval_runs_the_recipe(place: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = ok(run(place, out, "--vocab", place / "v"))
    assert "Recommended: " in result.output
    assert "Speed-up over plain decoding" in result.output
    body = json.loads((out / "tune.json").read_text("utf-8"))
    assert len(body["candidates"]) == 6
    again = run(place, out, "--vocab", place / "v", "--json")
    assert json.loads(again.stdout)["candidates"] == body["candidates"]
    succeeds(
        "eval",
        *("--recipe", out / "recipe.yaml", "--benchmark", place / "q.jsonl", "--output", tmp_path / "eval"),
        *("--max-new-tokens", 4, "--warmup", 0, "--prompt-format", "raw", "--device", "cpu", "--limit", 2),
    )


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--budget", "600"], "the time for measuring is --seconds"),
        (["--depth", "x"], "--depth"),
        (["--topk", "2,x"], "--topk"),
        (["--shortlist", "8"], "has no effect here"),
        (["--tree", "dynamic", "--total-nodes", "3", "--depth", "8"], "no draft tree"),
    ],
)
def test_bad_input_is_told(place: Path, tmp_path: Path, more: list[str], message: str) -> None:
    result = run(place, tmp_path / "out", *more)
    assert result.exit_code == 2, result.output
    assert message in result.output
