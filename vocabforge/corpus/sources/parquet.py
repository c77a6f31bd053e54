"""Parquet and Arrow files, read in small batches so that memory is bounded for row groups of any size."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...core.errors import DataError
from .arrow import RowReader
from .bytes import unreadable
from .document import Document, ReadContext
from .inputs import import_extra
from .remote import open_bytes

_BATCH_BYTES = 4 << 20
_BATCH_ROWS = 1024
_READ_BYTES = 1 << 20


def row_groups(path: Path) -> list[tuple[int, int]]:
    """Read rows and stored bytes of each row group from the footer; the last group includes the footer.

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
        return [(group.num_rows, size) for group, size in zip(groups, stored)]


def parquet_documents(
    path: Path, context: ReadContext, start: int = 0, stop: int | None = None
) -> Iterator[Document]:
    """Yield the documents of row groups [start, stop); rows are numbered from 1 through the whole file.

    Only the columns of :func:`~vocabforge.corpus.sources.arrow.choose_columns` are read.

    Raises:
        DataError: the file is damaged, or has no such column.
    """
    groups = row_groups(path)
    with opened_parquet(path) as file:
        rows = RowReader(file.schema_arrow, "Parquet file", path, context)
        for group in range(start, len(groups) if stop is None else stop):
            number = sum(count for count, _ in groups[:group])
            for batch in file.iter_batches(
                _batch_rows(file, group), [group], rows.columns, use_threads=False
            ):
                yield from rows.documents(batch, number)
                number += batch.num_rows
            if context.on_bytes is not None:
                context.on_bytes(groups[group][1])


def groups_digest(path: Path, start: int, stop: int | None) -> str:
    """Return the SHA-256 of the schema and of the stored bytes of row groups [start, stop)."""
    digest = hashlib.sha256()
    with opened_parquet(path) as file, open_bytes(path) as stored:
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
    with _errors(path, "Parquet"), open_bytes(path) as stored:
        yield parquet.ParquetFile(stored, buffer_size=_READ_BYTES, pre_buffer=False)


def arrow_documents(path: Path, context: ReadContext) -> Iterator[Document]:
    """Yield the documents of an Arrow IPC file or stream, as written by ``save_to_disk`` of ``datasets``.

    Raises:
        DataError: the file is damaged, or has no column of text.
    """
    ipc = import_extra("pyarrow.ipc", "reading Arrow files", path)
    number = 0
    with _errors(path, "Arrow"), open_bytes(path) as stored:
        is_file = stored.read(6) == b"ARROW1"
        stored.seek(0)
        reader = ipc.open_file(stored) if is_file else ipc.open_stream(stored)
        rows = RowReader(reader.schema, "Arrow file", path, context)
        for batch in map(reader.get_batch, range(reader.num_record_batches)) if is_file else reader:
            for start in range(0, batch.num_rows, _BATCH_ROWS):
                yield from rows.documents(batch.slice(start, _BATCH_ROWS), number + start)
            number += batch.num_rows
    if context.on_bytes is not None:
        context.on_bytes(path.stat().st_size)


@contextlib.contextmanager
def _errors(path: Path, what: str) -> Iterator[None]:
    arrow = import_extra("pyarrow", f"reading {what}", path)
    try:
        yield
    except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:  # the last: names of columns
        if isinstance(error, OSError) and error.errno is not None:
            raise unreadable(path, error) from error
        raise damaged_table(path, error, what) from error  # Arrow raises OSError without errno for damage


def damaged_table(path: Path, error: Exception, what: str = "Parquet") -> DataError:
    """Return the error for a file that Arrow cannot read."""
    return DataError(
        f"the {what} file is damaged or not {what}",
        got=" ".join(str(error).split())[:300],
        source=path,
        remedy="fetch or make it again",
    )


def _batch_rows(file: Any, group: int) -> int:
    facts = file.metadata.row_group(group)
    mean = max(1, facts.total_byte_size // max(1, facts.num_rows))
    return max(1, min(_BATCH_ROWS, _BATCH_BYTES // mean))
