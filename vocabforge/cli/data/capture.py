"""``vocabforge capture``."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from ...core.config import Positive, StrictModel
from ..app import PlanOption, ResultOptions, print_json
from ..options.groups import option
from ..train.plan_tables import print_plan


class CacheOptions(StrictModel):
    """The recipe, the cache, and which part of it this process makes."""

    config: Path = option(..., "The recipe (YAML) that the drafter will be trained with.", short="-c")
    output: Path | None = option(None, "The cache [default: the recipe's capture.cache].", "DIR", short="-o")
    store_dtype: Literal["target", "float32", "bfloat16", "float16"] = option(
        "target", "Of the stored states; `target` is the dtype it computes in."
    )
    shard_mb: Positive = option(256, "Size of one file, MB.")
    part: str | None = option(None, "Do the I-th of N parts; the last to finish joins them.", "I/N")
    from_speculators: Path | None = option(None, "Take the states from speculators' samples.", "DIR")
    server: str | None = option(
        None, "Take the states from a vLLM server [default: the recipe's capture.server.url].", "URL"
    )
    server_folder: Path | None = option(None, "The folder that the server writes its states to.", "DIR")
    buffer_gb: float | None = option(None, "States that may lie there unread [default: 8].", "GB")
    api_key_env: str | None = option(
        None, "Environment variable that holds the server's API key.", "VARIABLE"
    )
    yes: bool = option(False, "Do not ask before the disk is filled.", short="-y")
    overrides: tuple[str, ...] = option(
        (), "Override configuration keys, as for train-drafter.", "KEY.SUB=VALUE", positional=True
    )


def capture(cache: CacheOptions, ending: ResultOptions, plan_only: PlanOption = False) -> None:
    """Write the target's hidden states for a recipe's data to disk, so that training need not run the target.

    Give the same recipe to train-drafter with capture.cache=DIR. In fp32 training is then the same, bit for bit, as
    with the target in the process. Disk use is estimated first and asked for. The same command again goes on after an
    interruption; several processes share the work with --part, or under a launcher.

    Example: `vocabforge capture --config qwen3-8b --output states/ --store-dtype bfloat16`
    """
    from ...core.config import load_config
    from ...core.errors import UsageError
    from ...train.config import TrainConfig
    from .capture_run import plan, run

    served = {
        "url": cache.server,
        "folder": cache.server_folder,
        "buffer_gb": cache.buffer_gb,
        "api_key_env": cache.api_key_env,
    }
    given = [f"capture.server.{key}={value}" for key, value in served.items() if value is not None]
    if given and cache.from_speculators is not None:
        raise UsageError("--server and --from-speculators exclude each other", remedy="leave one out")
    settings = load_config(TrainConfig, cache.config, (*cache.overrides, *given))
    folder = cache.output or settings.capture.cache
    if folder is None:
        raise UsageError("there is no place for the cache", remedy="give --output DIR, or capture.cache=DIR")
    if plan_only:
        print_plan("capture", plan(settings, folder, cache), as_json=ending.as_json)
        return
    result = run(settings, folder, cache, overwrite=ending.overwrite)
    if ending.as_json:
        print_json(result)
