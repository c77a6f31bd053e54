"""Compare variants of one recipe (kinds of drafter, forms, losses) over several seeds.

A variant is a few keys of the recipe. All of them train on the same rows and draft chains on the same held-out prompts:
greedily, and drawn from the drafter's distribution at temperature 1. The same command resumes.

python recipes/study/drafters.py --config recipes/tiny/drafters.yaml --output runs/drafters
"""

from __future__ import annotations

import argparse
import gc
import json
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Annotated, Any

from pydantic import Field
from rich.console import Console

from vocabforge.core.artifact import open_artifact
from vocabforge.core.config import StrictModel, apply_overrides, load_config, parse_config, read_yaml
from vocabforge.core.console import DataTable, say
from vocabforge.core.errors import VocabForgeError
from vocabforge.core.files import atomic_write_json, read_json
from vocabforge.corpus.regenerate.rows import content_digest
from vocabforge.corpus.tokenizer.tokenizer import load_tokenizer
from vocabforge.decode.build.spec import MethodSpec
from vocabforge.decode.proposers.registry import FITTING, ProposerParts, make_proposer
from vocabforge.evaluate.acceptance.meter import AcceptanceMeter, pooled
from vocabforge.layouts.registry import load_drafter
from vocabforge.models.device import choose_device
from vocabforge.models.drafters.io import TargetTensors
from vocabforge.models.heads.io import drafter_digest
from vocabforge.models.lean.model import load_target
from vocabforge.models.target.fingerprint import target_fingerprint
from vocabforge.models.target.load import DTYPES
from vocabforge.train.config import LiveConfig, TrainConfig
from vocabforge.train.data import prepare, with_prepared
from vocabforge.train.loop import train
from vocabforge.train.machine import set_threads
from vocabforge.train.monitoring.live import read_prompts
from vocabforge.train.setup import build_trainer, identity_of

COLUMNS = (
    "variant<",
    "drafts",
    "accepted length",
    "over the first",
    "at temperature 1",
    "over the first",
    "simulated",
    "simulated at 1",
)
FIGURES = ("accepted_length", "sampled_accepted_length", "simulated", "simulated_sampled")


class DrafterVariants(StrictModel):
    """The file that `--config` names.

    Attributes:
        recipe: recipe of `train-drafter`, relative to this file.
        keys: keys of that recipe for all variants: `section.key: value`.
        variants: further keys by the variant's name; the others are compared with the first.
        drafts: draft tokens of a chain, or fewer where a drafter makes fewer.
    """

    recipe: Path
    keys: dict[str, Any] = Field(default_factory=dict)
    variants: Annotated[dict[str, dict[str, Any]], Field(min_length=1)]
    drafts: Annotated[int, Field(ge=1)] = 4


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "settings", nargs="*", metavar="KEY=VALUE", help="keys of train-drafter for all variants"
    )
    parser.add_argument("--config", type=Path, required=True, help="variants of one recipe")
    parser.add_argument("--seeds", default="0,1,2", help="one training each")
    parser.add_argument("--prompts", type=int, default=24, help="held-out prompts that are decoded")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--output", type=Path, required=True, help="folder of everything")
    asked = parser.parse_args()
    configs, drafts = read_variants(asked.config, asked.settings)
    seeds = [int(seed) for seed in asked.seeds.split(",")]
    result = compare(configs, drafts, seeds, asked.prompts, asked.max_new_tokens, asked.output)
    title = f"{asked.prompts} prompts, {asked.max_new_tokens} tokens each, seeds {asked.seeds}"
    Console().print(DataTable(title, COLUMNS, [cells(row) for row in result["table"]]))
    identical, outputs = (sum(row[name] for row in result["table"]) for name in ("identical", "outputs"))
    say(
        f"{identical:,} of {outputs:,} greedy outputs are identical to plain decoding. Simulated: on held-out rows, "
        "along their own tokens. ±: sample deviation over seeds."
    )


def read_variants(path: Path, overrides: Sequence[str]) -> tuple[dict[str, TrainConfig], int]:
    """Return the recipe of every variant, and the drafts of a chain; `overrides` are keys of `train-drafter`.

    Raises:
        ConfigError: a file cannot be read; the message names the variant.
    """
    asked = load_config(DrafterVariants, path)
    found = {}
    for name, keys in asked.variants.items():
        values = read_yaml(path.parent / asked.recipe)
        given = [f"{key}={json.dumps(value)}" for key, value in (asked.keys | keys).items()]
        apply_overrides(values, [*given, *overrides])
        found[name] = parse_config(TrainConfig, values, source=f"{path}, variant {name}")
    return found, asked.drafts


