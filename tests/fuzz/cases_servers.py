"""Malformed answers of servers: (reader, name) -> how it is spoilt, words of the error."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.fuzz.changes import Change, at, deep, entry, half, header, put, swap, values, whole
from tests.fuzz.goods_servers import STATES_FILE

VLLM, RAW, SGLANG = "evaluation of vLLM", "evaluation of vLLM, completions", "evaluation of SGLang"
STATES = "hidden states of a server"
MODELS, EVENTS, BEFORE, AFTER = "models.json", "answer.events", "before.metrics", "after.metrics"
COUNTER, PATH = "vllm:generation_tokens_total", "kv_transfer_params.hidden_states_path"


def event(number: int, key: str, value: Any) -> Change:
    """A value of one event of a streamed answer (``a.b.0``)."""

    def change(data: bytes) -> bytes:
        events = [json.loads(line[6:]) for line in data.decode().split("\n\n") if line.startswith("data: {")]
        *parents, leaf = key.split(".")
        node = events[number]
        for one in parents:
            node = node[int(one) if isinstance(node, list) else one]
        node[leaf] = value
        return "".join(f"data: {json.dumps(one)}\n\n" for one in events).encode() + b"data: [DONE]\n\n"

    return at(EVENTS, change)


def counter(value: str, file: str, name: str = COUNTER) -> Change:
    """The value of a counter in a server's metrics."""
    return at(file, lambda data: re.sub(rf"(?m)^({name}\S*) \S+$", rf"\g<1> {value}", data.decode()).encode())


LISTS: list[tuple[str, str, Change, str]] = [
    (VLLM, "no model", put("data", [], MODELS), "which model is meant"),
    (VLLM, "two models", put("data", [{"id": "a"}, {"id": "b"}], MODELS), "a, b"),
    (VLLM, "models of a text", put("data", "tiny", MODELS), "which model is meant"),
    (VLLM, "a model without a name", put("data", [{}], MODELS), "which model is meant"),
    (VLLM, "a length of a text", put("data.0.max_model_len", "512", MODELS), "harmless: the length is told, not used"),
    (VLLM, "half a character for a model", put("data.0.id", "\ud800", MODELS), "another model"),
    (VLLM, "half a character for a version", put("version", "\ud800", "version.json"), "harmless: it becomes a question mark"),
    (VLLM, "half a character for a kind", put("data.0.owned_by", "\ud800", MODELS), "harmless: it becomes a question mark"),
    (VLLM, "deep brackets for models", whole(deep(100_000), MODELS), "which model is meant"),
    (VLLM, "a version of a list", whole("[]", "version.json"), "harmless: a server need not tell its version"),
    (SGLANG, "deep brackets for a version", whole(deep(100_000), "server_info.json"), "harmless: a server need not tell its version"),
    (VLLM, "a counter of NaN", counter("NaN", BEFORE), "counters cannot be read"),
    (VLLM, "a counter of infinity", counter("+Inf", BEFORE), "counters cannot be read"),
    (VLLM, "a counter of a text", counter("x", BEFORE), "counters cannot be read"),
    (VLLM, "a counter of 400 digits", counter("9" * 400, BEFORE), "counters cannot be read"),
    (VLLM, "a depth of infinity", counter("+Inf", BEFORE, "vllm:spec_decode_num_draft_tokens_total"), "counters cannot be read"),
    (VLLM, "an infinite counter afterwards", counter("+Inf", AFTER), "counters cannot be read"),
    (VLLM, "a counter that goes back", counter("-1", AFTER), "was restarted"),
    (VLLM, "no counters", whole("", BEFORE), "harmless: acceptance is not known then, and a warning says so"),
    (VLLM, "counters that go away", whole("", AFTER), "do not answer any more"),
]  # fmt: skip

