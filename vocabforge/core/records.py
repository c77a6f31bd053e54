"""Typed records from JSON, validated by pydantic: dataclasses and versioned models."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from .errors import DataError
from .files import read_json

Count = Annotated[int, Field(ge=0)]
Record = TypeVar("Record")


def read_record(kind: type[Record], values: Mapping[str, Any]) -> Record:
    """Build a pydantic dataclass of config :data:`~vocabforge.core.config.RECORD` from the values of a JSON object.

    Raises:
        ValueError: a key is missing or unknown, or a value has the wrong type.
    """
    return TypeAdapter(kind).validate_json(json.dumps(values))


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
    stored = content.get("schema_version") if isinstance(content, dict) else None
    if stored not in (version, *older):
        raise DataError(
            f"the {what} is of another version",
            got=f"schema_version {stored!r}",
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
