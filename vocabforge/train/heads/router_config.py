"""Configuration of ``train-router``; defaults stand here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import model_validator

from ...capture.config import CaptureConfig
from ...core.config import ModelPath, Positive, StrictModel, TokenizerPath
from ...core.console import say
from ..config import BookkeepingConfig, DataConfig, MemoryConfig, OptimConfig, RouterSizes


class RouterConfig(RouterSizes):
    """The router, and what it learns from.

    Attributes:
        steps: draft steps whose states it learns from; of a block at most its drafts.
    """

    steps: Positive = 6


class RouterRunConfig(BookkeepingConfig):
    """Bookkeeping of a run."""

    eval_rows: Positive = 32

    @model_validator(mode="before")
    @classmethod
    def _removed(cls, values: Any) -> Any:
        # It changed no weight: a former run resumes without it.
        if not isinstance(values, Mapping) or "budgets" not in values:
            return values
        say(
            "run.budgets is no longer read: compare budgets of clusters with vocabforge tune, or eval --budget"
        )
        return {name: value for name, value in values.items() if name != "budgets"}


class RouterTrainConfig(StrictModel):
    """Everything ``train-router`` needs.

    Attributes:
        target: folder, GGUF file or Hub name of the target.
        drafter: trained drafter; it stays as it is.
        clusters: clusters of the target's vocabulary (``cluster-vocab``).
        tokenizer: folder or tokenizer.json; default: the target's folder.
        output: run folder; gets ``router/``, ``checkpoints/``, ``metrics.jsonl``, ``report.json``.
    """

    target: ModelPath
    drafter: ModelPath
    clusters: Path
    tokenizer: TokenizerPath | None = None
    output: Path
    data: DataConfig
    capture: CaptureConfig = CaptureConfig()
    router: RouterConfig = RouterConfig()
    optim: OptimConfig = OptimConfig(steps=1000, batch_size=4, lr=1e-3, clip=1.0)
    run: RouterRunConfig = RouterRunConfig()
    memory: ClassVar[MemoryConfig] = MemoryConfig()  # its few weights are trained in fp32
