"""Stage ``report``: results.json, its tables as Markdown, and a plot."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from typing import Any, get_args

import numpy as np

from ... import __version__
from ...core.artifact import open_artifact, write_artifact
from ...core.console import console, say
from ...core.errors import ArtifactError
from ...core.files import read_json
from ...core.provenance import command_line, git_revision, package_versions
from ...tune.types import HeadSetting
from ..config import StudyConfig, StudyLayout
from ..methods import FULL, StudyMethod, methods
from ..replay.replay import cycle_offsets
from ..replay.stage import load_replayed
from ..replay.types import Replayed
from ..stages.answers import KIND as ANSWERS
from ..stages.answers import StudyAnswer, Which, load_answers
from .figures import cells, groups_of, mean_scored, question_sums, shapes
from .results import (
    EVERYTHING,
    GREEDY,
    RESULTS,
    Cell,
    Checked,
    DraftShape,
    MethodFigures,
    QuestionGroup,
    StudyResults,
)
from .roofline import scaled, tokens_per_s
from .tables import markdown, methods_table, share_plot

KIND = "study-report"
TABLES, PLOT = "table.md", "plots/share.svg"


def run(config: StudyConfig, layout: StudyLayout) -> None:
    """Write ``layout.report``, an artefact of kind ``study-report``, and print its main table.

    Raises:
        ArtifactError: a seed is not replayed, or its replay does not match these answers and methods.
        DataError: a file of another stage is missing or damaged.
    """
    results = assemble(config, layout)
    meta = {"size": results.size, "seeds": results.seeds, "methods": len(results.methods)}
    parents = {"answers": open_artifact(layout.answers, ANSWERS, verify=False).content_hash}
    for seed in results.seeds:
        replayed = open_artifact(layout.replayed(seed), verify=False)
        parents[f"replay of seed {seed}"] = replayed.content_hash
    with write_artifact(
        layout.report, KIND, meta, parents=parents, config=results.config, overwrite=True
    ) as folder:
        (folder / RESULTS).write_text(results.model_dump_json() + "\n", "utf-8")
        (folder / TABLES).write_text(markdown(results), "utf-8")
        if plot := share_plot(results):
            (folder / PLOT).parent.mkdir()
            (folder / PLOT).write_text(plot, "utf-8")
    console().print(methods_table(results))
    say(f"Report: {layout.report / TABLES}")


def assemble(config: StudyConfig, layout: StudyLayout) -> StudyResults:
    """All figures of a study; errors as of :func:`run`."""
    ways = methods(config, layout)
    answers = {which: load_answers(layout, which) for which in get_args(Which)}
    target = read_json(layout.target / "config.json", "target's configuration")
    keys, full = [way.key for way in ways], [way.family for way in ways].index(FULL)
    found: dict[str, dict[str, dict[str, dict[str, Cell]]]] = {key: {} for key in keys}
    scored: dict[str, list[Replayed]] = {key: [] for key in keys}
    groups: list[QuestionGroup] = []
    for which, asked in answers.items():
        replayed = [_ranks(layout, seed, which, ways, asked) for seed in config.seeds]
        members = groups_of(asked)
        groups = groups or [group for group, _ in members]
        for key in keys:
            scored[key] += [one[key] for one in replayed]
        for shape, form in shapes(config.replay).items():
            sums = question_sums(replayed, keys, asked, form, config.answers.tokens)
            for group, mask in members:
                made = cells(sums, mask, full)
                for key, cell in zip(keys, made, strict=True):
                    found[key].setdefault(which, {}).setdefault(shape, {})[group.key] = cell
    drafts = [
        DraftShape(key=name, nodes=form.nodes, levels=form.levels, width=form.width)
        for name, form in shapes(config.replay).items()
    ]
    heads, figures = open_artifact(layout.replayed(config.seeds[0])).meta["heads"], []
    for way in ways:
        counted = mean_scored(scored[way.key])
        sizes = {"rows": int(target["vocab_size"]), "hidden": int(target["hidden_size"])}
        head = scaled(HeadSetting.model_validate(heads[way.key]), config.roofline, counted, **sizes)
        for draft in drafts:
            by_group = found[way.key][GREEDY][draft.key]
            length = by_group[EVERYTHING].accepted.value
            if length is not None:
                speed = {"tokens_per_s": tokens_per_s(length, head, draft, config.roofline)}
                by_group[EVERYTHING] = by_group[EVERYTHING].model_copy(update=speed)
        figures.append(
            MethodFigures(
                key=way.key,
                family=way.family,
                name=way.name,
                setting=way.setting,
                exact=float(np.mean(list(counted.values()))) / sizes["rows"] if counted else 0.0,
                cells=found[way.key],
            )
        )
    return StudyResults(
        vocabforge=__version__,
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        size=config.size,
        seeds=list(config.seeds),
        command=shlex.join(command_line()),
        vocab_size=int(target["vocab_size"]),
        shapes=drafts,
        groups=groups,
        methods=figures,
        checked=Checked.model_validate(read_json(layout.checked, "check of the study")),
        facts=_facts(config, layout, answers),
        config=config.model_dump(mode="json"),
    )


def _ranks(
    layout: StudyLayout, seed: int, which: Which, ways: Sequence[StudyMethod], answers: Sequence[StudyAnswer]
) -> Mapping[str, Replayed]:
    found = load_replayed(layout, seed, which)
    rows = cycle_offsets([one.continuation for one in answers])[-1]
    wrong = [way.key for way in ways if way.key not in found or len(found[way.key].ranks) != rows]
    if wrong:
        raise ArtifactError(
            "the replay does not match these answers and methods",
            got=f"other rows, or none, of {', '.join(wrong[:3])}",
            expected=f"{rows:,} rows of each of {len(ways)} methods",
            source=layout.replayed(seed),
            remedy="run the stage replay again",
        )
    return found


def _facts(
    config: StudyConfig, layout: StudyLayout, answers: Mapping[Which, Sequence[StudyAnswer]]
) -> dict[str, str]:
    facts, own = {}, config.roofline
    for which, found in answers.items():
        tokens, cut = sum(len(one.continuation.tokens) for one in found), sum(one.shortened for one in found)
        facts[f"answers, {which}"] = (
            f"{tokens:,} tokens to {len(found):,} questions, {cut:,} prompts shortened"
        )
    facts["8B shape"] = (
        f"V = {own.rows:,}, H = {own.hidden:,}; roofline: {own.bandwidth / 1e12:g} TB/s, layer {own.layer_us:g} µs a "
        f"step, target {own.target_us:g} µs a cycle (given)"
    )
    if (file := layout.root / "stages.json").is_file():
        for name, row in read_json(file, "record of stages").items():
            facts[f"stage {name}"] = f"{row['seconds']:,.0f} s, {_machine(row.get('environment', {}))}"
    facts["versions"] = ", ".join(f"{name} {version}" for name, version in package_versions().items())
    if revision := git_revision():
        facts["revision"] = revision[:12]
    return facts


def _machine(environment: Mapping[str, Any]) -> str:
    parts = [environment.get("gpu"), environment.get("processor"), f"{environment.get('threads')} threads"]
    return ", ".join(str(one) for one in parts if one)
