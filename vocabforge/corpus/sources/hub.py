"""Stream Hugging Face Hub data sets; their code is never run."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...core.errors import DataError
from ...core.files import sha256_file
from .arrow import RowReader
from .document import Document, ReadContext, Sampler
from .inputs import HubName, import_extra, known_field, parse_hub

_ROWS = 1024


def hub_shards(source: str) -> int:
    """Return the number of shards (usually files) of a data set's split.

    Raises:
        DataError: the data set is unreachable, or has no such configuration or split.
        VocabForgeError: datasets is not installed.
    """
    with _errors(source):
        return int(_stream(parse_hub(source)).num_shards)


def hub_documents(
    source: str, context: ReadContext, start: int = 0, stop: int | None = None
) -> Iterator[Document]:
    """Yield the documents in the rows of shards [start, stop), by default of all shards.

    Raises:
        DataError: see :func:`hub_shards`; also when the connection breaks.
    """
    name = parse_hub(source)
    if context.options.text_field is None:
        context = replace(context, options=replace(context.options, text_field=known_field(source)))
    sampler = Sampler(context.options, f"{Path(name.name).name}:{name.config or ''}:{name.split}", 0)
    with _errors(source):
        data = _stream(name).with_format("arrow")  # images and audio stay undecoded bytes
        number = int(data.num_shards)
        for index in range(start, number if stop is None else stop):
            before = 0
            rows: RowReader | None = None
            for table in data.shard(num_shards=number, index=index).iter(batch_size=_ROWS):
                table = _null_as_text(table)
                if rows is None or table.schema != rows.schema:
                    # The blocks of a JSON file may have different schemas.
                    rows = RowReader(table.schema, "data set", Path(source), context, sampler)
                yield from rows.documents(table, before, index)
                before += table.num_rows


def _null_as_text(table: Any) -> Any:
    """Give columns without any value in this block the type of text: other blocks may hold texts there."""
    import pyarrow as pa

    fields = [
        field.with_type(pa.string()) if pa.types.is_null(field.type) else field for field in table.schema
    ]
    return table.cast(pa.schema(fields, table.schema.metadata))


def hub_digest(source: str, start: int, stop: int | None) -> str:
    """Return the SHA-256 of name, shards and the revision of the files (for local files, their content)."""
    name = parse_hub(source)
    with _errors(source):
        number = int(_stream(name).num_shards)
        facts = [name.config, name.split, number, start, number if stop is None else stop, _files(name)]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


@functools.lru_cache(maxsize=8)
def _stream(name: HubName) -> Any:
    datasets = import_extra("datasets", "reading Hub data sets", f"hub:{name.name}")
    datasets.disable_progress_bars()
    return datasets.load_dataset(
        name.name, name.config, split=name.split, revision=name.revision, streaming=True
    )


@functools.lru_cache(maxsize=8)
def _files(name: HubName) -> list[Any]:
    datasets = import_extra("datasets", "reading Hub data sets", f"hub:{name.name}")
    builder = datasets.load_dataset_builder(name.name, name.config, revision=name.revision)
    files = (builder.config.data_files or {}).get(name.split)
    if files is None:
        return [builder.hash]
    facts: list[Any] = []
    for file, origin in zip(files, files.origin_metadata):
        local = Path(file)
        facts.append([local.name, sha256_file(local)] if local.is_file() else [str(file), list(origin)])
    return facts


@contextlib.contextmanager
def _errors(source: str) -> Iterator[None]:
    try:
        yield
    except _failures() as error:
        raise DataError(
            "the Hub data set cannot be read",
            got=f"{type(error).__name__}: {' '.join(str(error).split())[:300]}",
            source=source,
            remedy="check name, configuration, split and network; "
            "or pass a local copy: its Parquet or JSONL files, or hub:FOLDER",
        ) from error


def _failures() -> tuple[type[Exception], ...]:
    """Return the exceptions of ``datasets`` and of its HTTP libraries, if these are loaded."""
    named = (("datasets.exceptions", "DatasetsError"), ("aiohttp", "ClientError"), ("httpx", "HTTPError"))
    loaded = (getattr(sys.modules.get(module), name, OSError) for module, name in named)
    return (OSError, ValueError, KeyError, RuntimeError, EOFError, *loaded)
