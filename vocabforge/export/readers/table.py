"""The servers whose reading is known, and a folder read for them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from ...core.errors import DataError
from ...core.extension import resolve
from ...core.files import read_json
from ...models.checkpoint import checkpoint_files
from .types import Folder, Reader

# name -> "module:attr" of a class as in types.Reader; a new server is a file and a row.
READERS: dict[str, str] = {
    "sglang": "vocabforge.export.readers.sglang:Sglang",
    "vllm": "vocabforge.export.readers.vllm:Vllm",
    "speculators": "vocabforge.export.readers.speculators:Speculators",
    "fr-spec": "vocabforge.export.readers.fr_spec:FrSpec",
}
_MAP = "freq_*.pt"


def reader_of(name: str) -> type[Reader]:
    """The reader of a name.

    Raises:
        UsageError: no such server.
    """
    found: type[Reader] = resolve(READERS, name, "server")
    return found


def open_folder(path: Path) -> Folder:
    """Read a drafter's folder as it is: configuration, tensors, token map.

    Raises:
        DataError: no configuration, weights that cannot be read, or several token maps.
    """
    body = read_json(path / "config.json", "drafter's config.json")
    if not isinstance(body, Mapping):
        raise DataError("the drafter's config.json is no table", got=type(body).__name__, source=path)
    tensors: dict[str, Tensor] = {}
    for file in checkpoint_files(path):
        try:
            tensors |= load_file(file)
        except (OSError, SafetensorError) as error:
            raise DataError("the drafter's weights cannot be read", got=error, source=file) from error
    return Folder(path, body, tensors, _token_map(path))


def _token_map(path: Path) -> Tensor | None:
    files = sorted(path.glob(_MAP))
    if not files:
        return None
    if len(files) > 1:
        raise DataError(
            "several token maps lie beside the drafter",
            got=", ".join(file.name for file in files),
            expected="one",
            source=path,
            remedy="remove those of other drafters",
        )
    try:
        ids: Any = torch.load(files[0], weights_only=True)
        return torch.tensor(ids, dtype=torch.int64).flatten()
    except Exception as error:  # unpickling raises many types
        raise DataError(
            "the token map cannot be read",
            got=str(error).splitlines()[0][:120],
            expected="torch.save of a plain list of ids",
            source=files[0],
        ) from error
