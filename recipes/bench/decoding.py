"""Compare the decoding speed of VocabForge and transformers' ``generate``.

For each method the two sides alternate by prompt and round, with the same prompts, the same number of new
tokens and the same dtype, greedily. Warm-up, compilation and the search for the best settings are not timed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from command import run
from decoding_settings import DecodingBenchConfig, read_prompts
from decoding_sides import OurRun, TheirRun, TheirSide, counterpart

from vocabforge.core.config import apply_overrides, parse_config
from vocabforge.core.console import DataTable, say
from vocabforge.core.progress import ProgressBar
from vocabforge.decode.build.models import Models
from vocabforge.decode.build.recipe import PLAIN
from vocabforge.decode.build.spec import MethodSpec
from vocabforge.evaluate.identity.compare import first_difference
from vocabforge.evaluate.identity.rounding import next_logits
from vocabforge.evaluate.run.environment import describe_environment
from vocabforge.models.device import threads_set


def modes_table(result: Mapping[str, Any]) -> DataTable:
    """Return a table with one line per method."""
    settings = result["settings"]
    drawn = f"temperature {settings['temperature']:g}" if settings["temperature"] else "greedy"
    title = f"{len(result['prompt_tokens'])} prompts, {settings['max_new_tokens']} new tokens each, {drawn}"

    def cells(row: Mapping[str, Any]) -> list[str | None]:
        sides = [side for side in (row["ours"], row["theirs"]) if side is not None]
        equal = [one for key in ("as_plain", "theirs_as_plain") if (one := row[key]) is not None]
        rates = [f"{side['tokens_per_s']['median']:.0f}" for side in sides]
        return [
            row["mode"],
            rates[0],
            rates[1] if len(sides) > 1 else None,
            _range_of(row["ratio"]),
            _range_of(row["over_plain"]),
            " / ".join(_length(side) for side in sides),
            " / ".join(f"{one['equal']} of {one['compared']}" for one in equal) or None,
            f"{row['ours']['compile_s']:.0f}",
        ]

    rows = [cells(row) for row in result["modes"]]
    columns = (
        "method<",
        "tokens/s",
        "transformers'",
        "ratio",
        "over plain",
        "accepted",
        "equal",
        "compiled, s",
    )
    return DataTable(title, columns, rows)


def remarks(result: Mapping[str, Any]) -> list[str]:
    """Return the lines below the table: settings, errors of transformers, and outputs that differ."""
    lines = [
        "tokens/s: median of the rounds. ratio: VocabForge to transformers, round by round (lowest to highest); over "
        "plain: to VocabForge's own plain decoding. accepted: tokens a pass of the target. equal: outputs that are "
        "plain decoding's. Both: VocabForge / transformers. Methods over a drafter with another tokenizer share "
        "transformers' side."
    ]
    for row in result["modes"]:
        mode, theirs = row["mode"], row["theirs"]
        lines.append(
            f"{mode}: {_settings(row['ours'])}"
            + ("" if theirs is None else f"; transformers: {_settings(theirs)}")
        )
        if counts := row["ours"]["counts"]:
            lines.append(f"{mode}: " + ", ".join(f"{name} {count:,}" for name, count in counts.items()))
        if refused := row.get("refused"):
            lines.append(f"{mode}: transformers refused every setting: {refused[0]['error']}")
        for key, which in (("as_plain", mode), ("theirs_as_plain", f"transformers for {mode}")):
            lines += _differences(which, row[key])
    return lines


def _differences(which: str, found: Mapping[str, Any] | None) -> list[str]:
    return [
        f"{which}: prompt {one['prompt'] + 1} differs from plain decoding's output at token {one['token'] + 1}, "
        f"where the target's two best logits are {one['margin']:.2g} apart: "
        + ("a tie within rounding" if one["tie"] else "WRONG")
        for one in (found or {}).get("divergences", ())
    ]


def _settings(side: Mapping[str, Any]) -> str:
    named = [f"{key} {value}" for key, value in side["settings"].items()]
    threads = side["threads"]
    return ", ".join([*named, f"{threads} thread" + "s" * (threads > 1)])


def _range_of(values: Mapping[str, float] | None) -> str | None:
    if values is None:
        return None
    median, lowest, highest = (f"{values[key]:.2f}" for key in ("median", "lowest", "highest"))
    return median if lowest == highest else f"{median} ({lowest}–{highest})"


def _length(side: Mapping[str, Any]) -> str:
    length = side["accepted_length"]
    return "-" if length is None else f"{length:.2f}"


# Errors raised for unsupported settings or pairs of models.
_REFUSALS = (ValueError, TypeError, RuntimeError, LookupError, AttributeError)
_WARM_UP = 16  # warm-up tokens for each setting
# An output is wrong if the gap between the two best logits is larger than rounding explains.
MARGIN = {"float32": 1e-3, "bfloat16": 0.5, "float16": 0.1}


@dataclass
class BenchSide:
    """One side of a comparison.

    Attributes:
        run: runner that continues a prompt.
        threads: number of threads.
        seconds: time of each round.
        outputs: output for each prompt, from the untimed round.
        forwards: target passes in the untimed round.
        counts: drafting counters in the untimed round, by name.
    """

    run: OurRun | TheirRun
    threads: int
    seconds: list[float] = field(default_factory=list)
    outputs: list[list[int]] = field(default_factory=list)
    forwards: int = 0
    counts: dict[str, int] = field(default_factory=dict)


# transformers' best settings for a method (None if none work), and all settings that were tried
BestSettings = tuple[BenchSide | None, list[dict[str, Any]]]


def bench_decoding(settings: Sequence[str] = (), *, repeats: int = 3) -> dict[str, Any]:
    """Measure plain decoding and each method on both sides.

    Args:
        settings: ``key=value`` of :class:`DecodingBenchConfig`.
        repeats: timed rounds, after one untimed round.

    Returns:
        Plain JSON: environment, settings, and a row per method with tokens/s, ratios, accepted lengths,
        forwards, and whether the outputs equal plain decoding's.

    Raises:
        UsageError: the prompts do not fit the target, or settings conflict.
        VocabForgeError: the models cannot be loaded.
    """
    config = parse_config(DecodingBenchConfig, apply_overrides({}, settings), source="the command line")
    with threads_set(config.threads):
        return _DecodingBench(config, repeats).run()


class _DecodingBench:
    def __init__(self, config: DecodingBenchConfig, repeats: int) -> None:
        self.config, self.repeats = config, repeats
        self.models = Models(
            config.target, config.tokenizer, device="cpu", dtype=config.dtype, backend=config.target_backend
        )
        self.prompts = read_prompts(config, self.models)
        self.theirs, self.new = TheirSide(config), config.max_new_tokens

    def run(self) -> dict[str, Any]:
        mine: dict[str, BenchSide] = {}
        found: dict[tuple[str, Path | None], BestSettings] = {}
        keys: dict[str, tuple[str, Path | None]] = {}
        pairs: list[list[BenchSide]] = []
        for name, spec in {PLAIN: MethodSpec(), **self.config.methods}.items():
            say(f"{name}: loading, compiling, trying settings")
            run = OurRun(self.models, self.config, name, spec)
            mine[name] = self._ready(run, self.config.threads)
            pairs.append([mine[name]])
            keys[name] = key = counterpart(run.kind), spec.drafter
            if key not in found:
                found[key] = self._best(*key)
                pairs[-1] += [side] if (side := found[key][0]) else []
        with ProgressBar("decoding", self.repeats * len(self.prompts) * len(pairs), "prompts") as bar:
            for number in range(self.repeats):
                self._round(number, pairs, bar)
        return {
            "environment": describe_environment(device="cpu", dtype=self.config.dtype),
            "settings": self.config.model_dump(mode="json") | {"repeats": self.repeats},
            "prompt_tokens": [len(prompt) for prompt in self.prompts],
            "their_versions": self.theirs.versions,
            "modes": [self._row(name, mine, *found[key]) for name, key in keys.items()],
        }

    def _ready(self, run: OurRun | TheirRun, threads: int) -> BenchSide:
        """Run the untimed round, which warms up, compiles, and provides outputs and counts."""
        side = BenchSide(run, threads)
        with threads_set(threads):
            for prompt in self.prompts:
                done = run.generate(prompt, self.new)
                side.outputs.append(done.token_ids)
                side.forwards += done.target_forwards
                for key, count in done.counts.items():
                    side.counts[key] = side.counts.get(key, 0) + count
        return side

    def _best(self, kind: str, drafter: Path | None) -> BestSettings:
        """Return transformers' fastest settings and threads on the first prompts, and all that were tried."""
        tried, rates = list[dict[str, Any]](), list[tuple[float, TheirRun, int]]()
        runs = self.theirs.candidates(kind, drafter) if self.config.temperature == 0 else []
        for threads in self.config.their_threads:
            for way in runs:
                told: dict[str, Any] = {"settings": way.settings, "threads": threads}
                try:
                    rates.append((self._rate(way, threads), way, threads))
                    told["tokens_per_s"] = rates[-1][0]
                except _REFUSALS as error:  # also a result
                    told["error"] = f"{type(error).__name__}: {error}"
                tried.append(told)
        if not rates:
            return None, tried
        _, chosen, threads = max(rates, key=lambda one: one[0])
        return self._ready(chosen, threads), tried

    def _rate(self, run: TheirRun, threads: int) -> float:
        with threads_set(threads):
            run.generate(self.prompts[0], min(self.new, _WARM_UP))
            began, made = time.perf_counter(), 0
            for prompt in self.prompts[: self.config.tune_prompts]:
                made += len(run.generate(prompt, self.new).token_ids)
        return made / (time.perf_counter() - began)

    def _round(self, number: int, pairs: Sequence[Sequence[BenchSide]], bar: ProgressBar) -> None:
        """Run every side of every method per prompt; each round starts with a different method and side."""
        pairs = [pair[::-1] if number % 2 else pair for pair in pairs]
        first = number % len(pairs)
        pairs = pairs[first:] + pairs[:first]
        for pair in pairs:
            for side in pair:
                side.seconds.append(0.0)
        for prompt in self.prompts:
            for pair in pairs:
                for one in pair:
                    with threads_set(one.threads):
                        began = time.perf_counter()
                        one.run.generate(prompt, self.new)
                        one.seconds[-1] += time.perf_counter() - began
                bar.update(1)

    def _row(
        self, name: str, sides: Mapping[str, BenchSide], other: BenchSide | None, tried: list[dict[str, Any]]
    ) -> dict[str, Any]:
        mine, plain, greedy = sides[name], sides[PLAIN], self.config.temperature == 0
        row: dict[str, Any] = {
            "mode": name,
            "ours": self._figures(mine),
            "theirs": None if other is None else self._figures(other) | {"tried": tried},
            "ratio": None if other is None else _ratios(mine, other),
            "over_plain": _ratios(mine, plain),
            "as_plain": self._compare(mine, plain) if greedy else None,
            "theirs_as_plain": None if other is None else self._compare(other, plain),
        }
        return row | ({"refused": tried} if other is None and tried else {})

    def _figures(self, side: BenchSide) -> dict[str, Any]:
        tokens = sum(map(len, side.outputs))
        rates = [tokens / seconds for seconds in side.seconds]
        # The prefill produces the first token; its passes are not verification passes.
        cycles = side.forwards - len(side.outputs)
        return {
            "tokens_per_s": _spread(rates),
            "tokens": tokens,
            "target_forwards": side.forwards,
            "counts": side.counts,
            "accepted_length": (tokens - len(side.outputs)) / cycles if cycles else None,
            "threads": side.threads,
            "settings": side.run.settings,
            "compile_s": side.run.compile_s,
        }

    def _compare(self, mine: BenchSide, plain: BenchSide) -> dict[str, Any]:
        """Count equal outputs; for the others, find the first difference and the target's margin there."""
        divergences = []
        for index, (one, two) in enumerate(zip(mine.outputs, plain.outputs)):
            if (at := first_difference(one, two)) is None:
                continue
            margin = self._margin([*self.prompts[index], *one[:at]])
            within = margin <= MARGIN[self.config.dtype] and len(one) == len(two)
            divergences.append({"prompt": index, "token": at, "margin": margin, "tie": within})
        compared = len(mine.outputs)
        return {"equal": compared - len(divergences), "compared": compared, "divergences": divergences}

    @torch.inference_mode()
    def _margin(self, ids: Sequence[int]) -> float:
        """Return the gap between the target's two best logits after these tokens."""
        best = next_logits(self.models.model, ids).float().topk(2).values
        return float(best[0] - best[1])


def _ratios(mine: BenchSide, other: BenchSide) -> dict[str, float]:
    """Return the speed-up by round; both sides generated the same number of tokens."""
    return _spread([b / a for a, b in zip(mine.seconds, other.seconds)])


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "lowest": min(values), "highest": max(values)}


def shown(result: dict[str, Any]) -> list[DataTable | str]:
    """Return the table of methods and the remarks."""
    return [modes_table(result), *remarks(result)]


if __name__ == "__main__":
    run(__doc__, bench_decoding, shown)
