"""Groups of options: a parameter of a command may be a group, whose fields become command-line options.

A group is a pydantic model, whose fields become options by their names, types and descriptions
(:func:`option`); or ``Annotated[Owner, FromModel(...)]``, where ``Owner`` is called with some of a model's
fields. typer needs a flat signature: :func:`signature` creates it, and :func:`arguments` assembles the groups
for the call.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, Literal, Union

import typer

from ..core.errors import UsageError


class _Text:
    """A value that is passed to the model as a string."""


@dataclass(frozen=True)
class FromModel:
    """Options generated from the fields of a pydantic model.

    The owner of the values may have these attributes: ``MANY``, the fields whose option may be repeated, and
    ``LABELLED``, those of them that are given as ``DIR`` or ``LABEL=DIR``.

    Attributes:
        model: model whose fields have descriptions.
        only: fields to include; empty for all.
        panel: heading of the options in the help.
    """

    model: Any
    only: tuple[str, ...] = ()
    panel: str | None = None

    @property
    def fields(self) -> dict[str, Any]:
        """Included fields by name."""
        fields = self.model.model_fields
        return {name: field for name, field in fields.items() if not self.only or name in self.only}


def signature(command: Callable[..., None]) -> inspect.Signature:
    """Return a command's flat signature, with required options first."""
    options = [option for member in _members(command) for option in _options(member)]
    options.sort(key=lambda option: option.default is not Parameter.empty)
    names = [option.name for option in options]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise TypeError(f"{command.__name__} has these options in two groups: {', '.join(twice)}")
    return inspect.Signature(options)


def arguments(command: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a command: its own options, and its assembled groups."""
    values = {}
    for member in _members(command):
        group = _group(member.annotation)
        values[member.name] = given[member.name] if group is None else _assembled(*group, given)
    return values


def _members(command: Callable[..., Any]) -> list[Parameter]:
    """Return a command's parameters with resolved types."""
    # Python 3.10's get_type_hints wraps an option with default None as Optional[Annotated[...]]
    hints = inspect.get_annotations(command, eval_str=True)
    return [
        member.replace(kind=Parameter.KEYWORD_ONLY, annotation=hints.get(member.name, member.annotation))
        for member in inspect.signature(command).parameters.values()
    ]


def _group(annotation: Any) -> tuple[Any, FromModel] | None:
    """Return the owner of a group's values and the source of its options; None for other parameters."""
    if isinstance(annotation, type) and hasattr(annotation, "model_fields"):
        return annotation, FromModel(annotation)
    parts = typing.get_args(annotation) if typing.get_origin(annotation) is Annotated else ()
    return next(((parts[0], part) for part in parts if isinstance(part, FromModel)), None)


def _options(member: Parameter) -> list[Parameter]:
    group = _group(member.annotation)
    if group is None:
        return [member]
    owner, source = group
    return [_option(name, field, owner, source.panel) for name, field in source.fields.items()]


def _option(name: str, field: Any, owner: Any, panel: str | None) -> Parameter:
    """Return the command parameter of a field."""
    extra, text = field.json_schema_extra or {}, field.description or ""
    many = name in getattr(owner, "MANY", ())
    kind, optional, bounds = _kind_of(field.annotation, field.metadata)
    if extra.get("many") or (extra.get("positional") and typing.get_origin(kind) is tuple):
        many, (kind, _, bounds) = True, _kind_of(typing.get_args(kind)[0])
    flag, metavar = extra.get("flag") or "--" + name.replace("_", "-"), extra.get("metavar")
    default = Parameter.empty if field.is_required() else field.default
    if typing.get_origin(kind) is Literal:
        words = {word: word for word in typing.get_args(kind)}
        kind = Enum(name, words, type=str)  # type: ignore[misc,no-redef]
        default = default if default in (None, Parameter.empty) else kind(default)
    elif kind is bool and (optional or default is True):
        flag = f"{flag}/--no-{flag[2:]}"
    elif kind not in (bool, int, float, str, Path):
        kind = str  # parsed by the model
        default = ",".join(map(str, default)) or None if isinstance(default, tuple) else default
    if many:
        if name in getattr(owner, "LABELLED", ()):
            kind, metavar = str, "[LABEL=]DIR"
        text += "" if extra.get("positional") else " Repeatable."
        default = Parameter.empty if field.is_required() else None
        kind = types.GenericAlias(list, (kind,))
    if optional or default is None:
        kind = Union[kind, None]  # noqa: UP007
    if extra.get("positional"):
        made: Any = typer.Argument(metavar=metavar, help=text, show_default=not many)
    else:
        names = [flag, *filter(None, [extra.get("short")])]
        made = typer.Option(*names, help=text, metavar=metavar, rich_help_panel=panel, **bounds)
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, made])


def _kind_of(annotation: Any, metadata: Iterable[Any] = ()) -> tuple[Any, bool, dict[str, Any]]:
    """Return a field's type without wrappers, whether it may be None, and click's (inclusive) bounds."""
    from pydantic import BeforeValidator

    constraints = [part for outer in metadata for part in (outer, *getattr(outer, "metadata", ()))]
    least = [part.ge for part in constraints if getattr(part, "ge", None) is not None]
    bounds = {"min": least[-1]} if least else {}
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        kind, optional, inner = _kind_of(parts[0], parts[1:])
        if any(isinstance(part, BeforeValidator) for part in parts[1:]):
            return _Text, optional, {}  # parsed by the model
        return kind, optional, {**bounds, **inner}
    if origin in (Union, types.UnionType):
        kind, _, inner = _kind_of(next(part for part in parts if part is not type(None)))
        return kind, type(None) in parts, {**bounds, **inner}
    return annotation, False, bounds


def _assembled(owner: Any, source: FromModel, given: Mapping[str, Any]) -> Any:
    """Build the model, or the object it represents, from the options' values."""
    from pydantic import ValidationError

    values = {name: given[name] for name in source.fields}
    values = {name: value.value if isinstance(value, Enum) else value for name, value in values.items()}
    if owner is source.model:
        values = {name: value for name, value in values.items() if value is not None}  # use model defaults
    try:
        return owner(**values)
    except ValidationError as error:
        first = error.errors()[0]
        name = "--" + str(first["loc"][0]).replace("_", "-") if first["loc"] else None
        message = first["msg"].removeprefix("Value error, ")
        raise UsageError(
            message, got=first["input"] if name else None, source=name, remedy="--help describes the options"
        ) from error
