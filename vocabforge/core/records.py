"""Dataclasses from what JSON holds, by the types of their fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, TypeVar

Record = TypeVar("Record")


def _whole(value: object) -> bool:
    return type(value) is int and value >= 0


_FORMS: dict[str, Callable[[Any], bool]] = {
    "str": lambda value: type(value) is str,
    "int": _whole,
    "tuple[int, ...]": lambda value: all(map(_whole, value)),
}


def read_record(kind: type[Record], values: Mapping[str, Any]) -> Record:
    """A dataclass of texts, of numbers from 0 on, and of tuples of such numbers; other fields are taken as they are.

    Raises:
        TypeError: a key is missing or unknown, or a value is not of its field's type.
    """
    named: Any = kind
    types = {field.name: field.type for field in fields(named)}
    lists = {name for name, form in types.items() if form == "tuple[int, ...]" and name in values}
    record = kind(**{**values, **{name: tuple(values[name]) for name in lists}})
    for name, form in types.items():
        if form in _FORMS and not _FORMS[form](getattr(record, name)):
            raise TypeError(f"{name} {getattr(record, name)!r}"[:120])
    return record
