"""``vocabforge capture``."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from ...core.config import Positive, StrictModel
from ..app import PlanOption, ResultOptions, print_json
from ..options.groups import option
from ..train.plan_tables import print_plan


class CacheOptions(StrictModel):
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


def capture(cache: CacheOptions, ending: ResultOptions, plan_only: PlanOption = False) -> None:
    """Write the target's hidden states for a recipe's data to disk, for training without the target.

    Pass the same recipe to train-drafter with capture.cache=DIR. In fp32, training is then bit-identical to
    training with the target in the process. Disk use is estimated first, and you are asked to confirm. Re-run
    the command to resume an interrupted run. Several processes share the work with --part or under a
    launcher.

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
    settings = load_config(TrainConfig, cache.config, (*cache.overrides, *given))
    folder = cache.output or settings.capture.cache
    if folder is None:
        raise UsageError("no output folder was given", remedy="give --output DIR, or capture.cache=DIR")
    if plan_only:
        print_plan("capture", plan(settings, folder, cache), as_json=ending.as_json)
        return
    result = run(settings, folder, cache, overwrite=ending.overwrite)
    if ending.as_json:
        print_json(result)
