"""A study's inputs for its report, made up such that the figures fit each other: no model is trained for them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.study.decoding_support import study_config
from vocabforge.evaluate.benchmarks import MT_BENCH
from vocabforge.study.config import StudyConfig
from vocabforge.study.layout import StudyLayout
from vocabforge.study.methods import StudyMethod, methods
from vocabforge.study.replay.replay import cycle_offsets
from vocabforge.study.replay.types import MISSED, Continuation, Replayed
from vocabforge.study.report.results import DRAWN, GREEDY, Checked, Decoded
from vocabforge.study.report.stage import Replays, ReportInputs
from vocabforge.study.stage_answers import StudyAnswer
from vocabforge.study.times.stage import StudyTimes, trees_of
from vocabforge.tune.latency.records import AXES, MeasuredPart, Point, Shapes
from vocabforge.tune.latency.table import LatencyTable, head_family
from vocabforge.tune.types import HeadSetting
from vocabforge.vocab.subset.subset import VocabSubset, save_subset

ROWS, HIDDEN = 151_936, 512
SPEC_BENCH = dict.fromkeys(MT_BENCH, 10) | dict.fromkeys(
    ("translation", "summarization", "qa", "math_reasoning", "rag"), 80
)
SETS: Mapping[str, Mapping[str, int]] = {
    "spec-bench": SPEC_BENCH,
    "human-eval": {"human-eval": 164},
    "gsm8k": {"gsm8k": 100},
    "rare": {"french": 36, "german": 36, "japanese": 36},
}
RARE_CATEGORIES = {"human-eval", "french", "german", "japanese", "coding"}


TOKENS = 40  # of an answer at most: all end before


def report_config(root: Path) -> StudyConfig:
    """A few methods of every family."""
    few: dict[str, Any] = {
        "static": (8192, 32_768),
        "position": ("decay:32768:4096",),
        "ranks": (8,),
        "shortlists": (512, 2048),
        "clusters": (256,),
        "budgets": (0.02, 0.05),
        "schedules": ("decay",),
        "cores": (1024,),
    }
    sections: dict[str, Any] = {
        "replay": {"levels": 6, "width": 10, "trees": (30, 60)},
        "seeds": (0, 1, 2),
        "answers": {"tokens": TOKENS},
    }
    config = study_config(root, **sections, methods=few)
    target = config.target.model_copy(update={"rows": ROWS, "hidden_size": HIDDEN})
    drafters = config.drafters.model_copy(update={"reduced_size": 32_768})
    return config.model_copy(update={"target": target, "drafters": drafters, "size": "made up"})


def make_subsets(config: StudyConfig, layout: StudyLayout) -> None:
    """Draft vocabularies that methods need: the first ids of the tokenizer."""
    for size in config.methods.static:
        ids = np.arange(size, dtype=np.int64)
        for ranking in ("fr", "trim"):
            subset = VocabSubset.from_ranked(ids, vocab_size=ROWS, fingerprint="f" * 64)
            save_subset(subset, layout.subset(ranking, size))


def made_up(root: Path) -> tuple[StudyConfig, ReportInputs]:
    """A configuration and what its stages might have left, of a twentieth of the questions."""
    config, layout = report_config(root), StudyLayout(root)
    make_subsets(config, layout)
    ways, asked = methods(config, layout), made_up_questions(0.05)
    numbers = range(3)
    replays = {
        which: Replays(asked, [made_up_ranks(ways, asked, seed, which) for seed in numbers])
        for which in (GREEDY, DRAWN)
    }
    static = [way for way in ways if way.vocab is not None]
    return config, ReportInputs(
        ways=ways,
        replays=replays,
        seeds=list(numbers),
        vocab_size=ROWS,
        coverage={way.key: {"own": 0.97, "french": 0.71, "wiki": 0.9} for way in static},
        times=made_up_times(config, ways),
        checked=made_up_check(ways),
        facts={"target": "104,000,000 parameters", "machine": "A card with 140 GB, an 8-core processor"},
        command="vocabforge study report --size gpu",
        missing=["Not replayed: seed 3."],
    )


def made_up_questions(share: float) -> list[StudyAnswer]:
    """Questions of all sets, each with an answer of a few tokens."""
    rng, found = np.random.default_rng(1), []
    for name, categories in SETS.items():
        for category, count in categories.items():
            for _ in range(max(2, round(share * count))):
                tokens = tuple(range(int(rng.integers(12, 33))))
                found.append(StudyAnswer(name, category, len(found), Continuation((1,), tokens)))
    return found


def chance_inside(way: StudyMethod, rare: bool) -> float:
    """How often the full head's candidate is one of the method's."""
    scored, lost = scored_of(way), 0.22 if rare else 0.055
    if way.family in ("full", "low-rank"):
        return 1.0 if way.family == "full" else 0.96
    if not way.dynamic:
        bonus = {"trim": 0.8, "reduced": 1.35}.get(way.family, 1.0)
        return 1 - bonus * lost * (32_768 / scored) ** 0.6
    joint = 0.8 if "joint" in way.name else 1.0
    rank = 0.8 if "d/8" in way.name else 1.0
    kind = {"router": 2.2, "context": 4.0, "hybrid": 0.9}.get(way.family, 1.0)
    return 1 - 0.007 * joint * rank * kind * (1.3 if rare else 1.0) * (2048 / scored) ** 0.45


def scored_of(way: StudyMethod) -> float:
    """Mean tokens with an exact logit at the first draft step."""
    options = way.options
    if way.family in ("full", "low-rank"):
        return float(ROWS)
    if way.family == "reduced":
        return 32_768.0
    if way.vocab is not None:
        return float(way.vocab.name.split("-")[1])
    if options.schedule:
        return float(options.schedule[0])
    if options.budgets:
        return ROWS * options.budgets[0] / int(way.name.split()[-1])
    if way.family == "context":
        return len(options.ranked or ()) + 150.0
    return float(len(options.ranked or ()) + (options.shortlist or 0))


def made_up_ranks(
    ways: Sequence[StudyMethod], asked: Sequence[StudyAnswer], seed: int, which: str
) -> dict[str, Replayed]:
    """Ranks that share the questions' difficulty: where a method misses, so does every worse one."""
    rng = np.random.default_rng([seed, len(which)])
    offsets = cycle_offsets([one.continuation for one in asked])
    lengths, levels, width = np.diff(offsets), 6, 10
    size = offsets[-1], levels
    easy = np.repeat(rng.beta(9, 6, len(asked)) * (0.8 if which == DRAWN else 1.0), lengths)
    rare = np.repeat([one.category in RARE_CATEGORIES for one in asked], lengths)
    left = np.repeat(offsets[1:], lengths) - np.arange(offsets[-1])
    best = np.minimum(rng.geometric(np.repeat(easy[:, None], levels, 1)) - 1, MISSED).astype(np.uint8)
    best[best >= width] = MISSED
    best[np.arange(levels) >= left[:, None]] = MISSED
    drawn = rng.random(size)
    found = {}
    for way in ways:
        inside = np.where(rare, chance_inside(way, True), chance_inside(way, False)) + rng.normal(0, 0.001)
        ranks = np.where(drawn < inside[:, None], best, MISSED).astype(np.uint8)
        ranks[np.cumsum(ranks == MISSED, axis=1) > 0] = MISSED
        exact = 0.0 if way.family == "low-rank" else scored_of(way)
        steps = way.options.schedule or way.options.budgets or ()
        by_step = [
            exact * (steps[min(step, len(steps) - 1)] / steps[0] if steps else 1.0) for step in range(levels)
        ]
        found[way.key] = Replayed(ranks, tuple(by_step) if seed else (*by_step[:-1], math.nan))
    return found


