"""What the report of a study reads from the other stages."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from ..core.artifact import open_artifact
from ..core.errors import ArtifactError, DataError
from ..core.files import read_json
from ..core.provenance import command_line, git_revision, package_versions
from ..evaluate.replay import cycle_offsets
from ..evaluate.replay_types import Replayed
from .answers import Answer, Which, load_answers
from .assembling import Inputs, Replays
from .check import MODES, load_checked
from .check_compare import FAULT, NEAR_TIED
from .config import StudyConfig
from .data import SUMMARY
from .figures import Asked
from .layout import Layout
from .methods import REDUCED, Method, methods
from .replaying import load_replayed
from .results import Checked, Decoded
from .target import losses_by_source
from .times import StudyTimes, read_times
from .vocab import COVERAGE, FR

OWN_TEXT = "the answers that VocabTrim counted"
_STAGES = "stages.json"
_MODE_WORDS = {"chain": "chain, greedy", "drawn": "chain, temperature 1", "tree": "dynamic tree, greedy"}


def read_inputs(config: StudyConfig, layout: Layout) -> Inputs:
    """Everything a report needs; what is missing beside the replay is said in it.

    Raises:
        ArtifactError: no seed is replayed, or a replay is not one of these answers and methods.
        DataError: a file is damaged.
    """
    coverage = _coverage_rows(layout)
    ways = methods(config, layout)
    missing: list[str] = []
    answers = {which: load_answers(layout, which) for which in get_args(Which)}
    seeds = _replayed_seeds(config, layout, missing)
    replays = {
        which: Replays(
            [
                Asked(
                    one.set,
                    one.category,
                    one.continuation,
                    len(one.continuation.tokens) >= config.answers.tokens,
                )
                for one in found
            ],
            [_ranks(layout, seed, which, ways, found) for seed in seeds],
        )
        for which, found in answers.items()
    }
    checked, times = read_check(layout, missing), _times(layout, missing)
    return Inputs(
        ways=ways,
        replays=replays,
        seeds=seeds,
        vocab_size=int(read_json(layout.target / "config.json", "target's configuration")["vocab_size"]),
        coverage=_coverage(config, layout, ways, coverage),
        filled={
            way.key: coverage.get(way.vocab.name, {}).get("filled", 0)
            for way in ways
            if way.vocab is not None
        },
        times=times,
        checked=checked,
        facts=_facts(config, layout, answers, times),
        command=shlex.join(command_line()),
        missing=missing,
    )


def _replayed_seeds(config: StudyConfig, layout: Layout, missing: list[str]) -> list[int]:
    """Seeds with a replay; those without are missing."""
    found = [seed for seed in config.seeds if layout.replayed(seed).is_dir()]
    if not found:
        raise ArtifactError(
            "no seed of the study is replayed",
            source=layout.replay,
            remedy="run `vocabforge study replay` with the same configuration first",
        )
    if left := [seed for seed in config.seeds if seed not in found]:
        missing.append(f"Not replayed: seed {', '.join(map(str, left))}.")
    return found


def _ranks(
    layout: Layout, seed: int, which: Which, ways: Sequence[Method], answers: Sequence[Answer]
) -> Mapping[str, Replayed]:
    found = load_replayed(layout, seed, which)
    rows = cycle_offsets([one.continuation for one in answers])[-1]
    wrong = [way.key for way in ways if way.key not in found or len(found[way.key].ranks) != rows]
    if wrong:
        raise ArtifactError(
            "the replay is not one of these answers and methods",
            got=f"other rows, or none, of {', '.join(wrong[:3])}",
            expected=f"{rows:,} rows of each of {len(ways)} methods",
            source=layout.replayed(seed),
            remedy="run the stage replay again",
        )
    return found


def read_check(layout: Layout, missing: list[str]) -> Checked | None:
    """check.json by way of decoding, all methods and seeds; None, and said in ``missing``, where it is not there."""
    if not layout.checked.is_file():
        missing.append(
            "The decoder itself was not asked (stage check): nothing here says that it is lossless."
        )
        return None
    found = load_checked(layout)
    ways: Mapping[str, Any] = found["methods"]
    lengths: dict[str, dict[str, float]] = {}
    for key, way in ways.items():
        for mode in MODES:
            known = [made[mode]["accepted_length"] for made in way["by_seed"].values()]
            known = [value for value in known if value is not None]
            if known:
                lengths.setdefault(key, {})[_MODE_WORDS[mode]] = sum(known) / len(known)
    return Checked(
        modes=[_decoded(mode, ways) for mode in MODES],
        lengths=lengths,
        questions=len(found["questions"]),
        where=f"{found['device']}, {found['dtype']}",
        settings=found["settings"],
    )


def _decoded(mode: str, ways: Mapping[str, Any]) -> Decoded:
    """One way of decoding, summed over methods and seeds."""
    each = [made[mode] for way in ways.values() for made in way["by_seed"].values()]
    judged = [one["judgement"] for figures in each for one in figures["different"]]
    replays = [figures["replay"] for figures in each if "replay" in figures]
    return Decoded(
        mode=_MODE_WORDS[mode],
        outputs=sum(figures["outputs"] for figures in each),
        identical=sum(figures["identical"] for figures in each),
        near_tied=judged.count(NEAR_TIED),
        faults=judged.count(FAULT),
        not_judged=len(judged) - judged.count(NEAR_TIED) - judged.count(FAULT),
        cycles=sum(one["cycles"] for one in replays),
        equal_cycles=sum(one["equal"] for one in replays),
        compared=sum(one["outputs"] for one in replays),
    )


def _times(layout: Layout, missing: list[str]) -> StudyTimes | None:
    if not layout.times.is_file():
        missing.append("No head times were measured (stage times): nothing is predicted.")
        return None
    times = read_times(layout.times)
    left = [*times.latency.notes, *(times.shape.notes if times.shape is not None else ())]
    missing += [f"Times: {one}." for one in dict.fromkeys(left)]
    gpu = times.latency.environment.get("gpu")
    if gpu is None:
        missing.append("Head times are of a CPU: no GPU was there to measure on.")
    if times.shape is None:
        missing.append("Nothing of the 8B shape was measured; its column is the byte roofline alone.")
    return times


def _coverage_rows(layout: Layout) -> Mapping[str, Any]:
    """Of every subset its size, how many ids were filled up, and the shares of texts that it covers."""
    file = layout.vocab / COVERAGE
    rows: Mapping[str, Any] = read_json(file, "coverage of the study")["subsets"] if file.is_file() else {}
    return rows


def _coverage(
    config: StudyConfig, layout: Layout, ways: Sequence[Method], subsets: Mapping[str, Any]
) -> dict[str, dict[str, float]]:
    """Shares of texts' tokens inside the static vocabularies, by method."""
    found = {}
    for way in ways:
        subset = layout.subset(FR, config.drafters.reduced_size) if way.family == REDUCED else way.vocab
        if subset is not None and subset.name in subsets:
            row = subsets[subset.name]
            shares = {OWN_TEXT: row["own"], **row["heldout"]}
            found[way.key] = {text: share for text, share in shares.items() if share is not None}
    return found


