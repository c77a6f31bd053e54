"""Measure a latency table: parts of real cycles in interleaved rounds, a fitted rest, predictions compared with cycles.

Without graphs a cycle's parts are timed while it runs. A captured cycle is one graph, so its parts are captured and
timed one by one (``latency/graphs.py``); what they leave of the whole cycle is the fitted rest.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import mean
from typing import Any

import numpy as np
import torch

from ... import __version__
from ...bench.kernels.cycle import new_capture
from ...core.errors import UsageError
from ...core.progress import ProgressBar
from ...decode.accelerate.graphs import GraphCapture
from ...evaluate.run.environment import describe_environment
from ...models.heads.registry import DraftHead
from ...models.target.interface import Target
from ...models.target.load import dtype_name
from ..types import TreeSetting
from .graphs import captured_parts
from .parts import CycleRun, CycleRunner
from .plan import MeasurePlan, plan_of
from .records import AXES, MeasuredPart, PartKey, Point, Rest, Shapes, place_of
from .table import LatencyTable

Times = dict[int, list[float]]  # seconds by round
Task = tuple[str, Callable[[int], None]]  # what it measures, and the measuring of one round

LOW, HIGH = 0.1, 0.9  # quantiles of the rounds' means
_CAPTURED = 6  # times as many cycles if they are captured, which takes long


@dataclass(frozen=True)
class LatencyInputs:
    """What is measured, and over which sizes.

    Attributes:
        heads: draft heads, the drafter's own first.
        trees, batches: of the search space.
        prompts: token ids; their lengths say which prefixes matter.
        new: tokens that will follow a prompt.
        target, digest: fingerprints of target and drafter.
        graphs: cycles are captured; None: on a CUDA device.
    """

    model: Target
    drafter: Any
    heads: Sequence[DraftHead]
    trees: Sequence[TreeSetting]
    prompts: Sequence[Sequence[int]]
    batches: Sequence[int] = (1,)
    new: int = 128
    target: str = ""
    digest: str = ""
    graphs: bool | None = None


def measure_latency(
    inputs: LatencyInputs, seconds: float = 60.0, *, rounds: int = 30, cycles: int = 6
) -> LatencyTable:
    """Measure until the time is spent.

    Args:
        seconds: what a first round cannot reach within them is left out and reported, except one measurement of every
            kind of tree and head.
        rounds: most of them.
        cycles: timed in each run of a round.

    Raises:
        UsageError: no prompt with a token, or a drafter whose drafting has no parts.
    """
    began, model = time.monotonic(), inputs.model
    lengths, limit = [len(prompt) for prompt in inputs.prompts], model.config.max_positions
    if not any(lengths):
        raise UsageError(
            "cycles are timed on the prompts' tokens, and there is none",
            got="no prompt",
            expected="a prompt with tokens",
            remedy="check the prompts' file",
        )
    graphs = model.device.type == "cuda" if inputs.graphs is None else inputs.graphs
    capture = partial(_quiet_capture, model.device) if graphs else None
    bench = CycleRunner(model, inputs.drafter, inputs.heads, inputs.prompts, capture)
    plan = plan_of(bench.settings, inputs.trees, inputs.batches, lengths, inputs.new, limit)
    parts: dict[PartKey, Times] = defaultdict(lambda: defaultdict(list))
    whole_cycles: dict[CycleRun, list[float]] = defaultdict(list)

    def timed(run: CycleRun, number: int) -> None:
        found = captured_parts(bench, run) if graphs else []
        for where, spent in found or bench.timed(run, cycles):
            parts[where][number].append(spent)

    def whole(run: CycleRun, number: int) -> None:
        spent = bench.whole(run, cycles * (_CAPTURED if graphs else 1))
        whole_cycles[run] += spent
        if run.tree is None:
            parts[place_of("plain", "", batch=run.batch, prefix=run.prefix)][number] += spent

    def prefill(tokens: int, head: int, number: int) -> None:
        where = place_of("prefill", "plain" if head < 0 else "drafting", tokens=tokens)
        parts[where][number].append(bench.prefill(tokens, head))

    def tasks(runs: Sequence[CycleRun], measure: Callable[[CycleRun, int], None], what: str) -> list[Task]:
        return [(what + bench.setting(run).label, partial(measure, run)) for run in runs]

    plain: list[Task] = [(f"plain, batch {run.batch}", partial(whole, run)) for run in plan.plain]
    needed = [*plain, *tasks(plan.needed, timed, "")]
    for tokens in plan.prefills:
        needed += [(f"a prompt of {tokens} tokens", partial(prefill, tokens, head)) for head in (-1, 0)]
    needed += plain  # again: every speed-up is over plain decoding
    further = [
        *tasks(plan.references, whole, "whole cycle: "),
        *tasks(plan.timed, timed, ""),
        *tasks(plan.checks, whole, "whole cycle: "),
    ]
    bench.prefill(plan.prefills[0], 0)  # what is only done once is done
    done, notes = run_rounds(needed, further, seconds=seconds, most=rounds)
    table = LatencyTable(
        vocabforge=__version__,
        environment=describe_environment(device=str(model.device), dtype=dtype_name(model.dtype)),
        dtype=dtype_name(model.dtype),
        graphs=graphs,
        target=shapes_of_target(model, inputs.target),
        drafter=shapes_of_drafter(inputs.drafter, inputs.digest),
        parts=_measured_parts(parts),
        notes=tuple(notes),
        rounds=done,
        seconds=time.monotonic() - began,
    )
    return _with_rest(table, bench, plan, whole_cycles)


def _quiet_capture(device: torch.device) -> GraphCapture:
    made = new_capture(device)
    made.quiet = True  # there are hundreds of them
    return made


def run_rounds(
    needed: Sequence[Task], further: Sequence[Task], *, seconds: float, most: int
) -> tuple[int, list[str]]:
    """Go over the tasks until the time is up; the first round in order of importance, the others shuffled.

    Args:
        needed: done once however long they take.
        seconds: that may be spent.
        most: rounds.

    Returns:
        whole rounds (1 if not even the first was), and what the first left out.
    """
    end = time.monotonic() + seconds
    stream = random.Random(0)
    with ProgressBar("Measuring latency, what is needed", len(needed), "measurements") as bar:
        for _, measure in needed:
            measure(0)
            bar.update(1)
    rest = max(0.0, end - time.monotonic())
    total = len(further) + (most - 1) * (len(needed) + len(further))
    with ProgressBar("Measuring latency", total, "measurements", limit_s=rest) as bar:
        order = list(further)
        for number in range(most):
            for done, (_, measure) in enumerate(order):
                if time.monotonic() > end:
                    left = [] if number else [f"not measured, no time left: {one}" for one, _ in order[done:]]
                    return max(number, 1), left
                measure(number)
                bar.update(1, note=f"round {number + 1}")
            if not number:
                order = [*needed, *further]
            stream.shuffle(order)
    return most, []


def _measured_parts(times: Mapping[PartKey, Times]) -> tuple[MeasuredPart, ...]:
    """By part and family. Means of rounds' means, not medians: the parts of a cycle add up to the mean cycle."""
    found: dict[tuple[str, str], list[Point]] = {}
    for where, by_round in sorted(times.items()):
        rounds = [mean(seconds) for seconds in by_round.values() if seconds]
        low, high = map(float, np.quantile(rounds, [LOW, HIGH]))
        middle = mean(rounds)
        point = Point(
            at=dict(zip(AXES[where.name], where.sizes)),
            seconds=middle,
            low=min(low, middle),
            high=max(high, middle),
            count=sum(map(len, by_round.values())),
        )
        found.setdefault((where.name, where.family), []).append(point)
    return tuple(
        MeasuredPart(name=name, family=family, points=tuple(points))
        for (name, family), points in found.items()
    )