def setting_of(way: StudyMethod) -> HeadSetting:
    """Sizes of a method's head, as ``times`` would write them."""
    kind: Any = way.kind or ("full" if way.family == "full" else "static")
    rank = HIDDEN // 8 if kind in ("ranker", "hybrid", "low-rank") else 0
    clusters = int(way.name.split()[-1]) if kind == "router" else 0
    steps = way.options.schedule or (round(scored_of(way)),)
    core = len(way.options.ranked or ()) if kind in ("context", "hybrid") else 0
    return HeadSetting(kind=kind, scored=tuple(steps), core=core, rank=rank, clusters=clusters)


def made_up_times(config: StudyConfig, ways: Sequence[StudyMethod]) -> StudyTimes:
    """Times of this model's cycles."""
    heads = {way.key: setting_of(way) for way in ways}
    return StudyTimes(
        vocabforge="0",
        heads=heads,
        rows=ROWS,
        hidden=HIDDEN,
        prefix=200,
        trees=trees_of(config),
        latency=made_up_latency(list(heads.values())),
    )


def made_up_latency(heads: Sequence[HeadSetting]) -> LatencyTable:
    """A latency table of a small model: a head's time grows with what it scores."""

    def part(name: str, family: str, seconds: float, **slopes: float) -> MeasuredPart:
        low = dict.fromkeys(AXES[name], 1)
        points = [Point(at=low, seconds=seconds, low=seconds, high=seconds, count=9)]
        for axis, slope in slopes.items():
            more = seconds + slope * 200_000
            points.append(Point(at={**low, axis: 200_001}, seconds=more, low=0.97 * more, high=more, count=9))
        return MeasuredPart(name=name, family=family, points=tuple(points))

    parts = [part("plain", "", 2.4e-3), part("start", "", 1e-4)]
    parts += [part("prefill", family, 1e-3) for family in ("plain", "drafting")]
    for kind in ("chain", "dynamic"):
        parts += [part(name, kind, 1e-4) for name in ("layer", "choose", "commit")]
        parts.append(part("verify", kind, 2.6e-3))
        parts += [part("grow", f"{kind} {where}", 3e-5) for where in ("first", "further", "last")]
    for family in dict.fromkeys(one.family for one in heads):
        parts += [
            part("head", head_family(family, first=first), 8e-5, scored=1e-9) for first in (True, False)
        ]
    shapes = Shapes(kind="made up", hidden_size=HIDDEN, layers=8, vocab_size=ROWS, parameters=10**8)
    return LatencyTable(
        vocabforge="0",
        environment={"gpu": "A card with 140 GB", "processor": "An 8-core processor", "threads": 8},
        dtype="bfloat16",
        graphs=True,
        target=shapes,
        drafter=shapes,
        parts=tuple(parts),
        error=0.02,
    )


def made_up_check(ways: Sequence[StudyMethod]) -> Checked:
    """A decoder that is lossless and does as the replay says."""
    modes = [
        Decoded(
            mode=mode,
            outputs=24 * len(ways),
            identical=24 * len(ways) - 1,
            near_tied=1,
            faults=0,
            not_judged=0,
            cycles=0 if mode.startswith("dynamic") else 2_400,
            equal_cycles=0 if mode.startswith("dynamic") else 2_400,
            compared=0 if mode.startswith("dynamic") else 120,
        )
        for mode in ("chain, greedy", "chain, temperature 1", "dynamic tree, greedy")
    ]
    lengths = {
        way.key: {"chain, greedy": 2.1, "chain, temperature 1": 1.9, "dynamic tree, greedy": 2.7}
        for way in ways
    }
    settings = {"questions": 6, "tokens": 24, "seeds": 1, "tree_topk": 8, "tree_depth": 4, "tree_nodes": 30}
    return Checked(modes=modes, lengths=lengths, questions=24, where="cuda, bfloat16", settings=settings)
