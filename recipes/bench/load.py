"""Measure decoding with 1 to 16 concurrent requests, and the drafting plans chosen by the control.

The methods alternate by round over the same requests. A first round is not timed; controls keep what they
learn in it.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import cycle, islice
from typing import Any, cast

import torch
from command import PromptedRecipe, read_prompts, run, seconds_of, speed_up, take_turns

from vocabforge.core.config import Positive, apply_overrides, parse_config
from vocabforge.core.console import DataTable
from vocabforge.decode.build.methods import build_method
from vocabforge.decode.build.models import Models
from vocabforge.decode.build.recipe import PLAIN
from vocabforge.decode.control.control import Control, CycleFigures
from vocabforge.decode.engine import Decoder
from vocabforge.decode.interface import PLAIN_PLAN, Plan
from vocabforge.decode.request import Generation, Request
from vocabforge.decode.spec import MethodSpec
from vocabforge.evaluate.run.environment import describe_environment
from vocabforge.models.device import threads_set


class LoadBenchConfig(PromptedRecipe):
    """Settings of ``load.py``, given as ``key=value``.

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

    def observe(self, figures: CycleFigures) -> None:
        self.plans[figures.plan] += 1
        self._control.observe(figures)


class LoadSide:
    """One method under one load, with the results of its last round."""

    def __init__(self, models: Models, spec: MethodSpec, name: str, rows: int) -> None:
        made = cast("Decoder", build_method(models, spec, name).generator)
        self.control = WatchedControl(made.control)
        self._decoder = Decoder(models.model, made.proposer, rows=rows, control=self.control)
        self.results: list[Generation] = []

    def round(self, requests: Sequence[Request]) -> None:
        self.control.plans.clear()
        self.results = self._decoder.generate_batch(requests)


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
    with threads_set(config.threads or torch.get_num_threads()):
        return _measure(config, repeats)


def _measure(config: LoadBenchConfig, repeats: int) -> dict[str, Any]:
    models = Models(
        config.target,
        config.tokenizer,
        device=config.device,
        dtype=config.dtype,
        backend=config.target_backend,
    )
    prompts = read_prompts(models, config.prompts, config.questions, config.max_new_tokens)
    specs = {PLAIN: MethodSpec(), **config.methods}
    found: list[dict[str, Any]] = []
    for rows in config.rows:
        count = max(2 * rows, len(prompts))
        requests = [Request(prompt, config.max_new_tokens) for prompt in islice(cycle(prompts), count)]
        sides = {name: LoadSide(models, spec, name, rows) for name, spec in specs.items()}
        for side in sides.values():
            side.round(requests)
        calls = {name: partial(seconds_of, side.round, requests) for name, side in sides.items()}
        seconds = take_turns(f"{rows} requests", calls, repeats)
        for name, side in sides.items():
            lengths = [length for one in side.results for length in one.accept_lengths]
            tokens = sum(len(one.token_ids) for one in side.results)
            equal = [
                a.token_ids == b.token_ids for a, b in zip(side.results, sides[PLAIN].results, strict=True)
            ]
            found.append(
                {
                    "method": name,
                    "requests": rows,
                    "tokens_per_s": tokens / statistics.median(seconds[name]),
                    "over_plain": speed_up(seconds[name], seconds[PLAIN])["median"],
                    "accepted_length": sum(lengths) / len(lengths),
                    "equal": sum(equal),
                    "outputs": len(equal),
                    "cycles": {_named(plan): n for plan, n in side.control.plans.most_common()},
                }
            )
    return {
        "environment": describe_environment(device=config.device, dtype=config.dtype),
        "settings": config.model_dump(mode="json") | {"repeats": repeats},
        "rows": found,
    }


def _named(plan: Plan) -> str:
    return "plain" if plan == PLAIN_PLAN else f"{plan.by} {plan.nodes - 1} drafts".strip()


def shown(result: dict[str, Any]) -> list[DataTable | str]:
    """Return a table with one line for each load and method."""
    settings, lines = result["settings"], []
    for row in result["rows"]:
        total = sum(row["cycles"].values())
        most = [f"{name} {count / total:.0%}" for name, count in list(row["cycles"].items())[:3]]
        figures = [f"{row['tokens_per_s']:,.0f}", f"{row['over_plain']:.2f}", f"{row['accepted_length']:.2f}"]
        equal = f"{row['equal']} of {row['outputs']}"
        lines.append([str(row["requests"]), row["method"], *figures, equal, ", ".join(most)])
    title = f"{settings['max_new_tokens']} new tokens each, greedy, {settings['device']}"
    columns = ("requests", "method<", "tokens/s", "over plain", "accepted", "equal", "cycles<")
    return [
        DataTable(title, columns, lines),
        "requests: side by side. tokens/s: of all requests together, median of the rounds. over plain: to plain "
        "decoding of the same requests side by side. cycles: of the last round, by what was drafted.",
    ]


if __name__ == "__main__":
    run(__doc__, bench_load, shown)
