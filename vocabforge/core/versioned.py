"""JSON files that name the version of their schema: read whole, or refused with what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from .errors import DataError
from .files import read_json

ModelT = TypeVar("ModelT", bound=BaseModel)


def read_versioned(
    file: Path, model: type[ModelT], version: int, *, what: str, remedy: str, older: tuple[int, ...] = ()
) -> ModelT:
    """Read a JSON file whose ``schema_version`` says which schema it follows.

    Args:
        file: the file itself, not its folder.
        model: its schema; checked as other readers of JSON would, so a text where a number belongs is refused.
        version: the one that can be read.
        what: name of the file for messages.
        remedy: what to do with a file of another version.
        older: versions that the schema still reads.

    Raises:
        DataError: missing or broken file, another version, or a value that the schema does not allow (the first one
            by its place).
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
