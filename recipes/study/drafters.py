"""``vocabforge bench drafters``: variants of one recipe (kinds of drafter, forms, losses) over several seeds.

A variant is a few keys of the recipe. All of them train on the same rows and draft chains on the same held-out prompts:
greedily, and drawn from the drafter's distribution at temperature 1.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from ..core.artifact import open_artifact
from ..core.config import StrictModel, apply_overrides, load_config, parse_config, read_yaml, recipe_path
from ..decode.build.spec import MethodSpec
from ..decode.proposers.registry import FITTING, ProposerParts, make_proposer
from ..decode.tree import TreeSettings
from ..evaluate.acceptance.meter import pooled
from ..export.registry import load_drafter
from ..models.drafters.io import TargetTensors
from ..train.config import TrainConfig
from .comparison import Comparison, open_comparison, over_seeds, with_deviation, write_results
from .steps import drafter_run, run_step, variant

COLUMNS = (
    "variant",
    "drafts",
    "accepted length",
    "over the first",
    "at temperature 1",
    "over the first",
    "simulated",
    "simulated at 1",
)
FIGURES = ("accepted_length", "sampled_accepted_length", "simulated", "simulated_sampled")


@dataclass(frozen=True)
class DrafterBenchOptions:
    """How much is compared: see the options of ``bench``."""

    seeds: tuple[int, ...] = (0, 1, 2)
    prompts: int = 24
    max_new_tokens: int = 64


class DrafterVariants(StrictModel):
    """What ``bench drafters`` reads.

    Attributes:
        recipe: of ``train-drafter``, beside this file.
        keys: of that recipe for all variants: ``section.key: value``.
        variants: further keys by the variant's name; the first is what the others are compared with.
        drafts: draft tokens of a chain, or fewer where a drafter makes fewer.
    """

    recipe: Path
    keys: dict[str, Any] = Field(default_factory=dict)
    variants: Annotated[dict[str, dict[str, Any]], Field(min_length=1)]
    drafts: Annotated[int, Field(ge=1)] = 4


def read_variants(path: Path, overrides: Sequence[str]) -> tuple[dict[str, TrainConfig], int]:
    """The recipe of every variant, and the drafts of a chain; ``overrides`` are keys of ``train-drafter``.

    Raises:
        ConfigError: what cannot be read, with the variant's name.
    """
    path = recipe_path(path)
    asked = load_config(DrafterVariants, path)
    found = {}
    for name, keys in asked.variants.items():
        values = read_yaml(path.parent / asked.recipe)
        given = [f"{key}={json.dumps(value)}" for key, value in (asked.keys | keys).items()]
        apply_overrides(values, [*given, *overrides])
        found[name] = parse_config(TrainConfig, values, source=f"{path}, variant {name}")
    return found, asked.drafts


def bench_drafters(
    recipe: Path, overrides: Sequence[str], options: DrafterBenchOptions, output: Path
) -> dict[str, Any]:
    """Train every variant with every seed, and decode with each; finished parts of an earlier call are taken over.

    Args:
        recipe: see :class:`DrafterVariants`.
        output: gets ``results.json`` and a folder a seed.

    Returns:
        ``table`` (rows of :func:`summarise`), ``settings``, ``seeds`` (the results by seed and variant).

    Raises:
        UsageError, ConfigError: what cannot be compared.
    """
    configs, drafts = read_variants(recipe, overrides)
    tree = TreeSettings(1, drafts - 1, drafts + 1)
    first = next(iter(configs.values()))
    common = open_comparison(
        first, output, prompts=options.prompts, max_new_tokens=options.max_new_tokens, tree=tree
    )
    by_seed: dict[int, dict[str, dict[str, Any]]] = {}
    for seed in options.seeds:
        place, made = output / f"seed-{seed}", {}
        for name, config in configs.items():
            own = config.model_copy(update={"data": common.config.data})
            trained = drafter_run(variant(own, place / name, seed), common.rows.digest(), common.fingerprint)
            path = Path(trained["drafter"])
            made[name] = run_step(
                f"seed {seed}: decoding with {name}",
                place / f"decode-{name}.json",
                common.asked | {"drafter": trained["digest"]},
                partial(_decode, common, path, drafts),
            )
        by_seed[seed] = made
    settings = {
        "seeds": options.seeds,
        "prompts": len(common.meter.prompts.prompts),
        "max_new_tokens": options.max_new_tokens,
        "target_fingerprint": common.fingerprint,
        "recipes": {name: config.model_dump(mode="json") for name, config in configs.items()},
    }
    return write_results(output, settings, summarise(by_seed), by_seed)


def _decode(common: Comparison, path: Path, drafts: int) -> dict[str, Any]:
    """Chains of one drafter, greedy and drawn, and what its own evaluation simulated."""
    model = common.model
    shared = TargetTensors(model.embedding, model.lm_head_weight, model.transform)
    drafter, _ = load_drafter(path, shared, common.config.target)
    drafter.to(model.device)
    levels = min(drafts, drafter.max_steps or drafts)

    def proposer(*, drawn: bool) -> Any:
        options = MethodSpec(tree="chain", depth=levels - 1, draft_sampling=drawn)
        return make_proposer(FITTING[drafter.kind][0], ProposerParts(model, drafter, options=options))

    greedy = common.meter.measure(proposer(drawn=False))
    sampled = pooled(common.meter.decode(proposer(drawn=True), temperature=1.0))
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


def summarise(by_seed: Mapping[int, Mapping[str, Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """One row a variant: means and sample deviations over seeds, and shares of the first variant's, seed by seed."""
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
    """A row of :func:`summarise` for people, in the order of :data:`COLUMNS`."""
    figures = []
    for figure in FIGURES[:2]:
        figures += [with_deviation(row[figure], ".3f"), with_deviation(row[f"{figure}_share"], ".1%")]
    return (
        row["variant"],
        str(row["drafts"]),
        *figures,
        *(with_deviation(row[figure], ".3f") for figure in FIGURES[2:]),
    )
