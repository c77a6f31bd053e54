"""A folder as a few files of limited size, and back: what leaves a machine that is only had for minutes.

``DIR/pieces.json`` names files and their places in the stream that ``DIR/NN.piece`` hold together. Files of equal
content are stored once. Every file comes back bit for bit, but for checkpoints, which :func:`lighten` makes smaller.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import shutil
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from vocabforge.core.files import atomic_write_json  # noqa: E402

INDEX = "pieces.json"
STATE = ".pieces"  # in the folder: which writing of the pieces it comes from
_SAMPLE = 1 << 20
_FAST = 1  # preset of xz


class PiecesError(Exception):
    """Pieces that are damaged, or a folder that does not fit."""


def _planes(data: bytes) -> bytes:
    """Even and odd bytes apart: the exponents of bf16 weights lie together, and Huffman's code takes half of them."""
    packer = zlib.compressobj(1, zlib.DEFLATED, -15, 9, zlib.Z_HUFFMAN_ONLY)
    parts = [packer.compress(data[1::2]) + packer.flush(), data[0::2]]
    return len(parts[0]).to_bytes(8, "little") + b"".join(parts)


def _unplanes(packed: bytes) -> bytes:
    middle = 8 + int.from_bytes(packed[:8], "little")
    odd, even = zlib.decompress(packed[8:middle], -15), packed[middle:]
    found = bytearray(len(odd) + len(even))
    found[0::2], found[1::2] = even, odd
    return bytes(found)


# name -> packing and its inverse
CODECS: dict[str, tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]] = {
    "raw": (bytes, bytes),
    "planes": (_planes, _unplanes),
    "xz": (lambda data: lzma.compress(data, preset=_FAST), lzma.decompress),
}


def _codec(data: bytes) -> str:
    """The one that makes a sample from the middle smallest."""
    start = max(0, len(data) - _SAMPLE) // 2 & ~1
    sample = data[start : start + _SAMPLE]
    return min(CODECS, key=lambda name: len(CODECS[name][0](sample)))


def write_pieces(
    root: Path, files: Iterable[Path | tuple[Path, Path]], folder: Path, *, piece: int, limit: int
) -> dict[str, Any]:
    """Write files below ``root`` as pieces, the first ones first, as many as fit; replaces what ``folder`` held.

    Args:
        files: paths below ``root``, or pairs of such a path and one that holds the content to store.
        piece, limit: bytes of a piece and of all of them at most.

    Returns:
        what ``pieces.json`` holds: ``number`` (counts up with every writing of ``root``), ``files`` (path -> place in
        ``blobs``), ``blobs`` (``codec``, ``start``, ``bytes``, ``sha256`` of the content), ``bytes``, ``left`` (paths
        that did not fit).
    """
    stream, blobs, known = bytearray(), list[dict[str, Any]](), dict[str, int]()
    index: dict[str, Any] = {"number": number_of(root) + 1, "files": {}, "blobs": blobs, "left": []}
    for one in files:
        path, content = one if isinstance(one, tuple) else (one, one)
        data, name = content.read_bytes(), path.relative_to(root).as_posix()
        digest = hashlib.sha256(data).hexdigest()
        if digest not in known:
            codec = _codec(data)
            packed = CODECS[codec][0](data)
            if len(stream) + len(packed) > limit:
                index["left"].append(name)
                continue
            known[digest] = len(blobs)
            blobs.append({"codec": codec, "start": len(stream), "bytes": len(packed), "sha256": digest})
            stream += packed
        index["files"][name] = known[digest]
    index["bytes"] = len(stream)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".new-") as temporary:
        for number, start in enumerate(range(0, len(stream), piece)):
            (Path(temporary) / f"{number:02}.piece").write_bytes(stream[start : start + piece])
        for old in folder.glob("*.piece"):
            old.unlink()
        for new in sorted(Path(temporary).glob("*.piece")):
            new.rename(folder / new.name)
    atomic_write_json(folder / INDEX, index)
    (root / STATE).write_text(str(index["number"]))
    return index


def number_of(root: Path) -> int:
    """Which writing of the pieces a folder holds; 0: none."""
    place = root / STATE
    return int(place.read_text()) if place.is_file() else 0


def read_pieces(folder: Path, root: Path) -> bool:
    """Put the files of pieces below ``root``, in place of what is there, unless that is as new; whether it was done.

    Raises:
        PiecesError: a piece is missing or damaged; ``root`` is then left as it was.
    """
    if not (folder / INDEX).is_file():
        return False
    index = json.loads((folder / INDEX).read_text())
    if number_of(root) >= index["number"]:
        return False
    stream = b"".join(path.read_bytes() for path in sorted(folder.glob("*.piece")))
    root.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=root.parent, prefix=".pieces-"))
    try:
        for name, place in index["files"].items():
            blob = index["blobs"][place]
            try:
                data = CODECS[blob["codec"]][1](stream[blob["start"] : blob["start"] + blob["bytes"]])
            except (zlib.error, lzma.LZMAError, ValueError) as error:
                raise PiecesError(f"{folder}: {name} cannot be read: {error}") from error
            if hashlib.sha256(data).hexdigest() != blob["sha256"]:
                raise PiecesError(f"{folder}: {name} is damaged: a piece is missing, or of another writing")
            (temporary / name).parent.mkdir(parents=True, exist_ok=True)
            (temporary / name).write_bytes(data)
        (temporary / STATE).write_text(str(index["number"]))
        shutil.rmtree(root, ignore_errors=True)
        temporary.rename(root)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return True


def lighten(checkpoint: Path, folder: Path) -> Path:
    """A checkpoint of a training as one of a sixth of its size: weights in bf16, no state of the optimiser.

    A run that resumes from it starts AdamW's moments anew.
    """
    import torch
    from safetensors.torch import load_file, save_file

    from vocabforge.core.artifact import open_artifact, write_artifact
    from vocabforge.train.checkpoint import KIND

    found = open_artifact(checkpoint, KIND)
    weights = load_file(found.file("weights.safetensors"))
    output = folder / checkpoint.name
    with write_artifact(output, KIND, dict(found.meta)) as temporary:
        halves = {
            name: one.to(torch.bfloat16) if one.is_floating_point() else one for name, one in weights.items()
        }
        save_file(halves, temporary / "weights.safetensors")
        save_file({}, temporary / "optimizer.safetensors")
    return output
