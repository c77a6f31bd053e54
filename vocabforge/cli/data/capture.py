"""``vocabforge capture``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from ..app import JsonOption, OverwriteOption, print_json
from ..train.plan_tables import print_plan


class StoreDtype(str, Enum):
    """Of the stored states."""

    target = "target"
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


@dataclass(frozen=True, kw_only=True)
class CacheOptions:
    """The cache, and which part of it this process makes."""

    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="DIR", help="The cache [default: the recipe's capture.cache]."
        ),
    ] = None
    store_dtype: Annotated[
        StoreDtype,
        typer.Option("--store-dtype", help="Of the stored states; `target` is the dtype it computes in."),
    ] = StoreDtype.target
    shard_mb: Annotated[int, typer.Option("--shard-mb", min=1, help="Size of one file, MB.")] = 256
    part: Annotated[
        str | None,
        typer.Option("--part", metavar="I/N", help="Do the I-th of N parts; the last to finish joins them."),
    ] = None
    from_speculators: Annotated[
        Path | None,
        typer.Option("--from-speculators", metavar="DIR", help="Take the states from speculators' samples."),
    ] = None
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before the disk is filled.")] = False


def capture(
    config: Annotated[
        Path, typer.Option("--config", "-c", help="The recipe (YAML) that the drafter will be trained with.")
    ],
    cache: CacheOptions,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY.SUB=VALUE", help="Override configuration keys, as for train-drafter."),
    ] = None,
    plan_only: Annotated[
        bool, typer.Option("--plan", help="Print what would be done and the disk use, then stop.")
    ] = False,
    overwrite: OverwriteOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write the target's hidden states for a recipe's data to disk, so that training need not run the target.

    Give the same recipe to train-drafter with capture.cache=DIR. In fp32 training is then the same, bit for bit, as
    with the target in the process. Disk use is estimated first and asked for. The same command again goes on after an
    interruption; several processes share the work with --part, or under a launcher.

    Example: `vocabforge capture --config recipes/models/qwen3-8b.yaml --output states/ --store-dtype bfloat16`
    """
    from ...core.config import load_config
    from ...core.errors import UsageError
    from ...train.config import TrainConfig
    from .capture_run import plan, run

    settings = load_config(TrainConfig, config, overrides or [])
    folder = cache.output or settings.capture.cache
    if folder is None:
        raise UsageError("there is no place for the cache", remedy="give --output DIR, or capture.cache=DIR")
    if plan_only:
        print_plan("capture", plan(settings, folder, cache), as_json=as_json)
        return
    result = run(settings, folder, cache, overwrite=overwrite)
    if as_json:
        print_json(result)
