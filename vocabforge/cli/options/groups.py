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
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, Literal, Union

import typer


class _Text:
    """A value that is passed to the model as a string."""


@dataclass(frozen=True)
class FromModel:
    """Options generated from the fields of a pydantic model.

    Attributes:
        model: model whose fields have descriptions; a field's ``json_schema_extra`` may contain its
            ``metavar``.
        only: fields to include; empty for all.
        many: fields whose option may be repeated.
        labelled: those of ``many`` that are given as ``DIR`` or ``LABEL=DIR``.
        lists: fields given as comma-separated values -> description of the default.
        panel: heading of the options in the help.
    """

    model: Any
    only: tuple[str, ...] = ()
    many: tuple[str, ...] = ()
    labelled: tuple[str, ...] = ()
    lists: Mapping[str, str] = field(default_factory=dict)
    panel: str | None = None

    @property
    def names(self) -> list[str]:
        """Names of the included fields."""
        return [name for name in self.model.model_fields if not self.only or name in self.only]

    def options(self) -> Iterator[Parameter]:
        """Yield a command parameter for each field."""
        for name in self.names:
            yield self._option(name, self.model.model_fields[name])

    def _option(self, name: str, one: Any) -> Parameter:
        kind, optional, bounds = _kind_of(one.annotation, one.metadata)
        extra, text = one.json_schema_extra or {}, one.description or ""
        flag = extra.get("flag") or "--" + name.replace("_", "-")
        listed = extra.get("many") or (extra.get("positional") and typing.get_origin(kind) is tuple)
        many = name in self.many or listed
        if listed:
            kind, _, bounds = _kind_of(typing.get_args(kind)[0])
        if name in self.lists:
            kind, bounds = _Text, {}
            text = (
                f"{text.partition(' [default:')[0].rstrip('.')}. Several: A,B [default: {self.lists[name]}]."
            )
        settings: dict[str, Any] = {**bounds, "rich_help_panel": self.panel}
        settings["metavar"] = extra.get("metavar")
        default = Parameter.empty if one.is_required() else one.default
        if typing.get_origin(kind) is Literal:
            words = {word: word for word in typing.get_args(kind)}
            kind = Enum(name, words, type=str)  # type: ignore[misc,no-redef]
            default = default if default in (None, Parameter.empty) else kind(default)
        elif kind is bool and (optional or default is True):
            flag = f"{flag}/--no-{flag[2:]}"
        elif kind not in (bool, int, float, str, Path):
            kind = str  # parsed by the model
            if isinstance(default, tuple):
                default = ",".join(map(str, default)) or None
        if many:
            if name in self.labelled:
                kind, settings["metavar"] = str, "[LABEL=]DIR"
            if not extra.get("positional"):
                text = f"{text} Repeatable."
            default = Parameter.empty if one.is_required() else None
            kind = types.GenericAlias(list, (kind,))
        if optional or default is None:
            kind = Union[kind, None]  # noqa: UP007
        names = [flag, *filter(None, [extra.get("short")])]
        made = typer.Option(*names, help=text, **settings)
        if extra.get("positional"):
            made = typer.Argument(metavar=settings["metavar"], help=text, show_default=not many)
        annotation: Any = Annotated[kind, made]
        return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _kind_of(annotation: Any, metadata: Iterable[Any] = ()) -> tuple[Any, bool, dict[str, int]]:
    """Return a field's type without wrappers, whether it may be None, and click's (inclusive) bounds."""
    bounds: dict[str, int] = {}
    for one in metadata:
        for inner in (one, *getattr(one, "metadata", ())):
            if getattr(inner, "ge", None) is not None:
                bounds["min"] = inner.ge
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        kind, optional, more = _kind_of(arguments[0], arguments[1:])
        if any(type(one).__name__ == "BeforeValidator" for one in arguments[1:]):
            return _Text, optional, {}  # parsed by the model
        return kind, optional, {**bounds, **more}
    if origin in (Union, types.UnionType):
        kind, _, more = _kind_of(next(one for one in arguments if one is not type(None)))
        return kind, type(None) in arguments, {**bounds, **more}
    return annotation, False, bounds


def signature(command: Callable[..., None]) -> inspect.Signature:
    """Return a command's flat signature, with required options first."""
    found = [option for one in _members(command) for option in _options(one)]
    options = sorted(found, key=lambda one: one.default is not Parameter.empty)
    names = [one.name for one in options]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise TypeError(f"{command.__name__} has these options in two groups: {', '.join(twice)}")
    return inspect.Signature(options)


def _members(command: Callable[..., Any]) -> list[Parameter]:
    """Return a command's parameters with resolved types."""
    # Python 3.10's get_type_hints wraps an option with default None as Optional[Annotated[...]]
    hints = inspect.get_annotations(command, eval_str=True)
    return [
        one.replace(kind=Parameter.KEYWORD_ONLY, annotation=hints.get(one.name, one.annotation))
        for one in inspect.signature(command).parameters.values()
    ]


def _model_of(annotation: Any) -> FromModel | None:
    """Return the model from which a group's options are generated, or None."""
    if isinstance(annotation, type) and hasattr(annotation, "model_fields"):
        return FromModel(annotation)
    extras = typing.get_args(annotation)[1:] if typing.get_origin(annotation) is Annotated else ()
    return next((one for one in extras if isinstance(one, FromModel)), None)


def _options(one: Parameter) -> list[Parameter]:
    model = _model_of(one.annotation)
    return [one] if model is None else list(model.options())


def arguments(command: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a command: its own options, and its assembled groups."""
    values = {}
    for one in _members(command):
        if (model := _model_of(one.annotation)) is not None:
            values[one.name] = _made(one.annotation, model, {name: given[name] for name in model.names})
        else:
            values[one.name] = given[one.name]
    return values


def _made(annotation: Any, model: FromModel, values: dict[str, Any]) -> Any:
    """Build the model, or the object it represents, from the options' values."""
    make = typing.get_args(annotation)[0] if typing.get_origin(annotation) is Annotated else annotation
    values = {name: value.value if isinstance(value, Enum) else value for name, value in values.items()}
    if make is model.model:
        values = {name: value for name, value in values.items() if value is not None}  # use model defaults
    try:
        return make(**values)
    except ValueError as error:
        from pydantic import ValidationError

        from ...core.errors import UsageError

        if not isinstance(error, ValidationError):
            raise
        first = error.errors()[0]
        name = "--" + str(first["loc"][0]).replace("_", "-") if first["loc"] else None
        message = first["msg"].removeprefix("Value error, ")
        raise UsageError(
            message, got=first["input"] if name else None, source=name, remedy="--help describes the options"
        ) from error
