"""A good example of everything that is read, in one folder; what is tried starts from a copy of one of them."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.cli.every_kind import make_every_kind
from tests.evaluate.comparison_support import Made, write_run
from tests.fuzz.goods_drafters import make_drafters
from tests.fuzz.goods_servers import make_answers
from tests.worlds import ROOT
from vocabforge.core.artifact import MANIFEST, content_hash, record_hash
from vocabforge.core.files import sha256_file
from vocabforge.core.journal import MetricsLog
from vocabforge.corpus.regenerate.log import AnswerLog
from vocabforge.corpus.regenerate.rows import ChatCompletion
from vocabforge.evaluate.run.journal import EvaluationJournal, Kept, Key
from vocabforge.tune.measure import TurnRow, TurnStore

CHATS: list[dict[str, Any]] = [
    {"messages": [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Who?"},
                  {"role": "assistant", "content": "", "tool_calls": [
                      {"type": "function", "function": {"name": "find", "arguments": '{"a": 1}'}}]},
                  {"role": "tool", "content": "3"}, {"role": "assistant", "content": "Three."}],
     "tools": [{"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}]},
    {"conversations": [{"from": "human", "value": "Hello"}, {"from": "gpt", "value": "Good day"}]},
    {"instruction": "Add", "input": "1 and 2", "output": "3"},
    {"prompt": "why", "response": "because"},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "parts"}]},
                  {"role": "assistant", "content": "yes", "reasoning_content": "hm", "loss_weight": 0}]},
]  # fmt: skip
QUESTIONS = [
    {"question_id": 1, "category": "qa", "turns": ["Who?", "And then?"], "reference": ["Nobody", ""]},
    {"question_id": 2, "category": "math", "turns": ["1 + 1"]},
]
TASKS = [
    {"task_id": "HumanEval/0", "prompt": "def f():\n", "entry_point": "f", "test": "def check(c):\n    pass\n",
     "canonical_solution": "    return 1\n"},
    {"task_id": "HumanEval/1", "prompt": "def g():\n", "entry_point": "g", "test": "def check(c):\n    pass\n"},
]  # fmt: skip
SUMS = [{"question": "2 and 2?", "answer": "It is 4.\n#### 4"}, {"question": "3?", "answer": "#### 3"}]
REPLY = {
    "choices": [
        {
            "index": 0,
            "finish_reason": "tool_calls",
            "message": {
                "role": "assistant",
                "content": "yes",
                "reasoning_content": "hm",
                "tool_calls": [{"type": "function", "function": {"name": "find", "arguments": "{}"}}],
            },
        }
    ],
    "usage": {"prompt_tokens": 3, "completion_tokens": 4},
}
KEY = "ab" * 32


def make_goods(folder: Path, kinds: Path | None = None) -> Path:
    """Everything under its name; about a megabyte. ``kinds``: artefacts that are copied, not made again."""
    if kinds is None:
        make_every_kind(folder)
    else:
        shutil.copytree(kinds, folder, dirs_exist_ok=True)
    _models(folder)
    _recipes(folder)
    _rows(folder)
    _runs(folder)
    make_drafters(folder)
    make_answers(folder)
    return folder


def _models(folder: Path) -> None:
    """A checkpoint in shards, drafters in the layouts of others, maps and lists of tokens."""
    model = folder / "model"
    (model / "generation_config.json").write_text('{"eos_token_id": [257], "bos_token_id": 256}', "utf-8")
    shutil.copytree(model, folder / "sharded")
    tensors = load_file(folder / "sharded" / "model.safetensors")
    (folder / "sharded" / "model.safetensors").unlink()
    names = sorted(tensors)
    table = {}
    for number, part in enumerate((names[::2], names[1::2])):
        file = f"model-{number}.safetensors"
        save_file({name: tensors[name] for name in part}, folder / "sharded" / file)
        table |= dict.fromkeys(part, file)
    index = {"metadata": {"total_size": 1}, "weight_map": table}
    (folder / "sharded" / "model.safetensors.index.json").write_text(json.dumps(index), "utf-8")
    for name in ("sglang-eagle3", "speculators-eagle3", "eagle", "fr-spec"):
        shutil.copytree(folder / f"export-{name}", folder / name)
        (folder / name / MANIFEST).unlink()
    torch.save(list(range(64)), folder / "map.pt")
    (folder / "counts.txt").write_text("".join(f"{n % 7}\n" for n in range(261)), "ascii")
    (folder / "tree.json").write_text("[[0], [1], [0, 0], [0, 1], [0, 0, 0]]", "utf-8")


def _recipes(folder: Path) -> None:
    recipes = ROOT / "recipes"
    for name, source in (
        ("train.yaml", "tiny/demo.yaml"),
        ("heads.yaml", "tiny/heads.yaml"),
        ("deepspeed.json", "deepspeed/zero2.json"),
    ):
        shutil.copy(recipes / source, folder / name)
    (folder / "router.yaml").write_text(
        "target: t\ndrafter: d\nclusters: c\noutput: o\ndata:\n  train: [a.jsonl]\nrouter:\n  depth: 2\n"
        "optim: {steps: 10, lr: 0.001}\nrun: {seed: 3}\n",
        "utf-8",
    )
    (folder / "decoding.yaml").write_text(
        "target: t\ndtype: float32\nmethods:\n  a: {drafter: d, depth: 3, topk: 4, total_nodes: 20}\n"
        "  b: {proposer: ngram, ngram: 3}\n  c: {drafter: d, head: h, shortlist: 64}\n",
        "utf-8",
    )


def _rows(folder: Path) -> None:
    import zstandard
    from pyarrow import Table, parquet

    lines = {"chats": CHATS, "questions": QUESTIONS, "tasks": TASKS, "sums": SUMS}
    for name, rows in lines.items():
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(text, "utf-8")
        (folder / f"{name}.json").write_text(json.dumps(rows), "utf-8")
    packed = (folder / "questions.jsonl").read_bytes()
    (folder / "questions.jsonl.gz").write_bytes(gzip.compress(packed))
    (folder / "questions.jsonl.xz").write_bytes(lzma.compress(packed))
    (folder / "questions.jsonl.zst").write_bytes(zstandard.compress(packed))
    parquet.write_table(Table.from_pylist(CHATS[1:2] * 3), folder / "chats.parquet")
    parquet.write_table(Table.from_pylist(SUMS), folder / "sums.parquet")
    (folder / "text.txt").write_text("once upon a time\n\nthere was\n", "utf-8")
    (folder / "reply.json").write_text(json.dumps(REPLY), "utf-8")


def _runs(folder: Path) -> None:
    """What runs leave: logs, journals, measurements, results to compare."""
    shutil.copytree(folder / "checkpoint", folder / "step-00000007")
    run = folder / "training"
    log = MetricsLog(run / "metrics.jsonl")
    log.write(kind="start", step=0)
    for step in (1, 2, 3):
        log.write(kind="train", step=step, loss=2.0, ttt_loss=1.5, lr=0.1, grad_norm=1.0, tokens_per_s=9.0,
                  heads={"full": {"loss": 1.0, "accuracy": 0.5}})  # fmt: skip
    log.write(kind="heldout", step=3, loss=[1.0, 1.5], accuracy=[0.5, 0.25])
    log.write(kind="live", step=3, accepted_length=2.0)
    (run / "config.json").write_text(
        json.dumps({"optim": {"steps": 3}, "target": "t", "drafter": {}}), "utf-8"
    )
    journal = EvaluationJournal(folder / "journal", {"a": 1})
    journal.add(Key(0, 1, "plain"), Kept({"choices": [{"turns": ["x"]}]}, {"choices": [{"index": 0}]}))
    journal.close()
    with AnswerLog(folder / "answers-log", {"a": 1}) as answers:
        answers.add(KEY, ChatCompletion({"role": "assistant", "content": "x"}, "stop", 3, 1, 2, (1, 2)))
    row = TurnRow(new_tokens=4, seconds=0.5, cycles=2, committed=4, plain_tokens=4, plain_seconds=0.7)
    TurnStore(folder / "speeds").write(KEY, {"a": 1}, {"q": row})
    write_run(folder / "eval-a", Made(questions=4))
    write_run(folder / "eval-b", Made(questions=4, scramble=1))
    (folder / "t").symlink_to(folder / "model")
    (folder / "d").symlink_to(folder / "drafter")


def copy_good(good: Path, place: Path) -> Path:
    """A copy of a file or folder under ``place``; large files are links, which :func:`replace` parts."""
    copy = place / good.name
    if good.is_dir():
        shutil.copytree(good, copy, copy_function=_link_large)
    else:
        place.mkdir(parents=True, exist_ok=True)
        shutil.copy(good, copy)
    return copy


def _link_large(source: str, to: str) -> object:
    return os.link(source, to) if os.path.getsize(source) > 30_000 else shutil.copy(source, to)


def replace(file: Path, data: bytes) -> None:
    """Other bytes in a copy's file, without touching the good one."""
    file.unlink()
    file.write_bytes(data)


def reseal(folder: Path) -> None:
    """Make an artefact's manifest fit its spoilt files, as a program that writes nonsense would.

    A manifest that is itself spoilt beyond that stays as it is.
    """
    file = folder / MANIFEST
    try:
        body = json.loads(file.read_bytes())
        for name in body["files"]:
            path = folder / name
            body["files"][name] = {"sha256": sha256_file(path), "bytes": path.stat().st_size}
        body["content_hash"] = content_hash(body["kind"], body["meta"], body["files"])
        body["record_hash"] = record_hash(body)
        data = json.dumps(body).encode()
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return
    replace(file, data)
