"""What rows and templates mean: every key is rendered, used or named, whatever kind of file holds the rows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.worlds import byte_tokenizer
from vocabforge.core.errors import DataError
from vocabforge.corpus.chat.conversation import read_conversation, read_tools
from vocabforge.corpus.chat.render import ChatOptions
from vocabforge.corpus.prepared.dataset import SequenceOptions, iter_sequences
from vocabforge.corpus.sources.bytes import Problems
from vocabforge.corpus.sources.document import SourceOptions
from vocabforge.corpus.sources.inputs import expand_paths
from vocabforge.corpus.sources.sources import iter_documents
from vocabforge.corpus.tokenizer.tokenizer import TextTokenizer, encode_prompt, load_tokenizer


def says(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


ASK = {"role": "user", "content": "Is it?"}
YES = says("Yes.")
ROUNDS = [
    {"role": "user", "content": "Hi."},
    says("Ho."),
    {"role": "user", "content": "Add.\n3 and 4"},
    says("7"),
]
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
# Writes the thinking of a field and the calls of a turn; a tool list opens the text.
TEMPLATE = (
    "{%- if tools %}{{ tools | tojson }}{% endif %}{%- for m in messages %}[{{ m.role }}]"
    "{%- if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content or '' }}"
    "{%- for c in m.tool_calls or [] %}<call>{{ c.function | tojson }}{% endfor %}<|end|>{% endfor %}"
    "{%- if add_generation_prompt %}[assistant]{% endif %}"
)
PARTS_ONLY = (
    "{%- for m in messages %}[{{ m.role }}]{% for part in m.content %}"
    "{%- if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}<|end|>{% endfor %}"
    "{%- if add_generation_prompt %}[assistant]{% endif %}"
)


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def texts(
    tokenizer: TextTokenizer, source: Path | str, problems: Problems | None = None, **options: Any
) -> list[str]:
    """The rendered texts of all rows, learnt spans in ``{{`` and ``}}``."""
    found = []
    for one in iter_sequences(
        tokenizer, expand_paths([source]), SequenceOptions(chat=ChatOptions(**options)), problems=problems
    ):
        text, inside = "", False
        for token, learnt in zip(one.ids, one.loss_mask, strict=True):
            text += ("{{" if learnt else "}}") if bool(learnt) != inside else ""
            inside = bool(learnt)
            text += tokenizer.decode([token], skip_special=False)
        found.append(text + ("}}" if inside else ""))
    return found


def one_text(tmp_path: Path, row: Mapping[str, Any], template: str = TEMPLATE) -> tuple[str, str | None]:
    """The text of a row, and what the command says of it."""
    tokenizer = load_tokenizer(byte_tokenizer(tmp_path / "t", template=template))
    problems = Problems(shown=0)
    (text,) = texts(tokenizer, write_rows(tmp_path / "a.jsonl", [row]), problems)
    return text, problems.summary()


def test_an_answer_that_was_cut_while_thinking(tmp_path: Path) -> None:
    row = {"messages": [ASK, says("<think>\nHm", cut=True)]}
    assert one_text(tmp_path, row)[0] == "[user]Is it?<|end|>[assistant]{{<think>Hm}}</think><|end|>"


def test_keys_that_nothing_reads_are_counted(tmp_path: Path) -> None:
    answer = {"role": "assistant", "content": "Yes.", "citations": [1], "refusal": None, "annotations": []}
    rows = [{"messages": [ASK, answer, ASK, answer], "id": n, "score": 0.5} for n in range(3)]
    tokenizer = load_tokenizer(byte_tokenizer(tmp_path / "t", template=TEMPLATE))
    file, problems = write_rows(tmp_path / "a.jsonl", rows), Problems()
    assert len(texts(tokenizer, file, problems)) == 3
    assert problems.summary() == "Not read: citations in 6 turns, id in 3 rows, score in 3 rows"
    with pytest.raises(DataError, match=r"keys that are not read(.|\n)*id, score(.|\n)*a\.jsonl:1"):
        texts(tokenizer, file, Problems(strict=True))


def test_a_turn_of_a_role_that_is_not_written_is_named(tmp_path: Path) -> None:
    template = "{% for m in messages if m.role in ('user', 'assistant') %}[{{ m.content }}]{% endfor %}"
    row = {"messages": [{"role": "system", "content": "Be brief."}, ASK, says("Y")]}
    text, said = one_text(tmp_path, row, template)
    assert "brief" not in text
    assert said == "Not read: content of system in 1 turn"


@pytest.mark.parametrize(
    "call",
    [
        {"tool_calls": [{"function": {"name": "look", "arguments": {"at": "sea"}}}]},
        {"tool_calls": [{"name": "look", "arguments": '{"at": "sea"}'}]},
        {"tool_calls": '[{"name": "look", "arguments": {"at": "sea"}}]'},
        {"function_call": {"name": "look", "arguments": '{"at": "sea"}'}},
        {"function_call": '{"name": "look", "arguments": {"at": "sea"}}'},
    ],
)
def test_calls_in_every_form(tmp_path: Path, call: dict[str, Any]) -> None:
    for content in (None, ""):
        row = {
            "messages": [ASK, {"role": "assistant", "content": content, **call}],
            "functions": [{"name": "look"}],
        }
        text, said = one_text(tmp_path, row)
        assert text == (
            '[{"type": "function", "function": {"name": "look"}}][user]Is it?<|end|>[assistant]'
            '{{<call>{"name": "look", "arguments": {"at": "sea"}}<|end|>}}'
        )
        assert said is None


@pytest.mark.parametrize(
    ("call", "outer", "inner"),
    [
        ({"id": "c1", "name": "look", "arguments": {"a": 1}}, {"id": "c1", "type": "function"}, {}),
        ({"name": "look", "parameters": {"a": 1}}, {"type": "function"}, {}),
        ({"name": "look", "args": {"a": 1}, "type": "tool_call"}, {"type": "tool_call"}, {}),
        ({"function": {"name": "look", "input": {"a": 1}, "strict": True}}, {}, {"strict": True}),
    ],
)
def test_keys_of_a_call_have_one_place(call, outer, inner):
    found = read_conversation({"messages": [ASK, {"role": "assistant", "tool_calls": [call]}]})
    assert found is not None
    (read,) = found.messages[1]["tool_calls"]
    assert read == {**outer, "function": {**inner, "name": "look", "arguments": {"a": 1}}}
    tool = {"type": "function", "name": "look", "parameters": {}, "strict": True}
    wanted = {"type": "function", "function": {"name": "look", "parameters": {}, "strict": True}}
    assert read_tools([tool]) == [wanted]


def test_calls_without_an_object_around_name_and_arguments(tmp_path: Path) -> None:
    template = (
        "{% for m in messages %}[{{ m.role }}]{{ m.content or '' }}{% for c in m.tool_calls or [] %}"
        "<call>{{ c.name }}{{ c.arguments | tojson }}{% endfor %}<|end|>{% endfor %}"
    )
    call = {"function": {"name": "look", "arguments": {"at": "sea"}}}
    row = {"messages": [ASK, says("", tool_calls=[call])]}
    assert '<call>look{"at": "sea"}<|end|>}}' in one_text(tmp_path, row, template)[0]


def test_a_template_that_demands_a_result_after_a_call(tmp_path: Path) -> None:
    demands = "{% if messages[-1].tool_calls %}{{ raise_exception('no result') }}{% endif %}"
    call = {"role": "assistant", "content": "", "tool_calls": [{"name": "look", "arguments": {}}]}
    row = {"messages": [ASK, call, {"role": "tool", "content": "7"}, says("Seven.")]}
    text, said = one_text(tmp_path, row, demands + TEMPLATE)
    assert '[assistant]{{<call>{"name": "look", "arguments": {}}<|end|>}}[tool]7' in text
    assert said is None


def test_a_template_that_demands_a_system_message(tmp_path: Path) -> None:
    """Its forms are found all the same, and what it reads is not said to be left out."""
    demands = "{% if messages[0].role != 'system' %}{{ raise_exception('no system') }}{% endif %}"
    template = demands + TEMPLATE.replace("reasoning_content", "thinking")
    row = {"system": "S", "messages": [ASK, says("Yes.", reasoning="Hm.")], "tools": TOOLS}
    text, said = one_text(tmp_path, row, template)
    assert text.endswith("[assistant]{{<think>Hm.</think>Yes.<|end|>}}")
    assert said is None


def test_variables_of_the_row_decide_what_a_template_reads(tmp_path: Path) -> None:
    template = TEMPLATE.replace("if m.reasoning_content", "if keep and m.thinking").replace(
        "{{ m.reasoning_content }}", "{{ m.thinking }}"
    )
    answer = says("Yes.", thinking="Hm.")
    row = {"messages": [ASK, answer], "chat_template_kwargs": {"keep": True}}
    assert one_text(tmp_path, row, template) == (
        "[user]Is it?<|end|>[assistant]{{<think>Hm.</think>Yes.<|end|>}}",
        None,
    )
    said = one_text(tmp_path, {"messages": [ASK, answer]}, template)[1]
    assert said == "Not read: thinking in 1 turn"


@pytest.mark.parametrize(
    ("row", "left"),
    [
        (
            {"messages": ROUNDS, "documents": {"a": 1}, "chosen": "x", "conversation": "y", "prompt": "z"},
            None,
        ),
        ({"prompt": "Hi.", "chosen": "Ho.", "rejected": "No.", "response": "x", "input": "y"}, None),
        (
            {"question": "Hi.", "answer": "Ho.", "messages": {}, "conversations": {"a": "b"}},
            {"conversations"},
        ),
    ],
)
def test_keys_of_other_formats_are_named(row: dict[str, Any], left: set[str] | None) -> None:
    found = read_conversation(row)
    assert found is not None
    used = {"messages", "question", "answer", "chosen", "rejected", "prompt"}
    if row.get("messages"):
        used = {"messages"}
    assert set(found.unread) == (left or set(row) - used)


@pytest.mark.parametrize(
    "row",
    [
        {"question": "Hi.", "chosen": "Ho.", "rejected": "No."},
        {"instruction": "Hi.", "input": "", "chosen": "Ho.", "rejected": "No."},
        {"prompt": '[{"role": "user", "content": "Hi."}]', "completion": "Ho."},
        {"prompt": "Hi.", "chosen": '[{"role": "assistant", "content": "Ho."}]', "rejected": "[]"},
        {"messages": ['{"role": "user", "content": "Hi."}', '{"role": "assistant", "content": "Ho."}']},
        {"messages": [], "prompt": "Hi.", "response": "Ho."},
        {"messages": {"role": ["user", "assistant"], "content": ["Hi.", "Ho."], "name": None}},
        {"conversations": [{"assistant": "Ho.", "human": "Hi."}]},
        {"messages": [{"role": "user", "content": {"type": ["text"], "text": ["Hi."]}}, ROUNDS[1]]},
    ],
)
def test_relatives_of_the_usual_rows(row: dict[str, Any]) -> None:
    found = read_conversation(row)
    assert found is not None
    assert [(turn["role"], turn["content"]) for turn in found.messages] == [
        ("user", "Hi."),
        ("assistant", "Ho."),
    ]


def test_weights_thinking_and_parts_that_are_not_usual(tmp_path: Path) -> None:
    call = {"from": "function_call", "value": '{"name": "look", "arguments": {}}', "weight": 0}
    found = read_conversation({"conversations": [{"from": "human", "value": "Hi."}, call]})
    assert found is not None
    assert found.messages[1]["loss_weight"] == 0
    thought = {"role": "assistant", "content": "Yes.", "reasoning_content": [{"type": "text", "text": "Hm."}]}
    assert "<think>Hm.</think>Yes." in one_text(tmp_path, {"messages": [ASK, thought]})[0]
    with pytest.raises(DataError, match="thinking of a turn is not text"):
        read_conversation({"messages": [ASK, {**thought, "reasoning_content": 5}]})
    part = {"type": "text", "text": "Is it?", "cache_control": {"type": "ephemeral"}}
    answer = {"role": "assistant", "content": "Yes.", "weight": 0.5}
    said = one_text(tmp_path, {"messages": [{"role": "user", "content": [part]}, answer]})[1]
    assert said == "Not read: cache_control of parts in 1 turn, weight in 1 turn"


def test_names_of_the_row_that_python_has_too(tmp_path: Path) -> None:
    row = {"messages": [ASK, says("Y")], "chat_template_kwargs": {"self": 1, "tool": 2}}
    said = one_text(tmp_path, row)[1]
    assert said == "Not read: self of chat_template_kwargs in 1 row, tool of chat_template_kwargs in 1 row"


@pytest.mark.parametrize(
    "row",
    [
        {
            "instruction": "Add.",
            "input": "3 and 4",
            "output": "7",
            "history": [["Hi.", "Ho."]],
            "system": "S",
        },
        {
            "instruction": "Add.",
            "context": "3 and 4",
            "response": "7",
            "history": [["Hi.", "Ho."]],
            "system": "S",
        },
        {
            "question": "Add.\n3 and 4",
            "response": "7",
            "system_prompt": "S",
            "history": [{"role": "user", "content": "Hi."}, says("Ho.")],
        },
        {
            "prompt": "Add.\n3 and 4",
            "completion": "7",
            "system_message": "S",
            "history": [{"instruction": "Hi.", "output": "Ho."}],
        },
        {
            "system": "S",
            "conversations": [{"human": "Hi.", "gpt": "Ho."}, {"human": "Add.\n3 and 4", "gpt": "7"}],
        },
        {"system": "S", "conversation": ["Hi.", "Ho.", "Add.\n3 and 4", "7"]},
        {"messages": json.dumps([{"role": "system", "content": "S"}, *ROUNDS])},
    ],
)
def test_system_texts_and_earlier_rounds_are_in_the_conversation(tmp_path: Path, row: dict[str, Any]) -> None:
    assert one_text(tmp_path, row) == (
        "[system]S<|end|>[user]Hi.<|end|>[assistant]{{Ho.<|end|>}}"
        "[user]Add.\n3 and 4<|end|>[assistant]{{7<|end|>}}",
        None,
    )


def test_a_rows_own_names_for_the_template(tmp_path: Path) -> None:
    template = "{% if mood is defined %}({{ mood }}){% endif %}" + TEMPLATE
    tokenizer = load_tokenizer(byte_tokenizer(tmp_path / "t", template=template))
    talk = [ASK, YES]
    rows = [
        {"messages": talk, "chat_template_kwargs": {"mood": "calm"}},
        {"messages": talk, "chat_template_kwargs": '{"mood": "wild", "depth": 3}'},
        {"messages": talk},
    ]
    problems = Problems()
    found = texts(tokenizer, write_rows(tmp_path / "a.jsonl", rows), problems, variables={"mood": "flat"})
    assert [text.partition("[")[0] for text in found] == ["(calm)", "(wild)", "(flat)"]
    assert problems.summary() == "Not read: depth of chat_template_kwargs in 1 row"
    for value, words in (
        ({"messages": []}, "a place of its own"),
        ([1], "not an object"),
        ("{", "valid JSON"),
    ):
        problems = Problems(shown=0)
        file = write_rows(tmp_path / "b.jsonl", [{"messages": talk, "chat_template_kwargs": value}, rows[0]])
        assert len(texts(tokenizer, file, problems)) == 1
        assert words in str(problems.summary())


def test_contents_are_given_as_the_template_wants_them(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(byte_tokenizer(tmp_path / "t", template=PARTS_ONLY))
    wanted = "[user]Is it?<|end|>[assistant]{{Yes.<|end|>}}"
    parts = [{"type": "text", "text": "Is "}, {"type": "text", "text": "it?"}]
    for content in ("Is it?", parts):
        row = {"messages": [{"role": "user", "content": content}, YES]}
        assert texts(tokenizer, write_rows(tmp_path / "a.jsonl", [row])) == [wanted]
    assert tokenizer.decode(encode_prompt(tokenizer, [ASK])) == "[user]Is it?[assistant]"
    assert texts(tokenizer, tmp_path / "a.jsonl", content_format="parts") == [wanted]
    with pytest.raises(DataError, match=r"does not write the user's texts(.|\n)*content format text"):
        texts(tokenizer, tmp_path / "a.jsonl", content_format="text")


@pytest.mark.parametrize(
    ("template", "what"),
    [
        ("{% for m in messages %}{{ m.text }}{% endfor %}", "the user's texts"),
        (
            "{% for m in messages %}{{ m.content if m.role == 'user' else '-' }}{% endfor %}",
            "the assistant's",
        ),
    ],
)
def test_a_template_that_leaves_out_what_is_said_ends_the_work(tmp_path, template, what):
    tokenizer = load_tokenizer(byte_tokenizer(tmp_path / "t", template=template))
    file = write_rows(tmp_path / "a.jsonl", [{"messages": [ASK, YES]}])
    with pytest.raises(DataError, match=f"does not write {what}(.|\n)*render alike") as refused:
        texts(tokenizer, file)
    assert refused.value.source == tmp_path / "t"
    with pytest.raises(DataError, match=f"does not write {what}"):
        encode_prompt(tokenizer, [ASK])


def test_the_template_of_conversations_with_tools(tmp_path: Path) -> None:
    plain, tools = "P" + TEMPLATE, "T" + TEMPLATE
    talk = [ASK, YES]
    rows = [{"messages": talk, "tools": TOOLS}, {"messages": talk}]
    file = write_rows(tmp_path / "a.jsonl", rows)
    named = [{"name": "default", "template": plain}, {"name": "tool_use", "template": tools}]
    byte_tokenizer(tmp_path / "list", template=named)  # type: ignore[arg-type]
    folder = byte_tokenizer(tmp_path / "files", template=None)
    (folder / "chat_template.jinja").write_text(plain)
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text(tools)
    for name in ("list", "files"):
        tokenizer = load_tokenizer(tmp_path / name)
        assert [text[0] for text in texts(tokenizer, file)] == ["T", "P"]
        digest = tokenizer.templates_digest
        assert digest != replace(tokenizer, named_templates={}).templates_digest
    byte_tokenizer(tmp_path / "tools", template=named[1:])  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"no default chat template(.|\n)*templates named tool_use"):
        texts(load_tokenizer(tmp_path / "tools"), file)


def test_every_special_token_reaches_the_template(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    names = ("bos_token", "sep_token", "cls_token", "mask_token", "pad_token", "image_token", "nothing_token")
    template = "".join(f"({{{{ {name} }}}})" for name in names) + TEMPLATE
    folder = byte_tokenizer(
        tmp_path / "t",
        template=template,
        tokenizer_class="PreTrainedTokenizerFast",
        sep_token="<|end|>",
        cls_token={"content": "<|bos|>", "__type": "AddedToken"},
        pad_token=None,
        extra_special_tokens={"image_token": "<|end|>"},
    )
    theirs = AutoTokenizer.from_pretrained(folder).apply_chat_template([ASK], tokenize=False)
    assert load_tokenizer(folder).render([ASK]) == theirs
    assert theirs.startswith("(<|bos|>)(<|end|>)(<|bos|>)()()(<|end|>)()")


def test_added_tokens_beyond_the_models_rows(tmp_path: Path) -> None:
    folder = byte_tokenizer(tmp_path / "t", template=TEMPLATE)
    whole = load_tokenizer(folder)
    beyond = whole.decode([whole.vocab_size - 1], skip_special=False)
    (folder / "config.json").write_text(json.dumps({"vocab_size": whole.vocab_size - 1}))
    tokenizer = load_tokenizer(folder)
    assert (tokenizer.vocab_size, tokenizer.beyond) == (whole.vocab_size - 1, (beyond,))
    talks = [[ASK, {"role": "assistant", "content": text}] for text in ("Yes.", f"See {beyond}.")]
    problems = Problems(shown=0)
    rows = [*({"messages": talk} for talk in talks), {"text": f"A {beyond}"}, {"text": "A text."}]
    assert len(texts(tokenizer, write_rows(tmp_path / "a.jsonl", rows), problems)) == 2
    assert problems.total == 2
    assert beyond in str(problems.summary())
    with pytest.raises(DataError, match=r"without a row in the model"):
        encode_prompt(tokenizer, f"See {beyond}")
    # Ordinary tokens without a row: this is another model's tokenizer, which checks against the model refuse.
    (folder / "config.json").write_text(json.dumps({"vocab_size": 100}))
    assert load_tokenizer(folder).vocab_size == whole.vocab_size


def table_rows() -> list[dict[str, Any]]:
    """Rows whose structs differ: a table pads them with nulls; one null is written."""

    def row(name: str, arguments: dict[str, Any], properties: dict[str, Any]) -> dict[str, Any]:
        tool = {"name": name, "parameters": {"type": "object", "properties": properties}}
        call = {"type": "function", "function": {"name": name, "arguments": arguments}}
        return {
            "messages": [ASK, says("", tool_calls=[call])],
            "tools": [{"type": "function", "function": tool}],
            "chat_template_kwargs": {"enable_thinking": True},
        }

    return [
        row("look", {"at": "sea", "limit": None}, {"at": {"type": "string", "default": None}}),
        row("play", {"limit": None, "genre": "waltz"}, {"genre": {"type": "string"}}),
    ]


def test_tables_give_the_rows_that_they_were_made_from(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    datasets = pytest.importorskip("datasets")
    tokenizer = load_tokenizer(byte_tokenizer(tmp_path / "t", template="{{ enable_thinking }}" + TEMPLATE))
    rows = table_rows()
    wanted = texts(tokenizer, write_rows(tmp_path / "rows.jsonl", rows))
    assert '"limit": null' in wanted[0]
    assert '"at"' not in wanted[1]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    json_type = datasets.Json()
    features = datasets.Features(
        {
            "messages": datasets.List(json_type),
            "tools": datasets.List(json_type),
            "chat_template_kwargs": json_type,
        }
    )
    typed = datasets.Dataset.from_list(rows, features=features)
    typed.to_parquet(tmp_path / "json.parquet")
    typed.save_to_disk(tmp_path / "typed")
    datasets.DatasetDict({"train": datasets.Dataset.from_list(rows)}).save_to_disk(tmp_path / "dict")
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "train.parquet").write_bytes((tmp_path / "rows.parquet").read_bytes())
    for source in ("rows.parquet", "json.parquet", "typed", "dict"):
        problems = Problems()
        assert texts(tokenizer, tmp_path / source, problems) == wanted, source
        assert problems.summary() is None, source
    assert texts(tokenizer, f"hub:{tmp_path / 'hub'}") == wanted


def test_damaged_arrow_files(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from vocabforge.corpus.sources.sources import iter_documents

    table = pa.table({"text": [f"text {n}" for n in range(400)], "vector": [[1.0, 2.0]] * 400})
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=100)
    found = list(iter_documents([tmp_path / "a.arrow"], SourceOptions()))
    assert [one.text for one in found] == table["text"].to_pylist()
    assert [one.line for one in found] == list(range(1, 401))
    whole = (tmp_path / "a.arrow").read_bytes()
    for data in (whole[: len(whole) // 2], b"x" * 60):
        (tmp_path / "a.arrow").write_bytes(data)
        with pytest.raises(DataError, match=r"damaged or not Arrow(.|\n)*a\.arrow"):
            list(iter_documents([tmp_path / "a.arrow"], SourceOptions()))


@pytest.mark.parametrize(
    ("row", "roles"),
    [
        ({"turns": ["Hi.", "And?"], "question_id": 3}, ["user", "user"]),
        ({"turns": ["Hi."]}, ["user"]),
        ({"prompt": "Hi.", "response": "Ho.", "turns": ["x"]}, ["user", "assistant"]),
        ({"messages": ROUNDS[:2], "turns": ["x"]}, ["user", "assistant"]),
        ({"text": "A text.", "turns": ["x"]}, None),
        ({"turns": [3]}, None),
        ({"turns": []}, None),
    ],
)
def test_questions_alone_are_the_users(row: dict[str, Any], roles: list[str] | None) -> None:
    found = read_conversation(row)
    assert (found and [message["role"] for message in found.messages]) == roles


def test_turns_that_a_field_names_may_also_be_a_conversation(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.jsonl", [{"turns": ROUNDS[:2]}, {"turns": ["Hi.", "And?"]}])
    options = SourceOptions(text_field="turns")
    documents = list(iter_documents(expand_paths([path]), options))
    assert [[m["role"] for m in one.messages or ()] for one in documents] == [
        ["user", "assistant"],
        ["user", "user"],
    ]
