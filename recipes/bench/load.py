"""Measure decoding with 1 to 16 concurrent requests, and the drafting plans chosen by the control.

The methods alternate by round over the same requests. A first round is not timed; controls keep what they
learn in it.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import Any, cast

from command import run
from decoding_settings import PromptedRecipe, read_prompts

from vocabforge.core.config import Positive, apply_overrides, parse_config
from vocabforge.core.console import DataTable
from vocabforge.core.progress import ProgressBar
from vocabforge.decode.build.methods import build_method
from vocabforge.decode.build.models import Models
from vocabforge.decode.build.recipe import PLAIN
from vocabforge.decode.build.spec import MethodSpec
from vocabforge.decode.control.control import Control, CycleFigures
from vocabforge.decode.engine import Decoder
from vocabforge.decode.proposers.interface import PLAIN_PLAN, Plan
from vocabforge.decode.request import Generation, Request
from vocabforge.evaluate.run.environment import describe_environment
from vocabforge.models.device import threads_set


class LoadBenchConfig(PromptedRecipe):
    """Settings of ``load.py``, given as ``key=value``: a decoding recipe, prompts and loads.

    Attributes:
        rows: numbers of concurrent requests.
        device: device for decoding.
    """

    rows: tuple[Positive, ...] = (1, 2, 4, 8, 16)
    device: str = "cpu"


class WatchedControl:
    """A control that counts how often each of its plans runs in ``plans``."""

    def __init__(self, control: Control) -> None:
        self._control, self.plans = control, Counter[Plan]()
        self.begin, self.plan = control.begin, control.plan

    def observe(self, cycle: CycleFigures) -> None:
        self.plans[cycle.plan] += 1
        self._control.observe(cycle)


@dataclass
class LoadSide:
    """One method under one load: seconds of each round and the results of the last round."""

    decoder: Decoder
    control: WatchedControl
    seconds: list[float] = field(default_factory=list)
    results: list[Generation] = field(default_factory=list)

    def run(self, requests: Sequence[Request]) -> None:
        """One round."""
        self.control.plans.clear()
        began = time.perf_counter()
        self.results = self.decoder.generate_batch(requests)
        self.seconds.append(time.perf_counter() - began)


def bench_load(settings: Sequence[str] = (), *, repeats: int = 3) -> dict[str, Any]:
    """Measure plain decoding and each method under each load.

    Args:
        settings: ``key=value`` of :class:`LoadBenchConfig`.
        repeats: timed rounds, after one untimed round.

    Returns:
        Plain JSON: environment, settings, and a row for each load and method with tokens/s, the ratio to
        plain decoding under the same load, accepted length, equal outputs, and the last round's cycles by
        plan.

    Raises:
        VocabForgeError: the models cannot be loaded, or the prompts do not fit the target.
    """
    config = parse_config(LoadBenchConfig, apply_overrides({}, settings), source="the command line")
    with threads_set(config.threads):
        return _measure(config, repeats)


def _measure(config: LoadBenchConfig, repeats: int) -> dict[str, Any]:
    models = Models(
        config.target,
        config.tokenizer,
        device=config.device,
        dtype=config.dtype,
        backend=config.target_backend,
    )
    prompts = read_prompts(config, models)
    specs = {PLAIN: MethodSpec(), **config.methods}
    found: list[dict[str, Any]] = []
    with ProgressBar("decoding", (repeats + 1) * len(specs) * len(config.rows), "rounds") as bar:
        for rows in config.rows:
            count = max(2 * rows, len(prompts))
            requests = [Request(prompt, config.max_new_tokens) for prompt in islice(cycle(prompts), count)]
            sides = {name: _side(models, spec, name, rows) for name, spec in specs.items()}
            for number in range(repeats + 1):
                for side in sides.values():
                    side.run(requests)
                    if number == 0:
                        side.seconds.clear()
                    bar.update(1)
            found += [_row(name, rows, side, sides[PLAIN]) for name, side in sides.items()]
    return {
        "environment": describe_environment(device=config.device, dtype=config.dtype),
        "settings": config.model_dump(mode="json") | {"repeats": repeats},
        "rows": found,
    }


def _side(models: Models, spec: MethodSpec, name: str, rows: int) -> LoadSide:
    if spec.drafts and not (spec.tree or spec.tree_file or spec.topk or spec.total_nodes):
        spec = spec.model_copy(update={"tree": "auto"})
    made = cast("Decoder", build_method(models, spec, name).generator)
    control = WatchedControl(made.control)
    return LoadSide(Decoder(models.model, made.proposer, rows=rows, control=control), control)


def _row(name: str, rows: int, side: LoadSide, plain: LoadSide) -> dict[str, Any]:
    tokens = sum(len(one.token_ids) for one in side.results)
    lengths = [length for one in side.results for length in one.accept_lengths]
    return {
        "method": name,
        "requests": rows,
        "tokens_per_s": tokens / statistics.median(side.seconds),
        "over_plain": statistics.median(p / s for s, p in zip(side.seconds, plain.seconds)),
        "accepted_length": sum(lengths) / len(lengths),
        "equal": sum(a.token_ids == b.token_ids for a, b in zip(side.results, plain.results)),
        "outputs": len(side.results),
        "cycles": {_named(plan): count for plan, count in side.control.plans.most_common()},
    }


def _named(plan: Plan) -> str:
    if plan == PLAIN_PLAN:
        return "plain"
    return f"{plan.by} {plan.nodes - 1} drafts".strip()


def load_table(result: Mapping[str, Any]) -> DataTable:
    """Return a table with one line for each load and method."""
    settings = result["settings"]
    lines: list[list[str | None]] = []
    for row in result["rows"]:
        total = sum(row["cycles"].values())
        most = [f"{name} {count / total:.0%}" for name, count in list(row["cycles"].items())[:3]]
        lines.append(
            [
                str(row["requests"]),
                row["method"],
                f"{row['tokens_per_s']:,.0f}",
                f"{row['over_plain']:.2f}",
                f"{row['accepted_length']:.2f}",
                f"{row['equal']} of {row['outputs']}",
                ", ".join(most),
            ]
        )
    title = f"{settings['max_new_tokens']} new tokens each, greedy, {settings['device']}"
    names = ("requests", "method<", "tokens/s", "over plain", "accepted", "equal", "cycles<")
    return DataTable(title, names, lines)


def shown(result: dict[str, Any]) -> list[DataTable | str]:
    return [
        load_table(result),
        "requests: side by side. tokens/s: of all requests together, median of the rounds. over plain: to plain "
        "decoding of the same requests side by side. cycles: of the last round, by what was drafted.",
    ]


if __name__ == "__main__":
    run(__doc__, bench_load, shown)
