"""One tensor a safetensors file: written row by row without knowing how many come, read as a memory map."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..core.errors import ArtifactError

# The header is written last, so its place is kept free; safetensors lets a header end in spaces.
_HEADER_BYTES = 256
_NAMES: dict[np.dtype[Any], str] = {
    np.dtype(np.int32): "I32",
    np.dtype(np.int16): "I16",
    np.dtype(np.bool_): "BOOL",
}
_TYPES: dict[str, np.dtype[Any]] = {name: kind for kind, name in _NAMES.items()}


class TensorStream:
    """Writes a tensor (N, *row) of which N is known at the end.

    Args:
        path: new safetensors file.
        name: the tensor's name in it.
        dtype: int32, int16 or bool.
        row: shape of a row.
    """

    def __init__(self, path: Path, name: str, dtype: npt.DTypeLike, row: tuple[int, ...]) -> None:
        self._name, self._dtype, self._row = name, np.dtype(dtype), row
        self._rows = 0
        self._file = open(path, "wb")  # noqa: SIM115 (closed by close)
        self._file.write(b" " * _HEADER_BYTES)

    def write(self, row: npt.NDArray[Any]) -> None:
        """Append one row."""
        self._file.write(np.ascontiguousarray(row, dtype=self._dtype).tobytes())
        self._rows += 1

    def close(self) -> None:
        """Write the header and close the file."""
        shape = [self._rows, *self._row]
        size = math.prod(shape) * self._dtype.itemsize
        entry = {"dtype": _NAMES[self._dtype], "shape": shape, "data_offsets": [0, size]}
        text = json.dumps({self._name: entry}, separators=(",", ":")).encode()
        self._file.seek(0)
        self._file.write((_HEADER_BYTES - 8).to_bytes(8, "little") + text.ljust(_HEADER_BYTES - 8))
        self._file.close()

    def abort(self) -> None:
        """Close the file as it is."""
        self._file.close()


def map_tensor(path: Path, name: str) -> npt.NDArray[Any]:
    """The only tensor of a safetensors file, read from the disk as it is used.

    Raises:
        ArtifactError: the file is not what :class:`TensorStream` writes.
    """
    try:
        with open(path, "rb") as handle:
            size = int.from_bytes(handle.read(8), "little")
            header = json.loads(handle.read(min(size, 1 << 16)))
        entry = header[name]
        dtype: np.dtype[Any] = _TYPES[entry["dtype"]]
        shape = tuple(int(number) for number in entry["shape"])
        stored = path.stat().st_size - 8 - size
        if min(shape) < 0 or math.prod(shape) * dtype.itemsize != stored:
            raise ValueError(f"{stored} bytes of values for {shape} of {dtype}")
        return np.memmap(path, dtype=dtype, mode="r", offset=8 + size, shape=shape)
    except (KeyError, TypeError, ValueError) as error:  # ValueError: no JSON, or shorter than it says
        raise ArtifactError(
            "this is not a file of prepared rows",
            got=f"{type(error).__name__}: {error}",
            source=path,
            remedy="run prepare-data again",
        ) from error
