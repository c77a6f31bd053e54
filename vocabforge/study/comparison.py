"""What ``bench drafters`` and ``bench draft-heads`` share: data, target, prompts, and ``results.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from ..core.distributed import world_size
from ..core.errors import UsageError
from ..core.files import atomic_write_json
from ..corpus.regenerate.rows import content_digest
from ..corpus.tokenizer.tokenizer import TextTokenizer, load_tokenizer
from ..decode.tree import TreeSettings
from ..evaluate.acceptance.meter import AcceptanceMeter
from ..evaluate.acceptance.prompts import read_prompts
from ..models.device import choose_device
from ..models.lean.model import LeanModel, load_target
from ..models.target.fingerprint import target_fingerprint
from ..models.target.load import DTYPES
from ..train.config import LiveConfig, TrainConfig
from ..train.data import TrainData, prepare, with_prepared
from ..train.machine import set_threads

RESULTS = "results.json"


@dataclass(frozen=True)
class Comparison:
    """What all ways that are compared have in common.

    Attributes:
        config: the recipe, its rows prepared once below the comparison's folder.
        asked: what decides a decoding beside the method.
    """

    config: TrainConfig
    tokenizer: TextTokenizer
    fingerprint: str
    rows: TrainData
    model: LeanModel
    meter: AcceptanceMeter
    asked: dict[str, Any]


def open_comparison(
    config: TrainConfig, output: Path, *, prompts: int, max_new_tokens: int, tree: TreeSettings
) -> Comparison:
    """Prepare rows and prompts, and load the target.

    Args:
        output: folder of the comparison.
        tree: the largest that is drafted.

    Raises:
        UsageError: several processes, or no prompt that is short enough.
    """
    if world_size() > 1:
        got, remedy = f"{world_size()} processes", "start it without a launcher"
        raise UsageError("this benchmark runs in one process", got=got, remedy=remedy)
    data = with_prepared(config.data)
    wanted: dict[str, Any] = {"cache": data.cache or output / "data"}
    if data.prepared is None:
        wanted["heldout_prompts"] = max(data.heldout_prompts, prompts)
    config = config.model_copy(update={"data": data.model_copy(update=wanted)})
    device = choose_device(config.run.device)
    if device.type == "cpu":
        set_threads(config)
    tokenizer = load_tokenizer(config.tokenizer or config.target)
    fingerprint = target_fingerprint(config.target)
    rows = prepare(config.data, tokenizer)
    dtype = DTYPES.get(config.capture.dtype, DTYPES["float32"])
    model = load_target(config.target, dtype=dtype, device=device)
    live = LiveConfig(
        prompts=prompts,
        max_new_tokens=max_new_tokens,
        depth=tree.depth,
        topk=tree.topk,
        total=tree.total_nodes,
    )
    found = read_prompts(rows.prepared.prompts, tokenizer, live, model.config.max_positions)
    asked = {
        "target": fingerprint,
        "prompts": content_digest([list(prompt) for prompt in found.prompts]),
        "new": max_new_tokens,
        "dtype": str(model.dtype),
        "tree": [tree.depth, tree.topk, tree.total_nodes],
    }
    meter = AcceptanceMeter(model, found, max_new_tokens)
    return Comparison(config, tokenizer, fingerprint, rows, model, meter, asked)


def write_results(
    output: Path, settings: Mapping[str, Any], table: Sequence[Any], seeds: Mapping[int, Any]
) -> dict[str, Any]:
    """Write ``results.json`` into the comparison's folder, and return what it holds."""
    result: dict[str, Any] = json.loads(json.dumps({"settings": settings, "table": table, "seeds": seeds}))
    atomic_write_json(output / RESULTS, result)
    return result


def over_seeds(values: Sequence[float]) -> dict[str, float | None]:
    """Mean, and sample deviation over the seeds."""
    return {"mean": fmean(values), "deviation": stdev(values) if len(values) > 1 else None}


def with_deviation(figure: dict[str, float | None], form: str) -> str:
    """A figure of :func:`over_seeds` for people."""
    known = [value for value in (figure["mean"], figure["deviation"]) if value is not None]
    return " ± ".join(format(value, form) for value in known)