def compare(
    configs: Mapping[str, TrainConfig],
    drafts: int,
    seeds: Sequence[int],
    prompts: int,
    max_new_tokens: int,
    output: Path,
) -> dict[str, Any]:
    """Train every variant with every seed and decode with each; parts that an earlier call finished are kept.

    Writes `results.json` into `output`: `table` (rows of `summarise`), `settings`, `seeds` (results by seed and
    variant), and returns it.
    """
    first = next(iter(configs.values()))
    data = with_prepared(first.data)
    wanted: dict[str, Any] = {"cache": data.cache or output / "data"}
    if data.prepared is None:
        wanted["heldout_prompts"] = max(data.heldout_prompts, prompts)
    data = data.model_copy(update=wanted)
    device = choose_device(first.run.device)
    if device.type == "cpu":
        set_threads(first)
    tokenizer, fingerprint = load_tokenizer(first.tokenizer or first.target), target_fingerprint(first.target)
    rows = prepare(data, tokenizer)
    dtype = DTYPES.get(first.capture.dtype, DTYPES["float32"])
    model = load_target(first.target, dtype=dtype, device=device)
    live = LiveConfig(
        prompts=prompts, max_new_tokens=max_new_tokens, depth=drafts - 1, topk=1, total=drafts + 1
    )
    found = read_prompts(rows.prepared.prompts, tokenizer, live, model.config.max_positions)
    meter = AcceptanceMeter(model, found, max_new_tokens)
    asked = {
        "target": fingerprint,
        "prompts": content_digest([list(prompt) for prompt in found.prompts]),
        "new": max_new_tokens,
        "dtype": str(model.dtype),
        "drafts": drafts,
    }
    by_seed: dict[int, dict[str, dict[str, Any]]] = {}
    for seed in seeds:
        place, made = output / f"seed-{seed}", {}
        for name, config in configs.items():
            changed = {"run": config.run.model_copy(update={"trackers": (), "seed": seed})}
            own = config.model_copy(update={"data": data, "output": place / name, **changed})
            trained = trained_drafter(own, rows.digest(), fingerprint)
            made[name] = run_step(
                f"seed {seed}: decoding with {name}",
                place / f"decode-{name}.json",
                asked | {"drafter": trained["digest"]},
                partial(decode, meter, Path(trained["drafter"]), own.target, drafts),
            )
        by_seed[seed] = made
    settings = {
        "seeds": seeds,
        "prompts": len(found.prompts),
        "max_new_tokens": max_new_tokens,
        "target_fingerprint": fingerprint,
        "recipes": {name: config.model_dump(mode="json") for name, config in configs.items()},
    }
    result = {"settings": settings, "table": summarise(by_seed), "seeds": by_seed}
    result = json.loads(json.dumps(result))
    atomic_write_json(output / "results.json", result)
    return dict(result)


def decode(meter: AcceptanceMeter, path: Path, target: Path, drafts: int) -> dict[str, Any]:
    """Return the accepted lengths of chains of one drafter, greedy and drawn, and what its evaluation simulated."""
    model = meter.model
    shared = TargetTensors(model.embedding, model.lm_head_weight, model.transform)
    drafter, _ = load_drafter(path, shared, target)
    drafter.to(model.device)
    levels = min(drafts, drafter.max_steps or drafts)

    def proposer(*, drawn: bool) -> Any:
        options = MethodSpec(tree="chain", depth=levels - 1, draft_sampling=drawn)
        return make_proposer(FITTING[drafter.kind][0], ProposerParts(model, drafter, options=options))

    greedy = meter.measure(proposer(drawn=False))
    sampled = pooled(meter.decode(proposer(drawn=True), temperature=1.0))
    heldout = open_artifact(path, verify=False).meta["heldout"]
    return {
        "drafts": levels,
        "accepted_length": greedy.length.value,
        "sampled_accepted_length": sampled["accepted_length"],
        "simulated": heldout["chain_accepted_length"],
        "simulated_sampled": heldout["sampled_accepted_length"],
        "conditional_by_position": pooled(greedy.made)["conditional_by_position"],
        "identical": greedy.identical,
        "prompts": greedy.prompts,
    }


