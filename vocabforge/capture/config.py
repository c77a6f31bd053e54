"""The section ``capture`` of a training configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from ..core.config import StrictModel


class ServerConfig(StrictModel):
    """A running server that gives hidden states; vLLM with VocabForge's connector.

    Attributes:
        url: its address, ``http://host:8000``.
        folder: where it writes them (``shared_storage_path``), as this machine sees it.
        buffer_gb: most unread states in that folder, in GB; read states are deleted.
        concurrency: requests at a time. With 1 the states are the same bits every time; with more, rounding depends on
            which documents share a batch.
        timeout_s: seconds without an answer.
        retries: further attempts at a busy or absent server.
        api_key_env: environment variable that holds the server's API key.
    """

    url: str
    folder: Path
    buffer_gb: Annotated[float, Field(gt=0.0)] = 8.0
    concurrency: Annotated[int, Field(ge=1)] = 8
    timeout_s: Annotated[float, Field(gt=0.0)] = 600.0
    retries: Annotated[int, Field(ge=0)] = 7
    api_key_env: str | None = None


class CaptureConfig(StrictModel):
    """Where the target's hidden states come from.

    Attributes:
        cache: folder made by ``vocabforge capture``; None runs the target in the training process. With a cache
            only the target's embedding and LM head are loaded.
        server: a server that computes them during training; a cache takes precedence.
        dtype: the target computes in it, whatever run.mixed_precision says; ``auto`` is the checkpoint's own on
            CUDA and fp32 on a CPU, and with a cache the dtype that it was made in.
        device_map: Hugging Face placement of a target that does not fit on one device (``auto``, or modules to
            devices), in one process.
        tp_plan: Hugging Face tensor parallelism over all processes (``auto``), one a GPU.
        memory_gb: host memory for target states that are kept between epochs, in GiB a process.
    """

    cache: Path | None = None
    server: ServerConfig | None = None
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    device_map: str | dict[str, int | str] | None = None
    tp_plan: Literal["auto"] | None = None
    memory_gb: Annotated[float, Field(ge=0.0)] = 2.0

    @property
    def elsewhere(self) -> bool:
        """Whether the target's layers run elsewhere, and only its embedding and LM head are loaded."""
        return self.cache is not None or self.server is not None

    @model_validator(mode="after")
    def _one_placement(self) -> CaptureConfig:
        if self.device_map is not None and self.tp_plan is not None:
            raise ValueError("capture.device_map and capture.tp_plan exclude each other: give one")
        return self