def fit_rest(cycles: Sequence[tuple[int, int, float, float]], *, by_size: bool) -> Rest:
    """What real cycles take beside the sum of their measured parts, by least squares of relative errors.

    Args:
        cycles: (levels, batch, seconds of the parts, seconds of the real cycle), each.
        by_size: it may grow with levels and rows; else one number is fitted: what timing the parts itself took.
    """
    if not cycles:
        return Rest()
    levels, batch, parts, real = (np.array(column, dtype=np.float64) for column in zip(*cycles))
    columns = np.stack([np.ones_like(levels), levels, batch - 1], 1)  # (n, 3)
    used = [0] + [one for one in (1, 2) if by_size and len(set(columns[:, one])) > 1]
    if len(cycles) <= len(used):  # nothing would be left to tell a fit from chance
        used = [0]
    found = np.zeros(3)
    found[used] = np.linalg.lstsq(columns[:, used] / real[:, None], (real - parts) / real, rcond=None)[0]
    return Rest(per_cycle=float(found[0]), per_level=float(found[1]), per_row=float(found[2]))


def _with_rest(
    table: LatencyTable, bench: CycleRunner, plan: MeasurePlan, cycles: Mapping[CycleRun, Sequence[float]]
) -> LatencyTable:
    """Fit the rest to the reference cycles, and find the error of predictions over all."""
    real = [
        (bench.setting(run), run in plan.references, mean(cycles[run]))
        for run in (*plan.references, *plan.checks)
        if run in cycles
    ]
    known = [
        (one.tree.levels, one.batch, table.parts_total(one).value, seconds)
        for one, fitted, seconds in real
        if fitted
    ]
    table = table.model_copy(update={"rest": fit_rest(known, by_size=table.graphs)})
    errors = [table.cycle(setting).value / seconds - 1 for setting, _, seconds in real]
    error = (sum(one**2 for one in errors) / max(len(errors), 1)) ** 0.5
    return table.model_copy(update={"error": error})


def shapes_of_target(model: Target, fingerprint: str = "") -> Shapes:
    """The sizes of a target that its times depend on."""
    config = model.config
    return Shapes(
        kind=config.architecture,
        hidden_size=config.hidden_size,
        vocab_size=config.vocab_size,
        layers=config.num_layers,
        parameters=sum(one.numel() for _, one in model.named_parameters()),
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
