"""``vocabforge recipes``: the built-in recipes, and every key that they may set."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ...core.config import StrictModel, option, read_yaml, recipe_names, recipe_path
from ...core.console import DataTable
from ...core.errors import UsageError, did_you_mean
from ..app import JsonOption, echo, print_json, stdout_console

if TYPE_CHECKING:
    from .settings import Setting

_WIDTH = 96


class RecipesRequest(StrictModel):
    """What to show, and of which recipe."""

    action: Literal["list", "show", "path", "keys"] = option(
        "list",
        "**list** prints all names; **show** NAME prints a recipe with a comment for every key; **path** NAME prints "
        "its file; **keys** [NAME] lists every key of train-drafter, or those of one section.",
        positional=True,
    )
    name: str | None = option(
        None,
        "A recipe, such as qwen3-0.6b, or for **keys** a section, such as optim.",
        "NAME",
        positional=True,
    )


def recipes(asked: RecipesRequest, as_json: JsonOption = False) -> None:
    """List, show and explain the built-in recipes.

    Every `--config` option takes a recipe name. Examples: `vocabforge recipes show qwen3-0.6b`,
    `vocabforge recipes keys optim`, and
    `accelerate launch --config_file $(vocabforge recipes path multi_gpu) -m vocabforge train-drafter ...`.
    """
    if asked.action == "list":
        _list(as_json)
    elif asked.action == "keys":
        _keys(asked.name, as_json)
    else:
        if asked.name is None:
            raise UsageError(
                f"recipes {asked.action} needs a name", remedy="run `vocabforge recipes` for the names"
            )
        path = recipe_path(Path(asked.name))
        if asked.action == "path":
            print_json({"path": str(path)}) if as_json else echo(str(path))
        elif as_json:
            print_json(read_yaml(path))
        else:
            _show(path)


def _list(as_json: bool) -> None:
    recipes = {name: _about(path) for name, path in recipe_names().items()}
    if as_json:
        print_json(recipes)
        return
    stdout_console().print(
        DataTable("Recipes", ("name<", "for<"), [[name, text] for name, text in recipes.items()])
    )
    echo("vocabforge recipes show NAME prints one, with a comment for every key")


def _about(path: Path) -> str:
    lines = []
    for line in path.read_text("utf-8").splitlines():
        if not line.startswith("#") or not line[1:].strip():
            break
        lines.append(line[1:].strip())
    text = " ".join(lines)
    return text.partition(". ")[0].rstrip(".")


def _keys(section: str | None, as_json: bool) -> None:
    from ...train.config import TrainConfig
    from .settings import settings_of

    every = list(settings_of(TrainConfig))
    settings = [
        setting
        for setting in every
        if section is None or setting.path == section or setting.path.startswith(f"{section}.")
    ]
    if not settings:
        sections = list(dict.fromkeys(setting.path.partition(".")[0] for setting in every))
        raise UsageError(
            "train-drafter has no such key",
            got=section,
            expected=", ".join(sections),
            remedy=did_you_mean(str(section), [*sections, *(setting.path for setting in every)]),
        )
    if as_json:
        print_json(
            {
                setting.path: {"takes": setting.kind, "default": setting.default, "meaning": setting.text}
                for setting in settings
            }
        )
        return
    rows = [
        [setting.path, setting.default or "required", f"{setting.text} {_choices(setting)}".strip()]
        for setting in settings
    ]
    stdout_console().print(DataTable("Keys of train-drafter", ("key<", "default<", "meaning<"), rows))


def _choices(setting: Setting) -> str:
    """Return the allowed values of a key, unless its description names all of them."""
    words = setting.kind.split(", ") if setting.kind.startswith("`") else []
    missing = any(word not in setting.text and word.replace("`", "**") not in setting.text for word in words)
    return f"One of {', '.join(words)}." if missing and len(words) > 1 else ""


def _show(path: Path) -> None:
    from rich.syntax import Syntax

    out = stdout_console()
    text = "\n".join(_annotated(path)) + "\n"
    if out.is_terminal:
        out.print(Syntax(text, "yaml", background_color="default"))
    else:
        echo(text.rstrip())


def _annotated(path: Path) -> Iterator[str]:
    """Yield a recipe's lines with a comment above each key; files of other programs are unchanged."""
    text = path.read_text("utf-8")
    from ...train.config import TrainConfig
    from .settings import settings_of

    if not read_yaml(path).keys() <= TrainConfig.model_fields.keys():
        yield from text.splitlines()
        return
    meaning = {setting.path: setting.text for setting in settings_of(TrainConfig)}
    above: list[str] = []  # sections that contain the line
    for line in text.splitlines():
        body = line.lstrip()
        depth, key = (len(line) - len(body)) // 2, body.partition(":")[0]
        if body and body[0] not in "#-{[" and ":" in body:
            above = [*above[:depth], key]
            if told := meaning.get(".".join(above)):
                pad = " " * (2 * depth) + "# "
                yield from textwrap.wrap(told, _WIDTH, initial_indent=pad, subsequent_indent=pad)
        yield line
