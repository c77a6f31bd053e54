"""The stage ``check``: the real decoder on a sample of the questions, held against plain decoding and the replay."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, Literal

from ..core.artifact import open_artifact
from ..core.config import StrictModel
from ..core.console import say
from ..core.errors import UsageError
from ..core.files import atomic_write_json
from ..core.records import read_versioned
from ..corpus.regenerate_rows import content_digest
from ..decode.method_spec import MethodSpec
from ..decode.proposers import FITTING, ProposerParts, make_proposer
from ..decode.shapes import chain
from ..evaluate.bench_heads_candidates import Candidate
from ..evaluate.bench_heads_steps import PlannedStep, Steps
from ..evaluate.replay_types import Ranks, Replayed
from .answers import KIND as ANSWERS
from .answers import Which
from .check_compare import FAULT, NEAR_TIED, accepted_length, compare_cycles
from .check_sample import Sample
from .config import StudyConfig
from .layout import Layout
from .methods import Method, methods
from .replaying import as_replayed, load_replayed
from .study_heads import StudyHeads

SCHEMA_VERSION = 1
# Ways of decoding: a chain at temperature 0 and at 1, and EAGLE-2's dynamic tree at temperature 0.
MODES = "chain", "drawn", "tree"

# (seed, kind of answers) -> what the replay found for every method, by its key, on all those answers
Replays = Callable[[int, Which], Mapping[str, Replayed]]


def run(config: StudyConfig, layout: Layout) -> None:
    """Decode a sample with every method of the first seeds and write OUTPUT/check.json.

    It holds ``plain`` (plain decoding beside the stored answers, by kind) and ``methods``: by key, below ``by_seed``,
    for every mode of :data:`MODES`, ``accepted_length``, ``cycles`` and the figures of
    ``check_compare.compare_outputs``, and for chains ``replay``, those of ``check_compare.compare_cycles``. ``totals``
    adds them up; ``lossless``: rounding explains all differences; ``as_replayed``: every cycle of a chain is the
    replay's. Finished methods are found again by their content.

    Raises:
        UsageError: the sample's outputs are longer than the stored answers.
        ArtifactError: what another stage makes is missing or damaged.
    """
    perform(config, layout, partial(load_replayed, layout))


def perform(config: StudyConfig, layout: Layout, replays: Replays) -> None:
    """:func:`run` with the replay's results handed in; it raises the same."""
    if config.check.tokens > config.answers.tokens:
        raise UsageError(
            "the decoder cannot be held against answers that are shorter than its outputs",
            got=f"check.tokens {config.check.tokens}",
            expected=f"at most answers.tokens, {config.answers.tokens}",
            remedy="lower check.tokens, or raise answers.tokens and run the stage answers again",
        )
    result = _Check(config, layout, replays).result()
    atomic_write_json(layout.checked, result)
    totals = result["totals"]
    say(
        f"{totals['identical']:,} of {totals['outputs']:,} outputs are plain decoding's ({totals['near_tied']:,} part "
        f"where two tokens are near-tied, {totals['faults']:,} otherwise); {totals['equal_cycles']:,} of "
        f"{totals['cycles']:,} cycles are the replay's"
    )


class _CheckFile(StrictModel):
    """``check.json``; see :func:`run`."""

    schema_version: Literal[1]
    dtype: str
    device: str
    settings: dict[str, int]
    questions: list[list[str | int]]
    plain: dict[str, Any]
    methods: dict[str, Any]
    totals: dict[str, int]
    lossless: bool
    as_replayed: bool


def load_checked(layout: Layout) -> dict[str, Any]:
    """check.json; see :func:`run`.

    Raises:
        DataError: the stage has not run, another version wrote the file, or it is damaged.
    """
    found = read_versioned(
        layout.checked,
        _CheckFile,
        SCHEMA_VERSION,
        what="check of the study",
        remedy="run the stage check again",
    )
    return found.model_dump()


class _Check:
    """The whole comparison."""

    def __init__(self, config: StudyConfig, layout: Layout, replays: Replays) -> None:
        self.config, self.layout, self.replays = config, layout, replays
        self.sample = Sample(config, layout)
        self.methods = methods(config, layout)
        self.seeds = config.seeds[: config.check.seeds]
        plan = [PlannedStep("plain decoding", "", 0.3)]
        plan += [PlannedStep("method", f"seed {seed}", 1.0) for seed in self.seeds for _ in self.methods]
        self._steps = Steps(plan)

    def result(self) -> dict[str, Any]:
        """check.json."""
        folder, own = self.layout.root / "check", self.config.check
        answers = open_artifact(self.layout.answers, ANSWERS, verify=False).manifest["files"]
        key = {
            "target": self.sample.target.identity,
            "answers": {name: one["sha256"] for name, one in answers.items() if name.startswith("answers-")},
            "check": own.model_dump(mode="json", exclude={"seeds"}),
        }
        plain = self._steps.run(folder / "plain.json", key, self.sample.plain)
        found: dict[str, Any] = {
            way.key: {"name": way.name, "setting": way.setting, "by_seed": {}} for way in self.methods
        }
        for seed in self.seeds:
            of_seed = _Seed(self, seed, plain["outputs"])
            for way in self.methods:
                found[way.key]["by_seed"][str(seed)] = self._steps.run(
                    folder / f"seed-{seed}" / f"{way.key}.json",
                    key | of_seed.key(way),
                    partial(of_seed.measure, way),
                    detail=f"{way.name}, {way.setting}",
                )
        totals = _totals(found)
        return {
            "schema_version": SCHEMA_VERSION,
            "dtype": self.sample.target.dtype,
            "device": str(self.sample.target.device),
            "settings": own.model_dump(mode="json") | {"chain": self.config.replay.levels},
            "questions": [[one.answer.set, one.answer.question] for one in self.sample.asked["greedy"]],
            "plain": plain["beside_answers"],
            "methods": found,
            "totals": totals,
            "lossless": 0 < totals["identical"] + totals["near_tied"] == totals["outputs"],
            "as_replayed": 0 < totals["cycles"] == totals["equal_cycles"],
        }


