"""Named malformed inputs: what could run code, fill the memory or leave the folder, and what once went wrong.

Inputs by chance (``spoil.py``) try the rest: other types, huge numbers, cut files.
"""

from __future__ import annotations

import os
import pickle
from typing import Any

import zstandard

from tests.fuzz.goods import STATES_FILE
from tests.fuzz.spoil import Change, deep, fill, more, put, swap, verbatim
from vocabforge.core.artifact import MANIFEST

HARMLESS = "harmless: "
"""Starts the reason why an odd input is accepted, in the place of an error's words."""
CANARY = "/tmp/vocabforge-fuzz-was-here"
CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
TOKENS, TEMPLATE, EVENTS, REPLY = "tokenizer.json", "tokenizer_config.json", "answer.events", "reply.json"
TRAIN, LEAN, HF, SHARDS = "recipe of train-drafter", "lean target", "Hugging Face target", "target in shards"
VLLM, SGLANG, STATES = "evaluation of vLLM", "evaluation of SGLang", "hidden states of a server"
COUNTER = 'vllm:generation_tokens_total{engine="0",model_name="tiny"}'
PATH = "kv_transfer_params/hidden_states_path"
ALIASES = "a: &a [1,1,1,1,1,1,1,1,1]\n" + "".join(
    f"{name}: &{name} [{','.join(['*' + before] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi")
)
ENDLESS = "{% for i in range(99999999) %}{% for j in range(99999999) %}x{% endfor %}{% endfor %}"
EMPTY = {"sha256": "0", "bytes": 0}


