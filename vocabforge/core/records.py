"""Typed records from JSON: dataclasses and versioned pydantic models."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from .errors import DataError
from .files import read_json

Record = TypeVar("Record")


def _whole(value: object) -> bool:
    return type(value) is int and value >= 0


_FORMS: dict[str, Callable[[Any], bool]] = {
    "str": lambda value: type(value) is str,
    "int": _whole,
    "tuple[int, ...]": lambda value: all(map(_whole, value)),
}


def read_record(kind: type[Record], values: Mapping[str, Any]) -> Record:
    """Build a dataclass from a mapping, checking fields of type str, int (>= 0) and tuple of such ints.

    Fields of other types are not checked.

    Raises:
        TypeError: a key is missing or unknown, or a value has the wrong type.
    """
    named: Any = kind
    types = {field.name: field.type for field in fields(named)}
    lists = {name for name, form in types.items() if form == "tuple[int, ...]" and name in values}
    record = kind(**{**values, **{name: tuple(values[name]) for name in lists}})
    for name, form in types.items():
        if form in _FORMS and not _FORMS[form](getattr(record, name)):
            raise TypeError(f"{name} {getattr(record, name)!r}"[:120])
    return record


ModelT = TypeVar("ModelT", bound=BaseModel)


def read_versioned(
    file: Path, model: type[ModelT], version: int, *, what: str, remedy: str, older: tuple[int, ...] = ()
) -> ModelT:
    """Read a JSON file with a ``schema_version``.

    Args:
        file: path of the file, not of its folder.
        model: schema, validated in strict mode: a string is not accepted as a number.
        version: current version of the schema.
        older: older versions that the schema can still read.

    Raises:
        DataError: the file is missing or damaged, has another version, or has an invalid value (the first
            one is reported with its path).
    """
    content = read_json(file, what)
    found = content.get("schema_version") if isinstance(content, dict) else None
    if found not in (version, *older):
        raise DataError(
            f"the {what} is of another version",
            got=f"schema_version {found!r}",
            expected=version,
            source=file,
            remedy=remedy,
        )
    try:
        return model.model_validate_json(json.dumps(content), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        raise DataError(
            f"the {what} does not fit its schema",
            got=f"{'.'.join(map(str, first['loc']))}: {first['msg']}",
            expected=f"what schema_version {version} allows",
            source=file,
            remedy=remedy,
        ) from error
