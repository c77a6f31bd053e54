"""Stream Hugging Face Hub data sets; their code is never run."""

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
from .arrow import without_padding
from .document import Document, ReadContext, Sampler
from .inputs import HubName, import_extra, parse_hub
from .rows import CONVERSATION_KEYS, missing_column, row_document


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
    sampler = Sampler(context.options, f"{Path(name.name).name}:{name.config or ''}:{name.split}", 0)
    with _errors(source):
        data = _stream(name)
        number = int(data.num_shards)
        data, left = _with_text(data, source, context.options.text_field)
        features = data.features or {}
        for index in range(start, number if stop is None else stop):
            for line, row in enumerate(data.shard(num_shards=number, index=index), start=1):
                if not sampler.keeps(f"{index}:{line}"):
                    continue
                place = f"shard {index}, row {line}"
                row = {name: without_padding(value, features.get(name)) for name, value in row.items()}
                document = row_document(row, Path(source), place, context.options, context.problems)
                if document is not None:
                    if document.messages is not None:
                        context.problems.unread(left, Path(source), place)
                    yield document


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
    """Return data that identifies the content of each file of the split."""
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


def _with_text(data: Any, source: str, text_field: str | None) -> tuple[Any, dict[str, int]]:
    """Return the data set with only the needed columns, and the dropped columns as ``KEY in rows``.

    Dropping columns avoids decoding images and audio.
    """
    features = data.features
    if features is None:
        return data, {}
    if text_field is not None and text_field not in features:
        raise missing_column("data set", features, text_field, source)
    if text_field is not None and str(getattr(features[text_field], "dtype", "")).endswith("string"):
        return data.select_columns([text_field]), {}
    if not any(map(_holds_text, features.values())):
        raise missing_column("data set", features, text_field, source)
    light = [n for n, feature in features.items() if n in CONVERSATION_KEYS or not _is_heavy(feature)]
    return data.select_columns(light), {f"{name} in rows": 1 for name in features if name not in light}


def _is_heavy(feature: Any) -> bool:
    """Return whether a feature is an image, audio, bytes or lists of numbers."""
    if isinstance(feature, dict):
        return any(map(_is_heavy, feature.values())) and not _holds_text(feature)
    inner = (
        feature[0] if isinstance(feature, (list, tuple)) and feature else getattr(feature, "feature", None)
    )
    if inner is not None:
        return not _holds_text(inner)
    return type(feature).__name__ not in ("Value", "Json", "ClassLabel") or "binary" in str(feature.dtype)


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
            "or pass a local copy: its Parquet or JSONL files, or hub:FOLDER",
        ) from error


def _failures() -> tuple[type[Exception], ...]:
    """Return the exceptions of ``datasets`` and of its HTTP libraries, if these are loaded."""
    named = (("datasets.exceptions", "DatasetsError"), ("aiohttp", "ClientError"), ("httpx", "HTTPError"))
    loaded = (getattr(sys.modules.get(module), name, OSError) for module, name in named)
    return (OSError, ValueError, KeyError, RuntimeError, EOFError, *loaded)