class RunsCode:
    """Unpickled it would make a folder."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (CANARY,)


def turn(**fields: Any) -> Change:
    """The first conversation is one message of the user, with other fields."""
    return put("0/messages", [{"role": "user", "content": "x", **fields}])


def long_list(data: bytes, suffix: str) -> bytes:
    """A GGUF file whose list of layers claims 2^40 items: length behind the name, two types."""
    name = b"eagle3.target_layers"
    at = data.index(name) + len(name) + 8
    return data[:at] + (2**40).to_bytes(8, "little") + data[at + 8 :]


# (reader, file in its folder, change or whole content, words of the error)
CASES: list[tuple[str, str, Change | str | bytes, str]] = [
    (TRAIN, "", more("x: &x\n  y: *x\n"), "unknown key 'x'"),
    (TRAIN, "", more(ALIASES), "unknown key"),
    (TRAIN, "", more("x: !!python/object/apply:os.getcwd []\n"), "not valid YAML"),
    (TRAIN, "", more("x: " + deep(1200)), "not valid YAML"),
    (TRAIN, "", swap("steps: 800", "steps: " + "9" * 5000), "not valid YAML"),
    (TRAIN, "", swap("steps: 800", "steps: true"), "optim.steps"),
    (TRAIN, "", swap("steps: 800", "steps: '800'"), HARMLESS + "YAML reads 1e-3 as a text, so such texts are numbers"),
    (TRAIN, "", swap("lr: 2.0e-3", "lr: .nan"), "optim.lr"),
    ("recipe of decoding", "", 'target: t\nmethods: {"a\\e[2J": {proposer: ngram}}\n', "cannot be the name"),
    ("DeepSpeed configuration", "", put("zero_optimization", {}), "zero_optimization.stage"),
    ("tokenizer", TOKENS, put("model/vocab/a", 2**32 - 2), "beyond any vocabulary"),
    ("tokenizer", TOKENS, put("model/merges", [["qq", "zz"]]), "refuses"),
    ("tokenizer", TEMPLATE, put("chat_template", ENDLESS), "template"),
    ("tokenizer", TEMPLATE, put("chat_template", "{{ messages.__class__.__mro__[1].__subclasses__() }}"), "template"),
    ("tokenizer", TEMPLATE, put("chat_template", "{{ 'x' * 10**12 }}"), "template"),
    ("tokenizer", TEMPLATE, put("chat_template", "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"), "template"),
    (LEAN, CONFIG, put("hidden_size", verbatim('32, "hidden_size": 64')), "is given twice"),
    (LEAN, CONFIG, put("hidden_size", True), "hidden_size"),
    (LEAN, CONFIG, put("vocab_size", 2**62), "vocab_size"),
    (LEAN, CONFIG, put("num_hidden_layers", 10**12), ""),
    (LEAN, CONFIG, put("rope_parameters/rope_theta", float("inf")), "setting theta"),
    (LEAN, CONFIG, put("hidden_act", ["silu"]), "activation"),
    (LEAN, CONFIG, put("architectures", []), HARMLESS + "model_type decides"),
    (LEAN, WEIGHTS, lambda data, suffix: (2**40).to_bytes(8, "little") + data[8:], "cannot be read"),
    (LEAN, WEIGHTS, put("lm_head.weight/shape", [2**62, 2**62]), "cannot be read"),
    (SHARDS, INDEX, put("weight_map", {"a": "../x.safetensors"}), "missing"),
    (SHARDS, INDEX, put("weight_map", {"a": "x\x00.safetensors"}), ""),
    (HF, CONFIG, put("auto_map", {"AutoModelForCausalLM": "evil.Model"}), HARMLESS + "its class is known, so not run"),
    (HF, CONFIG, put("intermediate_size", 2**40), ""),
    (HF, CONFIG, "{}".encode("utf-16"), "not UTF-8"),
    ("drafter", "drafter.json", put("draft_vocab_size", 2**40), ""),
    ("drafter", "drafter.safetensors", fill("target_ids", b"\x00"), ""),
    ("drafter other-sglang-eagle3", WEIGHTS, fill("d2t", b"\x7f"), ""),
    ("drafter other-gguf", "drafter.gguf", long_list, "cannot be read"),
    ("drafter other-eagle", CONFIG, put("intermediate_size", None), "lacks a field"),
    ("drafter block-dflash", WEIGHTS, fill("fc.weight", b"\xff"), "not finite"),
    ("drafter block-dspark", CONFIG, put("markov_rank", 2**63), "not those of its configuration"),
    ("MTP module of glm4_moe", CONFIG, put("n_routed_experts", 2**40), ""),
    ("manifest", "", put("files", {"../x": EMPTY}), "outside"),
    ("manifest", "", put("files", {"/dev/zero": EMPTY}), "outside"),
    ("manifest", "", put("schema_version", True), "edited"),
    ("manifest", "", put("meta/coverage", float("nan")), "finite"),
    ("inspect counts", MANIFEST, put("meta/special/eos", [-1]), "special"),
    ("inspect counts", "counts.safetensors", fill("counts", b"\xff"), ""),
    ("inspect subset", MANIFEST, put("meta/size", None), "disagrees"),
    ("inspect overlap", MANIFEST, put("meta/eos_pair", [10**9, 0]), "end"),
    ("prepared-data", "train.input_ids.safetensors", put("input_ids/shape", [2**50, 64]), ""),
    ("capture", "index.json", put("shards/0/file", "../x"), ""),
    ("inspect coverage", "coverage.json", "[]", "does not hold"),
    ("conversations", "", turn(content="\ud800"), "lone surrogate"),
    ("conversations", "", turn(content=[{"type": "image", "text": "x"}]), "not text"),
    ("conversations", "", turn(content=verbatim(deep(500))), "deep"),
    ("conversations", "", '{"messages": ' + "9" * 5000 + "}\n", "not valid JSON"),
    ("conversations", "", put("0/tools", "[{"), HARMLESS + "tools are read if a template takes them"),
    ("conversations in a list", "", more("[]"), "Extra data"),
    ("Parquet", "", b"PAR1" + b"\xff" * 64 + b"\xff\xff\xff\x7fPAR1", "damaged"),
    ("Parquet", "", lambda data, suffix: data.replace(b"conversations", b"\xb3onversations"), "damaged"),
    ("packed rows .zst", "", zstandard.compress(b" " * (12 << 20)), "too large"),
    ("packed rows .zst", "", b"\x28\xb5\x2f\xfd\xe0" + (2**62).to_bytes(8, "little"), "damaged"),
    ("questions spec-bench", "", put("0/category", "\x1b[2J"), "category"),
    ("questions human-eval", "", put("0/task_id", "HumanEval/-1"), "holds no number"),
    ("questions gsm8k", "", put("0/question", "\ud800"), "lone surrogate"),
    ("FR-Spec list", "", pickle.dumps(RunsCode(), protocol=2), "could run code"),
    ("drafter pickled-eagle", "pytorch_model.bin", pickle.dumps(RunsCode(), protocol=2), "could run code"),
    ("FR-Spec list", "", b"\x80\x02" + b"]" * 10_000, ""),
    ("tree", "", f"[[{2**63}]]", HARMLESS + "no drafter proposes that many children"),
    ("comparison of methods", "results.json", put("methods/0/answers", ["../../subset/manifest.json"]), ""),
    ("training run", "metrics.jsonl", put("1/step", "x"), "log of the training run"),
    ("training run", "metrics.jsonl", put("4/loss", [[1.0]]), "log of the training run"),
    ("reply of a server", "", put("choices", []), "not a chat completion"),
    (VLLM, "models.json", put("data/0/id", "\ud800"), "another model"),
    (VLLM, "version.json", "[]", HARMLESS + "a server need not tell its version"),
    (VLLM, "before.metrics", put(COUNTER, "+Inf"), "counters cannot be read"),
    (VLLM, "before.metrics", put(COUNTER, "9" * 400), "counters cannot be read"),
    (VLLM, "after.metrics", "", "do not answer any more"),
    (VLLM, EVENTS, swap("data: [DONE]", ""), "ended in the middle"),
    (VLLM, EVENTS, swap("data: {", f"data: {deep(100_000)}\n\ndata: {{"), "not JSON"),
    (VLLM, EVENTS, put("1/error", {"message": "out of memory"}), "out of memory"),
    (VLLM, EVENTS, put("1/choices", 3), "is not read"),
    (VLLM, EVENTS, put("1/choices/0/token_ids", [True]), "not a list of whole numbers"),
    (VLLM, EVENTS, put("-1/usage", None), "no usage"),
    (SGLANG, EVENTS, put("-2/sglext/spec_tokens_details/spec_verify_ct", -3), "is not a count"),
    (STATES, REPLY, "<html>", "not JSON"),
    (STATES, REPLY, put(PATH, "/a/.."), "names no file"),
    (STATES, REPLY, put(PATH, "/a/" + "x" * 5000), "names no file"),
    (STATES, REPLY, put(PATH, f"/etc/{STATES_FILE}"), HARMLESS + "only the name of the file is taken"),
    (STATES, STATES_FILE, fill("hidden_states", b"\xff"), "not finite"),
    (STATES, STATES_FILE, fill("token_ids", b"\x01"), "token ids"),
    (STATES, STATES_FILE, put("__metadata__/target", "x"), "target x"),
]  # fmt: skip
