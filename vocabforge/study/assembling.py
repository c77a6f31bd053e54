"""From what the stages left to results.json: figures, predictions, verdict, claims."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np

from .. import __version__
from ..decode.shapes import TreeShape
from ..evaluate.replay import cycle_offsets
from ..evaluate.replay_types import Replayed
from .claim_rows import largest
from .claims import Claim, claims, goal, reaching
from .config import StudyConfig
from .figures import (
    MAIN_KINDS,
    SPEED_KINDS,
    Asked,
    Mask,
    cells,
    conditional,
    groups_of,
    mean_scored,
    question_sums,
    shapes,
)
from .joined import COLUMNS, EVERYTHING, GREEDY, Predicted, Row, with_predictions
from .methods import FULL, Method
from .results import (
    Cell,
    Checked,
    Goal,
    Group,
    MethodFigures,
    Recommended,
    Shape,
    Speed,
    StudyClaim,
    StudyResults,
)
from .times import StudyTimes
from .tuning import tuned


@dataclass(frozen=True)
class Replays:
    """One temperature: the questions with their answers, and of every seed the ranks of every method's drafts."""

    asked: Sequence[Asked]
    seeds: Sequence[Mapping[str, Replayed]]


@dataclass(frozen=True)
class Inputs:
    """All that a report is made from.

    Attributes:
        ways: rows of the study, the full head among them.
        replays: by temperature, ``greedy`` first.
        seeds: that were replayed.
        vocab_size: V, rows of the target's LM head.
        coverage: method key -> text -> share of its tokens inside the draft vocabulary.
        filled: ids of a static vocabulary that were never counted, by method key.
        times: None where nothing was measured.
        checked: None where the decoder itself was not asked.
        facts, command, missing: see ``StudyResults``.
    """

    ways: Sequence[Method]
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


Cells = dict[str, dict[str, dict[str, Cell]]]


