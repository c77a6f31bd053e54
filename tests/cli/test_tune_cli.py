"""``vocabforge tune``: a search with a check, its tables, and ``eval`` with the recipe that it writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.cli_support import invoke
from tests.tune.support import make_place, make_table, settings_of
from vocabforge.decode.build.spec import MethodSpec
from vocabforge.tune.latency.table import read_latency, write_latency
from vocabforge.tune.search.space import HeadChoice

SMALL = ["--depth", "0,1", "--topk", "2", "--total-nodes", "6", "--max-new-tokens", "8"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = make_place(tmp_path_factory.mktemp("tune-cli"), questions=5)
    heads = settings_of(place, [HeadChoice(), HeadChoice("v", MethodSpec(vocab=place / "v"))])
    write_latency(place / "there.json", make_table(place, heads))
    write_latency(place / "here.json", make_table(place, heads, here=True))
    return place


def run(place: Path, output: Path, *more: object):
    common = [
        *("--target", place / "t", "--drafter", place / "d", "--prompts", place / "q.jsonl"),
        *("--device", "cpu"),
    ]
    return invoke("tune", *common, "--prompt-format", "raw", "--output", output, *SMALL, *more)


def test_what_if_recommends_and_checks_and_eval_runs_the_recipe(place: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = run(place, out, "--vocab", place / "v", "--what-if", place / "here.json", "--check", "4")
    assert result.exit_code == 0, result.output
    assert "Recommended: " in result.output
    assert "What if" in result.output
    assert "on average" in " ".join(result.output.split())
    body = json.loads((out / "tune.json").read_text("utf-8"))
    assert len(body["check"]["rows"]) == 5
    assert body["what_if"] == str(place / "here.json")
    evaluated = invoke(
        "eval",
        *("--recipe", out / "recipe.yaml", "--benchmark", place / "q.jsonl", "--output", tmp_path / "eval"),
        *("--max-new-tokens", 4, "--warmup", 0, "--prompt-format", "raw", "--device", "cpu", "--limit", 2),
    )
    assert evaluated.exit_code == 0, evaluated.output


def test_speeds_of_another_machine_are_not_checked_here(place: Path, tmp_path: Path) -> None:
    result = run(place, tmp_path / "out", "--what-if", place / "there.json", "--check", "4")
    assert result.exit_code == 2
    assert "speeds of this machine" in result.output


def test_measure_only_writes_a_file_for_what_if(place: Path, tmp_path: Path) -> None:
    result = run(place, tmp_path / "there", "--measure-only", "--seconds", "40")
    assert result.exit_code == 0, result.output
    table = read_latency(tmp_path / "there")
    assert not (tmp_path / "there" / "tune.json").exists()
    result = run(place, tmp_path / "here", "--what-if", tmp_path / "there", "--json")
    assert result.exit_code == 0, result.output
    body = json.loads(result.stdout)
    assert len(body["candidates"]) == 3
    assert body["latency"]["environment"] == table.environment


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--size", "8"], "cut from a ranking"),
        (["--budget", "600"], "the time for measuring is --seconds"),
        (["--depth", "x"], "--depth"),
        (["--batch", "1,x"], "is no size"),
        (["--shortlist", "8"], "means nothing here"),
        (["--measure-only", "--what-if", "there.json"], "nothing is measured"),
        (["--check", "8", "--batch", "4"], "one request at a time"),
        (["--tree", "dynamic", "--total-nodes", "3", "--depth", "8"], "no draft tree"),
    ],
)
def test_bad_input_is_told(place: Path, tmp_path: Path, more: list[str], message: str) -> None:
    result = run(place, tmp_path / "out", *more)
    assert result.exit_code == 2, result.output
    assert message in result.output
