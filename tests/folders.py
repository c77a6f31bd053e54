"""Model and drafter folders with one thing changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor


def edit_folder(
    folder: Path,
    tensors: Callable[[dict[str, Tensor]], object] | None = None,
    config: Callable[[dict[str, Any]], object] | None = None,
    **fields: Any,
) -> Path:
    """Change ``model.safetensors`` by ``tensors``, ``config.json`` by ``config``, then set ``fields`` in it."""
    if tensors is not None:
        file = folder / "model.safetensors"
        stored = load_file(file)
        tensors(stored)
        save_file({name: one.contiguous() for name, one in stored.items()}, file, {"format": "pt"})
    if config is not None or fields:
        file = folder / "config.json"
        body = json.loads(file.read_text("utf-8"))
        if config is not None:
            config(body)
        file.write_text(json.dumps(body | fields), "utf-8")
    return folder