class _Seed:
    """The methods of one seed; drafters, trained heads and the replay are read once, when first asked for."""

    def __init__(self, check: _Check, seed: int, plain: Mapping[str, Sequence[Sequence[int]]]) -> None:
        self._check, self._sample, self._seed, self._plain = check, check.sample, seed, plain
        self._replayed: dict[Which, Mapping[str, Replayed]] = {}

    @cached_property
    def _heads(self) -> StudyHeads:
        return StudyHeads(self._check.layout, self._seed, self._sample.model)

    @cached_property
    def _replay(self) -> str:
        return open_artifact(self._check.layout.replayed(self._seed), verify=False).content_hash

    def key(self, way: Method) -> dict[str, Any]:
        """What decides a method's result beside what decides all of them."""
        place = self._check.layout.seed(self._seed)
        head = None if way.head is None else place / way.head
        one = Candidate(way.name, way.setting, place / self._drafter(way), way.vocab, head, way.options)
        content = content_digest([one.key(), way.kind, self._check.config.replay.levels])
        return {"method": content, "replay": self._replay}

    def _drafter(self, way: Method) -> str:
        """Folder of a method's drafter below the seed's."""
        return as_replayed(way, self._check.layout.seed(self._seed)).drafter

    def measure(self, way: Method) -> dict[str, Any]:
        """Decode the sample in every mode."""
        own, levels = self._check.config.check, self._check.config.replay.levels
        way = replace(way, drafter=self._drafter(way))
        drafter, head = self._heads.drafter(way.drafter), self._heads.head(way)
        line = MethodSpec(tree="chain", depth=levels - 1)
        tree = MethodSpec(
            tree="dynamic", depth=own.tree_depth, topk=own.tree_topk, total_nodes=own.tree_nodes
        )
        found: dict[str, Any] = {}
        for mode in MODES:
            which: Which = "drawn" if mode == "drawn" else "greedy"
            parts = ProposerParts(self._sample.model, drafter, head, tree if mode == "tree" else line)
            made = self._sample.decode(make_proposer(FITTING[drafter.kind][0], parts), which)
            found[mode] = accepted_length(made) | self._sample.compare(made, self._plain[which], which)
            if mode != "tree":
                asked = self._sample.asked[which]
                found[mode]["replay"] = compare_cycles(made, asked, self._ranks(way, which), chain(levels))
        _warn(way, self._seed, found)
        return found

    def _ranks(self, way: Method, which: Which) -> list[Ranks]:
        if which not in self._replayed:
            self._replayed[which] = self._check.replays(self._seed, which)
        return self._sample.ranks(self._replayed[which], way.key, which, self._seed)


def _warn(way: Method, seed: int, found: Mapping[str, Any]) -> None:
    """One line for what must not be."""
    for mode, figures in found.items():
        where = f"{way.name}, {way.setting}, seed {seed}, {mode}"
        faults = [one for one in figures["different"] if one["judgement"] != NEAR_TIED]
        if faults:
            one = faults[0]
            say(
                f"Warning: {where}: {len(faults)} outputs are not plain decoding's, first {one['set']} "
                f"{one['question']}, token {one['position'] + 1}: {one['reason']}"
            )
        replay = figures.get("replay")
        if replay and replay["different"]:
            one = replay["different"][0]
            say(
                f"Warning: {where}: {len(replay['different'])} of {replay['cycles']} cycles are not the replay's, "
                f"first {one['set']} {one['question']} from token {one['start'] + 1}: "
                f"{one['decoded']} tokens, not {one['replayed']}"
            )


def _totals(found: Mapping[str, Any]) -> dict[str, int]:
    """Sums over methods, seeds and modes."""
    each = [
        figures for way in found.values() for made in way["by_seed"].values() for figures in made.values()
    ]
    different = [one["judgement"] for figures in each for one in figures["different"]]
    replays = [figures["replay"] for figures in each if "replay" in figures]
    return {
        "outputs": sum(figures["outputs"] for figures in each),
        "identical": sum(figures["identical"] for figures in each),
        "near_tied": different.count(NEAR_TIED),
        "faults": different.count(FAULT),
        "not_judged": len(different) - different.count(NEAR_TIED) - different.count(FAULT),
        "cycles": sum(one["cycles"] for one in replays),
        "equal_cycles": sum(one["equal"] for one in replays),
    }
