"""``vocabforge bench decoding``: how fast VocabForge decodes, against transformers' ``generate`` in the same run.

For each mode the two take turns, prompt by prompt and round by round, with the same prompts and the same number of new
tokens, greedy, in the same dtype. Warm-up, compilation and the search for the best settings lie outside.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ...core.config import apply_overrides, parse_config
from ...core.console import DataTable, ProgressBar, say
from ...evaluate.identity.compare import first_difference
from ...evaluate.identity.rounding import next_logits
from ...evaluate.run.environment import describe_environment
from .modes import MODES, BenchRun, OurSide, TheirSide
from .settings import DecodingBenchConfig, modes_of, read_prompts


def modes_table(result: Mapping[str, Any]) -> DataTable:
    """One line a mode."""
    settings = result["settings"]
    drawn = f"temperature {settings['temperature']:g}" if settings["temperature"] else "greedy"
    title = f"{len(result['prompt_tokens'])} prompts, {settings['max_new_tokens']} new tokens each, {drawn}"

    def cells(row: Mapping[str, Any]) -> list[str | None]:
        ours, theirs = row["ours"], row["theirs"]
        outputs = row.get("outputs") or row.get("as_plain")
        return [
            row["mode"],
            f"{ours['tokens_per_s']['median']:.0f}",
            None if theirs is None else f"{theirs['tokens_per_s']['median']:.0f}",
            _range_of(row["ratio"]),
            _range_of(row.get("over_plain")),
            " / ".join(_length(side) for side in (ours, theirs) if side is not None),
            None if outputs is None else f"{outputs['equal']} of {outputs['compared']}",
            f"{ours['compile_s']:.0f}",
        ]

    columns = ("mode<", "tokens/s", "transformers", "ratio", "over plain", "accepted", "equal", "compiled, s")
    return DataTable(title, columns, [cells(row) for row in result["modes"]])


def remarks(result: Mapping[str, Any]) -> list[str]:
    """What stands below the table: settings, where the time goes, and outputs that differ."""
    lines = [
        "tokens/s: median of the rounds. ratio: VocabForge to transformers, round by round (lowest to highest); over "
        "plain: to VocabForge's own plain decoding. accepted: tokens a pass of the target, VocabForge / transformers. "
        "equal: outputs that are transformers', or plain decoding's. Modes over a draft model with another "
        "tokenizer share transformers' side."
    ]
    for row in result["modes"]:
        ours, theirs = row["ours"], row["theirs"]
        parts = ", ".join(f"{part} {ms:.3f}" for part, ms in ours["part_ms_per_token"].items() if ms >= 5e-4)
        told = f"{row['mode']}: {_settings(ours)}; ms a token: {parts}"
        lines.append(told + ("" if theirs is None else f"; transformers: {_settings(theirs)}"))
        lines += _remarks_of(row)
    return lines


def _remarks_of(row: Mapping[str, Any]) -> list[str]:
    """What drafting counted, what transformers refused, and outputs that differ."""
    lines, mode = [], row["mode"]
    if counts := row["ours"]["counts"]:
        told = ", ".join(f"{name} {count:,}" for name, count in counts.items())
        if counts.get("psi"):
            told += f"; {counts['psi_contexts'] / counts['psi']:.2f} drafter contexts a psi"
        lines.append(f"{mode}: {told}")
    if refused := row.get("refused"):
        lines.append(f"{mode}: transformers refused every setting: {refused[0]['error']}")
    compared = (
        ("outputs", mode, "transformers'"),
        ("as_plain", mode, "plain decoding's"),
        ("theirs_as_plain", f"transformers for {mode}", "plain decoding's"),
    )
    for key, which, other in compared:
        for one in (row.get(key) or {}).get("divergences", ()):
            why = "a tie within rounding" if one["tie"] else "WRONG"
            lines.append(
                f"{which}: prompt {one['prompt'] + 1} differs from {other} output at token "
                f"{one['token'] + 1}, where the target's two best logits are {one['margin']:.2g} apart: {why}"
            )
    return lines


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


# What a library may raise over settings or a pair of models that it cannot do.
_REFUSALS = (ValueError, TypeError, RuntimeError, LookupError, AttributeError)
_WARM_UP = 16  # tokens before a setting is tried
# A larger gap between the two best logits than fp32 rounding explains means that an output is wrong.
MARGIN = {"float32": 1e-3, "bfloat16": 0.5, "float16": 0.1}


@dataclass
class BenchSide:
    """One side of a mode.

    Attributes:
        run: continues a prompt.
        threads: it runs with.
        seconds: of each round and prompt.
        outputs: of each prompt, from the round that does not count.
        forwards: of the target in that round.
        counts: what drafting counted in that round, by name.
        parts: seconds by part of a round, all prompts together.
    """

    run: BenchRun
    threads: int
    seconds: list[list[float]] = field(default_factory=list)
    outputs: list[list[int]] = field(default_factory=list)
    forwards: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    parts: dict[str, list[float]] = field(default_factory=dict)


@dataclass
class BestSettings:
    """transformers' best settings for a mode: none where it has no such mode, or refused all.

    Attributes:
        side: with them.
        tried: all settings and threads with their tokens a second, or the error that they gave.
    """

    side: BenchSide | None = None
    tried: list[dict[str, Any]] = field(default_factory=list)


def bench_decoding(settings: Sequence[str] = (), *, repeats: int = 3) -> dict[str, Any]:
    """Measure each mode on both sides.

    Args:
        settings: ``key=value`` of :class:`DecodingBenchConfig`.
        repeats: rounds, after one that does not count.

    Returns:
        plain JSON: environment, settings, and a row a mode: tokens a second, ratios, accepted lengths, forwards,
        time by part, and whether the outputs are equal.

    Raises:
        UsageError: an unknown mode, one whose folder is not given, prompts that do not fit the target.
        VocabForgeError: anything that loading the models refuses.
    """
    config = parse_config(DecodingBenchConfig, apply_overrides({}, settings), source="the command line")
    threads = torch.get_num_threads()
    try:
        return _DecodingBench(config, repeats).run()
    finally:
        torch.set_num_threads(threads)


class _DecodingBench:
    def __init__(self, config: DecodingBenchConfig, repeats: int) -> None:
        self.config, self.repeats = config, repeats
        self.names = modes_of(config)
        torch.set_num_threads(config.threads)
        self.ours = OurSide(config)
        self.theirs = TheirSide(config)
        self.prompts = read_prompts(config, self.ours.model)
        self.lengths = config.max_new_tokens

    def run(self) -> dict[str, Any]:
        mine: dict[str, BenchSide] = {}
        found: dict[str, BestSettings] = {}  # by what ``BenchMode.against`` says
        pairs: list[list[BenchSide]] = []
        for name in self.names:
            say(f"{name}: loading, compiling, trying settings")
            mine[name] = self._ready(self.ours.start(name), self.config.threads)
            pairs.append([mine[name]])
            if _against(name) not in found:
                found[_against(name)] = one = self._best(name)
                pairs[-1] += [one.side] if one.side else []
        with ProgressBar("decoding", self.repeats * len(self.prompts) * len(pairs), "prompts") as bar:
            for number in range(self.repeats):
                self._round(number, pairs, bar)
        return {
            "environment": describe_environment(device="cpu", dtype=self.config.dtype),
            "settings": self.config.model_dump(mode="json") | {"repeats": self.repeats},
            "prompt_tokens": [len(prompt) for prompt in self.prompts],
            "their_versions": self.theirs.versions,
            "modes": [self._row(name, mine, found[_against(name)]) for name in self.names],
        }

    def _ready(self, run: BenchRun, threads: int) -> BenchSide:
        """The round that does not count: it warms up, compiles, and gives outputs and counts."""
        side = BenchSide(run, threads)
        with _threads(threads):
            for prompt in self.prompts:
                done = run.generate(prompt, self.lengths)
                side.outputs.append(done.token_ids)
                side.forwards += done.forwards
                for key, count in done.counts.items():
                    side.counts[key] = side.counts.get(key, 0) + count
        return side

    def _best(self, name: str) -> BestSettings:
        """The fastest of transformers' settings and threads on the first prompts, and all that were tried."""
        found, rates = BestSettings(), list[tuple[float, BenchRun, int]]()
        if self.config.widen > 1 or self.config.temperature > 0:
            return found
        for threads in self.config.their_threads:
            for run in self.theirs.candidates(name):
                told: dict[str, Any] = {"settings": run.settings, "threads": threads}
                try:
                    rates.append((self._rate(run, threads), run, threads))
                    told["tokens_per_s"] = rates[-1][0]
                except _REFUSALS as error:  # a result, too
                    told["error"] = f"{type(error).__name__}: {error}"
                found.tried.append(told)
        if rates:
            _, chosen, threads = max(rates, key=lambda one: one[0])
            found.side = self._ready(chosen, threads)
        return found

    def _rate(self, run: BenchRun, threads: int) -> float:
        """Tokens a second on the first prompts."""
        with _threads(threads):
            run.generate(self.prompts[0], min(self.lengths, _WARM_UP))
            began, made = time.perf_counter(), 0
            for prompt in self.prompts[: self.config.tune_prompts]:
                made += len(run.generate(prompt, self.lengths).token_ids)
        return made / (time.perf_counter() - began)

    def _round(self, number: int, pairs: Sequence[Sequence[BenchSide]], bar: ProgressBar) -> None:
        """Every side of every mode once a prompt; each round begins with another mode, and with the other side."""
        everyone = [side for pair in pairs for side in pair]
        pairs = [pair[::-1] if number % 2 else pair for pair in pairs]
        first = number % len(pairs)
        pairs = pairs[first:] + pairs[:first]
        for side in everyone:
            side.seconds.append([])
        before = {id(side): dict(side.run.parts) for side in everyone}
        for prompt in self.prompts:
            for pair in pairs:
                for one in pair:
                    with _threads(one.threads):
                        began = time.perf_counter()
                        one.run.generate(prompt, self.lengths)
                        one.seconds[-1].append(time.perf_counter() - began)
                bar.update(1)
        for side in everyone:
            for part, total in side.run.parts.items():
                side.parts.setdefault(part, []).append(total - before[id(side)].get(part, 0.0))

    def _row(self, name: str, sides: dict[str, BenchSide], found: BestSettings) -> dict[str, Any]:
        mine, other, plain = sides[name], found.side, sides.get("plain")
        row: dict[str, Any] = {"mode": name, "ours": self._figures(mine), "theirs": None, "ratio": None}
        row["ours"]["compile_s"] = mine.run.compile_s
        if plain is not None:
            row["over_plain"] = _ratios(mine, plain)
            if self.config.temperature == 0:
                row["as_plain"] = self._compare(mine.outputs, plain.outputs)
        if other is not None:
            row["theirs"] = self._figures(other) | {"tried": found.tried}
            row["ratio"] = _ratios(mine, other)
            row["outputs"] = self._compare(mine.outputs, other.outputs)
            if plain is not None:
                row["theirs_as_plain"] = self._compare(other.outputs, plain.outputs)
        elif found.tried:
            row["refused"] = found.tried
        return row

    def _figures(self, side: BenchSide) -> dict[str, Any]:
        tokens = sum(map(len, side.outputs))
        rates = [tokens / sum(seconds) for seconds in side.seconds]
        # The first token is the prefill's, whose passes are no verifications.
        cycles = side.forwards - len(side.outputs)
        parts = {part: statistics.median(seconds) / tokens * 1e3 for part, seconds in side.parts.items()}
        return {
            "tokens_per_s": _spread(rates),
            "ms_per_token": 1e3 / statistics.median(rates),
            "tokens": tokens,
            "target_forwards": side.forwards,
            "counts": side.counts,
            "accepted_length": (tokens - len(side.outputs)) / cycles if cycles else None,
            "threads": side.threads,
            "settings": side.run.settings,
            "part_ms_per_token": parts,
        }

    def _compare(self, mine: Sequence[Sequence[int]], other: Sequence[Sequence[int]]) -> dict[str, Any]:
        """Equal outputs, and for the others the first place that differs with the target's margin there."""
        divergences = []
        for index, (one, two) in enumerate(zip(mine, other)):
            at = first_difference(one, two)
            if at is None:
                continue
            margin = self._margin([*self.prompts[index], *one[:at]])
            within = margin <= MARGIN[self.config.dtype] and len(one) == len(two)
            divergences.append({"prompt": index, "token": at, "margin": margin, "tie": within})
        return {"equal": len(mine) - len(divergences), "compared": len(mine), "divergences": divergences}

    @torch.inference_mode()
    def _margin(self, ids: Sequence[int]) -> float:
        """Gap between the target's two best logits behind these tokens."""
        best = next_logits(self.ours.model, ids).float().topk(2).values
        return float(best[0] - best[1])


def _against(name: str) -> str:
    """Under which name transformers' side of a mode is found."""
    return MODES[name].against or name


def _ratios(mine: BenchSide, other: BenchSide) -> dict[str, float]:
    """How many times as fast, round by round; both sides made the same number of tokens."""
    return _spread([sum(b) / sum(a) for a, b in zip(mine.seconds, other.seconds)])


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "lowest": min(values), "highest": max(values)}


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    if before != count:
        torch.set_num_threads(count)
    try:
        yield
    finally:  # a setting that is refused leaves the others their threads
        if before != count:
            torch.set_num_threads(before)
