"""Stage ``report``: results.json, tables, plots and one self-contained page."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Mapping, Sequence
from typing import Any, get_args

import numpy as np

from ... import __version__
from ...core.artifact import open_artifact, write_artifact
from ...core.console import FactList, console, say
from ...core.errors import ArtifactError
from ...core.files import read_json
from ...core.provenance import command_line, git_revision, package_versions
from ...evaluate.reports.page import (
    Block,
    CodeBlock,
    Folded,
    PageCard,
    PageSection,
    ReportPage,
    render_report_page,
)
from ..config import StudyConfig
from ..layout import StudyLayout
from ..methods import FULL, StudyMethod, methods
from ..replay.replay import cycle_offsets
from ..replay.types import Replayed
from ..stage_answers import KIND as ANSWERS
from ..stage_answers import StudyAnswer, Which, load_answers
from ..stage_check import load_checked
from ..stage_replay import load_replayed
from ..times.stage import StudyTimes, read_times
from .figures import MAIN_KINDS, cells, groups_of, mean_scored, question_sums, shapes
from .plots import looks, study_charts
from .predictions import predictions
from .results import (
    COLUMNS,
    EVERYTHING,
    RARE,
    RESULTS,
    ROOFLINE,
    Cell,
    Checked,
    Decoded,
    DraftShape,
    MethodFigures,
    QuestionGroup,
    StudyResults,
)
from .tables import markdown, methods_table, percent, share, study_tables

KIND = "study-report"
PAGE, TABLES, PLOTS = "report.html", "table.md", "plots"
_MODE_WORDS = {"chain": "chain, greedy", "drawn": "chain, temperature 1", "tree": "dynamic tree, greedy"}
_UNFOLDED = 24  # rows of a table beside the first that are shown at once
# Section of the page -> its charts' keys.
_CHARTS = {"methods": ("share", "speed"), "categories": ("categories",)}


def run(config: StudyConfig, layout: StudyLayout) -> None:
    """Write ``layout.report``, an artefact of kind ``study-report``, and print its main table.

    ``results.json`` (:class:`.StudyResults`), ``table.md``, ``plots/*.svg``, ``report.html``.

    Raises:
        ArtifactError: no seed is replayed, or a replay does not match these answers and methods.
        DataError: a file of another stage is damaged.
    """
    results = assemble(config, layout)
    write_report(results, config, layout)
    console().print(methods_table(results))
    say(f"Report: {layout.report / PAGE}")


def assemble(config: StudyConfig, layout: StudyLayout) -> StudyResults:
    """All figures of a study; what is missing besides the replay is listed in ``missing``.

    Raises:
        ArtifactError: no seed is replayed, or a replay does not match these answers and methods.
        DataError: a file is damaged.
    """
    ways, missing = methods(config, layout), list[str]()
    seeds = [seed for seed in config.seeds if layout.replayed(seed).is_dir()]
    if not seeds:
        raise ArtifactError(
            "no seed of the study is replayed",
            source=layout.replay,
            remedy="run `vocabforge study replay` with the same configuration first",
        )
    if left := [seed for seed in config.seeds if seed not in seeds]:
        missing.append(f"Not replayed: seed {', '.join(map(str, left))}.")
    answers = {which: load_answers(layout, which) for which in get_args(Which)}
    checked, times = _checked(layout, missing), _times(layout, missing)
    vocab_size = int(read_json(layout.target / "config.json", "target's configuration")["vocab_size"])
    keys, full = [way.key for way in ways], [way.family for way in ways].index(FULL)
    found: dict[str, dict[str, dict[str, dict[str, Cell]]]] = {key: {} for key in keys}
    scored: dict[str, list[Replayed]] = {key: [] for key in keys}
    groups: list[QuestionGroup] = []
    for which, asked in answers.items():
        replayed = [_ranks(layout, seed, which, ways, asked) for seed in seeds]
        members = groups_of(asked)
        groups = groups or [group for group, _ in members]
        for key in keys:
            scored[key] += [one[key] for one in replayed]
        for shape, form in shapes(config.replay).items():
            sums = question_sums(replayed, keys, asked, form, config.answers.tokens)
            for group, mask in members:
                made = cells(sums, mask, full, intervals=group.kind in MAIN_KINDS)
                for key, cell in zip(keys, made, strict=True):
                    found[key].setdefault(which, {}).setdefault(shape, {})[group.key] = cell
    figures, predicted = [], set[str]()
    for way in ways:
        counted = mean_scored(scored[way.key])
        if times is not None and way.key in times.heads:
            predicted |= _predict(way.key, found[way.key], counted, times, config)
        figures.append(
            MethodFigures(
                key=way.key,
                family=way.family,
                name=way.name,
                setting=way.setting,
                dynamic=way.dynamic,
                exact=float(np.mean(list(counted.values()))) / vocab_size if counted else 0.0,
                cells=found[way.key],
            )
        )
    return StudyResults(
        vocabforge=__version__,
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        size=config.size,
        seeds=seeds,
        command=shlex.join(command_line()),
        vocab_size=vocab_size,
        columns=[column for column in COLUMNS if column in predicted],
        shapes=[
            DraftShape(key=name, nodes=form.nodes, levels=form.levels, width=form.width)
            for name, form in shapes(config.replay).items()
        ],
        temperatures=list(answers),
        groups=groups,
        methods=figures,
        checked=checked,
        facts=_facts(config, layout, answers, times),
        missing=missing,
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


def _checked(layout: StudyLayout, missing: list[str]) -> Checked | None:
    """check.json, lengths as means over the checked seeds; None, noted in ``missing``, without the file."""
    if not layout.checked.is_file():
        missing.append("The decoder was not checked (stage check): nothing here shows that it is lossless.")
        return None
    found = load_checked(layout)
    lengths: dict[str, dict[str, float]] = {}
    for key, seeds in found.methods.items():
        for mode, words in _MODE_WORDS.items():
            each = [made[mode]["accepted_length"] for made in seeds.values()]
            known = [value for value in each if value is not None]
            if known:
                lengths.setdefault(key, {})[words] = float(np.mean(known))
    return Checked(
        modes=[Decoded(mode=words, **found.totals[mode]) for mode, words in _MODE_WORDS.items()],
        lengths=lengths,
        questions=len(found.questions),
        where=f"{found.device}, {found.dtype}",
        settings=found.settings.model_dump(),
    )


def _times(layout: StudyLayout, missing: list[str]) -> StudyTimes | None:
    if not layout.times.is_file():
        missing.append("No head times were measured (stage times): nothing is predicted.")
        return None
    times = read_times(layout.times)
    missing += [f"Times: {one}." for one in dict.fromkeys(times.latency.notes)]
    if times.latency.environment.get("gpu") is None:
        missing.append("Head times were measured on a CPU: there was no GPU.")
    return times


def _facts(
    config: StudyConfig,
    layout: StudyLayout,
    answers: Mapping[Which, Sequence[StudyAnswer]],
    times: StudyTimes | None,
) -> dict[str, str]:
    """Machine and inputs in words."""
    facts = {}
    for which, found in answers.items():
        tokens = sum(len(one.continuation.tokens) for one in found)
        cut = sum(one.shortened for one in found)
        facts[f"answers, {which}"] = f"{tokens:,} tokens to {len(found):,} questions" + (
            f", {cut:,} prompts shortened" if cut else ""
        )
    if times is not None:
        facts["latency table"] = f"{_machine(times.latency.environment)}, {times.latency.dtype}"
        facts["typical error of its cycles"] = f"{times.latency.error:.1%}"
    own = config.times
    facts["8B shape"] = (
        f"V = {own.shape_rows:,}, H = {own.shape_hidden:,}; roofline: {own.bandwidth / 1e12:g} TB/s, layer "
        f"{own.layer_us:g} µs a step, target {own.target_us:g} µs a cycle (given)"
    )
    if (file := layout.root / "stages.json").is_file():
        for name, row in read_json(file, "record of stages").items():
            if name != "report":
                facts[f"stage {name}"] = f"{row['seconds']:,.0f} s, {_machine(row.get('environment', {}))}"
    facts["versions"] = ", ".join(f"{name} {version}" for name, version in package_versions().items())
    if revision := git_revision():
        facts["revision"] = revision[:12]
    return facts


def _machine(environment: Mapping[str, Any]) -> str:
    parts = [environment.get("gpu"), environment.get("processor"), f"{environment.get('threads')} threads"]
    return ", ".join(str(one) for one in parts if one)


def _predict(
    key: str,
    found: Mapping[str, Mapping[str, Mapping[str, Cell]]],
    scored: Mapping[int, float],
    times: StudyTimes,
    config: StudyConfig,
) -> set[str]:
    """Add the predictions to a method's cells of all questions and of rare data; the columns that it has."""
    columns = set[str]()
    for by_shape in found.values():
        for shape, by_group in by_shape.items():
            for cell in (by_group[name] for name in (EVERYTHING, RARE) if name in by_group):
                tree = times.trees.get(shape)
                if cell.accepted.value is not None and tree is not None:
                    made = predictions(key, cell.accepted, times, config.times, tree=tree, scored=scored)
                    cell.predicted.update(made)
                    columns |= made.keys()
    return columns


def write_report(results: StudyResults, config: StudyConfig, layout: StudyLayout) -> None:
    """All files of the report at once, or none."""
    meta = {"size": results.size, "seeds": results.seeds, "methods": len(results.methods)}
    parents = {"answers": open_artifact(layout.answers, ANSWERS, verify=False).content_hash}
    for seed in results.seeds:
        replayed = open_artifact(layout.replayed(seed), verify=False)
        parents[f"replay of seed {seed}"] = replayed.content_hash
    settings = config.model_dump(mode="json")
    with write_artifact(
        layout.report, KIND, meta, parents=parents, config=settings, overwrite=True
    ) as folder:
        (folder / PLOTS).mkdir()
        (folder / RESULTS).write_text(results.model_dump_json() + "\n", "utf-8")
        (folder / TABLES).write_text(markdown(results), "utf-8")
        (folder / PAGE).write_text(render_study(results), "utf-8")
        for chart in study_charts(results):
            (folder / PLOTS / f"{chart.key}.svg").write_text(chart.file, "utf-8")


def render_study(results: StudyResults) -> str:
    """HTML text of the results; it loads nothing from anywhere."""
    charts, look = study_charts(results), looks(results.methods)
    chosen = {one.key: look[one.key] for one in results.main_methods}
    sections = []
    for part in study_tables(results):
        blocks: list[Block] = [one for one in charts if one.key in _CHARTS.get(part.key, ())]
        blocks.append(part.note)
        if part.keys and len(part.rows) > _UNFOLDED and part.key != "methods":
            blocks += [part.shown(chosen), Folded(f"All {len(part.rows)} rows", [part.shown(look)])]
        else:
            blocks.append(part.shown(look))
        sections.append(PageSection(part.title, blocks, part.key))
    config = json.dumps(results.config, indent=1, ensure_ascii=False)
    how: list[Block] = [
        FactList({**results.facts, "vocabforge": results.vocabforge, "made": results.created}),
        CodeBlock(results.command, "Command"),
        Folded("The whole configuration", [CodeBlock(config)]),
    ]
    page = ReportPage(
        kind=f"vocabulary study, size {results.size}",
        title="Every draft vocabulary, one drafter",
        sections=[*sections, PageSection("How it was made", how, "how")],
        about=f"{len(results.methods)} ways of drafting from a vocabulary of {results.vocab_size:,} tokens, "
        f"seeds {', '.join(map(str, results.seeds))}, {results.groups[0].questions:,} questions in the main group.",
        alarms=["What is missing. " + " ".join(results.missing)] if results.missing else [],
        warnings=[
            "Accepted lengths and shares are measured: every method is replayed, exactly, on what the target itself "
            "wrote. Tokens/s are predicted from them and from head times. The roofline column is arithmetic: bytes "
            "over bandwidth, nothing of it measured."
        ],
        cards=_cards(results),
    )
    return render_report_page(page)


def _cards(results: StudyResults) -> list[PageCard]:
    """The draft vocabulary that is predicted to be fastest, and whether the decoder is lossless."""
    cards: list[PageCard] = []
    known = [
        (cell.predicted[ROOFLINE].tokens_per_s, one, cell)
        for one in results.methods
        if (cell := one.at(results.main_shape)) and ROOFLINE in cell.predicted
    ]
    if known:
        speed, best, cell = max(known, key=lambda found: found[0])
        full = next(speed for speed, method, _ in known if method.family == FULL)
        note = f"{best.setting}; {results.main_shape}, greedy, byte roofline of the 8B shape"
        cards = [
            PageCard("Predicted to be fastest", best.name, note),
            PageCard("Speed", f"{speed / full:.2f}×", "the full head's tokens/s"),
            PageCard("Accepted length kept", share(cell, between=False) + "%", "of the full head's"),
            PageCard("Exact logits", percent(best.exact), "of V, mean over draft steps"),
        ]
    if results.checked is not None:
        outputs, same, tied, faults = (
            sum(getattr(mode, name) for mode in results.checked.modes)
            for name in ("outputs", "identical", "near_tied", "faults")
        )
        note = f"{same:,} of {outputs:,} outputs are plain decoding's, {tied} near-tied; {faults} faults"
        lossless = 0 < same + tied == outputs
        cards.append(PageCard("Lossless", "yes" if lossless else "no", note, "good" if lossless else "bad"))
    return cards
