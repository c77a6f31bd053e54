"""The demo's steps: skipped only when finished, unchanged and made from the same inputs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.cli.cli_support import assert_user_error, invoke
from vocabforge.cli.demo import Size, Step, content_hash, demo_steps, perform
from vocabforge.core.artifact import write_artifact
from vocabforge.core.errors import ArtifactError, DataError, VocabForgeError


class Maker:
    """A step that copies its input into an output file and counts how often it ran."""

    def __init__(self, folder: Path) -> None:
        self.source, self.result = folder / "in.txt", folder / "out.txt"
        self.source.write_text("one")
        self.replaced: list[bool] = []

    def step(self, facts: object = None) -> Step:
        def run(replace: bool) -> None:
            self.replaced.append(replace)
            self.result.write_text(self.source.read_text())

        return Step("copy", (self.source,), (self.result,), facts=facts, run=run)


@pytest.fixture
def maker(tmp_path: Path) -> Maker:
    return Maker(tmp_path)


def again(tmp_path: Path, step: Step) -> bool:
    return perform(step, tmp_path / "demo.json")


def begin(tmp_path: Path, step: Step) -> None:
    """As after an interruption: the step is recorded without its outputs."""
    body = {"steps": {step.name: {"key": step.key()}}}
    (tmp_path / "demo.json").write_text(json.dumps(body))


def test_a_finished_step_is_skipped(tmp_path: Path, maker: Maker) -> None:
    assert again(tmp_path, maker.step())
    assert not again(tmp_path, maker.step())
    assert maker.replaced == [False]


def test_changed_input_settings_or_output_run_it_again(tmp_path: Path, maker: Maker) -> None:
    again(tmp_path, maker.step())
    maker.source.write_text("two")
    assert again(tmp_path, maker.step())
    assert again(tmp_path, maker.step(facts={"steps": 2}))
    maker.result.write_text("spoilt")
    assert again(tmp_path, maker.step(facts={"steps": 2}))
    maker.result.unlink()
    assert again(tmp_path, maker.step(facts={"steps": 2}))
    assert maker.result.read_text() == "two"
    assert not again(tmp_path, maker.step(facts={"steps": 2}))


def test_an_unfinished_step_goes_on_instead_of_starting_over(tmp_path: Path, maker: Maker) -> None:
    step = maker.step()
    begin(tmp_path, step)
    assert again(tmp_path, step)
    assert maker.replaced == [False], "no output yet: a resumable command must not be told to start over"


def test_an_unfinished_step_with_other_inputs_starts_over(tmp_path: Path, maker: Maker) -> None:
    step = maker.step()
    begin(tmp_path, step)
    maker.source.write_text("two")
    assert again(tmp_path, maker.step())
    assert maker.replaced == [True]


def test_a_damaged_record_is_as_good_as_none(tmp_path: Path, maker: Maker) -> None:
    again(tmp_path, maker.step())
    (tmp_path / "demo.json").write_text('{"steps": {"copy"')
    assert again(tmp_path, maker.step())


def command_step(tmp_path: Path, code: str, again: str = "") -> Step:
    return Step("run", (), (tmp_path / "made",), command=(sys.executable, "-c", code), again=again)


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
    (tmp_path / "made").write_text("spoilt")
    again(tmp_path, step)
    assert (tmp_path / "made").read_text() == "--overwrite"


def test_quiet_keeps_stdout_clean(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code = f"print('figures'); open({str(tmp_path / 'made')!r}, 'w').close()"
    perform(command_step(tmp_path, code), tmp_path / "demo.json", quiet=True)
    captured = capfd.readouterr()
    assert captured.out == ""
    assert "figures" in captured.err


def test_content_hash_sees_names_contents_and_damage(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a").write_text("1")
    first = content_hash(folder)
    (folder / "a").rename(folder / "b")
    assert content_hash(folder) != first
    with write_artifact(tmp_path / "artifact", "test", {}) as inside:
        (inside / "x").write_text("1")
    content_hash(tmp_path / "artifact")
    (tmp_path / "artifact" / "x").write_text("2")
    with pytest.raises(ArtifactError):
        content_hash(tmp_path / "artifact")
    with pytest.raises(DataError):
        content_hash(tmp_path / "nothing")


@pytest.mark.parametrize("size", list(Size))
def test_each_step_reads_only_what_an_earlier_one_made(
    size: Size, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("optim: {steps: 1}\n")
    monkeypatch.setattr("vocabforge.cli.demo.recipe", lambda name: recipe)
    made: set[Path] = {recipe}
    for step in demo_steps(tmp_path / "run", size):
        assert set(step.inputs) <= made, step.name
        made |= set(step.outputs)
        assert bool(step.command) != (step.run is not None)
        assert not step.command or step.again
    assert step.name == "eval"


def test_the_demo_stops_behind_the_step_that_is_named(tmp_path: Path) -> None:
    done = invoke("demo", "--size", "ci", "--until", "texts", "--output", tmp_path / "run")
    assert done.exit_code == 0, done.output
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"demo.json", "texts"}
    wrong = invoke("demo", "--size", "ci", "--until", "text", "--output", tmp_path / "other")
    assert_user_error(wrong, 2, "no such step", "texts, target, counts")
    assert not (tmp_path / "other").exists()
