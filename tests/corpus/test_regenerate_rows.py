"""Which turns are answered anew, and what a request depends on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from vocabforge.core.errors import DataError
from vocabforge.corpus.regenerate.rows import (
    ChatCompletion,
    GenerationSettings,
    Walk,
    make_request,
    output_row,
)
from vocabforge.corpus.regenerate.server import read_answer, request_body, wire_messages
from vocabforge.corpus.sources.document import Document

GENERATION = GenerationSettings(backend={"kind": "server"}, model="tiny", temperature=0.5, seed=3)


def turns(text: str) -> list[dict]:
    """``u a`` -> a user turn, an assistant turn; contents are numbered."""
    names = {"u": "user", "a": "assistant", "s": "system", "t": "tool"}
    return [{"role": names[one], "content": f"{one}{at}"} for at, one in enumerate(text)]


def talk(messages: list[dict], tools: list[dict] | None = None) -> Document:
    return Document(None, messages, Path("a.jsonl"), 7, tools=tools)


def told(text: str = "new", *, finish: str = "stop", **fields) -> ChatCompletion:
    return ChatCompletion({"role": "assistant", "content": text, **fields}, finish, 1)


def walked(text: str, answers=None, *, first=False) -> tuple[Walk, list[str]]:
    """The walk to its end, and what was asked each time."""
    walk = Walk(talk(turns(text)), GENERATION, first)
    asked = []
    while (request := walk.request()) is not None:
        asked.append(" ".join(message["content"] for message in request.messages))
        walk.add(answers[len(asked) - 1] if answers else told(f"n{len(asked)}"))
    return walk, asked


@pytest.mark.parametrize(
    ("given", "asked", "result"),
    [
        ("ua", ["u0"], "u0 n1"),
        ("sua", ["s0 u1"], "s0 u1 n1"),
        ("uaua", ["u0", "u0 n1 u2"], "u0 n1 u2 n2"),
        ("u", ["u0"], "u0 n1"),
        ("uau", ["u0", "u0 n1 u2"], "u0 n1 u2 n2"),
        ("aua", ["a0 u1"], "a0 u1 n1"),
        ("uaau", ["u0", "u0 n1 u3"], "u0 n1 u3 n2"),
        ("uua", ["u0 u1"], "u0 u1 n1"),
        ("uu", ["u0", "u0 n1 u1"], "u0 n1 u1 n2"),
        ("suu", ["s0 u1", "s0 u1 n1 u2"], "s0 u1 n1 u2 n2"),
        ("usa", ["u0 s1"], "u0 s1 n1"),
        ("uasaua", ["u0", "u0 n1 s2 u4"], "u0 n1 s2 u4 n2"),
        ("s", [], "s0"),
        ("sa", [], "s0 a1"),
    ],
)
def test_turns_are_replaced_in_order(given, asked, result):
    walk, questions = walked(given)
    assert questions == asked
    assert " ".join(message["content"] for message in walk.messages) == result
    assert walk.open_turns == 0


def test_first_turn_only_and_answers_that_are_cut_or_empty():
    walk, asked = walked("uaua", first=True)
    assert (asked, len(walk.messages), walk.ended) == (["u0"], 2, "first turn")
    assert walked("uaua", [told(finish="length"), told()])[0].ended is None
    assert walked("uaua", [told(" \n"), told()])[0].ended == "empty"


def call(name: str, arguments, **more) -> dict:
    return {"type": "function", "function": {"name": name, "arguments": arguments}, **more}


TOOL_ROW = [
    {"role": "user", "content": "weather?"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [call("sky", {"at": "Bonn"}, id="x"), call("sea", "{}", id="y")],
    },
    {"role": "tool", "content": "high", "tool_call_id": "y"},
    {"role": "tool", "content": "blue", "tool_call_id": "x"},
    {"role": "assistant", "content": "It is blue."},
]


def test_tool_results_follow_the_same_calls_only():
    same = told("", tool_calls=[call("sky", '{"at":  "Bonn"}', id="1"), call("sea", "{}", id="2")])
    walk = Walk(talk(TOOL_ROW, [{"name": "sky"}]), GENERATION)
    walk.add(same)
    assert [message.get("tool_call_id") for message in walk.messages] == [None, None, "2", "1"]
    assert walk.request() is not None
    for other in (told("no idea"), told("", tool_calls=[call("sky", {"at": "Rome"}), call("sea", {})])):
        walk = Walk(talk(TOOL_ROW), GENERATION)
        walk.add(other)
        assert (walk.ended, walk.request(), len(walk.messages)) == ("tools", None, 2)
    # A call where the data set has none: what follows answers no call.
    walk = Walk(talk(turns("uaua")), GENERATION)
    walk.add(told("", tool_calls=[call("sky", {})]))
    assert walk.ended == "tools"


def test_tool_calls_are_sent_with_ids_and_texts():
    row = [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": "", "tool_calls": [call("sky", {"ä": 1}), {"name": "sea"}]},
        {"role": "tool", "content": "a"},
        {"role": "tool", "content": "b"},
        {"role": "assistant", "content": "", "tool_calls": [call("sky", "{}")]},
        {"role": "tool", "content": "c"},
    ]
    sent = wire_messages(row)
    calls = sent[1]["tool_calls"]
    assert calls[0]["function"] == {"name": "sky", "arguments": '{"ä": 1}'}
    assert calls[1] == {"id": "call_1", "type": "function", "function": {"name": "sea", "arguments": "{}"}}
    assert [m["tool_call_id"] for m in sent if m["role"] == "tool"] == ["call_0", "call_1", "call_2"]
    assert row[1]["tool_calls"][0]["function"]["arguments"] == {"ä": 1}  # the row itself is not touched


def test_a_request_depends_on_content_and_settings_alone():
    one = (*turns("u"),)
    first = make_request(one, None, GENERATION)
    assert make_request(({"content": "u0", "role": "user"},), None, GENERATION) == replace(
        first, messages=({"content": "u0", "role": "user"},)
    )
    other = [
        make_request((*turns("uu"),), None, GENERATION),
        make_request(one, [{"name": "sky"}], GENERATION),
    ]
    changed = [
        replace(GENERATION, temperature=0.6),
        replace(GENERATION, model="big"),
        replace(GENERATION, body={"top_k": 2}),
        replace(GENERATION, seed=4),
    ]
    other += [make_request(one, None, generation) for generation in changed]
    assert len({request.key for request in [first, *other]}) == len(other) + 1
    assert make_request(one, None, replace(GENERATION, seed=4)).seed != first.seed
    assert make_request(one, None, replace(GENERATION, temperature=0.6)).seed == first.seed
    assert 0 <= first.seed < 2**31


def test_bodies_and_rows():
    generation = replace(
        GENERATION, template_arguments={"enable_thinking": False}, body={"top_p": None, "k": 1}
    )
    request = make_request((*turns("u"),), [{"name": "sky"}], generation)
    body = request_body(request, generation)
    assert body == {
        "model": "tiny",
        "messages": turns("u"),
        "temperature": 0.5,
        "max_tokens": 2048,
        "seed": request.seed,
        "tools": [{"name": "sky"}],
        "chat_template_kwargs": {"enable_thinking": False},
        "k": 1,
    }
    walk = Walk(talk(turns("ua"), [{"name": "sky"}]), GENERATION)
    walk.add(replace(told(), response_ids=(5, 2), prompt_tokens=9))
    row = output_row(walk, GENERATION)
    assert list(row) == ["messages", "tools", "generation"]
    assert row["generation"] == {
        "model": "tiny",
        "temperature": 0.5,
        "top_p": 1.0,
        "max_tokens": 2048,
        "seed": 3,
        "source": "a.jsonl:7",
        "answers": [{"finish_reason": "stop", "seed": 1, "prompt_tokens": 9, "response_ids": [5, 2]}],
    }


def deep(levels: int = 100_000) -> list:
    value: list = []
    for _ in range(levels):
        value = [value]
    return value


MALFORMED = [
    [None],
    [{}],
    [{"id": "a", "function": None}],
    [{"id": "a", "function": "sky"}],
    [{"function": {"name": None}}],
    [{"function": {"name": "sky", "arguments": 3}}],
    [{"function": {"name": "sky", "arguments": "[" * 100_000 + "]" * 100_000}}],
    [{"function": {"name": "sky", "arguments": {"x": deep()}}}],
    [{"function": {"name": "sky", "arguments": {"x": deep(500)}}}],
]


@pytest.mark.parametrize("calls", MALFORMED)
def test_malformed_calls_of_an_old_log_end_a_walk_and_crash_nothing(calls):
    walk = Walk(talk(TOOL_ROW, [{"name": "sky"}]), GENERATION)
    walk.add(told("", tool_calls=calls))
    assert walk.ended == "tools"


def test_cut_answers_are_marked_in_the_row_and_not_in_requests():
    for send in (False, True):
        walk = Walk(talk(turns("uaua")), replace(GENERATION, send_reasoning=send))
        walk.add(told(finish="length"))
        assert walk.request().messages[1] == {"role": "assistant", "content": "new"}
        walk.add(told())
        row = output_row(walk, GENERATION)
        assert [message.get("cut") for message in row["messages"]] == [None, True, None, None]


def test_answers_are_read():
    said = {
        "role": "assistant",
        "content": None,
        "reasoning": "hm",
        "tool_calls": [{"index": 0, **call("f", "{}", id="a")}],
    }
    answer = read_answer({"choices": [{"message": said, "finish_reason": "tool_calls"}]}, 4)
    assert answer.message == {
        "role": "assistant",
        "content": "",
        "reasoning_content": "hm",
        "tool_calls": [call("f", "{}", id="a")],
    }
    assert (answer.seed, answer.prompt_tokens, answer.empty, answer.truncated) == (4, None, False, False)
    assert read_answer({"choices": [{"message": {"content": ""}}], "usage": None}, 0).empty
    for bad in (
        {},
        [],
        None,
        {"choices": []},
        {"choices": [{}]},
        {"choices": [{"message": "hi"}]},
        {"choices": [{"message": {"content": 5}}]},
        {"choices": [{"message": {"content": "a"}}], "usage": "none"},
        {"choices": [{"message": {"content": "a", "tool_calls": "sky"}}]},
        *({"choices": [{"message": {"content": "a", "tool_calls": calls}}]} for calls in MALFORMED),
    ):
        with pytest.raises(DataError):
            read_answer(bad, 0)
