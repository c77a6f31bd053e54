"""Documentation of configuration keys, from field descriptions and model docstrings."""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Union

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

_ENTRY = re.compile(r"^(\w+(?:, \w+)*): (.*)")


@dataclass(frozen=True)
class Setting:
    """A key of a recipe.

    Attributes:
        path: full key, such as ``optim.lr``.
        default: default in YAML notation; None if the key is required.
    """

    path: str
    kind: str
    default: str | None
    text: str


def settings_of(model: type[BaseModel], prefix: str = "") -> Iterator[Setting]:
    """Yield every key of a configuration in order of its model, each section followed by its keys."""
    described = _described(model)
    for name, field in model.model_fields.items():
        text = re.sub(r" \[default:[^]]*\]", "", field.description or described.get(name, ""))
        section = _section(field.annotation)
        if section is None or field.default is None:
            default = None if field.is_required() else _written(field.get_default(call_default_factory=True))
            yield Setting(
                prefix + name, "section" if section else _kind(field.annotation), default, _plain(text)
            )
        if section is not None:
            yield from settings_of(section, f"{prefix}{name}.")


def _described(model: type[BaseModel]) -> dict[str, str]:
    """Return the entries of ``Attributes:`` in the docstrings of a model and its bases."""
    meanings: dict[str, str] = {}
    for base in reversed(model.__mro__):
        body = inspect.cleandoc(base.__dict__.get("__doc__") or "").partition("Attributes:\n")[2]
        names: list[str] = []
        for line in inspect.cleandoc(body).splitlines():
            if entry := _ENTRY.match(line):
                names = entry[1].split(", ")
                meanings |= dict.fromkeys(names, entry[2])
            elif names:
                meanings |= dict.fromkeys(names, f"{meanings[names[0]]} {line.strip()}")
    return meanings


def _plain(text: str) -> str:
    text = " ".join(text.replace("``", "`").split())
    return re.sub(r"^[a-z]{2}", lambda match: match[0].capitalize(), text)  # but not symbols such as d'


def _section(annotation: Any) -> type[BaseModel] | None:
    parts = (
        typing.get_args(annotation)
        if typing.get_origin(annotation) in (Union, types.UnionType)
        else (annotation,)
    )
    return next((part for part in parts if isinstance(part, type) and issubclass(part, BaseModel)), None)


def _kind(annotation: Any) -> str:
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _kind(parts[0])
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(_kind(part) for part in parts if part is not type(None)))
    if origin is Literal:
        return ", ".join(f"`{part}`" for part in parts)
    if origin in (list, tuple):
        return "list"
    if origin in (dict, Mapping) or annotation is dict:
        return "mapping"
    names = {int: "integer", float: "number", bool: "true or false", str: "text", Path: "path"}
    return names.get(annotation, "value")


def _written(value: Any) -> str:
    if value is None or value is PydanticUndefined:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(_written, value))}]"
    return "{}" if value == {} else str(value)
