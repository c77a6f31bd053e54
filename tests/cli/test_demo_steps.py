"""The demo's steps: skipped when finished, continued when interrupted."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.cli.cli_support import assert_user_error, invoke, succeeds
from vocabforge.cli.demo import Step, demo_steps, perform
from vocabforge.core.errors import VocabForgeError


class Maker:
    """A step that writes an output file and notes whether it was told to replace it."""

    def __init__(self, folder: Path) -> None:
        self.result = folder / "out.txt"
        self.replaced: list[bool] = []

    def step(self, facts: object = None) -> Step:
        def run(replace: bool) -> None:
            self.replaced.append(replace)
            self.result.write_text("made")

        return Step("write", (self.result,), facts=facts, run=run)


@pytest.fixture
def maker(tmp_path: Path) -> Maker:
    return Maker(tmp_path)


def again(tmp_path: Path, step: Step, *, stale: bool = False) -> bool:
    return perform(step, tmp_path / "demo.json", stale=stale)


def test_a_step_runs_again_only_for_a_reason(tmp_path: Path, maker: Maker) -> None:
    assert again(tmp_path, maker.step())
    assert not again(tmp_path, maker.step())
    assert again(tmp_path, maker.step(facts={"steps": 2})), "other settings"
    maker.result.unlink()
    assert again(tmp_path, maker.step(facts={"steps": 2})), "its output is gone"
    assert again(tmp_path, maker.step(facts={"steps": 2}), stale=True), "its input is new"
    assert maker.replaced == [False, True, False, True]
    (tmp_path / "demo.json").write_text('{"steps": {"write"')
    assert again(tmp_path, maker.step(facts={"steps": 2})), "the record is damaged"


@pytest.mark.parametrize("facts", [None, {"steps": 2}])
def test_an_unfinished_step_goes_on_unless_its_settings_changed(tmp_path, maker, facts):
    body = {"steps": {"write": {"key": maker.step().key(), "done": False}}}
    (tmp_path / "demo.json").write_text(json.dumps(body))
    assert again(tmp_path, maker.step(facts))
    assert maker.replaced == [facts is not None], "a resumable command is not told to start over"


def command_step(tmp_path: Path, code: str, again: str = "") -> Step:
    return Step("run", (tmp_path / "made",), command=(sys.executable, "-c", code), again=again)


def test_a_failing_command_stops_the_demo(tmp_path: Path) -> None:
    with pytest.raises(VocabForgeError, match="stopped at the step run") as error:
        again(tmp_path, command_step(tmp_path, "raise SystemExit(3)"))
    assert error.value.got == "exit code 3"


def test_an_interrupted_command_interrupts_the_demo(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        again(tmp_path, command_step(tmp_path, "raise SystemExit(130)"))


def test_a_command_is_told_to_replace_what_the_demo_made_before(tmp_path: Path) -> None:
    code = f"import sys; open({str(tmp_path / 'made')!r}, 'w').write(' '.join(sys.argv[1:]))"
    step = command_step(tmp_path, code, "--overwrite")
    again(tmp_path, step)
    assert (tmp_path / "made").read_text() == ""
    again(tmp_path, step, stale=True)
    assert (tmp_path / "made").read_text() == "--overwrite"


def test_the_demo_stops_behind_the_step_that_is_named(tmp_path: Path) -> None:
    succeeds("demo", "--size", "ci", "--until", "target", "--output", tmp_path / "run")
    assert {path.name for path in (tmp_path / "run").iterdir()} == {
        "demo.json",
        "target",
        "prompts.jsonl",
        "question.jsonl",
    }
    wrong = invoke("demo", "--size", "ci", "--until", "text", "--output", tmp_path / "other")
    assert_user_error(wrong, 2, "no such step", "target, responses, counts")
    assert not (tmp_path / "other").exists()


def test_a_folder_of_somebody_else_is_not_replaced(tmp_path: Path) -> None:
    mine = tmp_path / "run" / "target" / "model.safetensors"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    done = invoke("demo", "--size", "ci", "--until", "target", "--output", tmp_path / "run")
    assert_user_error(done, 2, "no demo wrote", str(mine.parent), "--output")
    assert mine.read_text() == "mine"


def test_an_unfinished_step_of_other_settings_starts_over(tmp_path: Path) -> None:
    steps = {step.name: step for step in demo_steps(tmp_path / "run", "full")}
    assert steps["responses"].again.split() == ["--overwrite", "--fresh"]
    code = f"import sys; open({str(tmp_path / 'made')!r}, 'w').write(' '.join(sys.argv[1:]))"
    body = {"steps": {"run": {"key": "another", "done": False}}}
    (tmp_path / "demo.json").write_text(json.dumps(body))
    again(tmp_path, command_step(tmp_path, code, "--overwrite --fresh"))
    assert (tmp_path / "made").read_text() == "--overwrite --fresh"
