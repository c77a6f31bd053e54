"""A good example of everything that is read, in one folder; what is spoilt is a copy of one of them."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from tests.capture.hidden_server import HiddenServer
from tests.cli.every_kind import EXPORTS
from tests.decode.drafting import make_drafter
from tests.evaluate.served_fakes import Served
from tests.models.mtp_targets import make_target as make_mtp_target
from tests.models.mtp_targets import save_changed_module
from tests.worlds import ROOT
from vocabforge.core.artifact import MANIFEST, content_hash, record_hash
from vocabforge.core.files import sha256_file
from vocabforge.core.journal import MetricsLog
from vocabforge.corpus.prepared.packing import PackedRows
from vocabforge.corpus.regenerate.log import AnswerLog
from vocabforge.corpus.regenerate.rows import ChatCompletion
from vocabforge.evaluate.run.journal import EvaluationJournal, Key
from vocabforge.layouts.gguf.target import write_target
from vocabforge.layouts.interface import Export
from vocabforge.layouts.registry import layout_of
from vocabforge.models.drafters.io import save_drafter
from vocabforge.models.target.head import load_target_tensors
from vocabforge.models.target.hf import HFTarget
from vocabforge.models.target.load import read_target_config

FIND = {"name": "find", "arguments": '{"a": 1}'}
ROWS: dict[str, list[dict[str, Any]]] = {
    "chats": [
        {"messages": [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Who?"},
                      {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": FIND}]},
                      {"role": "tool", "content": "3"}, {"role": "assistant", "content": "Three."}],
         "tools": [{"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}]},
        {"conversations": [{"from": "human", "value": "Hello"}, {"from": "gpt", "value": "Good day"}]},
        {"instruction": "Add", "input": "1 and 2", "output": "3"},
        {"prompt": "why", "response": "because"},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "parts"}]},
                      {"role": "assistant", "content": "yes", "reasoning_content": "hm", "loss_weight": 0}]},
    ],
    "questions": [
        {"question_id": 1, "category": "qa", "turns": ["Who?", "And then?"], "reference": ["Nobody", ""]},
        {"question_id": 2, "category": "math", "turns": ["1 + 1"]},
    ],
    "tasks": [
        {"task_id": f"HumanEval/{number}", "prompt": "def f():\n", "entry_point": "f",
         "test": "def check(c):\n    pass\n", "canonical_solution": "    return 1\n"} for number in range(2)
    ],
    "sums": [{"question": "2 and 2?", "answer": "It is 4.\n#### 4"}, {"question": "3?", "answer": "#### 3"}],
    "asked": [{"question_id": number, "category": "qa", "turns": [f"Who is {number}?"]} for number in (1, 2)],
}  # fmt: skip
REPLY = {
    "choices": [{"index": 0, "finish_reason": "tool_calls", "message": {
        "role": "assistant", "content": "yes", "reasoning_content": "hm",
        "tool_calls": [{"type": "function", "function": FIND}]}}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 4},
}  # fmt: skip
RECIPES = {
    "train.yaml": "target: t\noutput: o\ndata:\n  train: [a.txt]\n  separator: <|endoftext|>\ndrafter:\n  head: own\n"
    "  aux_layers: [1, 4, 6]\nheads:\n  ranker: {rank: 32, shortlist: 64}\n  low_rank: {rank: 32}\noptim:\n"
    "  steps: 800\n  lr: 2.0e-3\n  betas: [0.9, 0.95]\nrun: {eval_every: 800}\ncapture: {memory_gb: 5.0}\n",
    "decoding.yaml": "target: t\ndtype: float32\nmethods:\n  a: {drafter: d, depth: 3, topk: 4, total_nodes: 20}\n"
    "  b: {proposer: ngram, ngram: 3}\n  c: {drafter: d, head: h, shortlist: 64}\n",
}
KEY = "ab" * 32
BLOCKS = ("dflash", "dspark", "peagle")
MTP_FAMILIES = ("glm4_moe", "deepseek_v3", "qwen3_next")
NO_META = {"target_fingerprint": None, "tokenizer_fingerprint": None}
DOCUMENT = (256, 3, 1, 4, 1, 5, 9, 2, 6)
STATES_FILE = "cmpl-x-0-abcd.safetensors"
ANSWER_TOKENS = 32


def make_goods(folder: Path, kinds: Path) -> Path:
    """Make every example under its name, beside copies of ``kinds``, artefacts of every kind."""
    shutil.copytree(kinds, folder, dirs_exist_ok=True)
    (folder / "model" / "generation_config.json").write_text('{"eos_token_id": [257], "bos_token_id": 256}')
    model = HFTarget.load(folder / "model")
    model.model.save_pretrained(folder / "sharded", max_shard_size="50KB")
    _drafters(folder, model)
    _texts(folder)
    _runs(folder)
    for name in ("vllm", "raw", "plain", "sglang"):
        served = Served("sglang" if name == "sglang" else "vllm", speculates=name != "plain")
        _answers(folder / f"server-{name}", served, chat=name != "raw")
    states = folder / "server-states"
    with HiddenServer(states, model) as server:
        asked = {"prompt": list(DOCUMENT), "request_id": "x", "max_tokens": 1, "temperature": 0}
        _json(states / "reply.json", server.complete({**asked, "model": "tiny"})[1])
    _json(states / "models.json", {"object": "list", "data": [{"id": "tiny"}]})
    return folder


def _drafters(folder: Path, target: HFTarget) -> None:
    """Make a drafter of every kind, and of every layout as other programs leave it: without a manifest."""
    model = folder / "model"
    for name in EXPORTS:
        shutil.copytree(folder / f"export-{name}", folder / f"other-{name}", dirs_exist_ok=True)
        (folder / f"other-{name}" / MANIFEST).unlink()
    pickled = Path(shutil.copytree(folder / "other-eagle", folder / "pickled-eagle", dirs_exist_ok=True))
    torch.save(load_file(pickled / "model.safetensors"), pickled / "pytorch_model.bin")
    (pickled / "model.safetensors").unlink()

    def written(name: str, layout: str, kind: str, **sizes: Any) -> Any:
        drafter = make_drafter(kind, model, target, "reduced", num_layers=1, block_size=3, **sizes)
        config, tensors = read_target_config(model), load_target_tensors(model)
        export = Export(drafter, config, tensors, "tiny", torch.float32, target_path=model)
        layout_of(layout).write(folder / name, export)
        (folder / name / MANIFEST).unlink()
        return drafter

    for kind in BLOCKS:
        drafter = written(f"speculators-{kind}", "speculators-block", kind, mask_token_id=2)
        save_drafter(folder / f"native-{kind}", drafter, NO_META)
    written("block-dflash", "block", "dflash", mask_token_id=None)  # a mask row in a file
    written("block-dspark", "block", "dspark", mask_token_id=2)
    for family in MTP_FAMILIES:
        make_mtp_target(folder / f"mtp-{family}", family, fused=family == "qwen3_next", vocab_size=264)
    write_target(folder / "target.gguf", folder / "known", "tiny", torch.float32)
    save_changed_module(folder / "mtp-glm4_moe", folder / "native-mtp")


def _texts(folder: Path) -> None:
    """Recipes, rows of every format, lists of tokens."""
    import zstandard
    from pyarrow import Table, parquet

    shutil.copy(ROOT / "recipes" / "deepspeed" / "zero2.json", folder / "deepspeed.json")
    for name, text in RECIPES.items():
        (folder / name).write_text(text)
    for name, rows in ROWS.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
        _json(folder / f"{name}.json", rows)
    plain = (folder / "questions.jsonl").read_bytes()
    for suffix, library in (("gz", gzip), ("xz", lzma), ("zst", zstandard)):
        (folder / f"questions.jsonl.{suffix}").write_bytes(library.compress(plain))
    parquet.write_table(Table.from_pylist(ROWS["chats"][1:2] * 3), folder / "chats.parquet")
    parquet.write_table(Table.from_pylist(ROWS["sums"]), folder / "sums.parquet")
    (folder / "text.txt").write_text("once upon a time\n\nthere was\n")
    _json(folder / "reply.json", REPLY)
    torch.save(list(range(64)), folder / "map.pt")
    _json(folder / "tree.json", [[0], [1], [0, 0], [0, 1], [0, 0, 0]])


def _runs(folder: Path) -> None:
    """What runs leave: logs, journals, measurements."""
    shutil.copytree(folder / "checkpoint", folder / "step-00000007")
    run = folder / "training"
    log = MetricsLog(run / "metrics.jsonl")
    log.write(kind="start", step=0)
    for step in (1, 2, 3):
        log.write(kind="train", step=step, loss=2.0, ttt_loss=1.5, lr=0.1, grad_norm=1.0, tokens_per_s=9.0,
                  heads={"full": {"loss": 1.0, "accuracy": 0.5}})  # fmt: skip
    log.write(kind="heldout", step=3, loss=[1.0, 1.5], accuracy=[0.5, 0.25])
    log.write(kind="live", step=3, accepted_length=2.0)
    _json(run / "config.json", {"optim": {"steps": 3}, "target": "t", "drafter": {}})
    journal = EvaluationJournal(folder / "journal", {"a": 1})
    rows = {"answer": {"choices": [{"turns": ["x"]}]}, "detail": {"choices": [{"index": 0}]}}
    journal.add(Key(0, 1, "plain"), **rows)
    journal.close()
    with AnswerLog(folder / "answers-log", {"a": 1}) as answers:
        answers.add(KEY, ChatCompletion({"role": "assistant", "content": "x"}, "stop", 3, 1, 2, (1, 2)))
    (folder / "t").symlink_to(folder / "model")
    (folder / "d").symlink_to(folder / "drafter")


def document_rows() -> PackedRows:
    """One row with one document, of which ``server-states`` has hidden states."""
    ids = np.array([DOCUMENT], dtype=np.int32)
    ones = np.ones_like(ids)
    place = np.arange(len(DOCUMENT), dtype=np.int32)[None]
    return PackedRows(ids, ones.astype(np.bool_), ones, place, len(DOCUMENT))


def _answers(folder: Path, served: Served, *, chat: bool) -> None:
    """What a server answers to each path that an evaluation asks for."""
    folder.mkdir()
    vllm = served.kind == "vllm"
    entry = {"id": "tiny", "object": "model", "owned_by": served.kind, "max_model_len": 512}
    _json(folder / "models.json", {"object": "list", "data": [entry]})
    file, version = ("version.json", "0.32.0") if vllm else ("server_info.json", "0.5.23")
    _json(folder / file, {"version": version})
    before = served.metrics()
    body = {"messages": [{"role": "user", "content": "Who?"}]} if chat else {"prompt": "Who?"}
    wished = ("return_token_ids", "return_spec_tokens_details", "return_output_ids_in_sglext")
    body |= dict.fromkeys(wished, True) | {"max_tokens": ANSWER_TOKENS, "temperature": 0}
    text = "".join(f"data: {json.dumps(event)}\n\n" for event in served.events(body))
    (folder / "answer.events").write_text(text + "data: [DONE]\n\n")
    if vllm:
        (folder / "before.metrics").write_text(before)
        (folder / "after.metrics").write_text(served.metrics())


def _json(file: Path, value: Any) -> None:
    file.write_text(json.dumps(value), "utf-8")


def copy_good(good: Path, place: Path) -> Path:
    """Copy a file or folder under ``place``; large files are links, which :func:`replace` parts."""
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
