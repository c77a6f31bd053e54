"""The recipes that come with VocabForge, by name."""

from __future__ import annotations

from pathlib import Path

from .errors import ConfigError, did_you_mean

_PACKAGE = Path(__file__).resolve().parents[1]


def shipped(folder: str) -> Path:
    """A folder of the repository that a wheel holds as package data: ``recipes`` or ``kernels``."""
    packaged = _PACKAGE / folder
    return packaged if packaged.is_dir() else _PACKAGE.parent / folder


def recipe_names() -> dict[str, Path]:
    """All recipes and launch configurations: ``GROUP/NAME`` and its file."""
    root = shipped("recipes")
    return {path.relative_to(root).as_posix()[: -len(".yaml")]: path for path in sorted(root.rglob("*.yaml"))}


def recipe_path(given: Path) -> Path:
    """The file that ``given`` means: a path, else a recipe's name with or without its group.

    Raises:
        ConfigError: there is neither such a file nor such a recipe.
    """
    if given.is_file() or given.is_absolute() or given.suffix == ".yaml":
        return given  # a missing file is the reader's error
    named = recipe_names()
    text = given.as_posix()
    for name, file in named.items():
        if text in (name, name.rpartition("/")[2]):
            return file
    hint = did_you_mean(text, [name.rpartition("/")[2] for name in named])
    raise ConfigError(
        "there is no such file, and no recipe of this name",
        got=text,
        remedy=hint or "run `vocabforge recipes` for the names",
    )
