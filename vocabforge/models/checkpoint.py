"""Strict loading of Hugging Face safetensors checkpoints, directly into a model's tensors."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..core.errors import DataError, MismatchError
from ..core.files import parse_json, read_json

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
EMBEDDING, FINAL_NORM, LM_HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"
_FLOATS = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
FLOATS = tuple(_FLOATS)
_HARMLESS = re.compile(r"rotary_emb\.inv_freq$")
_SHOWN = 5


@dataclass(frozen=True)
class StoredTensor:
    """File, name, shape and dtype of a stored tensor, from the file's header."""

    file: Path
    name: str
    shape: tuple[int, ...]
    dtype: str


def checkpoint_files(folder: Path) -> list[Path]:
    """Return the weight files of a model folder: the indexed files, else the single file, else every shard.

    Raises:
        DataError: the folder has no safetensors files, or a shard of the index is missing.
    """
    if (folder / INDEX).is_file():
        table = read_json(folder / INDEX, "checkpoint index")
        weights = table.get("weight_map") if isinstance(table, Mapping) else None
        if not isinstance(weights, Mapping) or not weights:
            raise DataError(
                "the checkpoint index has no weight_map",
                got=repr(table)[:80],
                expected='{"weight_map": {tensor name: file name}}',
                source=folder / INDEX,
                remedy="fetch the index again, or remove it to read every *.safetensors file in the folder",
            )
        # File names only, so that nothing outside the folder is read.
        files = [folder / name for name in sorted({Path(str(name)).name for name in weights.values()})]
        absent = [
            file.name[:80] for file in files if not os.path.isfile(file)
        ]  # isfile is also False for invalid names
        if absent:
            raise DataError(
                "shards of the checkpoint are missing",
                got=f"no {', '.join(absent[:_SHOWN])}",
                expected=f"{len(files)} files listed by {INDEX}",
                source=folder,
                remedy="fetch the missing files",
            )
        return files
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    files = sorted(file for file in folder.glob("*.safetensors") if file.is_file())  # skips pipes
    if files:
        return files
    others = sorted(file.name for pattern in ("*.bin", "*.pt", "*.pth") for file in folder.glob(pattern))
    raise DataError(
        "the model folder holds no safetensors weights",
        got=f"only {', '.join(others[:_SHOWN])}" if others else "no weight file",
        expected=f"{SINGLE}, or *.safetensors shards",
        source=folder,
        remedy="convert the checkpoint: load it where it was made and save_pretrained it as safetensors "
        "(pickles are not read, since they can run code)"
        if others
        else "check the path; only safetensors files are fetched from the Hub",
    )


def read_headers(files: list[Path]) -> dict[str, StoredTensor]:
    """Read the name, shape and dtype of every tensor from the headers, skipping rotary buffers.

    Raises:
        DataError: a truncated or invalid file, or a tensor stored twice.
    """
    stored: dict[str, StoredTensor] = {}
    for file in files:
        with _opened(file) as handle:
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


def check_headers(
    stored: Mapping[str, StoredTensor], wanted: Mapping[str, tuple[int, ...]], source: Path
) -> None:
    """Check the stored tensors against the configuration.

    Raises:
        MismatchError: missing, unexpected or wrong-shape tensors, all in one message.
        DataError: tensors that are not floating-point.
    """
    rows, vocabulary = stored.get(EMBEDDING), wanted.get(EMBEDDING)
    if rows and vocabulary and len(rows.shape) == 2 and rows.shape[0] != vocabulary[0]:
        raise MismatchError(
            "the embedding does not have vocab_size rows",
            got=f"{rows.shape[0]} rows in {EMBEDDING}",
            expected=f"vocab_size {vocabulary[0]}",
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
    problems = {
        "missing": [name for name in wanted if name not in stored],
        "unexpected": [name for name in stored if name not in wanted],
        "wrong shape": [
            f"{name} got {stored[name].shape} expected {shape}"
            for name, shape in wanted.items()
            if name in stored and stored[name].shape != shape
        ],
    }
    if any(problems.values()):
        raise MismatchError(
            "the checkpoint's tensors are not those of its configuration",
            got="; ".join(f"{kind}: {_listed(names)}" for kind, names in problems.items() if names),
            expected=f"{len(wanted)} tensors",
            source=source,
            remedy="if the model shares its LM head with the embedding, set tie_word_embeddings to true"
            if problems["missing"] == [LM_HEAD]
            else "use the config.json that was saved with these weights; fetch missing files again",
        )


def disagreements(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> list[str]:
    """List why ``found`` cannot be copied into ``wanted``: missing or unexpected names, different shapes."""
    problems = [f"missing {name}" for name in wanted if name not in found]
    problems += [f"unexpected {name}" for name in found if name not in wanted]
    problems += [
        f"{name} has shape {tuple(found[name].shape)}, expected {tuple(tensor.shape)}"
        for name, tensor in wanted.items()
        if name in found and found[name].shape != tensor.shape
    ]
    return problems


def fill(stored: Mapping[str, StoredTensor], destinations: Mapping[str, Sequence[Tensor]]) -> None:
    """Copy every stored tensor to its destinations, converting dtype and device, one tensor at a time."""
    for file in sorted({item.file for item in stored.values()}):
        with _opened(file) as handle:
            for name, item in stored.items():
                if item.file == file:
                    tensor = handle.get_tensor(item.name)
                    for destination in destinations[name]:
                        destination.copy_(tensor)


def torch_dtype(name: str) -> torch.dtype:
    """Return the torch dtype of a name in ``FLOATS``."""
    return _FLOATS[name]


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
def _opened(file: Path) -> Iterator[safe_open]:
    """Open a safetensors file, converting read errors into one clear error."""
    try:
        with safe_open(str(file), framework="pt", device="cpu") as handle:
            yield handle
    except (SafetensorError, OSError) as error:
        raise DataError(
            "a weight file cannot be read",
            got=error,
            expected="a whole safetensors file",
            source=file,
            remedy="the file may be truncated: fetch or make it again",
        ) from error


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
