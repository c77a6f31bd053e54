"""Parquet files: rows in small batches, so that a row group of any size is read in bounded memory."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...core.errors import DataError
from .bytes import unreadable
from .document import Document, ReadContext, Sampler
from .inputs import import_extra
from .rows import missing_column, row_document

_BATCH_BYTES = 4 << 20
_BATCH_ROWS = 1024
_READ_BYTES = 1 << 20


@dataclass(frozen=True)
class RowGroups:
    """Rows and stored bytes of each row group of a Parquet file; the last one's include the footer."""

    rows: list[int]
    stored: list[int]


def row_groups(path: Path) -> RowGroups:
    """Read the footer.

    Raises:
        DataError: the file is unreadable or damaged.
        VocabForgeError: pyarrow is not installed.
    """
    with opened_parquet(path) as file:
        facts = file.metadata
        groups = [facts.row_group(index) for index in range(facts.num_row_groups)]
        stored = [sum(g.column(i).total_compressed_size for i in range(g.num_columns)) for g in groups]
        if stored:
            stored[-1] += max(0, path.stat().st_size - sum(stored))
        return RowGroups([group.num_rows for group in groups], stored)


def parquet_documents(
    path: Path, context: ReadContext, start: int = 0, stop: int | None = None
) -> Iterator[Document]:
    """Documents of the rows of row groups [start, stop), numbered from 1 through the whole file.

    Only the column of ``text_field`` is read, or else the columns that hold any text.

    Raises:
        DataError: damaged, or without such a column.
    """
    footer = row_groups(path)
    sampler = Sampler.of_file(context.options, path)
    with opened_parquet(path) as file:
        columns = _columns(file, path, context.options.text_field)
        for group in range(start, len(footer.rows) if stop is None else stop):
            number = sum(footer.rows[:group])
            for batch in file.iter_batches(_batch_rows(file, group), [group], columns, use_threads=False):
                for row in _rows(batch):
                    number += 1
                    if not sampler.keeps(number):
                        continue
                    if row is None:
                        context.problems.add("the row is not valid UTF-8", path, number)
                        continue
                    document = row_document(row, path, number, context.options, context.problems)
                    if document is not None:
                        yield document
            if context.on_bytes is not None:
                context.on_bytes(footer.stored[group])


def groups_digest(path: Path, start: int, stop: int | None) -> str:
    """SHA-256 of the stored bytes of row groups [start, stop) and of the schema."""
    digest = hashlib.sha256()
    with opened_parquet(path) as file, open(path, "rb") as stored:
        facts = file.metadata
        digest.update(file.schema_arrow.to_string(show_schema_metadata=False).encode())
        for group in range(start, facts.num_row_groups if stop is None else stop):
            for index in range(facts.num_columns):
                chunk = facts.row_group(group).column(index)
                at = chunk.data_page_offset
                if chunk.has_dictionary_page and chunk.dictionary_page_offset:
                    at = min(at, chunk.dictionary_page_offset)
                stored.seek(at)
                left = chunk.total_compressed_size
                while left and (data := stored.read(min(left, _READ_BYTES))):
                    digest.update(data)
                    left -= len(data)
    return digest.hexdigest()


@contextlib.contextmanager
def opened_parquet(path: Path) -> Iterator[Any]:
    """A ``pyarrow.parquet.ParquetFile``; its errors, within the block as well, become DataError."""
    parquet = import_extra("pyarrow.parquet", "reading Parquet", path)
    arrow = import_extra("pyarrow", "reading Parquet", path)
    try:
        with parquet.ParquetFile(path, buffer_size=_READ_BYTES, pre_buffer=False) as file:
            yield file
    except arrow.ArrowException as error:
        raise damaged_parquet(path, error) from error
    except OSError as error:  # Arrow reports damaged pages so, without an error number
        raise (damaged_parquet(path, error) if error.errno is None else unreadable(path, error)) from error


def damaged_parquet(path: Path, error: Exception) -> DataError:
    """The error for a file that Arrow cannot read."""
    return DataError(
        "the Parquet file is damaged or not Parquet",
        got=" ".join(str(error).split())[:300],
        source=path,
        remedy="fetch or make it again",
    )


def _rows(batch: Any) -> list[dict[str, Any] | None]:
    """The rows, None for one whose text is not UTF-8 (Arrow does not check it when reading)."""
    try:
        return batch.to_pylist()
    except UnicodeDecodeError:
        if batch.num_rows == 1:
            return [None]
        return [row for index in range(batch.num_rows) for row in _rows(batch.slice(index, 1))]


def _batch_rows(file: Any, group: int) -> int:
    facts = file.metadata.row_group(group)
    mean = max(1, facts.total_byte_size // max(1, facts.num_rows))
    return max(1, min(_BATCH_ROWS, _BATCH_BYTES // mean))


def _columns(file: Any, path: Path, text_field: str | None) -> list[str]:
    schema = file.schema_arrow
    if text_field is not None:
        found = [text_field] if text_field in schema.names else []
    else:
        found = [field.name for field in schema if _holds_text(field.type)]
    if not found:
        raise missing_column("Parquet file", schema.names, text_field, path)
    return found


def _holds_text(kind: Any) -> bool:
    from pyarrow import types

    if types.is_struct(kind):
        return any(_holds_text(kind.field(index).type) for index in range(kind.num_fields))
    inner = kind.item_type if types.is_map(kind) else getattr(kind, "value_type", None)
    if inner is not None:  # lists of every kind, maps, dictionaries
        return _holds_text(inner)
    return types.is_string(kind) or types.is_large_string(kind) or str(kind) == "string_view"
