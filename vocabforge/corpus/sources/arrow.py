"""Convert Arrow values back to the JSON that they were made from.

A struct column has one type for all rows, so keys that a row lacks become null. This padding is removed.
Original nulls are kept if the type identifies them: in JSON columns (``arrow.json``, Hugging Face's
``Json``), and in fields that are null in every row.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..chat.conversation import CONVERSATION_KEYS
from .document import Document, ReadContext, Sampler
from .rows import missing_column, row_document

Convert = Callable[[Any], Any]
_JSON = "arrow.json"
_LIST_TYPES = ("is_list", "is_large_list", "is_fixed_size_list", "is_list_view", "is_large_list_view")


def choose_columns(schema: Any, text_field: str | None, what: str, source: object) -> list[str]:
    """Return the columns to read: only ``text_field`` if it is plain text, else all but heavy columns.

    Heavy columns hold bytes or lists of numbers.

    Raises:
        DataError: no such column, or no column with text.
    """
    if text_field is not None and text_field not in schema.names:
        raise missing_column(what, schema.names, text_field, source)
    if text_field is not None and is_text(schema.field(text_field).type):
        return [text_field]
    if not any(holds_text(field.type) or is_json(field) for field in schema):
        raise missing_column(what, schema.names, text_field, source)
    return [field.name for field in schema if field.name in CONVERSATION_KEYS or not _is_heavy(field.type)]


class RowReader:
    """Reader of documents from the record batches of a table; ``what`` names its kind in messages.

    Attributes:
        columns: columns that are read, see :func:`choose_columns`.
    """

    def __init__(
        self, schema: Any, what: str, source: Path, context: ReadContext, sampler: Sampler | None = None
    ) -> None:
        self.schema = schema
        self.columns = choose_columns(schema, context.options.text_field, what, source)
        converters = {name: converter(schema.field(name)) for name in self.columns}
        self._convert = {name: convert for name, convert in converters.items() if convert is not None}
        self._unread = {f"{name} in rows": 1 for name in schema.names if name not in self.columns}
        self._source, self._context = source, context
        self._sampler = sampler or Sampler.of_file(context.options, source)

    def documents(self, batch: Any, before: int, shard: int | None = None) -> Iterator[Document]:
        """Yield the documents of a batch; ``before`` is the number of rows before it, in its shard if any."""
        problems = self._context.problems
        for number, row in enumerate(_rows(batch.select(self.columns)), start=before + 1):
            place = number if shard is None else f"shard {shard}, row {number}"
            if not self._sampler.keeps(number if shard is None else f"{shard}:{number}"):
                continue
            if row is None:
                problems.add("the row is not valid UTF-8", self._source, place)
                continue
            try:
                for name, convert in self._convert.items():
                    row[name] = convert(row[name])
            except (ValueError, RecursionError) as error:
                problems.add("a value of JSON type is not valid JSON", self._source, place, error)
                continue
            document = row_document(row, self._source, place, self._context.options, problems)
            if document is not None:
                if document.messages is not None:
                    problems.unread(self._unread, self._source, place)
                yield document


def _rows(batch: Any) -> list[dict[str, Any] | None]:
    """Return the rows, None for a row whose text is not UTF-8 (Arrow does not validate it when reading)."""
    try:
        return batch.to_pylist()
    except UnicodeDecodeError:
        if batch.num_rows == 1:
            return [None]
        return [row for index in range(batch.num_rows) for row in _rows(batch.slice(index, 1))]


def is_text(kind: Any) -> bool:
    """Return whether a column type is plain text."""
    from pyarrow import types

    inner = kind.value_type if types.is_dictionary(kind) else kind
    return types.is_string(inner) or types.is_large_string(inner) or str(inner) == "string_view"


def is_json(field: Any) -> bool:
    """Return whether a field is JSON text as an extension type, even if pyarrow does not support the type."""
    if getattr(field.type, "extension_name", None) == _JSON:
        return True
    metadata = field.metadata or {}
    return metadata.get(b"ARROW:extension:name") == _JSON.encode()


def _children(kind: Any) -> list[Any]:
    from pyarrow import types

    if types.is_struct(kind):
        return [kind.field(index) for index in range(kind.num_fields)]
    if types.is_map(kind):
        return [kind.item_field]
    return [kind.value_field] if _is_list(kind) else []


def _is_list(kind: Any) -> bool:
    from pyarrow import types

    return any(getattr(types, name)(kind) for name in _LIST_TYPES if hasattr(types, name))


def holds_text(kind: Any) -> bool:
    """Return whether a type contains text or JSON at any level."""
    from pyarrow import types

    if is_text(kind) or getattr(kind, "extension_name", None) == _JSON:
        return True
    if types.is_struct(kind) and {"bytes", "path"} <= {field.name for field in kind}:
        return False  # the form of images and audio in Hugging Face's tables
    return any(is_json(field) or holds_text(field.type) for field in _children(kind))


def _is_heavy(kind: Any) -> bool:
    """Return whether a type is bytes or lists of numbers, such as images, audio, embeddings, token ids."""
    from pyarrow import types

    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return True
    if _is_list(kind) and types.is_primitive(kind.value_type):
        return True
    return any(_is_heavy(field.type) for field in _children(kind)) and not holds_text(kind)


def converter(field: Any) -> Convert | None:
    """Return a function that restores a column's original values, or None if no conversion is needed."""
    from pyarrow import types

    kind = field.type
    if is_json(field):
        return _parsed
    if types.is_struct(kind):
        inner = {child.name: converter(child) for child in _children(kind)}
        padded = {child.name for child in _children(kind) if not types.is_null(child.type)}
        return lambda value: value if value is None else _unpadded(value, inner, padded)
    if types.is_map(kind):
        item = converter(kind.item_field)
        return lambda value: (
            value
            if value is None
            else {key: item(entry) if item else entry for key, entry in dict(value).items()}
        )
    if _is_list(kind) and (item := converter(kind.value_field)) is not None:
        return lambda value: value if value is None else [item(entry) for entry in value]
    return None


def _parsed(value: Any) -> Any:
    return json.loads(value) if isinstance(value, (str, bytes)) else value


def _unpadded(value: Mapping[str, Any], inner: Mapping[str, Convert | None], padded: set[str]) -> Any:
    kept = {name: item for name, item in value.items() if item is not None or name not in padded}
    return {name: convert(item) if (convert := inner.get(name)) else item for name, item in kept.items()}
