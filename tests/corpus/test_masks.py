"""Loss masks from generation tags and from comparing; thinking, tools, and which answers are learnt."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.corpus.thinking_template import CALL, MARKED, PLAIN, TOOLS, TWO_ROUNDS
from tests.worlds import CHAT_TEMPLATE, DATA, byte_tokenizer, needs_data
from vocabforge.core.errors import DataError, UsageError
from vocabforge.corpus.chat.conversation import read_conversation, read_tools
from vocabforge.corpus.chat.render import ChatOptions, render_chats, render_with_mask
from vocabforge.corpus.chat.template import generation_spans, render_template
from vocabforge.corpus.tokenizer.tokenizer import load_tokenizer

CALL_TEXT = '<call>{"name": "f", "arguments": {"x": 1}}</call><|end|>'
ASK = {"role": "user", "content": "q"}


def says(content, **more):
    return {"role": "assistant", "content": content, **more}


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
        messages.append(says(draw(texts)))
    for message in messages:
        if message["role"] == "assistant" and draw(st.booleans()):
            message["reasoning_content"] = draw(st.sampled_from(["hm", "so\nso"]))
    return messages


def spans_or_error(tokenizer, messages, options, tools):
    try:
        return [list(chat.spans) for chat in render_chats(tokenizer, messages, options, tools=tools)]
    except DataError as error:
        return error.message


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
    alone = [
        m["content"].strip() == "" and "tool_calls" not in m for m in messages if m["role"] == "assistant"
    ]
    if thinking == "drop" and any(alone):  # an answer of thinking alone may leave nothing to learn
        assert spans_or_error(plain, messages, options, listed) == spans_or_error(
            marked, messages, options, listed
        )
        return
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


# It writes contents as they are; the header of a turn to be generated opens the thinking.
OPENING = (
    "{% for m in messages %}{{ '<|' + m.role + '|>' }}{% if m.role == 'assistant' %}<think>{% endif %}"
    "{{ m.content + '<|end|>' }}{% endfor %}{% if add_generation_prompt %}<|assistant|><think>{% endif %}"
)


@pytest.mark.parametrize("template", [PLAIN, MARKED, CHAT_TEMPLATE])
@pytest.mark.parametrize("block", ["<think>\nhm\n</think>\n\n", "hm\n</think>\n\n"])
def test_thinking_within_the_content(tmp_path, template, block):
    tokenizer = load_tokenizer(byte_tokenizer(tmp_path, template=template))
    talk = [ASK, says(f"{block}yes")]
    (kept,) = learnt(tokenizer, talk)
    assert kept[0].endswith("hm\n</think>\n\nyes<|end|>")
    if template == CHAT_TEMPLATE and block.startswith("hm"):  # nothing opens it: it is plain text
        for thinking in ("mask", "drop"):
            assert learnt(tokenizer, talk, ChatOptions(thinking=thinking)) == [[f"{block}yes<|end|>"]]
        talk = [ASK, says("<think>so</think>no"), *talk]
        assert learnt(tokenizer, talk, ChatOptions(thinking="mask")) == [["no<|end|>", "yes<|end|>"]]
        opens = load_tokenizer(byte_tokenizer(tmp_path / "opens", template=OPENING))
        assert learnt(opens, talk[2:], ChatOptions(thinking="mask")) == [["yes<|end|>"]]
        return
    assert learnt(tokenizer, talk, ChatOptions(thinking="mask")) == [["yes<|end|>"]]
    (dropped,) = render_chats(tokenizer, talk, ChatOptions(thinking="drop"))
    assert "hm" not in dropped.text
    assert [dropped.text[a:b] for a, b in dropped.spans] == ["yes<|end|>"]
    half = [ASK, says("yes</think>", reasoning_content="hm")]
    cut = [ASK, says("<think>a x")]
    twice = [ASK, says("<think>a</think>b<think>c</think>d")]
    closed = [ASK, says("<think>a</think>b</think>d")]
    for thinking in ("mask", "drop"):
        for talk in (half, cut, twice, closed):
            with pytest.raises(DataError, match="without its other half"):
                learnt(tokenizer, talk, ChatOptions(thinking=thinking))


@pytest.mark.parametrize("value", ["{", 3, [3], ["{"], [{"title": "f"}], {"name": "f"}])
def test_malformed_tool_lists(value):
    with pytest.raises(DataError, match="tool"):
        read_tools(value)


@pytest.mark.parametrize("calls", ["x", [3], [{"function": {"arguments": {}}}]])
def test_malformed_tool_calls(calls):
    with pytest.raises(DataError, match="tool call"):
        read_conversation({"messages": [says(None, tool_calls=calls)]})


def nested(levels):
    value = []
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize("levels", [500, 20_000])
def test_what_nests_without_end_is_an_error_of_the_row(levels):
    text = "[" * levels + "]" * levels
    turn = {"role": "assistant", "content": None}
    calls = [
        {**turn, "tool_calls": [{"function": {"name": "f", "arguments": text}}]},
        {**turn, "tool_calls": [{"function": {"name": "f", "arguments": {"x": nested(levels)}}}]},
        {**turn, "tool_calls": [nested(levels)]},
        {"role": "function_call", "content": f'{{"name": "f", "arguments": {text}}}'},
        {"role": "user", "content": nested(levels)},
        {"role": nested(levels), "content": "a"},
    ]
    for call in calls:
        with pytest.raises(DataError, match="nested too deeply"):
            read_conversation({"messages": [call]})
    for tools in (text, [text], nested(levels), [{"name": "f", "parameters": nested(levels)}]):
        with pytest.raises(DataError, match="nested too deeply"):
            read_tools(tools)
    assert read_tools([{"name": "f", "parameters": nested(90)}])


@pytest.mark.parametrize("key", ["loss_weight", "weight"])
def test_turns_of_weight_zero_are_not_learnt(plain, marked, key):
    turns = [ASK, says("bad", **{key: 0}), ASK, says("good", **{key: 1.0})]
    messages = read_conversation({"messages": turns}).messages
    for tokenizer in (plain, marked):
        assert learnt(tokenizer, messages, ChatOptions(thinking="mask")) == [["good<|end|>"]]
        with pytest.raises(DataError, match="loss weight 0"):
            learnt(tokenizer, messages[:2])


def test_a_dropped_answer_of_thinking_alone_is_not_learnt(plain):
    for alone in ({"content": "<think>hm</think>\n"}, {"content": "", "reasoning_content": "hm"}):
        talk = [ASK, {"role": "assistant", **alone}, ASK, says("a")]
        (chat,) = render_chats(plain, talk, ChatOptions(thinking="drop"))
        assert [chat.text[a:b] for a, b in chat.spans] == ["a<|end|>"]
        assert chat.facts["thinking_only_turns"] == 1
        assert learnt(plain, talk, ChatOptions(thinking="drop", answers="each")) == [["a<|end|>"]]
        with pytest.raises(DataError, match="dropped thinking"):
            learnt(plain, talk[:2], ChatOptions(thinking="drop"))
    called = [ASK, {"role": "assistant", "content": "<think>hm</think>", "tool_calls": [CALL]}]
    assert learnt(plain, called, ChatOptions(thinking="drop")) == [[CALL_TEXT]]


def test_an_empty_block_that_the_template_alone_writes_is_not_learnt(plain, marked):
    talk = [ASK, says("a"), ASK, says("b")]
    for tokenizer in (plain, marked):
        for thinking in ("keep", "mask"):
            (chat,) = render_chats(tokenizer, talk, ChatOptions(thinking=thinking))
            assert "<think>\n\n</think>\n\nb" in chat.text
            assert [chat.text[a:b] for a, b in chat.spans] == ["a<|end|>", "b<|end|>"]
            assert chat.facts["empty_thinking_blocks"] == 1
        own = [ASK, says("<think>\n\n</think>\n\nb")]  # the target's own
        (chat,) = render_chats(tokenizer, own, ChatOptions())
        assert [chat.text[a:b] for a, b in chat.spans] == ["<think>\n\n</think>\n\nb<|end|>"]
        assert not chat.facts["empty_thinking_blocks"]


def test_the_end_of_a_cut_answer_is_not_learnt(plain, marked):
    turns = [ASK, says("first par", cut=True), {**ASK, "cut": True}, says("whole")]
    messages = read_conversation({"messages": turns}).messages
    assert [message.get("cut") for message in messages] == [None, True, None, None]
    for tokenizer in (plain, marked):
        (chat,) = render_chats(tokenizer, messages, ChatOptions())
        assert [chat.text[a:b] for a, b in chat.spans] == ["first par", "whole<|end|>"]
        assert chat.facts["cut_turns"] == 1
        thought = [ASK, says("", reasoning_content="hm so", cut=True)]
        assert learnt(tokenizer, thought) == [["<think>\nhm so"]]
        assert learnt(tokenizer, thought, ChatOptions(thinking="mask")) == [[]]
        both = [ASK, says("yes", reasoning_content="hm", cut=True)]
        assert learnt(tokenizer, both) == [["<think>\nhm\n</think>\n\nyes"]]
        calls = [ASK, {"role": "assistant", "content": "so", "tool_calls": [CALL], "cut": True}]
        assert learnt(tokenizer, calls) == [["so"]]
        earlier = [*thought, ASK, says("b", reasoning_content="hm")]
        assert learnt(tokenizer, earlier) == [["<think>\nhm\n</think>\n\nb<|end|>"]]
        ids, mask = render_with_mask(tokenizer, messages[:2])
        assert tokenizer.decode([t for t, m in zip(ids, mask) if m], skip_special=False) == "first par"


def spans(tmp_path, template, messages=({"role": "user", "content": " ab "},) * 2):
    talk = [*messages, says(" xy ")]
    tokenizer = load_tokenizer(byte_tokenizer(tmp_path, template=template))
    names = {"variables": tokenizer.special_text, "source": tokenizer.source.parent}
    text = render_template(template, talk, add_generation_prompt=False, **names)
    found = generation_spans(template, text, talk, **names)
    return None if found is None else [text[start:end] for start, end in found]


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
    assert spans(tmp_path, template) == expected


def test_tags_whose_text_is_measured_give_way_to_comparing(tmp_path):
    length = "{% set x %}{% generation %}b{% endgeneration %}{% endset %}{{ x|length }}"
    template = length + CHAT_TEMPLATE
    assert spans(tmp_path, template) is None
    tokenizer = load_tokenizer(byte_tokenizer(tmp_path, template=template))
    assert learnt(tokenizer, [ASK, says(" xy ")]) == [[" xy <|end|>"]]


def test_tags_around_nothing_are_an_error(tmp_path):
    template = CHAT_TEMPLATE + "{% generation %}{% endgeneration %}"
    tokenizer = load_tokenizer(byte_tokenizer(tmp_path, template=template))
    with pytest.raises(DataError, match="enclose nothing"):
        learnt(tokenizer, TWICE)


def test_masks_equal_those_of_transformers(tmp_path, marked):
    import transformers

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
TWICE = [ASK, says("a1 "), ASK, says(" a2")]


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


@needs_data
def test_every_row_with_tools_and_thinking_gets_its_mask(qwen3):
    """16 of these 50 have several rounds, whose earlier thinking Qwen3's template drops."""
    rows = [json.loads(line) for line in (DATA / "chat/reason_tool_use_demo_50.jsonl").open()]
    assert len(rows) == 50
    for row in rows:
        messages = read_conversation(row).messages
        (chat,) = render_chats(qwen3, messages, ChatOptions(), tools=row["tools"])
        turns = [message for message in messages if message["role"] == "assistant"]
        assert len(chat.spans) == len(turns)
        for (start, end), message in zip(chat.spans, turns, strict=True):
            assert chat.text[:start].endswith("<|im_start|>assistant\n")
            assert chat.text[:end].endswith("<|im_end|>")
            assert message["content"].strip("\n") in chat.text[start:end] or "</think>" in message["content"]
            assert chat.text[start:end].count("<|im_end|>") == 1
