"""The commands that write, tiny inputs for them, and what of their output must be equal after every interruption."""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import shlex
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tests.capture.hidden_server import HiddenServer
from tests.corpus.chat_server import FakeServer
from tests.evaluate.served_fakes import FakeInference, Served
from tests.export.readers_support import write_tokenizer
from tests.faults.process import FORK, run
from tests.models.mtp_targets import make_target as make_mtp_target
from tests.models.mtp_targets import save_changed_module
from tests.train.run_support import WORDS
from tests.train.run_support import settings as train_settings
from tests.tune.support import make_place
from tests.worlds import byte_tokenizer, make_drafter, make_target, make_vocab, tiny_target
from vocabforge.core.artifact import open_artifact
from vocabforge.core.errors import VocabForgeError
from vocabforge.models.target.hf import HFTarget

# Instants, durations, and names drawn at random: of metrics.jsonl, of an evaluation.
VOLATILE = {"time", "tokens_per_s", "seconds", "facts"}
VOLATILE |= {"answer_id", "tstamp", "wall_time", "prefill_s", "decode_s", "timings"}
TRAINED = ("out/drafter", "out/best", "out/heads/*", "out/checkpoints/step-*", "out/metrics.jsonl")
TRAINED += ("out/heldout_prompts.jsonl",)
URLS = "servers.json"
CONVERTED = "cache/gguf-*/target-*"  # where a process under test keeps converted GGUF files


class Job(NamedTuple):
    """A command.

    Attributes:
        line: words behind ``vocabforge``; ``{w}`` is the world, ``{d}`` the folder to work in.
        outputs: patterns below that folder; what must be equal after every interruption, and whole at any time.
        servers: kinds of servers that it asks.
    """

    line: str
    outputs: tuple[str, ...] = ("out",)
    servers: tuple[str, ...] = ()

    def words(self, world: Path, work: Path) -> list[str]:
        urls = json.loads((work.parent / URLS).read_text()) if self.servers else {}
        return shlex.split(self.line.format(w=world, d=work, **urls))

    def result(self, work: Path) -> dict[str, str]:
        """Return a digest of every output.

        Raises:
            VocabForgeError: one is damaged.
        """
        found = [path for pattern in self.outputs for path in sorted(work.glob(pattern))]
        return {str(path.relative_to(work)): digest_of(path) for path in found}


