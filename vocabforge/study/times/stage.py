"""Stage ``times``: how long the draft heads of this study's model take on this machine.

It writes ``times.json`` (:class:`StudyTimes`) and, for ``vocabforge tune --what-if``, ``latency.json`` beside it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, Literal

import torch
from pydantic import ValidationError

from ... import __version__
from ...core.config import Positive, StrictModel
from ...core.files import atomic_write
from ...core.records import read_versioned
from ...corpus.tokenizer.tokenizer import load_tokenizer
from ...evaluate.benchmarks import read_questions, spread
from ...evaluate.run.environment import describe_environment
from ...models.device import choose_device
from ...models.heads.io import drafter_digest
from ...models.lean.model import load_target
from ...models.target.fingerprint import target_fingerprint
from ...tune.latency.measure import LatencyBudget, LatencyInputs, measure_latency
from ...tune.latency.table import LATENCY, LatencyTable, write_latency
from ...tune.types import HeadSetting, TreeSetting
from ..config import StudyConfig
from ..layout import StudyLayout
from ..methods import FULL, StudyHeads, StudyMethod, drafter_folder, methods
from ..report.results import CHAIN
from ..stage_answers import question_prompt, question_sets, study_dtype
from ..steps import run_step

SCHEMA_VERSION = 2
DYNAMIC = "dynamic tree"
_PROMPTS = 48  # whose lengths say how much caches hold


class StudyTimes(StrictModel):
    """``times.json``.

    Attributes:
        heads: sizes of every method's draft head, by ``StudyMethod.key``.
        rows, hidden: V and H of the study's target.
        prefix: mean positions that caches hold while a question is answered.
        trees: draft shapes by name: ``chain``, ``tree N`` and ``dynamic tree``.
        latency: this model's latency table.
    """

    schema_version: Literal[2] = 2
    vocabforge: str
    heads: dict[str, HeadSetting]
    rows: Positive
    hidden: Positive
    prefix: Positive
    trees: dict[str, TreeSetting]
    latency: LatencyTable


def run(config: StudyConfig, layout: StudyLayout) -> None:
    """Measure and write ``times.json``.

    Raises:
        VocabForgeError: a part of the first seed is missing or damaged.
    """
    device = choose_device(config.device)
    dtype = study_dtype(device)
    model = load_target(layout.target, dtype=getattr(torch, dtype), device=device)
    prompts = study_prompts(config, layout)
    ways = methods(config, layout)
    heads = StudyHeads(layout.seed(config.seeds[0]), layout.target, model)
    settings = {way.key: heads.setting(way) for way in ways}
    trees = trees_of(config)
    prefix = max(1, round(mean(map(len, prompts)) + config.answers.tokens / 2))
    digests = {
        "target": target_fingerprint(layout.target),
        "drafter": drafter_digest(drafter_folder(heads.place, FULL)),
    }
    key = {
        "environment": describe_environment(device=str(device), dtype=dtype),
        "settings": {name: one.model_dump(mode="json") for name, one in settings.items()},
        "budget": config.times.budget_s,
        "trees": {name: one.model_dump(mode="json") for name, one in trees.items()},
        "prompts": [len(prompt) for prompt in prompts],
        "vocabforge": __version__,
        **digests,
    }

    def measure() -> dict[str, Any]:
        inputs = LatencyInputs(
            model,
            heads.drafter(FULL),
            [heads.head(way) for way in _chosen(ways, settings)],
            list(trees.values()),
            prompts,
            new=config.answers.tokens,
            target=digests["target"],
            digest=digests["drafter"],
        )
        return measure_latency(inputs, LatencyBudget(config.times.budget_s)).model_dump(mode="json")

    place = layout.times.with_name("times-model.json")
    latency = LatencyTable.model_validate(
        run_step("times of draft heads", place, key, measure, lambda _: True)
    )
    times = StudyTimes(
        vocabforge=__version__,
        heads=settings,
        rows=model.config.vocab_size,
        hidden=model.config.hidden_size,
        prefix=prefix,
        trees=trees,
        latency=latency,
    )
    write_latency(layout.times.with_name(LATENCY), latency)
    atomic_write(layout.times, times.model_dump_json(indent=1) + "\n")


def read_times(path: Path) -> StudyTimes:
    """``times.json``.

    Raises:
        DataError: missing, another version, or not what the stage writes.
    """
    return read_versioned(
        path,
        StudyTimes,
        SCHEMA_VERSION,
        what="times file of the study",
        remedy="delete the file and run the stage times again",
    )


def trees_of(config: StudyConfig) -> dict[str, TreeSetting]:
    """Draft shapes by name: the chain and the fixed trees of the replay, and the dynamic tree of the check.

    A fixed tree is taken for a dynamic one of as many levels and nodes and of its greatest width. Shapes that no
    dynamic tree can have are left out.
    """
    own, check = config.replay, config.check
    wanted = {f"tree {nodes}": (own.width, min(own.levels, nodes - 1), nodes) for nodes in own.trees}
    wanted[DYNAMIC] = check.tree_topk, check.tree_depth + 1, check.tree_nodes
    found = {CHAIN: TreeSetting.chain(own.levels - 1)}
    for name, (width, levels, nodes) in wanted.items():
        with contextlib.suppress(ValidationError):
            found[name] = TreeSetting(topk=width, depth=levels - 1, total=nodes)
    return found


def study_prompts(config: StudyConfig, layout: StudyLayout) -> list[tuple[int, ...]]:
    """Token ids of some questions of every set, evenly spread.

    Raises:
        DataError: a set of questions cannot be read.
    """
    tokenizer = load_tokenizer(layout.target)
    names = question_sets(config, layout)
    each = max(1, _PROMPTS // len(names))
    return [
        question_prompt(tokenizer, question, config.answers.prompt_tokens).ids
        for name in names
        for question in spread(read_questions(layout.questions(name)), each)
    ]


def _chosen(ways: Sequence[StudyMethod], settings: Mapping[str, HeadSetting]) -> list[StudyMethod]:
    """Methods whose heads are measured, the full head first: of a family the smallest, a middle and the largest.

    The table interpolates between them: by tokens scored and by size of the core.
    """
    families: dict[object, dict[HeadSetting, StudyMethod]] = {}
    for way in ways:
        setting = settings[way.key]
        family = ("slab",) if setting.kind == "static" else setting.family
        if way.drafter == FULL:
            families.setdefault(family, {}).setdefault(setting, way)
    found = []
    for members in families.values():
        order = sorted(members, key=lambda one: (max(one.scored), one.core, len(one.scored)))
        places = {0, len(order) // 2, len(order) - 1}
        found += [members[order[place]] for place in sorted(places)]
    return sorted(found, key=lambda way: way.family != FULL)
