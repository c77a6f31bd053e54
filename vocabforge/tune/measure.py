"""Measure a latency table: parts of real cycles in interleaved rounds, a fitted rest, predictions held against cycles.

Rounds go over all runs (``rounds.py``). Without graphs a cycle's parts are timed while it runs. A captured cycle is one
graph, so that its parts are captured and timed one by one (``measure_graphs.py``); what they leave of the whole cycle
is the fitted rest.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import mean
from typing import Any

import torch

from .. import __version__
from ..decode.graphs import GraphCapture
from ..decode.proposers import FITTING
from ..evaluate.bench_cycle import new_capture
from ..evaluate.environment import describe_environment
from ..models.heads import DraftHead
from ..models.lean import LeanModel
from ..models.target_load import dtype_name
from .fitting import fit_rest, parts_of
from .measure_graphs import captured_parts
from .measure_parts import Bench, Run
from .measure_plan import MeasurePlan, plan_of
from .places import Place, place_of
from .records import Check, Shapes
from .rounds import Task, endless, interspersed, run_rounds
from .table import LatencyTable
from .types import CycleSetting, TreeSetting

_CAPTURED = 6


@dataclass(frozen=True)
class LatencyInputs:
    """What is measured, and over which sizes.

    Attributes:
        model: the target.
        drafter: trained drafter, or a draft model of the target's vocabulary.
        heads: draft heads, the drafter's own first.
        trees, batches: of the search space.
        prompts: token ids; their lengths say which prefixes matter.
        new: tokens that will follow a prompt.
        target, digest: fingerprints of target and drafter.
        graphs: cycles are captured; None: on a CUDA device.
    """

    model: LeanModel
    drafter: Any
    heads: Sequence[DraftHead]
    trees: Sequence[TreeSetting]
    prompts: Sequence[Sequence[int]]
    batches: Sequence[int] = (1,)
    new: int = 128
    target: str = ""
    digest: str = ""
    graphs: bool | None = None


@dataclass(frozen=True)
class LatencyOptions:
    """How long is measured.

    Attributes:
        budget_s: seconds; what a first round cannot reach within them is left out, and said, but for one measurement of
            every kind of tree and head.
        rounds: most of them.
        cycles: timed in each run of a round; ``_CAPTURED`` times as many where they are captured, which takes long.
        seed: of the order in a round.
    """

    budget_s: float = 60.0
    rounds: int = 30
    cycles: int = 6
    seed: int = 0


@dataclass
class _Times:
    """Seconds by what they are of, and by round."""

    parts: dict[Place, dict[int, list[float]]] = field(default_factory=dict)
    cycles: dict[Run, dict[int, list[float]]] = field(default_factory=dict)

    def part(self, number: int, where: Place, seconds: Sequence[float]) -> None:
        self.parts.setdefault(where, {}).setdefault(number, []).extend(seconds)

    def cycle(self, number: int, run: Run, seconds: Sequence[float]) -> None:
        self.cycles.setdefault(run, {}).setdefault(number, []).extend(seconds)

    def all_of(self, run: Run) -> list[float]:
        return [one for seconds in self.cycles.get(run, {}).values() for one in seconds]


def measure_latency(inputs: LatencyInputs, options: LatencyOptions | None = None) -> LatencyTable:
    """Measure until the budget is spent.

    Raises:
        UsageError: no prompt with a token, or a drafter whose drafting has no parts.
    """
    options = options or LatencyOptions()
    meter = LatencyMeter(inputs, options)
    rounds, notes = run_rounds(*meter.tasks, seconds=options.budget_s, most=options.rounds, seed=options.seed)
    return meter.table(rounds, notes)


class LatencyMeter:
    """Measures and keeps what was measured.

    Attributes:
        tasks: of a round: what no prediction can do without, and the rest.

    Raises:
        UsageError: no prompt with a token, or a drafter whose drafting has no parts.
    """

    def __init__(self, inputs: LatencyInputs, options: LatencyOptions) -> None:
        self.inputs, self._began = inputs, time.monotonic()
        device = inputs.model.device
        self.graphs = device.type == "cuda" if inputs.graphs is None else inputs.graphs
        self.bench = _bench(inputs, self.graphs)
        self.plan = plan_of(
            self.bench.settings,
            inputs.trees,
            inputs.batches,
            [len(prompt) for prompt in inputs.prompts],
            inputs.new,
            inputs.model.config.max_positions,
        )
        self._times = _Times()
        self.bench.prefill(self.plan.prefills[0], 0)  # what is only done once is done
        self.tasks = _tasks(self.bench, self.plan, self._times, options, self.graphs)
        self._next = endless(*self.tasks, seed=options.seed)
        self._rounds = 0

    def step(self) -> None:
        """The next task of endless rounds: for measuring between other work."""
        self._rounds, (_, measure) = next(self._next)
        measure(self._rounds)

    def table(self, rounds: int | None = None, notes: Sequence[str] = ()) -> LatencyTable:
        """What is known by now.

        Args:
            rounds: whole ones; None: those of :meth:`step`.
        """
        model = self.inputs.model
        table = LatencyTable(
            vocabforge=__version__,
            environment=describe_environment(device=str(model.device), dtype=dtype_name(model.dtype)),
            dtype=dtype_name(model.dtype),
            graphs=self.graphs,
            target=shapes_of_target(model, self.inputs.target),
            drafter=shapes_of_drafter(self.inputs.drafter, self.inputs.digest),
            parts=parts_of(self._times.parts),
            notes=tuple(notes),
            rounds=max(self._rounds, 1) if rounds is None else rounds,
            seconds=time.monotonic() - self._began,
        )
        return _with_rest(table, self.bench, self.plan, self._times)


def _bench(inputs: LatencyInputs, graphs: bool) -> Bench:
    kind = getattr(inputs.drafter, "kind", "draft-model")
    name = FITTING[kind][0]
    capture = partial(_quiet_capture, inputs.model.device) if graphs else None
    return Bench(inputs.model, inputs.drafter, name, inputs.heads, inputs.prompts, capture)


def _quiet_capture(device: torch.device) -> GraphCapture:
    made = new_capture(device)
    made.quiet = True  # there are hundreds of them
    return made


def _tasks(
    bench: Bench, plan: MeasurePlan, times: _Times, options: LatencyOptions, graphs: bool
) -> tuple[list[Task], list[Task]]:
    """Everything of a round: what no prediction can do without, and the rest."""

    def timed(run: Run, number: int) -> None:
        found = captured_parts(bench, run) if graphs else []
        for where, seconds in found or bench.timed(run, options.cycles):
            times.part(number, where, [seconds])

    def whole(run: Run, number: int) -> None:
        seconds = bench.whole(run, options.cycles * (_CAPTURED if graphs else 1))
        times.cycle(number, run, seconds)
        if run.tree is None:
            times.part(number, place_of("plain", "", batch=run.batch, prefix=run.prefix), seconds)

    def prefill(tokens: int, head: int, number: int) -> None:
        family = "plain" if head < 0 else "drafting"
        times.part(number, place_of("prefill", family, tokens=tokens), [bench.prefill(tokens, head)])

    def cycles(runs: Sequence[Run]) -> list[Task]:
        return [(f"whole cycle: {_label(bench, run)}", partial(whole, run)) for run in runs]

    def parts(runs: Sequence[Run]) -> list[Task]:
        return [(_label(bench, run), partial(timed, run)) for run in runs]

    plain: list[Task] = [
        (f"plain, batch {run.batch}, prefix {run.prefix:,}", partial(whole, run)) for run in plan.plain
    ]
    needed = list(plain)
    needed += [
        (f"a prompt of {tokens} tokens", partial(prefill, tokens, head))
        for tokens in plan.prefills
        for head in (-1, 0)
    ]
    needed += parts(plan.needed)
    further = [*cycles(plan.references), *parts(plan.timed), *cycles(plan.checks)]
    return needed, interspersed(further, plain)  # every speed-up is over plain decoding, one task of many


def _label(bench: Bench, run: Run) -> str:
    return bench.setting(run).label


def _with_rest(table: LatencyTable, bench: Bench, plan: MeasurePlan, times: _Times) -> LatencyTable:
    """Fit the rest to the reference cycles and hold all predictions against their cycles."""
    runs = [(run, seconds) for run in plan.references if (seconds := times.all_of(run))]
    cycles = []
    for run, seconds in runs:
        setting = bench.setting(run)
        parts = table.parts_of(setting)
        known = sum(part.value for part in parts.values())
        cycles.append((setting.tree.levels, run.batch, known, mean(seconds)))
    fitted = table.model_copy(update={"rest": fit_rest(cycles, by_size=table.graphs)})
    checks = []
    for run in (*plan.references, *plan.checks):
        if seconds := times.all_of(run):
            checks.append(_check(fitted, bench.setting(run), run in plan.references, seconds))
    error = (sum(check.error**2 for check in checks) / len(checks)) ** 0.5 if checks else 0.0
    table = fitted.model_copy(update={"error": error})
    checks = [
        check.model_copy(update=dict(zip(("predicted", "low", "high"), table.cycle(check.setting))))
        for check in checks
    ]
    return table.model_copy(update={"checks": tuple(checks)})


def _check(table: LatencyTable, setting: CycleSetting, fitted: bool, seconds: Sequence[float]) -> Check:
    predicted = table.cycle(setting)
    return Check(
        setting=setting,
        fitted=fitted,
        predicted=predicted.value,
        low=predicted.low,
        high=predicted.high,
        measured=mean(seconds),
        cycles=len(seconds),
    )


def shapes_of_target(model: LeanModel, fingerprint: str = "") -> Shapes:
    """The sizes of a target that its times depend on."""
    config = model.config
    return Shapes(
        kind=config.architecture,
        hidden_size=config.hidden_size,
        vocab_size=config.vocab_size,
        layers=config.num_layers,
        parameters=sum(one.numel() for one in model.parameters()),
        fingerprint=fingerprint,
    )


def shapes_of_drafter(drafter: Any, digest: str = "") -> Shapes:
    """The same of a drafter or a draft model."""
    config = drafter.config
    return Shapes(
        kind=getattr(drafter, "kind", "draft-model"),
        hidden_size=config.hidden_size,
        vocab_size=config.vocab_size,
        layers=max(1, getattr(config, "num_layers", 1)),
        parameters=max(1, sum(one.numel() for one in drafter.parameters())),
        fingerprint=digest,
    )
