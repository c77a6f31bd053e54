"""Loss masks from generation tags and from comparing; thinking, tools, and which answers are learnt."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.corpus.thinking_template import CALL, MARKED, PLAIN, TOOLS, TWO_ROUNDS
from tests.corpus.tokenizer_factory import CHAT_TEMPLATE, byte_tokenizer
from tests.support import DATA, needs_data
from vocabforge.core.errors import DataError, UsageError
from vocabforge.corpus.chat import ChatOptions, render_chats, render_with_mask
from vocabforge.corpus.conversation import parse_conversation, read_tools
from vocabforge.corpus.tokenizer import load_tokenizer

CALL_TEXT = '<call>{"name": "f", "arguments": {"x": 1}}</call><|end|>'
ASK = {"role": "user", "content": "q"}


def learnt(tokenizer, messages, options=None, tools=None) -> list[list[str]]:
    """For each rendering, the texts that are learnt."""
    chats = render_chats(tokenizer, messages, options or ChatOptions(), tools=tools)
    return [[chat.text[start:end] for start, end in chat.spans] for chat in chats]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return load_tokenizer(byte_tokenizer(tmp_path_factory.mktemp("plain"), template=PLAIN))


@pytest.fixture(scope="module")
def marked(tmp_path_factory):
    return load_tokenizer(byte_tokenizer(tmp_path_factory.mktemp("marked"), template=MARKED))


texts = st.text("ab \n<é", max_size=6)


@st.composite
def conversations(draw):
    """Rounds of a question, calls with their results, and an answer; thinking here and there."""
    messages = []
    for _ in range(draw(st.integers(1, 3))):
        messages.append({"role": "user", "content": draw(texts)})
        for _ in range(draw(st.integers(0, 2))):
            call = {"role": "assistant", "content": draw(texts), "tool_calls": [CALL]}
            messages += [call, {"role": "tool", "content": draw(texts)}]
        messages.append({"role": "assistant", "content": draw(texts)})
    for message in messages:
        if message["role"] == "assistant" and draw(st.booleans()):
            message["reasoning_content"] = draw(st.sampled_from(["hm", "so\nso"]))
    return messages


@settings(deadline=None, max_examples=60)
@given(
    conversations(),
    st.sampled_from(["keep", "mask", "drop"]),
    st.sampled_from(["all", "last", "each"]),
    st.booleans(),
)
def test_tags_and_comparing_agree(plain, marked, messages, thinking, answers, tools):
    options = ChatOptions(thinking=thinking, answers=answers)
    listed = TOOLS if tools else None
    first = list(render_chats(plain, messages, options, tools=listed))
    second = list(render_chats(marked, messages, options, tools=listed))
    assert [chat.text for chat in first] == [chat.text for chat in second]
    assert [list(chat.spans) for chat in first] == [list(chat.spans) for chat in second]
    assert all(chat.facts["marked"] for chat in second)
    assert not any(chat.facts["marked"] for chat in first)


def test_earlier_thinking_that_the_template_drops_is_no_obstacle(plain):
    assert learnt(plain, TWO_ROUNDS) == [
        [
            CALL_TEXT,
            "nine<|end|>",
            f"<think>\nhm 3\n</think>\n\n{CALL_TEXT}",
            "<think>\nhm 4\n</think>\n\neight<|end|>",
        ]
    ]
    (chat,) = render_chats(plain, TWO_ROUNDS, ChatOptions())
    assert chat.facts["thinking_turns_left_out"] == 2


def test_thinking_masked_dropped_and_answers_chosen(plain):
    bare = [[CALL_TEXT, "nine<|end|>", CALL_TEXT, "eight<|end|>"]]
    masked = list(render_chats(plain, TWO_ROUNDS, ChatOptions(thinking="mask")))
    assert [[c.text[a:b] for a, b in c.spans] for c in masked] == bare
    assert "hm 3" in masked[0].text
    dropped = list(render_chats(plain, TWO_ROUNDS, ChatOptions(thinking="drop")))
    assert [[c.text[a:b] for a, b in c.spans] for c in dropped] == bare
    assert "hm" not in dropped[0].text
    thought = [f"<think>\nhm 3\n</think>\n\n{CALL_TEXT}", "<think>\nhm 4\n</think>\n\neight<|end|>"]
    assert learnt(plain, TWO_ROUNDS, ChatOptions(answers="last")) == [thought]
    early = [text.replace("3", "1").replace("4", "2").replace("eight", "nine") for text in thought]
    assert learnt(plain, TWO_ROUNDS, ChatOptions(answers="each")) == [early, thought]
    with pytest.raises(UsageError, match="several renderings"):
        render_with_mask(plain, TWO_ROUNDS, ChatOptions(answers="each"))


def test_an_empty_block_in_place_of_dropped_thinking_is_not_learnt(tmp_path):
    """The template has no switch, so the empty block is no part of the header of a turn to be generated."""
    template = PLAIN.replace("enable_thinking", "no_switch")
    tokenizer = load_tokenizer(byte_tokenizer(tmp_path, template=template))
    (chat,) = render_chats(tokenizer, TWO_ROUNDS, ChatOptions(thinking="drop"))
    assert [chat.text[a:b] for a, b in chat.spans][-1] == "eight<|end|>"
    assert "<think>\n\n</think>\n\neight" in chat.text


@pytest.mark.parametrize("template", [PLAIN, MARKED, CHAT_TEMPLATE])
@pytest.mark.parametrize("block", ["<think>\nhm\n</think>\n\n", "hm\n</think>\n\n"])
def test_thinking_within_the_content(tmp_path, template, block):
    tokenizer = load_tokenizer(byte_tokenizer(tmp_path, template=template))
    talk = [ASK, {"role": "assistant", "content": f"{block}yes"}]
    (kept,) = learnt(tokenizer, talk)
    assert kept[0].endswith("hm\n</think>\n\nyes<|end|>")
    assert learnt(tokenizer, talk, ChatOptions(thinking="mask")) == [["yes<|end|>"]]
    (dropped,) = render_chats(tokenizer, talk, ChatOptions(thinking="drop"))
    assert "hm" not in dropped.text
    assert [dropped.text[a:b] for a, b in dropped.spans] == ["yes<|end|>"]
    half = [ASK, {"role": "assistant", "content": "yes</think>", "reasoning_content": "hm"}]
    with pytest.raises(DataError, match="without its other half"):
        learnt(tokenizer, half, ChatOptions(thinking="drop"))


def test_tools_are_rendered_or_skipped(plain, tmp_path):
    (chat,) = render_chats(plain, [ASK, {"role": "assistant", "content": "a"}], ChatOptions(), tools=TOOLS)
    assert '{"type": "function", "function": {"name": "f", "description": "d"}}' in chat.text
    assert (chat.facts["tool_list"], chat.facts["tool_calls"]) == (1, 0)
    with pytest.raises(DataError, match="to be skipped"):
        learnt(plain, TWO_ROUNDS, ChatOptions(tools="skip"))
    with pytest.raises(DataError, match="to be skipped"):
        learnt(plain, [ASK, {"role": "assistant", "content": "a"}], ChatOptions(tools="skip"), TOOLS)
    assert learnt(plain, [ASK, {"role": "assistant", "content": "a"}], ChatOptions(tools="skip"), "[]")
    blind = load_tokenizer(byte_tokenizer(tmp_path))
    with pytest.raises(DataError, match="does not write tool calls"):
        learnt(blind, TWO_ROUNDS)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        ("", None),
        ("[]", None),
        ([], None),
        (json.dumps(TOOLS), [{"type": "function", "function": TOOLS[0]}]),
        ([json.dumps(TOOLS[0])], [{"type": "function", "function": TOOLS[0]}]),
        (
            [{"type": "function", "function": {"name": "g"}}],
            [{"type": "function", "function": {"name": "g"}}],
        ),
    ],
)
def test_tool_lists(value, expected):
    assert read_tools(value) == expected


@pytest.mark.parametrize("value", ["{", 3, [3], ["{"], [{"title": "f"}], {"name": "f"}])
def test_malformed_tool_lists(value):
    with pytest.raises(DataError, match="tool"):
        read_tools(value)


def test_calls_are_put_into_the_form_of_serving_engines():
    turn = {"role": "assistant", "content": None}
    for call in (
        {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}},
        {"name": "f", "arguments": {"x": 1}},
    ):
        (message,) = parse_conversation({"messages": [{**turn, "tool_calls": [call]}]})
        assert message["tool_calls"][0]["function"] == CALL["function"]
        assert message["tool_calls"][0]["type"] == "function"
    for calls in ("x", [3], [{"function": {"arguments": {}}}]):
        with pytest.raises(DataError, match="tool call"):
            parse_conversation({"messages": [{**turn, "tool_calls": calls}]})


@pytest.mark.parametrize("key", ["loss_weight", "weight"])
def test_turns_of_weight_zero_are_not_learnt(plain, marked, key):
    row = {
        "messages": [
            ASK,
            {"role": "assistant", "content": "bad", key: 0},
            ASK,
            {"role": "assistant", "content": "good", key: 1.0},
        ]
    }
    messages = parse_conversation(row)
    for tokenizer in (plain, marked):
        assert learnt(tokenizer, messages, ChatOptions(thinking="mask")) == [["good<|end|>"]]
        with pytest.raises(DataError, match="loss weight 0"):
            learnt(tokenizer, messages[:2])


def spans(tmp_path, template, messages=({"role": "user", "content": " ab "},) * 2):
    talk = [*messages, {"role": "assistant", "content": " xy "}]
    tokenizer = load_tokenizer(byte_tokenizer(tmp_path, template=template))
    (chat,) = render_chats(tokenizer, talk, ChatOptions())
    return [chat.text[start:end] for start, end in chat.spans], bool(chat.facts["marked"])


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (
            "[{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}|{% endfor %}]",
            [" ab ", " ab ", " xy "],
        ),
        ("a{% generation %}b{% generation %}c{% endgeneration %}d{% endgeneration %}e", ["bcd"]),
        (
            "{% macro w(m) %}-{% generation %}{{ m }}{% endgeneration %}{% endmacro %}{{ w('u') }}{{ w('v')|upper }}",
            ["u", "V"],
        ),
        ("a{% filter trim %}{% generation %} b {% endgeneration %}{% endfilter %}c", ["b"]),
        ("{% set x %}{% generation %}b{% endgeneration %}{% endset %}a{{ x }}c{{ x }}", ["b", "b"]),
        ("a{% generation %}{% endgeneration %}{% generation %}b{% endgeneration %}", ["b"]),
        (
            "a{% if false %}{% generation %}z{% endgeneration %}{% endif %}{% generation %}b{% endgeneration %}",
            ["b"],
        ),
        ("\U0010ff00{% generation %}b{% endgeneration %}", ["b"]),
    ],
)
def test_places_of_tags(tmp_path, template, expected):
    assert spans(tmp_path, template) == (expected, True)


def test_tags_whose_text_is_measured_give_way_to_comparing(tmp_path):
    length = "{% set x %}{% generation %}b{% endgeneration %}{% endset %}{{ x|length }}"
    assert spans(tmp_path, length + CHAT_TEMPLATE) == ([" xy <|end|>"], False)


def test_tags_around_nothing_are_an_error(tmp_path):
    with pytest.raises(DataError, match="enclose nothing"):
        spans(tmp_path, CHAT_TEMPLATE + "{% generation %}{% endgeneration %}")


def test_masks_equal_those_of_transformers(tmp_path, marked):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(marked.source))
    for stop in (2, 4, 8):
        found = theirs.apply_chat_template(
            TWO_ROUNDS[:stop], chat_template=MARKED, return_dict=True, return_assistant_tokens_mask=True
        )
        ids, mask = render_with_mask(marked, TWO_ROUNDS[:stop])
        assert ids == found["input_ids"]
        assert mask == found["assistant_masks"]


BRACKETS = (
    "{% for m in messages %}{% if m.role == 'user' %}{% if loop.last %}{{ tools }}{% endif %}"
    "{{ '[' + m.content + ']' }}{% else %}{{ ' ' + m.content|trim + '<|end|>' }}{% endif %}{% endfor %}"
)
LAST_END = (
    "{% for m in messages %}{{ m.role + ':' + m.content }}"
    "{% if loop.last and m.role == 'assistant' %}<|end|>{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
TWICE = [ASK, {"role": "assistant", "content": "a1 "}, ASK, {"role": "assistant", "content": " a2"}]


@pytest.mark.parametrize("thinking", ["keep", "mask", "drop"])
@pytest.mark.parametrize("tools", [None, TOOLS])
def test_a_template_without_a_header(tmp_path, thinking, tools):
    """The target writes the space before its answers; the last question moves the tool list."""
    tokenizer = load_tokenizer(byte_tokenizer(tmp_path, template=BRACKETS))
    found = learnt(tokenizer, TWICE, ChatOptions(thinking=thinking), tools)
    assert found == [[" a1<|end|>", " a2<|end|>"]]


def test_an_end_that_only_the_last_turn_has(tmp_path):
    tokenizer = load_tokenizer(byte_tokenizer(tmp_path, template=LAST_END))
    with pytest.raises(DataError, match="writes turn 2 differently"):
        learnt(tokenizer, TWICE)
    each = learnt(tokenizer, TWICE, ChatOptions(answers="each"))
    assert each == [["a1 <|end|>"], [" a2<|end|>"]]


def test_other_variables_reach_the_template(tmp_path):
    template = "{{ date }}" + CHAT_TEMPLATE
    tokenizer = load_tokenizer(byte_tokenizer(tmp_path, template=template))
    talk = [ASK, {"role": "assistant", "content": "a"}]
    (chat,) = render_chats(tokenizer, talk, ChatOptions(variables={"date": "monday"}))
    assert chat.text.startswith("monday<|user|>")


@needs_data
def test_every_row_with_tools_and_thinking_gets_its_mask(qwen3):
    """16 of these 50 have several rounds, whose earlier thinking Qwen3's template drops."""
    rows = [json.loads(line) for line in (DATA / "chat/reason_tool_use_demo_50.jsonl").open()]
    assert len(rows) == 50
    for row in rows:
        messages = parse_conversation(row)
        (chat,) = render_chats(qwen3, messages, ChatOptions(), tools=row["tools"])
        turns = [message for message in messages if message["role"] == "assistant"]
        assert len(chat.spans) == len(turns)
        for (start, end), message in zip(chat.spans, turns, strict=True):
            assert chat.text[:start].endswith("<|im_start|>assistant\n")
            assert chat.text[:end].endswith("<|im_end|>")
            assert message["content"].strip("\n") in chat.text[start:end] or "</think>" in message["content"]
            assert chat.text[start:end].count("<|im_end|>") == 1
