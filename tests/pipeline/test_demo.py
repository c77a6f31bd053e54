"""The whole line, as `make demo` runs it, at its smallest size: count, select, train, export, evaluate; then again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.cli_support import in_this_process, invoke
from vocabforge.core.artifact import open_artifact

pytestmark = pytest.mark.long

STEPS = (
    "target",
    "responses",
    "counts",
    "subset",
    "drafter",
    "export native",
    "export sglang-eagle3",
    "eval",
)


def demo(output: Path) -> str:
    """Run the command and its steps in this process; what it printed."""
    with in_this_process():
        done = invoke("demo", "--size", "ci", "--output", output)
    assert done.exit_code == 0, done.output[-3000:]
    return done.output


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo") / "run"
    demo(folder)
    return folder


def test_speculative_output_is_plain_greedy_output(output: Path) -> None:
    results = json.loads((output / "eval" / "results.json").read_text("utf-8"))
    plain, *speculative = results["methods"]
    assert plain["name"] == "plain"
    assert len(speculative) == 2
    tokens = [
        [choice["token_ids"] for line in open_artifact(output / "eval").file(f"details/{name}.jsonl").open()
         for choice in json.loads(line)["choices"]]
        for name in (method["name"] for method in results["methods"])
    ]  # fmt: skip
    assert tokens[0]
    assert tokens[1] == tokens[0]
    assert tokens[2] == tokens[0]
    assert "<svg" in (output / "eval" / "report.html").read_text("utf-8")


def test_a_second_run_does_nothing_again(output: Path) -> None:
    before = open_artifact(output / "eval").content_hash
    again = demo(output)
    for step in STEPS:
        assert f"{step}: up to date" in again
    assert open_artifact(output / "eval").content_hash == before


# Of the smallest demo on an x86-64 CPU: a change of these figures says in review what it changes.
RECORDED = {"loss": 5.67265, "accuracy": 0.45584, "accepted": 1.34694}


def test_a_seeded_run_repeats_its_loss_and_its_accepted_length(output: Path) -> None:
    rows = [json.loads(line) for line in (output / "drafter" / "metrics.jsonl").open()]
    train = [row for row in rows if row["kind"] == "train"][-1]
    heldout = [row for row in rows if row["kind"] == "heldout"][-1]
    results = json.loads((output / "eval" / "results.json").read_text("utf-8"))
    accepted = results["methods"][1]["summary"]["overall"]["accepted_length"]["value"]
    found = {"loss": train["loss"], "accuracy": heldout["accuracy"][0], "accepted": accepted}
    assert found == pytest.approx(RECORDED, rel=2e-3)
