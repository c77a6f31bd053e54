"""Section ``capture`` of a training configuration, and the options of the command ``capture``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from ...core.config import RAY, Positive, StrictModel, option

STATES_PROTOCOL = "VocabForge-states/1"
"""Name and version of the HTTP service of a server's states, in its ``Server`` header."""


class ServerConfig(StrictModel):
    """Running servers that compute hidden states: vLLM with VocabForge's connector.

    Attributes:
        url: server address, ``http://host:8000``, or a list of addresses that share the documents.
        folder: path on this machine of the folder that the servers write to (``shared_storage_path``). None
            fetches the states over HTTP from servers started with ``states_address``.
        buffer_gb: maximum size of unread states in GB, in that folder or in memory; states are deleted once
            read.
        concurrency: concurrent requests per server. With 1 the states are bitwise reproducible; with more, rounding
            depends on which documents share a batch.
        timeout_s: timeout of a request in seconds.
        retries: number of retries if the server is busy or unreachable.
        api_key_env: environment variable that holds the server's API key.
    """

    url: str | Annotated[tuple[str, ...], Field(min_length=1)]
    folder: Path | None = None
    buffer_gb: Annotated[float, Field(gt=0.0)] = 8.0
    concurrency: Annotated[int, Field(ge=1)] = 8
    timeout_s: Annotated[float, Field(gt=0.0)] = 600.0
    retries: Annotated[int, Field(ge=0)] = 7
    api_key_env: str | None = None

    @property
    def urls(self) -> tuple[str, ...]:
        """All addresses, each once."""
        return (self.url,) if isinstance(self.url, str) else tuple(dict.fromkeys(self.url))


class CaptureConfig(StrictModel):
    """Source of the target's hidden states.

    Attributes:
        cache: folder made by ``vocabforge capture``; None runs the target in the training process. With a
            cache only the target's embedding and LM head are loaded.
        server: server that computes the states during training; a cache takes precedence.
        dtype: dtype of the target's computation, independent of run.mixed_precision. ``auto`` is the
            checkpoint's dtype on CUDA, fp32 on a CPU, and with a cache the dtype that it was made in.
        device_map: Hugging Face device map for a target that does not fit on one device (``auto``, or modules
            to devices); single process only.
        tp_plan: Hugging Face tensor parallelism over all processes (``auto``), one process per GPU.
        memory_gb: host memory for target states that are kept between epochs, in GiB per process.
    """

    cache: Path | None = None
    server: ServerConfig | None = None
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    device_map: str | dict[str, int | str] | None = None
    tp_plan: Literal["auto"] | None = None
    memory_gb: Annotated[float, Field(ge=0.0)] = 2.0

    @property
    def elsewhere(self) -> bool:
        """Whether states come from a cache or server, so that only embedding and LM head are loaded."""
        return self.cache is not None or self.server is not None

    @model_validator(mode="after")
    def _one_placement(self) -> CaptureConfig:
        if self.device_map is not None and self.tp_plan is not None:
            raise ValueError("capture.device_map and capture.tp_plan exclude each other: give one")
        return self


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
    ray: str | None = option(None, f"{RAY} The output must be a folder that all machines share.", "ADDRESS")
    yes: bool = option(False, "Do not ask for confirmation before writing.", short="-y")
    overrides: tuple[str, ...] = option(
        (), "Override configuration keys, as for train-drafter.", "KEY.SUB=VALUE", positional=True
    )
