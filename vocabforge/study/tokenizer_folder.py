"""The given tokenizer, unpacked to a folder that every loader can read."""

from __future__ import annotations

from pathlib import Path

from ..core.errors import DataError
from ..core.files import atomic_write, sha256_file
from ..corpus.inputs import PACKED_SUFFIXES
from ..corpus.reading import ByteSpan

TOKENIZER = "tokenizer.json"
BESIDE = ("tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")


def tokenizer_hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of a tokenizer's files as they are stored, by role.

    Raises:
        DataError: there is no tokenizer.json, packed or not.
    """
    files = [_stored(folder), *(folder / name for name in BESIDE)]
    return {f"tokenizer {file.name}": sha256_file(file) for file in files if file.is_file()}


def unpack_tokenizer(source: Path, folder: Path) -> None:
    """Write a tokenizer's files to ``folder``: tokenizer.json unpacked, the others byte for byte; it comes last.

    Files that are the same there are left as they are; one of ``BESIDE`` that ``source`` lacks is removed.

    Raises:
        DataError: there is no tokenizer.json, or it is damaged.
        VocabForgeError: the disk refuses to be written to.
    """
    stored = _stored(source)
    content = b"".join(block for _, block in ByteSpan(stored).blocks())
    for name in BESIDE:
        if (source / name).is_file():
            _write(folder / name, (source / name).read_bytes())
        else:
            (folder / name).unlink(missing_ok=True)
    _write(folder / TOKENIZER, content)


def _stored(folder: Path) -> Path:
    """The file of the tokenizer, as it is or packed."""
    for suffix in ("", *PACKED_SUFFIXES):
        if (path := folder / f"{TOKENIZER}{suffix}").is_file():
            return path
    raise DataError(
        "the folder holds no tokenizer.json",
        expected=f"{folder / TOKENIZER}, or packed as {', '.join(PACKED_SUFFIXES)}",
        remedy="check data.root and data.tokenizer",
    )


def _write(path: Path, content: bytes) -> None:
    if not path.is_file() or path.read_bytes() != content:
        atomic_write(path, content)