ANSWERS: list[tuple[str, str, Change, str]] = [
    (VLLM, "no event", whole("x", EVENTS), "ended in the middle"),
    (VLLM, "no end", swap("data: [DONE]", "", EVENTS), "ended in the middle"),
    (VLLM, "half of it", half(EVENTS), "not"),
    (VLLM, "an event of a list", swap("data: {", "data: []\n\ndata: {", EVENTS), "not an object"),
    (VLLM, "deep brackets", swap("data: {", f"data: {deep(100_000)}\n\ndata: {{", EVENTS), "not JSON"),
    (VLLM, "an error in the middle", event(1, "error", {"message": "out of memory"}), "out of memory"),
    (VLLM, "another model", event(1, "model", "x"), "another model"),
    (VLLM, "choices of a number", event(1, "choices", 3), "is not read"),
    (VLLM, "a choice of a text", event(1, "choices", ["x"]), "is not read"),
    (VLLM, "a delta of a list", event(1, "choices.0.delta", ["x"]), "is not read"),
    (VLLM, "a content of a list", event(1, "choices.0.delta.content", ["x"]), "is not read"),
    (VLLM, "token ids of a text", event(1, "choices.0.token_ids", "17"), "not a list of whole numbers"),
    (VLLM, "token ids of truth", event(1, "choices.0.token_ids", [True]), "not a list of whole numbers"),
    (VLLM, "token ids of floats", event(1, "choices.0.token_ids", [1.5]), "not a list of whole numbers"),
    (VLLM, "one token id too many", event(1, "choices.0.token_ids", [9] * 9), "harmless: ids that are not as many as the tokens are left out"),
    (VLLM, "usage of a list", event(-1, "usage", [1]), "is not read"),
    (VLLM, "no usage", event(-1, "usage", None), "no usage"),
    (VLLM, "tokens below none", event(-1, "usage.completion_tokens", -1), "no usage"),
    (VLLM, "tokens of a text", event(-1, "usage.completion_tokens", "12"), "no usage"),
    (VLLM, "half a character", event(1, "choices.0.delta.content", "\ud800"), "harmless: it is written as an escape"),
    (RAW, "a text of a number", event(0, "choices.0.text", 3), "is not read"),
    (RAW, "no choices", event(0, "choices", None), "harmless: an event may have none"),
    (SGLANG, "details of a list", event(-2, "sglext.spec_tokens_details", [1]), "is not read"),
    (SGLANG, "no verifications", event(-2, "sglext.spec_tokens_details", {"spec_num_correct_drafts": 1}), "is not read"),
    (SGLANG, "verifications of a text", event(-2, "sglext.spec_tokens_details.spec_verify_ct", "3"), "is not a count"),
    (SGLANG, "verifications below none", event(-2, "sglext.spec_tokens_details.spec_verify_ct", -3), "is not a count"),
    (SGLANG, "lengths of texts", event(-2, "sglext.spec_tokens_details.spec_correct_drafts_histogram", ["a"]), "is not a count"),
    (SGLANG, "lengths of NaN", event(-2, "sglext.spec_tokens_details.spec_correct_drafts_histogram", [float("nan")]), "is not a count"),
    (SGLANG, "output ids of a number", event(-2, "sglext.output_ids", 3), "is not read"),
    (SGLANG, "output ids of texts", event(-2, "sglext.output_ids", [["a"]]), "not a list of whole numbers"),
]  # fmt: skip

HIDDEN: list[tuple[str, str, Change, str]] = [
    (STATES, "no JSON", whole("<html>", "reply.json"), "not JSON"),
    (STATES, "a list", whole("[]", "reply.json"), "not JSON"),
    (STATES, "deep brackets", whole(deep(100_000), "reply.json"), "not JSON"),
    (STATES, "no connector", put("kv_transfer_params", None, "reply.json"), "without hidden states"),
    (STATES, "a path of a number", put(PATH, 3, "reply.json"), "without hidden states"),
    (STATES, "an empty path", put(PATH, "", "reply.json"), "names no file"),
    (STATES, "the folder above", put(PATH, "/a/..", "reply.json"), "names no file"),
    (STATES, "a path of a NUL byte", put(PATH, "/a/b\x00c", "reply.json"), "names no file"),
    (STATES, "half a character", put(PATH, "/a/\ud800", "reply.json"), "names no file"),
    (STATES, "an endless path", put(PATH, "/a/" + "x" * 5000, "reply.json"), "names no file"),
    (STATES, "another file", put(PATH, "/a/other.safetensors", "reply.json"), "no file of hidden states arrives"),
    (STATES, "a file elsewhere", put(PATH, f"/etc/{STATES_FILE}", "reply.json"), "harmless: only the name of the file is taken"),
    (STATES, "models of a list", whole("[]", MODELS), "harmless: a server that does not list its models is asked without a name"),
    (STATES, "states cut short", half(STATES_FILE), "cannot be read"),
    (STATES, "states of NaN", values(b"\xff", STATES_FILE, "hidden_states"), "not finite"),
    (STATES, "ids of NaN", entry("token_ids", "dtype", "F64", STATES_FILE), ""),
    (STATES, "other ids", values(b"\x01", STATES_FILE, "token_ids"), "token ids"),
    (STATES, "ids in a table", entry("token_ids", "shape", [3, 3], STATES_FILE), "harmless: they are the same ids"),
    (STATES, "states turned round", header(lambda body: body["hidden_states"]["shape"].reverse(), STATES_FILE), "shape"),
    (STATES, "no layers told", header(lambda body: body["__metadata__"].pop("layers"), STATES_FILE), "none named"),
    (STATES, "another target", header(lambda body: body["__metadata__"].update(target="x"), STATES_FILE), "target x"),
    (STATES, "no states", header(lambda body: body.update(x=body.pop("hidden_states")), STATES_FILE), "cannot be read"),
]  # fmt: skip

CASES = [*LISTS, *ANSWERS, *HIDDEN]
