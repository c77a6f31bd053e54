"""Strict loading of Hugging Face checkpoints, directly into a model's tensors.

Targets are read from safetensors only. A drafter's folder may also hold ``torch.save`` files, which are opened
with the weights-only unpickler.
"""

from __future__ import annotations

import os
import pickle
import re
import shutil
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..core.errors import DataError, MismatchError
from ..core.files import parse_json, read_json

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_SAFE = (INDEX, SINGLE, "*.safetensors")  # the first that is present is read
_PICKLES = ("pytorch_model.bin.index.json", "pytorch_model.bin", "pytorch_model-*.bin", "medusa_lm_head.pt")
EMBEDDING, FINAL_NORM, LM_HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"
_FLOATS = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
FLOATS = tuple(_FLOATS)
# dtypes of a drafter's tensors and token maps, under the names of safetensors
DTYPES = _FLOATS | {
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "BOOL": torch.bool,
    "U8": torch.uint8,
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_HARMLESS = re.compile(r"rotary_emb\.inv_freq$")
# What torch's weights-only unpickler says of a call that it refuses.
_CALL = re.compile(r"GLOBAL \S+|Can only (?:create|build) .*|Trying to call .*")
_SHOWN = 5


@dataclass(frozen=True)
class StoredTensor:
    """File, name, shape and dtype of a stored tensor, from the file's header."""

    file: Path
    name: str
    shape: tuple[int, ...]
    dtype: str


def checkpoint_files(folder: Path, *, pickles: bool = False) -> list[Path]:
    """Return the weight files of a model folder: the indexed files, else the single file, else every shard.

    Args:
        pickles: without safetensors, return ``pytorch_model.bin``, its shards, or ``medusa_lm_head.pt``.

    Raises:
        DataError: the folder has no weight files, or a shard of the index is missing.
    """
    for pattern in (*_SAFE, *(_PICKLES if pickles else ())):
        if files := sorted(file for file in folder.glob(pattern) if file.is_file()):  # skips pipes
            return _indexed(files[0]) if files[0].suffix == ".json" else files
    others = sorted(file.name for pattern in ("*.bin", "*.pt", "*.pth") for file in folder.glob(pattern))
    raise DataError(
        "the model folder holds no safetensors weights",
        got=f"only {', '.join(others[:_SHOWN])}" if others else "no weight file",
        expected=f"{SINGLE}, or *.safetensors shards" + (f"; {', '.join(_PICKLES[1:])}" if pickles else ""),
        source=folder,
        remedy="convert the checkpoint: load it where it was made and save_pretrained it as safetensors "
        "(a target's pickles are not read, since they can run code)"
        if others
        else "check the path; only safetensors files are fetched from the Hub",
    )


def _indexed(index: Path) -> list[Path]:
    """Return the files that an index lists, all of its own format."""
    table = read_json(index, "checkpoint index")
    weights = table.get("weight_map") if isinstance(table, Mapping) else None
    if not isinstance(weights, Mapping) or not weights:
        raise DataError(
            "the checkpoint index has no weight_map",
            got=repr(table)[:80],
            expected='{"weight_map": {tensor name: file name}}',
            source=index,
            remedy="fetch the index again, or remove it to read every shard in the folder",
        )
    # File names only, so that nothing outside the folder is read.
    files = [index.parent / name for name in sorted({Path(str(name)).name for name in weights.values()})]
    suffix = Path(index.name.removesuffix(".index.json")).suffix
    # isfile is also False for invalid names.
    absent = [file.name[:80] for file in files if file.suffix != suffix or not os.path.isfile(file)]
    if absent:
        raise DataError(
            "shards of the checkpoint are missing",
            got=f"no {', '.join(absent[:_SHOWN])}",
            expected=f"{len(files)} {suffix} files listed by {index.name}",
            source=index.parent,
            remedy="fetch the missing files",
        )
    return files


def read_headers(files: list[Path]) -> dict[str, StoredTensor]:
    """Read the name, shape and dtype of every tensor, skipping rotary buffers.

    Raises:
        DataError: a truncated or invalid file, or a tensor stored twice.
    """
    stored: dict[str, StoredTensor] = {}
    for file in files:
        with open_weights(file) as handle:
            for name in handle.keys():  # noqa: SIM118 (a safetensors handle is not a mapping)
                if _HARMLESS.search(name):
                    continue
                if name in stored:
                    raise DataError(
                        "a tensor is stored in two files of the checkpoint",
                        got=f"{name} in {stored[name].file.name} and {file.name}",
                        source=file.parent,
                        remedy="remove files that belong to another checkpoint",
                    )
                part = handle.get_slice(name)
                stored[name] = StoredTensor(file, name, tuple(part.get_shape()), part.get_dtype())
    return stored


def check_headers(stored: Mapping[str, StoredTensor], wanted: Mapping[str, Tensor], source: Path) -> None:
    """Check the stored tensors against the configuration.

    Raises:
        MismatchError: missing, unexpected or wrong-shape tensors, all in one message.
        DataError: tensors that are not floating-point.
    """
    rows, vocabulary = stored.get(EMBEDDING), len(wanted[EMBEDDING])
    if rows and len(rows.shape) == 2 and rows.shape[0] != vocabulary:
        raise MismatchError(
            "the embedding does not have vocab_size rows",
            got=f"{rows.shape[0]} rows in {EMBEDDING}",
            expected=f"vocab_size {vocabulary}",
            source=rows.file,
            remedy="correct vocab_size in config.json, or use the weights that belong to it",
        )
    packed = [f"{name} ({item.dtype})" for name, item in stored.items() if item.dtype not in FLOATS]
    if packed:
        raise DataError(
            "the checkpoint holds packed or quantised weights",
            got=_listed(packed),
            expected=", ".join(FLOATS),
            source=source,
            remedy="dequantise the checkpoint to floating point and save it again",
        )
    if problems := disagreements(stored, wanted):
        raise MismatchError(
            "the checkpoint's tensors are not those of its configuration",
            got="; ".join(_listed(kind) for kind in _disagreements(stored, wanted) if kind),
            expected=f"{len(wanted)} tensors",
            source=source,
            remedy="if the model shares its LM head with the embedding, set tie_word_embeddings to true"
            if problems == [f"missing {LM_HEAD}"]
            else "use the config.json that was saved with these weights; fetch missing files again",
        )


def disagreements(given: Mapping[str, Tensor | StoredTensor], wanted: Mapping[str, Tensor]) -> list[str]:
    """List why ``given`` cannot be copied into ``wanted``: missing or unexpected names, different shapes."""
    return [problem for kind in _disagreements(given, wanted) for problem in kind]


def _disagreements(
    given: Mapping[str, Tensor | StoredTensor], wanted: Mapping[str, Tensor]
) -> tuple[list[str], list[str], list[str]]:
    missing = [f"missing {name}" for name in wanted if name not in given]
    unexpected = [f"unexpected {name}" for name in given if name not in wanted]
    shapes = [
        f"{name} has shape {tuple(given[name].shape)}, expected {tuple(tensor.shape)}"
        for name, tensor in wanted.items()
        if name in given and given[name].shape != tensor.shape
    ]
    return missing, unexpected, shapes


def fill(stored: Mapping[str, StoredTensor], destinations: Mapping[str, Sequence[Tensor]]) -> None:
    """Copy every stored tensor to its destinations, converting dtype and device, one tensor at a time."""
    for file in sorted({item.file for item in stored.values()}):
        with open_weights(file) as handle:
            for name, item in stored.items():
                if item.file == file:
                    tensor = handle.get_tensor(item.name)
                    for destination in destinations[name]:
                        destination.copy_(tensor)


def load_stored(stored: Mapping[str, StoredTensor], dtype: torch.dtype | None = None) -> dict[str, Tensor]:
    """Load stored tensors by name, in ``dtype``; None keeps the stored dtypes."""
    tensors = {
        name: torch.empty(item.shape, dtype=dtype or DTYPES[item.dtype]) for name, item in stored.items()
    }
    fill(stored, {name: (tensor,) for name, tensor in tensors.items()})
    return tensors


def load_tensors(files: Sequence[Path]) -> dict[str, Tensor]:
    """Load every tensor of the files as it is stored; of two with one name the last, as servers do.

    Raises:
        DataError: a truncated or invalid file.
    """
    tensors: dict[str, Tensor] = {}
    for file in files:
        with open_weights(file) as handle:
            tensors |= {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118
    return tensors


def copy_with(file: Path, copy: Path, tensors: Mapping[str, Tensor]) -> None:
    """Copy a safetensors file, replacing the values of some floating-point tensors and no other byte.

    Args:
        tensors: new values by name, in the stored shapes; they are converted to the stored dtypes.
    """
    shutil.copyfile(file, copy)
    with copy.open("r+b") as handle:
        size = int.from_bytes(handle.read(8), "little")
        header = parse_json(handle.read(size))
        for name, tensor in tensors.items():
            item = header[name]
            start, stop = item["data_offsets"]
            data = tensor.detach().to("cpu", _FLOATS[item["dtype"]]).contiguous().view(torch.uint8).numpy()
            assert list(tensor.shape) == item["shape"], name
            assert data.nbytes == stop - start, name
            handle.seek(8 + size + start)
            handle.write(data.data)


@contextmanager
def open_weights(file: Path) -> Iterator[Any]:
    """Open a weight file as a safetensors handle, converting read errors into one clear error."""
    try:
        if file.suffix in (".bin", ".pt"):
            yield _unpickled(file)
        else:
            with safe_open(str(file), framework="pt", device="cpu") as handle:
                yield handle
    except (SafetensorError, OSError) as error:
        raise _unreadable(error, "a whole safetensors file", file) from error


class _PickledFile(dict[str, Tensor]):
    """The tensors of a ``torch.save`` file, with the methods of a safetensors handle."""

    get_tensor = dict.__getitem__

    def get_slice(self, name: str) -> Any:
        dtype, shape = self[name].dtype, self[name].shape
        return SimpleNamespace(get_shape=lambda: shape, get_dtype=lambda: _NAMES.get(dtype, str(dtype)))


def _unpickled(file: Path) -> _PickledFile:
    """Load a table of tensors; archives are memory-mapped, older files are read as a whole."""
    try:
        table = torch.load(file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file))
    except Exception as error:  # damaged files raise many types
        unpickling = isinstance(error, pickle.UnpicklingError)  # its text advises to load the file anyway
        if unpickling and (call := _CALL.search(str(error))) is not None:
            raise DataError(
                "a weight file holds more than tensors, and could run code if it were opened",
                got=call[0],
                expected="torch.save of a table of tensors (a state_dict)",
                source=file,
                remedy="do not trust it; ask its author for model.safetensors",
            ) from error
        reason = type(error).__name__ if unpickling else f"{type(error).__name__}: {error}".partition("\n")[0]
        raise _unreadable(reason, "a whole torch.save file", file) from error
    if not isinstance(table, Mapping):
        odd = [type(table).__name__]
    else:
        odd = [f"{name}: {type(item).__name__}" for name, item in table.items() if not _is_plain(name, item)]
    if odd or not table:
        raise DataError(
            "a weight file is not a table of tensors",
            got=_listed(odd) if odd else "no tensor",
            expected="tensor name -> tensor (a state_dict)",
            source=file,
            remedy="load it where it was made, and save the state_dict alone",
        )
    return _PickledFile({name: tensor.detach() for name, tensor in table.items()})


def _is_plain(name: object, item: object) -> bool:
    """Return whether an entry is a named tensor whose values are all stored: a view can claim any size."""
    return (
        isinstance(name, str)
        and isinstance(item, Tensor)
        and type(item) in (Tensor, torch.nn.Parameter)
        and item.layout == torch.strided
        and item.device.type == "cpu"
        and not item.is_quantized
        and item.nbytes <= item.untyped_storage().nbytes()
    )


def _unreadable(got: object, expected: str, file: Path) -> DataError:
    return DataError(
        "a weight file cannot be read",
        got=got,
        expected=expected,
        source=file,
        remedy="the file may be truncated: fetch or make it again",
    )


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