def assemble(config: StudyConfig, inputs: Inputs) -> StudyResults:
    """All figures of a study."""
    forms = shapes(config.replay)
    found, groups, steps = _all_cells(config, inputs, forms)
    rows: list[Row] = []
    figures: list[MethodFigures] = []
    for place, way in enumerate(inputs.ways):
        filled = inputs.filled.get(way.key, 0)
        scored = mean_scored([one[way.key] for part in inputs.replays.values() for one in part.seeds])
        known = [size for size in scored if size is not None]
        one = MethodFigures(
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
        one, joined = _predicted(one, groups, inputs.times, config)
        figures.append(one)
        rows += joined
    columns = [column for column in COLUMNS if any(column in row.predicted for row in rows)]
    return StudyResults(
        vocabforge=__version__,
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        size=config.size,
        seeds=list(inputs.seeds),
        command=inputs.command,
        vocab_size=inputs.vocab_size,
        columns=columns,
        shapes=[_shape(name, form) for name, form in forms.items()],
        temperatures=list(inputs.replays),
        groups=groups,
        coverage_texts=list(dict.fromkeys(text for one in inputs.coverage.values() for text in one)),
        methods=figures,
        goals=_goals(rows, list(forms), list(inputs.replays)),
        claims=[claim_of(one) for one in claims(rows)],
        recommended=None if inputs.times is None else _recommended(rows, inputs.times),
        checked=inputs.checked,
        facts=dict(inputs.facts),
        missing=list(inputs.missing),
        config=config.model_dump(mode="json"),
    )


def _shape(name: str, form: TreeShape) -> Shape:
    return Shape(key=name, nodes=form.nodes, levels=form.levels, width=form.width)


def _all_cells(
    config: StudyConfig, inputs: Inputs, forms: Mapping[str, TreeShape]
) -> tuple[list[Cells], list[Group], dict[str, list[list[float | None]]]]:
    """Cells of every method, the groups, and temperature -> method -> acceptance by draft step."""
    keys = [way.key for way in inputs.ways]
    full = next(place for place, way in enumerate(inputs.ways) if way.family == FULL)
    found: list[Cells] = [{} for _ in keys]
    groups: list[Group] = []
    steps: dict[str, list[list[float | None]]] = {}
    for temperature, part in inputs.replays.items():
        members = groups_of(part.asked)
        groups = groups or [group for group, _ in members]
        offsets = cycle_offsets([one.continuation for one in part.asked])
        steps[temperature] = _steps(part, keys, offsets, members[0][1], config.replay.levels)
        for name, form in forms.items():
            sums = question_sums(part.seeds, keys, part.asked, form)
            for group, mask in members:
                made = cells(sums, mask, full, intervals=group.kind in MAIN_KINDS)
                for own, cell in zip(found, made, strict=True):
                    own.setdefault(temperature, {}).setdefault(name, {})[group.key] = cell
    return found, groups, steps


def _steps(
    part: Replays, keys: Sequence[str], offsets: Sequence[int], mask: Mask, levels: int
) -> list[list[float | None]]:
    return [conditional([one[key] for one in part.seeds], offsets, mask, levels) for key in keys]


def _predicted(
    one: MethodFigures, groups: Sequence[Group], times: StudyTimes | None, config: StudyConfig
) -> tuple[MethodFigures, list[Row]]:
    """The method with predictions in the cells of some groups, and those cells as joined rows."""
    predicted = [group.key for group in groups if group.kind in SPEED_KINDS]
    rows, cells_of = [], {}
    for temperature, by_shape in one.cells.items():
        cells_of[temperature] = {shape: dict(by_group) for shape, by_group in by_shape.items()}
        for shape, by_group in by_shape.items():
            for group in predicted:
                row = row_of(one, shape, temperature, group)
                if row is None:
                    continue
                if times is not None:
                    row = with_predictions(row, times, config.times)
                rows.append(row)
                speeds = {column: speed_of(found) for column, found in row.predicted.items()}
                cells_of[temperature][shape][group] = by_group[group].model_copy(update={"predicted": speeds})
    return one.model_copy(update={"cells": cells_of}), rows


def row_of(method: MethodFigures, shape: str, temperature: str, group: str) -> Row | None:
    """A cell as predictions and claims read it; None where no cycle ran."""
    cell = method.at(shape, group, temperature)
    if cell is None or cell.accepted.value is None or cell.share.value is None:
        return None
    return Row(
        key=method.key,
        family=method.family,
        name=method.name,
        setting=method.setting,
        dynamic=method.dynamic,
        shape=shape,
        temperature=temperature,
        group=group,
        accepted=cell.accepted.value,
        share=cell.share.value,
        exact=method.exact,
        by_seed=tuple(cell.accepted_by_seed),
        low=cell.accepted.low,
        high=cell.accepted.high,
        scored=tuple(float("nan") if size is None else size for size in method.scored),
    )


def speed_of(found: Predicted) -> Speed:
    """A prediction as the file holds it."""
    return Speed(**{**asdict(found), "notes": list(found.notes), "speedup": found.speedup})


def claim_of(one: Claim) -> StudyClaim:
    """A judged claim as the file holds it."""
    return StudyClaim(**asdict(one))


def _goals(rows: Sequence[Row], forms: Sequence[str], temperatures: Sequence[str]) -> list[Goal]:
    """The goal with every shape at every temperature, that of the verdict first."""
    first = largest(forms)
    places = [(GREEDY, first)]
    places += [(temperature, form) for temperature in temperatures for form in forms]
    found = []
    for temperature, form in dict.fromkeys(places):
        best = next(iter(reaching(rows, shape=form, temperature=temperature)), None)
        claim = claim_of(goal(rows, shape=form, temperature=temperature))
        key = None if best is None else best.key
        found.append(Goal(shape=form, temperature=temperature, method=key, claim=claim))
    return found


def _recommended(rows: Sequence[Row], times: StudyTimes) -> Recommended | None:
    """What ``tune`` would choose among the rows; None where nothing of this machine was measured."""
    found = tuned(rows, times.trees)
    if found is None:
        return None
    pick = found.pick
    return Recommended(
        method=None if pick is None else pick.key,
        shape=None if pick is None else pick.shape,
        why=list(found.recommendation.why),
        places=dict(found.places),
        of=len([row for row in rows if (row.temperature, row.group) == (GREEDY, EVERYTHING)]),
    )
