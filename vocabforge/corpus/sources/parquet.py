"""Parquet files, read in small batches so that memory is bounded for row groups of any size."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...core.errors import DataError
from .arrow import RowReader, choose_columns
from .bytes import unreadable
from .document import Document, ReadContext
from .inputs import import_extra

_BATCH_BYTES = 4 << 20
_BATCH_ROWS = 1024
_READ_BYTES = 1 << 20


@dataclass(frozen=True)
class RowGroups:
    """Rows and stored bytes of each row group of a Parquet file; the last group includes the footer."""

    rows: list[int]
    stored: list[int]


def row_groups(path: Path) -> RowGroups:
    """Read the sizes of row groups from the footer.

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
    """Yield the documents of row groups [start, stop); rows are numbered from 1 through the whole file.

    Only the columns of :func:`~vocabforge.corpus.sources.arrow.choose_columns` are read.

    Raises:
        DataError: the file is damaged, or has no such column.
    """
    footer = row_groups(path)
    with opened_parquet(path) as file:
        columns = choose_columns(file.schema_arrow, context.options.text_field, "Parquet file", path)
        rows = RowReader(file.schema_arrow, columns, path, context)
        for group in range(start, len(footer.rows) if stop is None else stop):
            number = sum(footer.rows[:group])
            for batch in file.iter_batches(_batch_rows(file, group), [group], columns, use_threads=False):
                yield from rows.documents(batch, number)
                number += batch.num_rows
            if context.on_bytes is not None:
                context.on_bytes(footer.stored[group])


def groups_digest(path: Path, start: int, stop: int | None) -> str:
    """Return the SHA-256 of the schema and of the stored bytes of row groups [start, stop)."""
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
    """Open a ``pyarrow.parquet.ParquetFile``; its errors, also within the block, become DataError."""
    parquet = import_extra("pyarrow.parquet", "reading Parquet", path)
    arrow = import_extra("pyarrow", "reading Parquet", path)
    try:
        with parquet.ParquetFile(path, buffer_size=_READ_BYTES, pre_buffer=False) as file:
            yield file
    except arrow.ArrowException as error:
        raise damaged_parquet(path, error) from error
    except OSError as error:  # Arrow reports damaged pages as an OSError without errno
        raise (damaged_parquet(path, error) if error.errno is None else unreadable(path, error)) from error


def damaged_parquet(path: Path, error: Exception) -> DataError:
    """Return the error for a file that Arrow cannot read."""
    return DataError(
        "the Parquet file is damaged or not Parquet",
        got=" ".join(str(error).split())[:300],
        source=path,
        remedy="fetch or make it again",
    )


def _batch_rows(file: Any, group: int) -> int:
    facts = file.metadata.row_group(group)
    mean = max(1, facts.total_byte_size // max(1, facts.num_rows))
    return max(1, min(_BATCH_ROWS, _BATCH_BYTES // mean))
