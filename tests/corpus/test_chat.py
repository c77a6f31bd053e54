"""Conversation formats, rendering, loss masks, and untrusted templates."""

from __future__ import annotations

import pytest

from tests.worlds import byte_tokenizer, needs_data
from vocabforge.core.errors import DataError
from vocabforge.corpus.chat.conversation import read_conversation
from vocabforge.corpus.chat.render import render_with_mask
from vocabforge.corpus.chat.template import render_template
from vocabforge.corpus.tokenizer.tokenizer import load_tokenizer

TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hé <b>"},
    {"role": "assistant", "content": "Yes, 你好"},
    {"role": "user", "content": "And?"},
    {"role": "assistant", "content": "No.\n"},
]


def masked_text(tokenizer, messages) -> list[str]:
    """The runs of tokens with mask 1, as text."""
    ids, mask = render_with_mask(tokenizer, messages)
    assert len(ids) == len(mask)
    runs, held = [], []
    for token, counted in zip([*ids, 0], [*mask, 0], strict=True):
        if counted:
            held.append(token)
        elif held:
            runs.append(tokenizer.decode(held, skip_special=False))
            held = []
    return runs


ASK, ANSWER = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
PARTS = [{"type": "text", "text": "a"}, {"type": "text", "value": "b"}]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (
            {
                "conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}],
                "system": "s",
            },
            "system: s, user: a, assistant: b",
        ),
        ({"messages": [ASK]}, "user: a"),
        ({"messages": [{"role": "user", "content": PARTS}]}, "user: ab"),
        ({"instruction": "a", "input": "", "output": "b"}, "user: a, assistant: b"),
        ({"instruction": "a", "input": "x", "response": "b"}, "user: a\nx, assistant: b"),
        ({"prompt": "a", "completion": "b"}, "user: a, assistant: b"),
        ({"question": "a", "answer": "b"}, "user: a, assistant: b"),
        ({"prompt": [ASK], "completion": [ANSWER]}, "user: a, assistant: b"),
    ],
)
def test_formats(row, expected):
    messages = read_conversation(row).messages
    assert ", ".join(f"{message['role']}: {message['content']}" for message in messages) == expected


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"messages": []}, "empty"),
        ({"messages": ["x"]}, "not an object"),
        ({"messages": [{"role": "ghost", "content": "x"}]}, "unknown role"),
        ({"messages": [{"role": "user", "content": None}]}, "has no text"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "url": "x"}]}]}, "not text"),
        ({"conversations": [{"from": "function_call", "value": "nonsense"}]}, "not valid JSON"),
        ({"prompt": 1, "response": "b"}, "not both texts"),
    ],
)
def test_malformed_conversations(row, message):
    with pytest.raises(DataError, match=message):
        read_conversation(row)


def test_mask_holds_the_answers_with_their_end_and_nothing_else(tmp_path):
    tokenizer = load_tokenizer(byte_tokenizer(tmp_path))
    assert masked_text(tokenizer, TALK) == ["Yes, 你好<|end|>", "No.\n<|end|>"]
    ids, _ = render_with_mask(tokenizer, TALK)
    assert tokenizer.decode(ids, skip_special=False) == tokenizer.render(TALK)


def test_all_zero_masks_say_why(tmp_path):
    tokenizer = load_tokenizer(byte_tokenizer(tmp_path))
    for messages in (TALK[:2], TALK[2:3]):
        with pytest.raises(DataError, match="all zero"):
            render_with_mask(tokenizer, messages)


def test_all_one_mask_says_why(tmp_path):
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    tokenizer = load_tokenizer(byte_tokenizer(tmp_path, template=template))
    with pytest.raises(DataError, match="all one"):
        render_with_mask(tokenizer, [{"role": "user", "content": ""}, TALK[2]])


