"""Stage ``report``: results.json, tables, plots and one self-contained page."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

import numpy as np

from ... import __version__
from ...core.artifact import open_artifact, write_artifact
from ...core.console import FactList, console, say
from ...core.errors import ArtifactError, DataError
from ...core.files import read_json
from ...core.provenance import command_line, git_revision, package_versions
from ...evaluate.reports.page import (
    Block,
    CodeBlock,
    Folded,
    PageCard,
    PageChart,
    PageSection,
    ReportPage,
    render_report_page,
)
from ..config import StudyConfig
from ..layout import StudyLayout
from ..methods import FULL, REDUCED, StudyMethod, methods
from ..replay.replay import cycle_offsets
from ..replay.types import Replayed
from ..stage_answers import KIND as ANSWERS
from ..stage_answers import StudyAnswer, Which, load_answers
from ..stage_check import MODES, load_checked, sums
from ..stage_data import SUMMARY
from ..stage_replay import load_replayed
from ..stage_target import losses_by_source
from ..stage_vocab import COVERAGE, FR
from ..times.stage import StudyTimes, read_times
from .figures import (
    MAIN_KINDS,
    SPEED_KINDS,
    cells,
    conditional,
    groups_of,
    mean_scored,
    question_sums,
    shapes,
)
from .plots import looks, main_methods, main_shape, study_panels
from .predictions import predictions
from .results import (
    COLUMNS,
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
from .tables import markdown, methods_table, percent, share, study_parts

KIND = "study-report"
PAGE, TABLES, PLOTS = "report.html", "table.md", "plots"
OWN_TEXT = "the answers that VocabTrim counted"
_MODE_WORDS = {"chain": "chain, greedy", "drawn": "chain, temperature 1", "tree": "dynamic tree, greedy"}
_UNFOLDED = 24  # rows of a table beside the first that are shown at once
# Section of the page -> beginnings of its charts' keys.
_CHARTS = {"methods": ("share", "categories", "steps"), "speed": ("speed", "heads")}


@dataclass(frozen=True)
class Replays:
    """One temperature: the questions with their answers, and the ranks of every method by seed."""

    asked: Sequence[StudyAnswer]
    seeds: Sequence[Mapping[str, Replayed]]


@dataclass(frozen=True)
class ReportInputs:
    """All that a report is made from.

    Attributes:
        ways: methods of the study, the full head among them.
        replays: by temperature, ``greedy`` first.
        seeds: that were replayed.
        vocab_size: V, rows of the target's LM head.
        coverage: method key -> text -> share of its tokens inside the draft vocabulary.
        filled: ids of a static vocabulary that were never counted, by method key.
        times: None if nothing was measured.
        checked: None if the decoder was not checked.
        facts, command, missing: see ``StudyResults``.
    """

    ways: Sequence[StudyMethod]
    replays: Mapping[str, Replays]
    seeds: Sequence[int]
    vocab_size: int
    coverage: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    filled: Mapping[str, int] = field(default_factory=dict)
    times: StudyTimes | None = None
    checked: Checked | None = None
    facts: Mapping[str, str] = field(default_factory=dict)
    command: str = ""
    missing: Sequence[str] = ()


def run(config: StudyConfig, layout: StudyLayout) -> None:
    """Write ``layout.report``, an artefact of kind ``study-report``, and print its main table.

    ``results.json`` (:class:`.StudyResults`), ``table.md``, ``plots/*.svg``, ``report.html``.

    Raises:
        ArtifactError: no seed is replayed, or a replay does not match these answers and methods.
        DataError: a file of another stage is damaged.
    """
    results = assemble(config, read_inputs(config, layout))
    write_report(results, config, layout)
    console().print(methods_table(results))
    say(f"Report: {layout.report / PAGE}")


def read_inputs(config: StudyConfig, layout: StudyLayout) -> ReportInputs:
    """Everything a report needs; what is missing besides the replay is listed in ``missing``.

    Raises:
        ArtifactError: no seed is replayed, or a replay does not match these answers and methods.
        DataError: a file is damaged.
    """
    file, missing = layout.vocab / COVERAGE, list[str]()
    subsets: Mapping[str, Any] = read_json(file, "coverage of the study")["subsets"] if file.is_file() else {}
    ways = methods(config, layout)
    answers = {which: load_answers(layout, which) for which in get_args(Which)}
    seeds = [seed for seed in config.seeds if layout.replayed(seed).is_dir()]
    if not seeds:
        raise ArtifactError(
            "no seed of the study is replayed",
            source=layout.replay,
            remedy="run `vocabforge study replay` with the same configuration first",
        )
    if left := [seed for seed in config.seeds if seed not in seeds]:
        missing.append(f"Not replayed: seed {', '.join(map(str, left))}.")
    replays = {
        which: Replays(
            found,
            [_ranks(layout, seed, which, ways, found) for seed in seeds],
        )
        for which, found in answers.items()
    }
    checked, times = read_check(layout, missing), _times(layout, missing)
    coverage = {}
    for way in ways:
        subset = layout.subset(FR, config.drafters.reduced_size) if way.family == REDUCED else way.vocab
        if subset is not None and subset.name in subsets:
            row = subsets[subset.name]
            shares = {OWN_TEXT: row["own"], **row["heldout"]}
            coverage[way.key] = {text: one for text, one in shares.items() if one is not None}
    return ReportInputs(
        ways=ways,
        replays=replays,
        seeds=seeds,
        vocab_size=int(read_json(layout.target / "config.json", "target's configuration")["vocab_size"]),
        coverage=coverage,
        filled={
            way.key: subsets.get(way.vocab.name, {}).get("filled", 0) for way in ways if way.vocab is not None
        },
        times=times,
        checked=checked,
        facts=_facts(config, layout, answers, times),
        command=shlex.join(command_line()),
        missing=missing,
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


def read_check(layout: StudyLayout, missing: list[str]) -> Checked | None:
    """check.json by way of decoding, over all methods and seeds; None, noted in ``missing``, without the file."""
    if not layout.checked.is_file():
        missing.append("The decoder was not checked (stage check): nothing here shows that it is lossless.")
        return None
    found = load_checked(layout)
    ways: Mapping[str, Any] = found["methods"]
    lengths: dict[str, dict[str, float]] = {}
    modes = []
    for mode in MODES:
        each = [made[mode] for way in ways.values() for made in way["by_seed"].values()]
        compared = sum(figures["replay"]["outputs"] for figures in each if "replay" in figures)
        modes.append(Decoded(mode=_MODE_WORDS[mode], compared=compared, **sums(each)))
        for key, way in ways.items():
            known = [made[mode]["accepted_length"] for made in way["by_seed"].values()]
            known = [value for value in known if value is not None]
            if known:
                lengths.setdefault(key, {})[_MODE_WORDS[mode]] = sum(known) / len(known)
    return Checked(
        modes=modes,
        lengths=lengths,
        questions=len(found["questions"]),
        where=f"{found['device']}, {found['dtype']}",
        settings=found["settings"],
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
    try:
        meta = open_artifact(layout.target, verify=False).meta
        losses = losses_by_source(config, meta)
        facts["target"] = f"{meta['parameters']:,} parameters, learnt from {meta['train_tokens']:,} tokens"
        facts["its held-out loss, nats a token"] = ", ".join(
            f"{name} {loss:.2f}" for name, loss in losses.items()
        )
    except (ArtifactError, KeyError):
        pass  # not made by the stage
    if (layout.data / SUMMARY).is_file():
        summary = read_json(layout.data / SUMMARY, "summary of the data")
        train = summary["train"]
        facts["learnt from"] = f"{train['conversations']:,} conversations, {train['characters']:,} characters"
        facts["questions"] = ", ".join(
            f"{one['questions']:,} of {one['of']:,} {name}" for name, one in summary["questions"].items()
        )
    for which, found in answers.items():
        tokens = sum(len(one.continuation.tokens) for one in found)
        cut = sum(one.shortened for one in found)
        facts[f"answers, {which}"] = f"{tokens:,} tokens to {len(found):,} questions" + (
            f", {cut:,} prompts shortened" if cut else ""
        )
    if times is not None:
        facts["latency table"] = _machine(times.latency.environment) + f", {times.latency.dtype}"
        facts["typical error of its cycles"] = f"{times.latency.error:.1%}"
    own = config.times
    facts["8B shape"] = (
        f"V = {own.shape_rows:,}, H = {own.shape_hidden:,}; roofline: {own.bandwidth / 1e12:g} TB/s, layer "
        f"{own.layer_us:g} µs a step, target {own.target_us:g} µs a cycle (given)"
    )
    if (file := layout.root / "stages.json").is_file():
        rows = read_json(file, "record of stages")
        if not isinstance(rows, dict):
            raise DataError("the record of stages cannot be read", source=file, remedy="delete it")
        for name, row in rows.items():
            if name != "report":
                where = _machine(row.get("environment", {}))
                facts[f"stage {name}"] = f"{row['seconds']:,.0f} s, {where}"
    facts["versions"] = ", ".join(f"{name} {version}" for name, version in package_versions().items())
    if revision := git_revision():
        facts["revision"] = revision[:12]
    return facts


def _machine(environment: Mapping[str, Any]) -> str:
    parts = [environment.get("gpu"), environment.get("processor"), f"{environment.get('threads')} threads"]
    return ", ".join(str(one) for one in parts if one)


def assemble(config: StudyConfig, inputs: ReportInputs) -> StudyResults:
    """All figures of a study."""
    keys = [way.key for way in inputs.ways]
    full = next(place for place, way in enumerate(inputs.ways) if way.family == FULL)
    forms = shapes(config.replay)
    found: list[dict[str, dict[str, dict[str, Cell]]]] = [{} for _ in keys]
    steps: dict[str, list[list[float | None]]] = {}
    groups: list[QuestionGroup] = []
    for temperature, replays in inputs.replays.items():
        members = groups_of(replays.asked)
        groups = groups or [group for group, _ in members]
        offsets = cycle_offsets([one.continuation for one in replays.asked])
        steps[temperature] = [
            conditional([one[key] for one in replays.seeds], offsets, members[0][1], config.replay.levels)
            for key in keys
        ]
        for name, form in forms.items():
            sums = question_sums(replays.seeds, keys, replays.asked, form, config.answers.tokens)
            for group, mask in members:
                made = cells(sums, mask, full, intervals=group.kind in MAIN_KINDS)
                for own, cell in zip(found, made, strict=True):
                    own.setdefault(temperature, {}).setdefault(name, {})[group.key] = cell
    figures = []
    for place, way in enumerate(inputs.ways):
        filled = inputs.filled.get(way.key, 0)
        scored = mean_scored([one[way.key] for part in inputs.replays.values() for one in part.seeds])
        known = [size for size in scored if size is not None]
        _predict(way.key, found[place], groups, scored, inputs.times, config)
        figures.append(
            MethodFigures(
                key=way.key,
                family=way.family,
                name=way.name,
                setting=f"{way.setting} ({filled:,} never counted)" if filled else way.setting,
                dynamic=way.dynamic,
                scored=scored,
                exact=float(np.mean(known)) / inputs.vocab_size if known else 0.0,
                coverage=dict(inputs.coverage.get(way.key, {})),
                conditional={temperature: part[place] for temperature, part in steps.items()},
                cells=found[place],
            )
        )
    predicted = {
        column
        for one in figures
        for by_shape in one.cells.values()
        for by_group in by_shape.values()
        for cell in by_group.values()
        for column in cell.predicted
    }
    return StudyResults(
        vocabforge=__version__,
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        size=config.size,
        seeds=list(inputs.seeds),
        command=inputs.command,
        vocab_size=inputs.vocab_size,
        columns=[column for column in COLUMNS if column in predicted],
        shapes=[
            DraftShape(key=name, nodes=form.nodes, levels=form.levels, width=form.width)
            for name, form in forms.items()
        ],
        temperatures=list(inputs.replays),
        groups=groups,
        coverage_texts=list(dict.fromkeys(text for one in inputs.coverage.values() for text in one)),
        methods=figures,
        checked=inputs.checked,
        facts=dict(inputs.facts),
        missing=list(inputs.missing),
        config=config.model_dump(mode="json"),
    )


def _predict(
    key: str,
    found: dict[str, dict[str, dict[str, Cell]]],
    groups: Sequence[QuestionGroup],
    scored: Sequence[float | None],
    times: StudyTimes | None,
    config: StudyConfig,
) -> None:
    """Add the predictions to a method's cells of the main groups."""
    if times is None or key not in times.heads:
        return
    counted = {step: size for step, size in enumerate(scored) if size is not None}
    for by_shape in found.values():
        for shape, by_group in by_shape.items():
            for group in (group.key for group in groups if group.kind in SPEED_KINDS):
                accepted, tree = by_group[group].accepted, times.trees.get(shape)
                if accepted.value is None or tree is None:
                    continue
                made = predictions(key, accepted, times, config.times, tree=tree, scored=counted)
                by_group[group] = by_group[group].model_copy(update={"predicted": made})


def write_report(
    results: StudyResults,
    config: StudyConfig,
    layout: StudyLayout,
    panels: Sequence[PageChart] | None = None,
) -> None:
    """All files of the report at once, or none.

    Args:
        panels: charts, if they are made already.
    """
    panels = study_panels(results) if panels is None else panels
    meta = {"size": results.size, "seeds": results.seeds, "methods": len(results.methods)}
    places = {"answers": layout.answers}
    places |= {f"replay of seed {seed}": layout.replayed(seed) for seed in results.seeds}
    parents = {}
    for role, path in places.items():
        try:
            kind = ANSWERS if role == "answers" else None
            parents[role] = open_artifact(path, kind, verify=False).content_hash
        except ArtifactError:
            continue
    settings = config.model_dump(mode="json")
    with write_artifact(
        layout.report, KIND, meta, parents=parents, config=settings, overwrite=True
    ) as folder:
        (folder / PLOTS).mkdir()
        (folder / RESULTS).write_text(results.model_dump_json() + "\n", "utf-8")
        (folder / TABLES).write_text(markdown(results), "utf-8")
        (folder / PAGE).write_text(render_study(results, panels), "utf-8")
        for panel in panels:
            (folder / PLOTS / f"{panel.key}.svg").write_text(panel.file, "utf-8")


def render_study(results: StudyResults, panels: Sequence[PageChart] | None = None) -> str:
    """HTML text of the results; it loads nothing from anywhere."""
    panels = study_panels(results) if panels is None else panels
    look, chosen = looks(results.methods), {one.key for one in main_methods(results)}
    sections = []
    for part in study_parts(results):
        blocks: list[Block] = [one for one in panels if one.key.split("-")[0] in _CHARTS.get(part.key, ())]
        blocks.append(part.note)
        if part.keys and len(part.rows) > _UNFOLDED and part.key != "methods":
            blocks.append(part.shown(look, chosen))
            blocks.append(Folded(f"All {len(part.rows)} rows", [part.shown(look)]))
        else:
            blocks.append(part.shown(look))
        sections.append(PageSection(part.title, blocks, part.key))
    config = json.dumps(results.config, indent=1, ensure_ascii=False)
    how: list[Block] = [
        FactList({**results.facts, "vocabforge": results.vocabforge, "made": results.created}),
        CodeBlock(results.command, "Command"),
        Folded("The whole configuration", [CodeBlock(config)]),
    ]
    drawn = " and at temperature 1" if len(results.temperatures) > 1 else ""
    page = ReportPage(
        kind=f"vocabulary study, size {results.size}",
        title="Every draft vocabulary, one drafter",
        sections=[*sections, PageSection("How it was made", how, "how")],
        about=f"{len(results.methods)} ways of drafting from a vocabulary of {results.vocab_size:,} tokens, "
        f"seeds {', '.join(map(str, results.seeds))}, {results.groups[0].questions:,} questions in the main group, "
        f"greedy{drawn}.",
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
    shape = main_shape(results)
    known = [(one, cell) for one in results.methods if (cell := one.at(shape)) and ROOFLINE in cell.predicted]
    if known:
        best, cell = max(known, key=lambda found: found[1].predicted[ROOFLINE].tokens_per_s)
        full = next((one for method, one in known if method.family == FULL), cell)
        ratio = cell.predicted[ROOFLINE].tokens_per_s / full.predicted[ROOFLINE].tokens_per_s
        note = f"{best.setting}; {shape}, greedy, byte roofline of the 8B shape"
        cards = [
            PageCard("Predicted to be fastest", best.name, note),
            PageCard("Speed", f"{ratio:.2f}×", "the full head's tokens/s"),
            PageCard("Accepted length kept", share(cell, between=False) + "%", "of the full head's"),
            PageCard("Exact logits", percent(best.exact), "of V, mean over draft steps"),
        ]
    if results.checked is not None:
        outputs = sum(mode.outputs for mode in results.checked.modes)
        same = sum(mode.identical for mode in results.checked.modes)
        tied = sum(mode.near_tied for mode in results.checked.modes)
        faults = results.checked.faults
        note = f"{same:,} of {outputs:,} outputs are plain decoding's, {tied} near-tied; {faults} faults"
        lossless = 0 < same + tied == outputs
        cards.append(PageCard("Lossless", "yes" if lossless else "no", note, "good" if lossless else "bad"))
    return cards
