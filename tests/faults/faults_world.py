"""Tiny inputs for every command that writes, and what its output must be equal in."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.train.run_support import WORDS
from tests.train.run_support import settings as train_settings
from tests.worlds import make_drafter, make_target, make_vocab
from vocabforge.core.artifact import MANIFEST, open_artifact

# Lines of metrics.jsonl say when, and how fast; the rest of them is the run.
_TIMES = ("time", "tokens_per_s", "seconds", "facts")
# Rows of answers and their side file: names drawn at random, instants and durations.
_WHEN = ("answer_id", "tstamp", "wall_time", "prefill_s", "decode_s", "timings")
_STATE = ("weights", "optimizer")


@dataclass(frozen=True)
class Job:
    """A command with its arguments.

    Attributes:
        argv: words behind ``vocabforge``; of the world and the folder to work in.
        artefacts: globs below that folder where finished artefacts stand.
        result: what must be equal after every interruption, by name.
    """

    name: str
    argv: Callable[[Path, Path], list[object]]
    artefacts: Sequence[str] = ("out",)
    result: Callable[[Path], Mapping[str, str]] = lambda work: {"out": content(work / "out")}

    def words(self, world: Path, work: Path) -> list[str]:
        return [str(word) for word in self.argv(world, work)]


def content(folder: Path) -> str:
    """The content hash of an artefact that is whole."""
    return open_artifact(folder).content_hash


def digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def file_digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def rows_of(path: Path, *without: str) -> list[dict[str, Any]]:
    """Rows of a JSONL file, less some keys at any depth."""
    return [_less(json.loads(line), without) for line in path.read_text("utf-8").splitlines()]


def _less(value: Any, without: Sequence[str]) -> Any:
    if isinstance(value, dict):
        return {key: _less(one, without) for key, one in value.items() if key not in without}
    return [_less(one, without) for one in value] if isinstance(value, list) else value


def make_fault_world(place: Path) -> None:
    """Target, drafter, draft vocabulary, texts, questions and a recipe."""
    draw = random.Random(0)
    target = make_target(place / "target", initializer_range=0.2)
    make_drafter(place / "drafter", target)
    make_vocab(place / "vocab", target)
    lines = [{"text": " ".join(draw.choices(WORDS, k=draw.randint(4, 14)))} for _ in range(20)]
    write_lines(place / "texts.jsonl", lines)
    (place / "corpus").mkdir()
    for number in range(6):
        text = "\n".join(" ".join(draw.choices(WORDS, k=12)) for _ in range(1500))
        (place / "corpus" / f"part-{number}.txt").write_text(text, "utf-8")
    asked = [[f"{draw.choice(WORDS)} {draw.choice(WORDS)}"] for _ in range(3)]
    write_lines(
        place / "questions.jsonl",
        [{"question_id": n, "category": "plain", "turns": turns} for n, turns in enumerate(asked, 1)],
    )
    chats = [{"messages": [{"role": "user", "content": turns[0]}]} for turns in asked]
    write_lines(place / "chats.jsonl", chats)
    sections = {
        "data": {"sequence_length": 32, "heldout_documents": 3, "heldout_prompts": 2},
        "ttt": {"steps": 2},
        "optim": {"steps": 6, "batch_size": 2},
        "heads": {"ranker": {"shortlist": 16}},
        "run": {"live": {"prompts": 0}, "trackers": [], "eval_every": 3, "checkpoint_every": 2, "keep": 2},
    }
    values = train_settings(place, "unused", **sections)
    (place / "train.yaml").write_text(yaml.safe_dump(values))


def write_lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


def figures(run: Path) -> str:
    """Digest of every figure in a training run's log, without times and without the rows of each start."""
    rows = rows_of(run / "metrics.jsonl", *_TIMES)
    return digest([row for row in rows if row["kind"] not in ("start", "end")])


def _train_result(work: Path) -> dict[str, str]:
    """Drafter, head, best drafter, the checkpoints that are kept, and every figure of the log."""
    out = work / "out"
    found = trained(work, "drafter", "best", "heads/ranker")
    return {**found, "metrics.jsonl": figures(out), "prompts": file_digest(out / "heldout_prompts.jsonl")}


def trained(work: Path, *artefacts: str) -> dict[str, str]:
    """Artefacts of a training run, and its checkpoints."""
    out = work / "out"
    found = {one: content(out / one) for one in artefacts}
    for checkpoint in sorted((out / "checkpoints").glob("step-*")):
        files = open_artifact(checkpoint).manifest["files"]
        # The third file holds random streams of Python and numpy, which start anywhere and are not drawn from.
        found |= {f"{checkpoint.name}/{name}": files[f"{name}.safetensors"]["sha256"] for name in _STATE}
    return found


def eval_result(work: Path) -> dict[str, str]:
    """Every answer with its token ids and accepted lengths; the artefact is whole."""
    content(work / "out")
    files = sorted((work / "out").glob("*s/*.jsonl"))
    assert len(files) >= 4, files
    return {str(file.relative_to(work)): digest(rows_of(file, *_WHEN)) for file in files}


FIXED = ["--control", "fixed"]  # adaptive control goes by the clock
EVAL = [*FIXED, "--prompt-format", "raw", "--device", "cpu", "--warmup", 1, "--max-new-tokens", 6]

# The five commands that are killed at 100 instants.
JOBS: dict[str, Job] = {
    job.name: job
    for job in (
        Job(
            "count-freq",
            lambda world, work: [
                *("count-freq", "--tokenizer", world / "target", "--input", world / "corpus"),
                *("--shard-mb", 1, "--workers", 1, "--output", work / "out"),
            ],
        ),
        Job(
            "capture",
            lambda world, work: [
                *("capture", "--config", world / "train.yaml", f"output={work / 'run'}"),
                *("--output", work / "out", "--shard-mb", 1, "--yes"),
            ],
        ),
        Job(
            "train-drafter",
            lambda world, work: ["train-drafter", "--config", world / "train.yaml", f"output={work / 'out'}"],
            ("out/drafter", "out/best", "out/heads/*", "out/checkpoints/step-*", "out/data/*"),
            _train_result,
        ),
        Job(
            "export",
            lambda world, work: [
                *("export", "--drafter", world / "drafter", "--target", world / "target"),
                *("--vocab", world / "vocab", "--format", "sglang-eagle3", "--output", work / "out"),
            ],
        ),
        Job(
            "eval",
            lambda world, work: [
                *("eval", "--target", world / "target", "--drafter", f"eagle3={world / 'drafter'}"),
                *("--benchmark", world / "questions.jsonl", "--output", work / "out", *EVAL),
            ],
            result=eval_result,
        ),
    )
}


def whole_artefacts(job: Job, work: Path) -> list[str]:
    """Artefacts under final names; every one of them is whole.

    Raises:
        ArtifactError: one is not.
    """
    found = []
    for pattern in job.artefacts:
        for folder in sorted(work.glob(pattern)):
            if (
                folder.name[0] != "."
                and folder.is_dir()
                and (any(folder.iterdir()) or (folder / MANIFEST).exists())
            ):
                open_artifact(folder)
                found.append(str(folder.relative_to(work)))
    return found


def litter(work: Path) -> list[str]:
    """What an interrupted command left beside its outputs."""
    marks = (".tmp-", ".old-", ".lock", ".partial")
    return sorted(
        str(path.relative_to(work)) for path in work.rglob("*") if any(mark in path.name for mark in marks)
    )