def test_unstable_template_is_refused(tmp_path):
    counted = "{{ messages|length }}" + "{% for m in messages %}{{ m.content }}<|end|>{% endfor %}"
    tokenizer = load_tokenizer(byte_tokenizer(tmp_path / "a", template=counted))
    assert masked_text(tokenizer, TALK[1:]) == ["Yes, 你好<|end|>", "No.\n<|end|>"]
    backwards = "{% for m in messages[::-1] %}{{ m.content }}<|end|>{% endfor %}"
    tokenizer = load_tokenizer(byte_tokenizer(tmp_path / "b", template=backwards))
    with pytest.raises(DataError, match="writes turn 2 differently"):
        render_with_mask(tokenizer, TALK[1:])


def test_template_features_and_refusals(tmp_path):
    template = (
        "{%- for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}"
        "{% generation %}{{ m.content }}{% endgeneration %}{{ {'a': '<é>'} | tojson }}{% endfor %}"
        "{{ strftime_now('%Y')|length }}{% if not messages %}{{ raise_exception('nothing said') }}{% endif %}"
    )
    tokenizer = load_tokenizer(byte_tokenizer(tmp_path, template=template))
    assert tokenizer.render(TALK[:2]) == 'Hé <b>{"a": "<é>"}4'
    with pytest.raises(DataError, match="nothing said"):
        tokenizer.render([])
    broken = load_tokenizer(byte_tokenizer(tmp_path / "b", template="{% for %}"))
    with pytest.raises(DataError, match="cannot be compiled"):
        broken.render(TALK)
    unsafe = load_tokenizer(byte_tokenizer(tmp_path / "c", template="{{ messages.append(1) }}"))
    with pytest.raises(DataError, match="refuses"):
        unsafe.render(TALK)


TOOL_TALK = [
    {"role": "user", "content": "How warm?"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"q": "é<"}}}],
    },
    {"role": "tool", "content": "9"},
    {"role": "assistant", "content": "Nine."},
    {"role": "user", "content": "Thanks"},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nBye"},
]


@needs_data
@pytest.mark.parametrize("messages", [TALK, TOOL_TALK, TALK[:2]])
def test_rendering_equals_transformers(qwen3, qwen3_elsewhere, messages):
    theirs, ours = qwen3_elsewhere, qwen3
    tools = [{"type": "function", "function": {"name": "f", "description": "<é>"}}]
    for prompt in (False, True):
        for names in ({}, {"tools": tools}, {"enable_thinking": False}):
            expected = theirs.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=prompt, **names
            )
            assert ours.render(messages, add_generation_prompt=prompt, **names) == expected
    expected = theirs.apply_chat_template(messages, tokenize=True, return_dict=True)["input_ids"]
    assert ours.encode(ours.render(messages)) == expected


def render(template: str, content: str = "hi") -> str:
    return render_template(
        template,
        [{"role": "user", "content": content}],
        add_generation_prompt=False,
        variables={"bos_token": "<s>"},
        source="template",
    )


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{% set x = 'x' * 10**6 %}{% for i in range(99999) %}{{ x }}{% endfor %}", "characters"),
        ("{% for i in range(10**9) %}x{% endfor %}", "Range too big"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("x" * (2 << 20), "cannot be compiled"),
    ],
)
def test_sizes_are_capped(template: str, why: str) -> None:
    with pytest.raises(DataError, match=why):
        render(template)


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ '{0.__class__.__init__.__globals__}'.format(raise_exception) }}",
        "{{ raise_exception.__globals__.os.system('x') }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ (strftime_now|attr('__globals__')).x }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='x') }}",
        "{% include '/etc/passwd' %}",
        "{{ raise_exception|tojson }}",
        "{{ open('/etc/passwd') }}",
    ],
)
def test_a_template_reaches_nothing_else(template: str) -> None:
    with pytest.raises(DataError, match="refuses this conversation"):
        render(template)


@pytest.mark.parametrize(
    "template",
    ["{{ " + "(" * 300 + "1" + ")" * 300 + " }}", "{% if 1 %}" * 120 + "{% endif %}" * 120, "{{ 1 +"],
)
def test_what_cannot_be_compiled_is_said(template: str) -> None:
    with pytest.raises(DataError, match="cannot be compiled"):
        render(template)
