"""The other commands that write: two writers on one folder, a kill, a failing write each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.faults.faults_world import EVAL, JOBS, Job, content, digest, figures, file_digest
from tests.faults.forking import run
from vocabforge.core.files import read_json


def make_writers_world(world: Path) -> None:
    """What these commands read, made by other commands; each in a process of its own."""
    from tests.tune.support import make_place

    count = ["count-freq", "--tokenizer", world / "target", "--input"]
    lines: list[list[object]] = [
        [*count, world / "corpus" / "part-0.txt", "--output", world / "counts"],
        [*count, world / "corpus" / "part-1.txt", "--output", world / "counts2"],
        ["cluster-vocab", "--target", world / "target", *_CLUSTERS, "--output", world / "clusters"],
        [*JOBS["eval"].argv(world, world)[:-6], "--output", world / "evaluation", *EVAL],
        ["train-drafter", "--config", world / "train.yaml", f"output={world / 'run'}"],
    ]
    for line in lines:
        ended = run([str(word) for word in line], world)
        if ended.code:
            raise RuntimeError(f"{line[0]} fails undisturbed:\n{ended.text}")
    make_place(world / "tune", questions=4)


_CLUSTERS = ("--clusters", 8)
_TREES = ("--depth", "0,1", "--topk", 2, "--total-nodes", 6, "--max-new-tokens", 6)


def _coverage(work: Path) -> Mapping[str, str]:
    content(work / "out")
    found = read_json(work / "out" / "coverage.json")
    del found["created"], found["command"], found["facts"]["measured"]
    return {"coverage.json": digest(found)}


def _router(work: Path) -> Mapping[str, str]:
    out = work / "out"
    return {"router": content(out / "router"), "metrics.jsonl": figures(out)}


def _tune(work: Path) -> Mapping[str, str]:
    found = read_json(work / "out" / "tune.json")
    # Not the times, nor what they decide.
    return {
        one["name"]: digest([one[key] for key in ("accepted", "groups", "different")])
        for one in found["candidates"]
    }


def _report(work: Path) -> Mapping[str, str]:
    return {"page": file_digest(work / "page.html")}


WRITERS: dict[str, Job] = {
    job.name: job
    for job in (
        Job(
            "merge-freq",
            lambda world, work: ["merge-freq", world / "counts", world / "counts2", "--output", work / "out"],
        ),
        Job(
            "select-vocab",
            lambda world, work: [
                *("select-vocab", "--counts", world / "counts", "--size", 16, "--output", work / "out")
            ],
        ),
        Job(
            "coverage",
            lambda world, work: [
                *("coverage", "--counts", world / "counts", "--heldout", f"t={world / 'counts2'}"),
                *("--output", work / "out"),
            ],
            result=_coverage,
        ),
        Job(
            "cluster-vocab",
            lambda world, work: [
                *("cluster-vocab", "--target", world / "target", *_CLUSTERS, "--output", work / "out")
            ],
        ),
        Job(
            "compare-vocab",
            lambda world, work: [
                *("compare-vocab", world / "target", world / "tune" / "t", "--output", work / "out")
            ],
        ),
        Job(
            "prepare-data",
            lambda world, work: [
                *("prepare-data", "--target", world / "target", "--input", world / "texts.jsonl"),
                *("--length", 32, "--heldout-documents", 3, "--output", work / "out"),
            ],
        ),
        Job(
            "regenerate",
            lambda world, work: [
                *("regenerate", "--input", world / "chats.jsonl", "--target", world / "target"),
                *("--device", "cpu", "--max-tokens", 6, "--output", work / "out"),
            ],
        ),
        Job(
            "revocab",
            lambda world, work: [
                *("revocab", "--drafter", world / "drafter", "--vocab", world / "vocab"),
                *("--target", world / "target", "--output", work / "out"),
            ],
        ),
        Job(
            "train-router",
            lambda world, work: [
                *("train-router", "--target", world / "target", "--drafter", world / "drafter"),
                *("--clusters", world / "clusters", "--input", world / "texts.jsonl"),
                *("--output", work / "out", "optim.steps=4", "optim.batch_size=2", "router.steps=2"),
                *("data.heldout_documents=3", "data.sequence_length=32", "run.device=cpu"),
                *("run.budgets=[2,4]", "run.checkpoint_every=2", "run.log_every=1"),
            ],
            ("out/router", "out/checkpoints/step-*"),
            _router,
        ),
        Job(
            "tune",
            lambda world, work: [
                *("tune", "--target", world / "tune" / "t", "--drafter", world / "tune" / "d"),
                *("--prompts", world / "tune" / "q.jsonl"),
                *("--prompt-format", "raw", "--device", "cpu", "--output", work / "out", *_TREES),
            ],
            (),
            _tune,
        ),
        Job(
            "report",
            lambda world, work: ["report", world / "evaluation", "--output", work / "page.html"],
            (),
            _report,
        ),
    )
}