# Adaptive control depends on measured times.
EVAL = "--control fixed --prompt-format raw --device cpu --warmup 1 --max-new-tokens 6"
# The commands that are struck most.
JOBS = {
    "count-freq": Job(
        "count-freq --tokenizer {w}/target --input {w}/corpus --shard-mb 1 --workers 1 --output {d}/out"
    ),
    "capture": Job("capture --config {w}/train.yaml output={d}/run --output {d}/out --shard-mb 1 --yes"),
    "train-drafter": Job("train-drafter --config {w}/train.yaml output={d}/out", TRAINED),
    "export": Job(
        "export --drafter {w}/drafter --target {w}/target --vocab {w}/vocab --format sglang-eagle3 --output {d}/out"
    ),
    "eval": Job(
        "eval --target {w}/target --drafter eagle3={w}/drafter --benchmark {w}/questions.jsonl --output {d}/out "
        + EVAL
    ),
}
# The same commands with servers, a block drafter, a module written back into its target, drafts, GGUF files.
FORMS = {
    "capture from a server": Job(
        "capture --config {w}/train.yaml output={d}/run --yes capture.server.url={states} "
        "capture.server.folder={d}/sent --output {d}/out --shard-mb 1 capture.server.concurrency=2",
        ("out", "sent"),
        ("states",),
    ),
    "capture from a server over HTTP": Job(
        "capture --config {w}/train.yaml output={d}/run --yes capture.server.url={fetched} --output {d}/out "
        "--shard-mb 1 capture.server.concurrency=2",
        servers=("fetched",),
    ),
    "eval --server": Job(
        "eval --server eagle3={vllm} --server plain={plain} --benchmark {w}/served.jsonl --max-new-tokens 16 "
        "--warmup 1 --output {d}/out",
        servers=("vllm", "plain"),
    ),
    "train-drafter (DFlash)": Job("train-drafter --config {w}/block.yaml output={d}/out", TRAINED),
    "export --format mtp": Job(
        "export --drafter {w}/module --target {w}/own --format mtp --with-target --output {d}/out"
    ),
    "export --format gguf": Job(
        "export --drafter {w}/spelled-drafter --target {w}/spelled --format gguf --with-target --output {d}/out"
    ),
    "cluster-vocab (GGUF)": Job(
        "cluster-vocab --target {w}/gguf/target.gguf --clusters 4 --output {d}/out", ("out", CONVERTED)
    ),
    "regenerate --drafter": Job(
        "regenerate --input {w}/chats.jsonl --target {w}/target --drafter {w}/drafter --batch-size 2 --device cpu "
        "--max-tokens 12 --output {d}/out"
    ),
    "regenerate --server": Job(
        "regenerate --input {w}/chats.jsonl --server {chat} --concurrency 2 --output {d}/out",
        servers=("chat",),
    ),
}
# The commands that make their output in one go.
WRITERS = {
    "merge-freq": Job("merge-freq {w}/counts {w}/counts2 --output {d}/out"),
    "select-vocab": Job("select-vocab --counts {w}/counts --size 16 --output {d}/out"),
    "coverage": Job("coverage --counts {w}/counts --heldout t={w}/counts2 --output {d}/out"),
    "cluster-vocab": Job("cluster-vocab --target {w}/target --clusters 8 --output {d}/out"),
    "compare-vocab": Job("compare-vocab {w}/target {w}/tune/t --output {d}/out"),
    "prepare-data": Job(
        "prepare-data --target {w}/target --input {w}/texts.jsonl --length 32 --heldout-documents 3 --output {d}/out"
    ),
    "regenerate": Job(
        "regenerate --input {w}/chats.jsonl --target {w}/target --device cpu --max-tokens 6 --output {d}/out"
    ),
    "tune": Job(
        "tune --target {w}/tune/t --drafter {w}/tune/d --prompts {w}/tune/q.jsonl --prompt-format raw --device cpu "
        "--depth 0,1 --topk 2 --total-nodes 6 --max-new-tokens 6 --output {d}/out",
        ("out/tune.json",),
    ),
    "report": Job("report {w}/evaluation --output {d}/page.html", ("page.html",)),
}
# What the commands of WRITERS and FORMS read.
MADE = (
    "count-freq --tokenizer {w}/target --input {w}/corpus/part-0.txt --output {w}/counts",
    "count-freq --tokenizer {w}/target --input {w}/corpus/part-1.txt --output {w}/counts2",
    "cluster-vocab --target {w}/target --clusters 8 --output {w}/clusters",
    JOBS["eval"].line.replace("{d}/out", "{w}/evaluation"),
    FORMS["export --format gguf"].line.replace("{d}/out", "{w}/gguf"),
)


def digest_of(path: Path) -> str:
    """Return a digest of an output without what differs between undisturbed runs."""
    if path.name == "metrics.jsonl":
        rows = _rows(path)
        return _digest([row for row in rows if row["kind"] not in ("start", "end")])
    if path.name == "tune.json":  # not the times, nor what they decide
        keys = ("accepted", "groups", "different")
        rows = json.loads(path.read_bytes())["candidates"]
        return _digest([[row["name"], *(row["measured"][key] for key in keys)] for row in rows])
    if path.is_file():
        return hashlib.sha256(path.read_bytes()).hexdigest()
    if path.name == "sent":  # states that nobody read
        return _digest(sorted(file.name for file in path.iterdir()))
    artifact = open_artifact(path)
    if artifact.kind == "evaluation":
        files = sorted(path.glob("*s/*.jsonl"))
        return _digest([[file.name, _rows(file)] for file in files])
    if (
        artifact.kind == "checkpoint"
    ):  # its third file has random streams that start anywhere and are not drawn from
        files = artifact.manifest["files"]
        return _digest([files[f"{name}.safetensors"]["sha256"] for name in ("weights", "optimizer")])
    return artifact.content_hash


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _rows(path: Path) -> list[Any]:
    return [_steady(json.loads(line)) for line in path.read_text("utf-8").splitlines()]


def _steady(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _steady(inner) for key, inner in value.items() if key not in VOLATILE}
    return [_steady(inner) for inner in value] if isinstance(value, list) else value


