"""Options in groups: a parameter of a command may be a dataclass whose fields are options of the program.

A group is ``@dataclass(frozen=True, kw_only=True)``, its fields are ``Annotated[T, typer.Option(...)] = default`` or
groups again. typer reads one flat signature; :func:`flattened` shows it one and puts the groups together at the call.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from inspect import Parameter
from typing import Any


def flattened(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose parameters are the options themselves, those that must be given first.

    Raises:
        TypeError: two groups have an option of one name.
    """
    options = sorted(_options(_members(command)), key=lambda one: one.default is not Parameter.empty)
    names = [one.name for one in options]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise TypeError(f"{command.__name__} has these options in two groups: {', '.join(twice)}")

    @functools.wraps(command)
    def run(**given: Any) -> None:
        _assembled(command, given)

    run.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in options}
    return run


def option_names(group: type) -> list[str]:
    """The options of a group and of the groups in it, by their parameters' names."""
    return [one.name for one in _options(_members(group))]


def _members(owner: Callable[..., Any]) -> list[Parameter]:
    """Parameters of a command, or fields of a group, with their types resolved."""
    if isinstance(owner, type):
        hints = typing.get_type_hints(owner, include_extras=True)
    else:  # get_type_hints of Python 3.10 hides an option with the default None in Optional[Annotated[...]]
        hints = inspect.get_annotations(owner, eval_str=True)
    return [
        one.replace(kind=Parameter.KEYWORD_ONLY, annotation=hints.get(one.name, one.annotation))
        for one in inspect.signature(owner).parameters.values()
    ]


def _options(members: Iterable[Parameter]) -> Iterator[Parameter]:
    for one in members:
        if _is_group(one.annotation):
            yield from _options(_members(one.annotation))
        else:
            yield one


def _is_group(annotation: Any) -> bool:
    return isinstance(annotation, type) and dataclasses.is_dataclass(annotation)


def _assembled(owner: Callable[..., Any], given: Mapping[str, Any]) -> Any:
    """``owner``, a command or a group, called with the options that are its own."""
    return owner(
        **{
            one.name: _assembled(one.annotation, given) if _is_group(one.annotation) else given[one.name]
            for one in _members(owner)
        }
    )
