"""What is captured, where it is written, and this process's share of the work."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from ...core.config import Positive, StrictModel, option


class CaptureRequest(StrictModel):
    """The recipe, the cache, and this process's share of the work."""

    config: Path = option(
        ..., "The recipe of the training run: a YAML file or a name of `vocabforge recipes`.", short="-c"
    )
    output: Path | None = option(None, "The cache [default: the recipe's capture.cache].", "DIR", short="-o")
    store_dtype: Literal["target", "float32", "bfloat16", "float16"] = option(
        "target", "Dtype of the stored states; `target` keeps the target's."
    )
    shard_mb: Positive = option(256, "File size, MB.")
    part: str | None = option(None, "Process part I of N. The last part to finish merges them.", "I/N")
    server: str | None = option(
        None, "Request the states from a vLLM server [default: the recipe's capture.server.url].", "URL"
    )
    server_folder: Path | None = option(None, "Folder that the server writes its states to.", "DIR")
    buffer_gb: float | None = option(None, "Maximum size of unread states in that folder [default: 8].", "GB")
    api_key_env: str | None = option(None, "Environment variable with the server's API key.", "VARIABLE")
    yes: bool = option(False, "Do not ask for confirmation before writing.", short="-y")
    overrides: tuple[str, ...] = option(
        (), "Override configuration keys, as for train-drafter.", "KEY.SUB=VALUE", positional=True
    )
