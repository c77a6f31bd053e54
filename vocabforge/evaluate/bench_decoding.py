"""``vocabforge bench decoding``: how fast VocabForge decodes, against transformers' ``generate`` in the same run.

For each mode the two take turns, prompt by prompt and round by round, with the same prompts and the same number of new
tokens, greedy, in the same dtype. Warm-up, compilation and the search for the best settings lie outside.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..core.config import apply_overrides, parse_config
from ..core.progress import ProgressBar, say
from .bench_decoding_modes import MODES, OurSide, Run
from .bench_decoding_settings import DecodingBenchConfig, modes_of, read_prompts
from .bench_decoding_theirs import TheirSide
from .compare import first_difference
from .environment import describe_environment
from .rounding import next_logits

# What a library may raise over settings or a pair of models that it cannot do.
_REFUSALS = (ValueError, TypeError, RuntimeError, LookupError, AttributeError)
_WARM_UP = 16  # tokens before a setting is tried
# A larger gap between the two best logits than fp32 rounding explains means that an output is wrong.
MARGIN = {"float32": 1e-3, "bfloat16": 0.5, "float16": 0.1}


@dataclass
class Side:
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

    run: Run
    threads: int
    seconds: list[list[float]] = field(default_factory=list)
    outputs: list[list[int]] = field(default_factory=list)
    forwards: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    parts: dict[str, list[float]] = field(default_factory=dict)


@dataclass
class Found:
    """transformers' best settings for a mode: none where it has no such mode, or refused all.

    Attributes:
        side: with them.
        tried: all settings and threads with their tokens a second, or the error that they gave.
    """

    side: Side | None = None
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
        return _Bench(config, repeats).run()
    finally:
        torch.set_num_threads(threads)


class _Bench:
    def __init__(self, config: DecodingBenchConfig, repeats: int) -> None:
        self.config, self.repeats = config, repeats
        self.names = modes_of(config)
        torch.set_num_threads(config.threads)
        self.ours = OurSide(config)
        self.theirs = TheirSide(config)
        self.prompts = read_prompts(config, self.ours.model)
        self.lengths = config.max_new_tokens

    def run(self) -> dict[str, Any]:
        mine: dict[str, Side] = {}
        found: dict[str, Found] = {}  # by what ``Mode.against`` says
        pairs: list[list[Side]] = []
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

    def _ready(self, run: Run, threads: int) -> Side:
        """The round that does not count: it warms up, compiles, and gives outputs and counts."""
        side = Side(run, threads)
        with _threads(threads):
            for prompt in self.prompts:
                done = run.generate(prompt, self.lengths)
                side.outputs.append(done.token_ids)
                side.forwards += done.forwards
                for key, count in done.counts.items():
                    side.counts[key] = side.counts.get(key, 0) + count
        return side

    def _best(self, name: str) -> Found:
        """The fastest of transformers' settings and threads on the first prompts, and all that were tried."""
        found, rates = Found(), list[tuple[float, Run, int]]()
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

    def _rate(self, run: Run, threads: int) -> float:
        """Tokens a second on the first prompts."""
        with _threads(threads):
            run.generate(self.prompts[0], min(self.lengths, _WARM_UP))
            began, made = time.perf_counter(), 0
            for prompt in self.prompts[: self.config.tune_prompts]:
                made += len(run.generate(prompt, self.lengths).token_ids)
        return made / (time.perf_counter() - began)

    def _round(self, number: int, pairs: Sequence[Sequence[Side]], bar: ProgressBar) -> None:
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

    def _row(self, name: str, sides: dict[str, Side], found: Found) -> dict[str, Any]:
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

    def _figures(self, side: Side) -> dict[str, Any]:
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


def _ratios(mine: Side, other: Side) -> dict[str, float]:
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
