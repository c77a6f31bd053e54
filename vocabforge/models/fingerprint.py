"""A target's fingerprint: cheap to take, equal for copies of a model however they are sharded."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from ..core.errors import DataError
from .target import read_target_config

_ROWS = 64
_FIELDS = ("architectures", "hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")


def target_fingerprint(path: Path) -> str:
    """Hash of the sizes and of the first rows of the embedding and of every layer's MLP output matrix.

    Rows are hashed in fp32, so an exact change of dtype keeps the fingerprint.

    Raises:
        DataError: no readable safetensors file.
    """
    config = read_target_config(path)
    digest = hashlib.sha256(repr([config.get(key) for key in _FIELDS]).encode())
    rows: dict[str, bytes] = {}
    for file in sorted(path.glob("*.safetensors")):
        try:
            with safe_open(file, framework="pt") as handle:
                for name in handle.keys():  # noqa: SIM118 (not a mapping)
                    if name.endswith(("embed_tokens.weight", "mlp.down_proj.weight")):
                        part = handle.get_slice(name)[:_ROWS]
                        rows[name] = part.to(torch.float32).contiguous().numpy().tobytes()
        except (SafetensorError, OSError) as error:
            raise DataError(
                "a weight file of the target cannot be read",
                got=error,
                source=file,
                remedy="the file may be truncated; fetch it again",
            ) from error
    if not rows:
        raise DataError(
            "there are no weights here",
            got=f"{path} without safetensors that hold an embedding",
            expected="model.safetensors or its shards",
            remedy="convert a pickle checkpoint with save_pretrained(safe_serialization=True)",
        )
    for name in sorted(rows):
        digest.update(name.encode())
        digest.update(rows[name])
    return digest.hexdigest()
