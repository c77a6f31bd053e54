"""``vocabforge bench contention``: what is left of a command's speed beside another busy process.

Every measurement is a command of its own, as a user starts it: with the number of threads that it chooses, and with
each fixed number. The settings take turns, idle and busy.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ..core.config import ModelPath, Positive, StrictModel, apply_overrides, parse_config
from ..core.errors import VocabForgeError
from ..core.progress import ProgressBar
from ..core.registry import check_known
from ..core.threads import thread_counts
from ..evaluate.run.environment import describe_environment
from .decoding.settings import PROMPTS

CHOSEN = "chosen"


class ContentionConfig(StrictModel):
    """Settings of ``vocabforge bench contention``, given as ``key=value``.

    Attributes:
        target: that decodes, and that a drafter is trained for.
        commands: names of :data:`COMMANDS`.
        busy: processes that compute beside the command.
        max_new_tokens: of ``generate``, and of each of ``questions`` of ``eval``.
        steps, batch, length: of ``train-drafter``, which measures threads in runs of 200 steps and more.
    """

    target: ModelPath
    commands: tuple[str, ...] = ("generate", "eval", "train-drafter")
    busy: Positive = 1
    max_new_tokens: Positive = 256
    questions: Positive = 4
    steps: Positive = 200
    batch: Positive = 2
    length: Positive = 128


def bench_contention(settings: Sequence[str] = (), *, repeats: int = 3) -> dict[str, Any]:
    """Measure each command idle and beside busy processes.

    Args:
        settings: ``key=value`` of :class:`ContentionConfig`.
        repeats: rounds.

    Returns:
        plain JSON: ``environment``, ``settings``, and ``rows`` of ``command``, ``threads`` (``chosen`` or a number),
        ``idle`` and ``busy`` (tokens a second, medians of ``all_idle`` and ``all_busy``), ``best_idle`` (of the
        command's settings) and ``ratio`` (busy to the best idle one).

    Raises:
        UsageError: an unknown command. VocabForgeError: a command failed.
    """
    config = parse_config(ContentionConfig, apply_overrides({}, settings), source="the command line")
    for name in config.commands:
        check_known(name, COMMANDS, "command")
    kinds = [CHOSEN, *map(str, thread_counts(torch.get_num_threads()))]
    rates: dict[tuple[str, str, bool], list[float]] = {}
    total = repeats * len(config.commands) * len(kinds) * 2
    with ProgressBar("contention", total, "runs") as bar, tempfile.TemporaryDirectory() as place:
        for number in range(repeats):
            for name in config.commands:
                for kind in kinds[number % len(kinds) :] + kinds[: number % len(kinds)]:
                    for busy in (False, True):
                        with _busy(config.busy if busy else 0), tempfile.TemporaryDirectory(dir=place) as own:
                            rate = COMMANDS[name](config, Path(own), kind)
                        rates.setdefault((name, kind, busy), []).append(rate)
                        bar.update(1, note=f"{name}, {kind}, {'busy' if busy else 'idle'}: {rate:.0f}/s")
    rows: list[dict[str, Any]] = []
    for name in config.commands:
        best = max(statistics.median(rates[name, kind, False]) for kind in kinds)
        for kind in kinds:
            alone, beside = rates[name, kind, False], rates[name, kind, True]
            figures = {"idle": statistics.median(alone), "busy": statistics.median(beside), "best_idle": best}
            figures["ratio"] = figures["busy"] / best
            rows.append({"command": name, "threads": kind, **figures, "all_idle": alone, "all_busy": beside})
    return {
        "environment": describe_environment(device="cpu", dtype="float32"),
        "settings": config.model_dump(mode="json") | {"repeats": repeats},
        "rows": rows,
    }


@contextlib.contextmanager
def _busy(count: int) -> Iterator[None]:
    """Processes that compute inside."""
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for one in running:
            one.kill()
            one.wait()


def _run(kind: str, *words: object) -> str:
    """Standard output of a command that runs with these threads."""
    environment = {
        key: one for key, one in os.environ.items() if key not in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
    }
    if kind != CHOSEN:
        environment["OMP_NUM_THREADS"] = kind
    command = [sys.executable, "-m", "vocabforge", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode != 0:
        raise VocabForgeError(f"{words[0]} failed", got=done.stderr.strip()[-2000:])
    return done.stdout


def _generate(config: ContentionConfig, place: Path, kind: str) -> float:
    asked = ("--prompt", PROMPTS[0], "--max-new-tokens", config.max_new_tokens, "--device", "cpu", "--json")
    return float(json.loads(_run(kind, "generate", "--target", config.target, *asked))["tokens_per_s"])


def _eval(config: ContentionConfig, place: Path, kind: str) -> float:
    """Tokens a second over plain decoding and the n-gram proposer."""
    texts = [PROMPTS[number % len(PROMPTS)] for number in range(config.questions)]
    rows = [
        {"question_id": number, "category": "story", "turns": [text]} for number, text in enumerate(texts)
    ]
    file = _jsonl(place / "questions.jsonl", rows)
    asked: tuple[object, ...] = (
        "--benchmark",
        file,
        "--proposer",
        "n-gram",
        "--warmup",
        1,
        "--device",
        "cpu",
    )
    asked += ("--max-new-tokens", config.max_new_tokens, "--output", place / "eval", "--json")
    methods = json.loads(_run(kind, "eval", "--target", config.target, *asked))["methods"]
    runs = [run for method in methods for run in method["summary"]["runs"]]
    return float(sum(run["new_tokens"] for run in runs) / sum(run["wall_time_s"] for run in runs))


def _train(config: ContentionConfig, place: Path, kind: str) -> float:
    texts = [{"text": " ".join([text, *PROMPTS])} for text in PROMPTS * 8]
    values: dict[str, Any] = {
        "target": str(config.target),
        "output": str(place / "train"),
        "data": {
            "train": [str(_jsonl(place / "train.jsonl", texts))],
            "heldout_documents": 4,
            "heldout_prompts": 1,
            "sequence_length": config.length,
        },
        "optim": {"steps": config.steps, "batch_size": config.batch, "lr": 1e-4},
        "run": {
            "device": "cpu",
            "log_every": 10,
            "eval_every": 10 * config.steps,
            "checkpoint_every": config.steps,
        },
    }
    recipe = place / "train.yaml"
    recipe.write_text(json.dumps(values), "utf-8")
    _run(kind, "train-drafter", "--config", recipe)
    lines = (place / "train" / "metrics.jsonl").read_text("utf-8").splitlines()
    rates = [row["tokens_per_s"] for row in map(json.loads, lines) if row["kind"] == "train"]
    return statistics.harmonic_mean(rates)


def _jsonl(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


# name -> runs the command once in a folder, with these threads; tokens a second
COMMANDS: dict[str, Callable[[ContentionConfig, Path, str], float]] = {
    "generate": _generate,
    "eval": _eval,
    "train-drafter": _train,
}