def trained_drafter(config: TrainConfig, data: str, target: str) -> dict[str, Any]:
    """Train as `train-drafter` does: a finished run is kept, a killed one resumes, a changed one begins anew.

    Args:
        data, target: digest of the rows, fingerprint of the target.
    """
    precision = {"passes": config.run.mixed_precision, "states": config.capture.dtype}
    key = {**identity_of(config, data, target), **precision}

    def make() -> dict[str, Any]:
        # The variants are decoded at the end, side by side.
        live = config.run.live.model_copy(update={"prompts": 0})
        trainer = build_trainer(
            config.model_copy(update={"run": config.run.model_copy(update={"live": live})})
        )
        path = train(trainer)
        del trainer
        gc.collect()  # the captured states are gigabytes, and the target's hooks hold them in a cycle
        return {"drafter": str(path), "digest": drafter_digest(path)}

    place = config.output.with_name(f"{config.output.name}.json")
    made = run_step(f"seed {config.run.seed}: {config.output.name}", place, key, make, folder=config.output)
    for name in ("checkpoints", "best"):
        shutil.rmtree(config.output / name, ignore_errors=True)
    return made


def run_step(
    name: str,
    place: Path,
    key: Mapping[str, Any],
    make: Callable[[], dict[str, Any]],
    *,
    folder: Path | None = None,
) -> dict[str, Any]:
    """Return the result of a step: made now, or kept from an earlier run with the same key.

    Args:
        place: JSON file of the key and the result.
        key: everything that decides the result.
        folder: what an unfinished step leaves; removed if another key began it.
    """
    wanted = json.loads(json.dumps(key, default=str))
    stored = read_json(place, "result of a step") if place.is_file() else {}
    same = stored.get("key") == wanted
    if same and "result" in stored and still_there(stored["result"]):
        say(f"{name}: up to date")
        return dict(stored["result"])
    say(name)
    if folder is not None:
        if stored and not same:
            shutil.rmtree(folder, ignore_errors=True)
        atomic_write_json(place, {"key": wanted})
    result = json.loads(json.dumps(make()))
    atomic_write_json(place, {"key": wanted, "result": result})
    return dict(result)


def still_there(result: Mapping[str, Any]) -> bool:
    """Return whether the drafter that a stored result names, if any, still has the content that it had."""
    if (drafter := result.get("drafter")) is None:
        return True
    try:
        return drafter_digest(Path(drafter)) == result["digest"]
    except VocabForgeError:
        return False


def summarise(by_seed: Mapping[int, Mapping[str, Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Return a row for each variant: means and sample deviations over seeds, and shares of the first variant's."""
    rows = []
    runs = list(by_seed.values())
    first = next(iter(runs[0]))
    for name in runs[0]:
        row: dict[str, Any] = {"variant": name, "drafts": runs[0][name]["drafts"]}
        for figure in FIGURES:
            row[figure] = over_seeds([made[name][figure] for made in runs])
        for figure in FIGURES[:2]:
            shares = [made[name][figure] / made[first][figure] for made in runs]
            row[f"{figure}_share"] = over_seeds(shares)
        row["identical"] = sum(made[name]["identical"] for made in runs)
        row["outputs"] = sum(made[name]["prompts"] for made in runs)
        rows.append(row)
    return rows


def cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a row of `summarise` as text, in the order of `COLUMNS`."""
    figures = []
    for figure in FIGURES[:2]:
        figures += [with_deviation(row[figure], ".3f"), with_deviation(row[f"{figure}_share"], ".1%")]
    simulated = (with_deviation(row[figure], ".3f") for figure in FIGURES[2:])
    return (row["variant"], str(row["drafts"]), *figures, *simulated)


def over_seeds(values: Sequence[float]) -> dict[str, float | None]:
    """Return mean and sample deviation over the seeds."""
    return {"mean": fmean(values), "deviation": stdev(values) if len(values) > 1 else None}


def with_deviation(figure: Mapping[str, float | None], form: str) -> str:
    """Return a figure of `over_seeds` as text."""
    known = [value for value in (figure["mean"], figure["deviation"]) if value is not None]
    return " ± ".join(format(value, form) for value in known)


if __name__ == "__main__":
    try:
        main()
    except VocabForgeError as error:
        sys.exit(error.render())
