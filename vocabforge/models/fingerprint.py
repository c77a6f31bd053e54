"""A target's fingerprint: cheap to take, equal for copies of a model however they are sharded."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from ..core.errors import DataError
from .checkpoint import EMBEDDING, LM_HEAD, checkpoint_files
from .target import read_target_config

_ROWS = 4
_FIELDS = ("architectures", "hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")


def target_fingerprint(path: Path) -> str:
    """Hash of the sizes and of the first rows of every weight.

    Every weight, because fine-tuning may touch few of them (adapters merged into the attention alone). Rows
    are hashed in fp32, so an exact change of dtype keeps the fingerprint; so does a stored copy of a tied LM
    head.

    Raises:
        DataError: no readable safetensors file.
    """
    config = read_target_config(path)
    digest = hashlib.sha256(repr([config.get(key) for key in _FIELDS]).encode())
    rows: dict[str, bytes] = {}
    for file in checkpoint_files(path):
        try:
            with safe_open(file, framework="pt") as handle:
                for name in handle.keys():  # noqa: SIM118 (not a mapping)
                    part = handle.get_slice(name)
                    if name.endswith(".weight") and part.get_shape():
                        rows[name] = part[:_ROWS].to(torch.float32).contiguous().numpy().tobytes()
        except (SafetensorError, OSError) as error:
            raise DataError(
                "a weight file of the target cannot be read",
                got=error,
                source=file,
                remedy="the file may be truncated; fetch it again",
            ) from error
    if rows.get(LM_HEAD) == rows.get(EMBEDDING):
        rows.pop(LM_HEAD, None)
    if not rows:
        raise DataError("there are no weights here", got=f"no tensor named *.weight in {path}")
    for name in sorted(rows):
        digest.update(name.encode())
        digest.update(rows[name])
    return digest.hexdigest()
