"""Data sets of the Hugging Face Hub, streamed; their code is never run."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...core.errors import DataError
from ...core.files import sha256_file
from .document import Document, ReadContext, Sampler
from .inputs import HubName, import_extra, parse_hub
from .rows import missing_column, row_document


def hub_shards(source: str) -> int:
    """Number of shards of a data set's split (mostly: its files).

    Raises:
        DataError: it cannot be reached, or has no such configuration or split.
        VocabForgeError: datasets is not installed.
    """
    with _errors(source):
        return int(_stream(parse_hub(source)).num_shards)


def hub_documents(
    source: str, context: ReadContext, start: int = 0, stop: int | None = None
) -> Iterator[Document]:
    """Documents of the rows of shards [start, stop), by default of all.

    Raises:
        DataError: see :func:`hub_shards`; also when the connection breaks.
    """
    name = parse_hub(source)
    sampler = Sampler(context.options, f"{Path(name.name).name}:{name.config or ''}:{name.split}", 0)
    with _errors(source):
        data = _stream(name)
        number = int(data.num_shards)
        data = _with_text(data, source, context.options.text_field)
        for index in range(start, number if stop is None else stop):
            for line, row in enumerate(data.shard(num_shards=number, index=index), start=1):
                if not sampler.keeps(f"{index}:{line}"):
                    continue
                place = f"shard {index}, row {line}"
                document = row_document(row, Path(source), place, context.options, context.problems)
                if document is not None:
                    yield document


def hub_digest(source: str, start: int, stop: int | None) -> str:
    """SHA-256 over name, shard and the revision of the data set's files (of local files, their content)."""
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
    """For each data file of the split: what pins its content."""
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


def _with_text(data: Any, source: str, text_field: str | None) -> Any:
    """The data set with only the columns that can be needed: no image or sound is decoded."""
    features = data.features
    if features is None:
        return data
    if text_field is not None:
        found = [text_field] if text_field in features else []
    else:
        found = [name for name, feature in features.items() if _holds_text(feature)]
    if not found:
        raise missing_column("data set", features, text_field, source)
    return data.select_columns(found)


def _holds_text(feature: Any) -> bool:
    if isinstance(feature, dict):
        return any(map(_holds_text, feature.values()))
    if isinstance(feature, (list, tuple)):
        return any(map(_holds_text, feature))
    if (inner := getattr(feature, "feature", None)) is not None:
        return _holds_text(inner)
    return "string" in str(getattr(feature, "dtype", "")) or type(feature).__name__ == "Json"


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
            "or give a local copy: its Parquet or JSONL files, or hub:FOLDER",
        ) from error


def _failures() -> tuple[type[Exception], ...]:
    """Exceptions of ``datasets`` and of the libraries that fetch for it, where these are loaded."""
    named = (("datasets.exceptions", "DatasetsError"), ("aiohttp", "ClientError"), ("httpx", "HTTPError"))
    loaded = (getattr(sys.modules.get(module), name, OSError) for module, name in named)
    return (OSError, ValueError, KeyError, RuntimeError, EOFError, *loaded)