def check_whole(job: Job, work: Path) -> None:
    """Check that every artefact under a final name is whole.

    Raises:
        VocabForgeError: one is not.
    """
    for pattern in (*job.outputs, "out/data/*"):
        for folder in work.glob(pattern):
            final = folder.is_dir() and folder.name[0] != "." and folder.name != "sent"
            if final and any(folder.iterdir()):
                open_artifact(folder)


def make_world(place: Path, *, short: bool) -> None:
    """Make the inputs; ``short``: those of ``JOBS`` only."""
    draw = random.Random(0)
    target = make_target(place / "target", initializer_range=0.2)
    make_drafter(place / "drafter", target)
    make_vocab(place / "vocab", target)
    _lines(
        place / "texts.jsonl",
        [{"text": " ".join(draw.choices(WORDS, k=draw.randint(4, 14)))} for _ in range(20)],
    )
    (place / "corpus").mkdir()
    for number in range(6):
        text = "\n".join(" ".join(draw.choices(WORDS, k=12)) for _ in range(1500))
        (place / "corpus" / f"part-{number}.txt").write_text(text, "utf-8")
    asked = [[" ".join(draw.choices(WORDS, k=2))] for _ in range(3)]
    _questions(place / "questions.jsonl", asked)
    _questions(
        place / "served.jsonl", [["Tell a story", "Once more"], ["Write a poem"], ["Who was it"], ["What"]]
    )
    _lines(place / "chats.jsonl", [{"messages": [{"role": "user", "content": turns[0]}]} for turns in asked])
    sections: dict[str, dict[str, Any]] = {
        "data": {"sequence_length": 32, "heldout_documents": 3, "heldout_prompts": 2},
        "optim": {"steps": 6, "batch_size": 2},
        "run": {"live": {"prompts": 0}, "trackers": [], "eval_every": 3, "checkpoint_every": 2, "keep": 2},
    }
    values = train_settings(
        place, "unused", ttt={"steps": 2}, heads={"ranker": {"shortlist": 16}}, **sections
    )
    (place / "train.yaml").write_text(yaml.safe_dump(values))
    if short:
        return
    block = {"kind": "dflash", "block_size": 4, "num_layers": 1}
    values = {**train_settings(place, "unused", drafter=block, **sections), "ttt": {"anchors": 4}}
    (place / "block.yaml").write_text(yaml.safe_dump(values))
    own = byte_tokenizer(make_mtp_target(place / "own", "qwen3_next", vocab_size=264))
    save_changed_module(own, place / "module")
    make_drafter(
        place / "spelled-drafter",
        write_tokenizer(tiny_target(place / "spelled", vocab_size=31, num_hidden_layers=8)),
    )
    make_place(place / "tune", questions=4)
    for line in MADE:
        ended = run(shlex.split(line.format(w=place)), place)
        if ended.code:
            raise VocabForgeError(f"{line} fails undisturbed", got=ended.text)


def _lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


def _questions(path: Path, asked: Sequence[Sequence[str]]) -> None:
    _lines(
        path, [{"question_id": n, "category": "plain", "turns": turns} for n, turns in enumerate(asked, 1)]
    )


@contextlib.contextmanager
def serving(job: Job, world: Path, work: Path) -> Iterator[None]:
    """Inside, the servers of a command run in a process of their own, which outlives its kills."""
    if not job.servers:
        yield
        return
    process = FORK.Process(target=_serve, args=(job, world, work))
    process.start()
    try:
        while not (work.parent / URLS).is_file():
            time.sleep(0.01)
        yield
    finally:
        process.kill()
        process.join()


def _serve(job: Job, world: Path, work: Path) -> None:
    with contextlib.ExitStack() as running:
        urls = {kind: running.enter_context(_server(kind, world, work)).url for kind in job.servers}
        (work.parent / "new").write_text(json.dumps(urls))
        (work.parent / "new").rename(work.parent / URLS)
        signal.pause()


def _server(kind: str, world: Path, work: Path) -> Any:
    if kind in ("states", "fetched"):
        room = None if kind == "states" else 10**9
        return HiddenServer(work / "sent", HFTarget.load(world / "target"), share_bytes=room)
    if kind == "chat":
        return FakeServer()
    return FakeInference(Served(speculates=kind == "vllm"))
