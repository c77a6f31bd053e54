"""What a newcomer types first: help in a terminal of 80 columns, half a command's name, a setting as an option."""

from __future__ import annotations

import re

import pytest
import typer
from typer.testing import CliRunner

from tests.cli.cli_support import assert_user_error, invoke
from vocabforge.cli import COMMANDS, HEADINGS
from vocabforge.cli.app import build_app
from vocabforge.core.registry import load_attribute


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("columns", ["60", "80", "100", "140"])
def test_no_help_page_cuts_the_name_of_an_option(
    name: str, columns: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    app = build_app({name: load_attribute(COMMANDS[name])}, list(COMMANDS))
    page = CliRunner().invoke(app, [name, "--help"]).output
    options = {word for one in typer.main.get_command(app).commands[name].params for word in one.opts}  # type: ignore[attr-defined]
    assert not {word for word in options if word.startswith("--") and word not in page}
    assert not re.search(r"--[\w-]+…", page)


def every_command(*words: str):
    app = build_app({name: load_attribute(COMMANDS[name]) for name in COMMANDS}, list(COMMANDS))
    return CliRunner().invoke(app, list(words), env={"COLUMNS": "120"})


def test_a_part_of_a_commands_name_names_the_commands() -> None:
    assert_user_error(every_command("train"), 2, "Did you mean train-drafter or train-router?")
    assert_user_error(every_command("freq", "--output", "x"), 2, "Did you mean count-freq or merge-freq?")
    assert_user_error(every_command("cuont-freq"), 2, "Did you mean count-freq?")
    assert_user_error(every_command("nonsense"), 2, "No such command 'nonsense'.")


@pytest.mark.parametrize("command", ["train-drafter", "train-router", "capture"])
def test_a_setting_written_as_an_option_is_answered_with_how_it_is_written(command: str) -> None:
    assert_user_error(invoke(command, "--optim.lr=3"), 2, "No such option: --optim.lr.", "optim.lr=VALUE")
    assert_user_error(invoke(command, "--learning-rate", 3), 2, "without dashes", "learning_rate=VALUE")


def test_misspelt_options_and_words_behind_two_dashes_stay_what_they_were() -> None:
    assert_user_error(invoke("train-drafter", "--confg", "x"), 2, "--confg", "--config")
    assert_user_error(
        invoke("train-drafter", "--config", "/nowhere.yaml", "--", "--target"),
        2,
        "cannot read the configuration",
    )
    assert_user_error(invoke("eval", "--optim.lr=3"), 2, "No such option")


def test_the_programs_help_has_every_command_under_a_heading() -> None:
    commands = {name: load_attribute(COMMANDS[name]) for name in COMMANDS}
    app = build_app(commands, list(COMMANDS), HEADINGS)
    page = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "120"}).output
    places = [page.index(f"─ {heading} ─") for heading in HEADINGS.values()]
    assert places == sorted(places)
    assert "─ Commands ─" not in page
    assert next(iter(COMMANDS)) in HEADINGS
    for first, place in zip(HEADINGS, places, strict=True):
        assert re.match(rf"[^\n]*\n│ {first} ", page[place:])
