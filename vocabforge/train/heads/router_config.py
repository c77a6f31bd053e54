"""Configuration of ``train-router`` with its defaults."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import model_validator

from ...core.config import ModelPath, Positive, StrictModel, TokenizerPath
from ...core.console import say
from ..capture.config import CaptureConfig
from ..config import BookkeepingConfig, DataConfig, MemoryConfig, OptimConfig, RouterSizes


class RouterConfig(RouterSizes):
    """Router and its training states.

    Attributes:
        steps: draft steps whose states are used; at most the drafts of a block for block drafters.
    """

    steps: Positive = 6


class RouterRunConfig(BookkeepingConfig):
    """Bookkeeping of a run."""

    eval_rows: Positive = 32

    @model_validator(mode="before")
    @classmethod
    def _removed(cls, values: Any) -> Any:
        # The option affected no weights, so older runs can resume without it.
        if not isinstance(values, Mapping) or "budgets" not in values:
            return values
        say("run.budgets is no longer read: compare cluster budgets with vocabforge tune, or eval --budget")
        return {name: value for name, value in values.items() if name != "budgets"}


class RouterTrainConfig(StrictModel):
    """Configuration of ``train-router``.

    Attributes:
        target: folder, GGUF file or Hub name of the target.
        drafter: trained drafter, which stays frozen.
        clusters: clusters of the target's vocabulary (``cluster-vocab``).
        tokenizer: folder or tokenizer.json; default: the target's folder.
        output: run folder, for ``router/``, ``checkpoints/``, ``metrics.jsonl``, ``report.json``.
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
    memory: ClassVar[MemoryConfig] = MemoryConfig()  # routers are small and trained in fp32
