"""Table of servers whose loading rules are known; read a folder as one of them."""

from __future__ import annotations

from pathlib import Path

import torch

from ...core.registry import ExtensionTable, resolve
from ...layouts.eagle1 import token_map
from ...layouts.fields import read_config
from ...layouts.gguf.layout import drafter_file, is_gguf, serving_form
from ...models.checkpoint import checkpoint_files, load_tensors
from ...vocab.subset.maps import read_fr_spec
from .types import Folder, Reader, Served, ServedTarget

# name -> "module:attr" of a types.Reader. To add a server, add a file and a row.
READERS = ExtensionTable(
    "vocabforge.servers",
    {
        "sglang": "vocabforge.export.servers.sglang:SGLANG",
        "vllm": "vocabforge.export.servers.vllm:VLLM",
        "llamacpp": "vocabforge.export.servers.llamacpp:LLAMACPP",
    },
)


def reader_of(name: str) -> Reader:
    """Return the reader of a name; raise UsageError if it is unknown."""
    reader: Reader = resolve(READERS, name, "server")
    return reader


def read_as(name: str, folder: Folder, target: ServedTarget) -> Served:
    """Read the folder as a server does; record an exception while reading as a problem of the folder."""
    reader = reader_of(name)
    try:
        return reader.read(folder, target)
    except Exception as error:  # noqa: BLE001 (a configuration may hold any value)
        served = Served(reader.name, reader.title, ", ".join(folder.architectures))
        message = f"cannot be read: {type(error).__name__}: {error}"
        served.fail("configuration", message[:300], "correct config.json, or export the drafter again")
        return served


def open_folder(path: Path) -> Folder:
    """Read a drafter's folder unmodified: configuration, tensors, token map."""
    if is_gguf(path):
        return Folder(path, *serving_form(drafter_file(path)))
    body = read_config(path)
    tensors = load_tensors(checkpoint_files(path, pickles=True))
    ids = token_map(path)
    return Folder(path, body, tensors, None if ids is None else torch.from_numpy(read_fr_spec(ids)))