def _facts(
    config: StudyConfig,
    layout: Layout,
    answers: Mapping[Which, Sequence[Answer]],
    times: StudyTimes | None,
) -> dict[str, str]:
    """Machine and inputs in words."""
    facts = _target_facts(config, layout)
    if (layout.data / SUMMARY).is_file():
        summary = read_json(layout.data / SUMMARY, "summary of the data")
        train = summary["train"]
        facts["learnt from"] = f"{train['conversations']:,} conversations, {train['characters']:,} characters"
        facts["questions"] = ", ".join(
            f"{one['questions']:,} of {one['of']:,} {name}" for name, one in summary["questions"].items()
        )
    for which, found in answers.items():
        tokens = sum(len(one.continuation.tokens) for one in found)
        facts[f"answers, {which}"] = f"{tokens:,} tokens to {len(found):,} questions" + _shortened(found)
    drafters = config.drafters
    learnt = [
        f"{what} {part.steps} steps of {part.batch_size} rows"
        for what, part in (
            ("full", drafters.full),
            ("reduced", drafters.reduced),
            ("rankers alone, on the drafter that learnt with rankers,", drafters.alone),
            ("routers", drafters.router),
        )
    ]
    facts["drafters learn"] = (
        f"{'; '.join(learnt)}; rows of {drafters.sequence_length} tokens, K = {drafters.steps}"
    )
    if times is not None:
        facts["latency table"] = _machine(times.latency.environment) + f", {times.latency.dtype}"
        facts["typical error of its cycles"] = f"{times.latency.error:.1%}"
        if times.shape is not None:
            facts["8B shape's times"] = _machine(times.shape.environment) + f", {times.shape.dtype}"
    own = config.times
    facts["8B shape"] = (
        f"V = {own.shape_rows:,}, H = {own.shape_hidden:,}; roofline: {own.bandwidth / 1e12:g} TB/s, layer "
        f"{own.layer_us:g} µs a step, target {own.target_us:g} µs a cycle (given)"
    )
    facts |= _stage_facts(layout)
    facts["versions"] = ", ".join(f"{name} {version}" for name, version in package_versions().items())
    if revision := git_revision():
        facts["revision"] = revision[:12]
    return facts


def _target_facts(config: StudyConfig, layout: Layout) -> dict[str, str]:
    """Sizes and held-out losses of the target; nothing where it was not made by the stage."""
    try:
        meta = open_artifact(layout.target, verify=False).meta
        losses = losses_by_source(config, meta)
        size = f"{meta['parameters']:,} parameters, learnt from {meta['train_tokens']:,} tokens"
    except (ArtifactError, KeyError):
        return {}
    said = ", ".join(f"{name} {loss:.2f}" for name, loss in losses.items())
    return {"target": size, "its held-out loss, nats a token": said}


def _shortened(answers: Sequence[Answer]) -> str:
    count = sum(one.shortened for one in answers)
    return f", {count:,} prompts shortened" if count else ""


def _machine(environment: Mapping[str, Any]) -> str:
    parts = [environment.get("gpu"), environment.get("processor"), f"{environment.get('threads')} threads"]
    return ", ".join(str(one) for one in parts if one)


def _stage_facts(layout: Layout) -> dict[str, str]:
    """How long every stage took, and where."""
    file = layout.root / _STAGES
    if not file.is_file():
        return {}
    rows = read_json(file, "record of stages")
    if not isinstance(rows, dict):
        raise DataError("the record of stages cannot be read", source=file, remedy="delete it")
    return {
        f"stage {name}": f"{row['seconds']:,.0f} s, {_machine(row.get('environment', {}))}"
        for name, row in rows.items()
        if name != "report"
    }
