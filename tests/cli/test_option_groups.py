"""Groups of options: what typer makes of them, and what reaches the command."""

from __future__ import annotations

import inspect
import typing
from pathlib import Path
from typing import Annotated, Any, Literal, Optional

import pytest
import typer
from pydantic import Field
from typer.testing import CliRunner

from vocabforge.cli import COMMANDS
from vocabforge.cli.app import build_app
from vocabforge.cli.option_groups import signature
from vocabforge.core.config import Size, StrictModel, option
from vocabforge.core.registry import load_attribute


class Outer(StrictModel):
    """Every kind of option that the program has."""

    size: Annotated[int, Field(ge=2)] = option(3, "How large.", short="-s")
    colour: Literal["red", "blue"] = option("red", "Which.")
    loud: bool | None = option(None, "How loud.")
    out: Path = option(..., "Where to.", "DIR")
    word: tuple[str, ...] = option((), "What.", many=True)
    more: tuple[Path, ...] = option((), "Further.", "PATH", positional=True)
    dry_run: bool = option(False, "Nothing is done.")
    room: Size | None = option(None, "How much.")
    chance: Annotated[float, Field(gt=0.0, lt=1.0)] | None = option(None, "How likely.")


seen: list[tuple[Any, ...]] = []


def paint(
    context: typer.Context,
    outer: Outer,
    name: Annotated[str, typer.Option("--name")],
    seed: Annotated[int, typer.Option("--seed")] = 7,
) -> None:
    """Paint something."""
    source = context.get_parameter_source("size")
    seen.append((outer, name, seed, None if source is None else source.name))


def run(*words: str):
    seen.clear()
    return CliRunner().invoke(build_app({"doctor": paint, "demo": paint}, ["doctor", "demo"]), words)


def test_defaults_are_those_of_the_fields(tmp_path: Path) -> None:
    result = run("doctor", "--out", str(tmp_path), "--name", "x")
    assert result.exit_code == 0, result.output
    assert seen == [(Outer(out=tmp_path), "x", 7, "DEFAULT")]


def test_what_is_given_reaches_its_group(tmp_path: Path) -> None:
    words = ["--size", "5", "--colour", "blue", "--no-loud", "--room", "2k", "--dry-run", "--chance", "0.3"]
    words += ["--word", "a", "--word", "b"]
    result = run("doctor", "--out", str(tmp_path), "--name", "x", "--seed", "1", *words, "p", "q")
    assert result.exit_code == 0, result.output
    more, word = (Path("p"), Path("q")), ("a", "b")
    outer = Outer(
        size=5,
        colour="blue",
        loud=False,
        out=tmp_path,
        word=word,
        more=more,
        dry_run=True,
        room=2048,
        chance=0.3,
    )
    assert seen == [(outer, "x", 1, "COMMANDLINE")]


class Again(StrictModel):
    """Names an option that another group has."""

    colour: str = option("", "Which.")


def test_one_name_in_two_groups_is_a_mistake_of_ours() -> None:
    def twice(first: Outer, second: Again) -> None:
        pytest.fail("never called")

    with pytest.raises(TypeError, match="twice has these options in two groups: colour"):
        signature(twice)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_no_option_twice(name: str) -> None:
    command = load_attribute(COMMANDS[name])
    given = typer.main.get_command(build_app({name: command}, [name])).commands[name]
    options = [word for one in given.params for word in (*one.opts, *one.secondary_opts)]
    assert len(set(options)) == len(options)


def test_options_of_the_command_itself_stay_options_on_python_3_10(monkeypatch: pytest.MonkeyPatch) -> None:
    """There get_type_hints makes Optional[Annotated[...]] of what has the default None: typer sees no option in it."""
    real = typing.get_type_hints

    def as_3_10(owner: Any, **settings: Any) -> dict[str, Any]:
        hints = real(owner, **settings)
        defaults = {} if isinstance(owner, type) else inspect.signature(owner).parameters
        return {
            name: Optional[hint] if name in defaults and defaults[name].default is None else hint  # noqa: UP045
            for name, hint in hints.items()
        }

    def sign(
        words: Annotated[list[str] | None, typer.Argument(metavar="WORD")] = None,
        out: Annotated[Path | None, typer.Option("--out", "-o")] = None,
    ) -> None:
        """Sign something."""

    monkeypatch.setattr(typing, "get_type_hints", as_3_10)
    made = signature(sign).parameters
    assert [typing.get_origin(one.annotation) for one in made.values()] == [Annotated, Annotated]
