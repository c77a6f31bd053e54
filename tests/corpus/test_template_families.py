"""Rows of data sets in the chat template of each well-known family: text, loss mask, what is not read.

``template_families/FAMILY.json`` holds a template (as lines) with the features and the output format of its
family, and cases. No text of a published template was copied. Keys of a case:

- ``row``: a row as users have it; ``options``: of :class:`ChatOptions`.
- ``text``, ``marked``: the text, and the text with the learnt spans in ``[[ ]]``. ``answers: each`` has lists
  of them, and ``stops``: the number of messages of each.
- ``unread``: what is not read.
- ``transformers``: messages, tools and variables in the template's own form, when the row has another one.
- ``error``: part of the refusal, in place of a text. Transformers refuses too, unless ``transformers``
  is null.
- ``ends``: the end tokens of generation_config.json.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.worlds import byte_tokenizer
from vocabforge.core.errors import DataError
from vocabforge.corpus.chat.render import ChatOptions, RenderedChat, render_chats
from vocabforge.corpus.sources.bytes import Problems
from vocabforge.corpus.sources.document import Document, SourceOptions
from vocabforge.corpus.sources.rows import row_document
from vocabforge.corpus.tokenizer.tokenizer import TextTokenizer, load_tokenizer

FAMILIES = Path(__file__).parent / "template_families"


def all_cases() -> Iterator[Any]:
    """A parameter for each family and case."""
    for file in sorted(FAMILIES.glob("*.json")):
        family = json.loads(file.read_text("utf-8"))
        for case in family["cases"]:
            yield pytest.param(family, case, id=f"{family['family']}-{case['name']}")


def family_folder(folder: Path, family: Mapping[str, Any], ends: list[str] | None = None) -> Path:
    """Write the family's tokenizer: bytes, and its tokens as special ones."""
    from tokenizers import AddedToken, Tokenizer

    def joined(lines: list[str]) -> str:
        return "\n".join(lines)

    named = family.get("named_templates", {})
    template: Any = [{"name": name, "template": joined(lines)} for name, lines in named.items()]
    if "template" in family:
        template = joined(family["template"])
    special = {"tokenizer_class": "PreTrainedTokenizerFast", **family.get("special", {})}
    byte_tokenizer(folder, template=template, **special)
    backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.add_special_tokens([AddedToken(token, normalized=False) for token in family["tokens"]])
    backend.save(str(folder / "tokenizer.json"))
    if ends is not None:
        side = {"eos_token_id": [backend.token_to_id(token) for token in ends]}
        (folder / "generation_config.json").write_text(json.dumps(side), "utf-8")
    return folder


def options_of(case: Mapping[str, Any]) -> ChatOptions:
    """The options of a case."""
    options = dict(case.get("options", {}))
    if "thinking_tags" in options:
        options["thinking_tags"] = tuple(options["thinking_tags"])
    return ChatOptions(**options)


def read_row(row: Mapping[str, Any]) -> Document:
    """The document of a row; what is wrong with it raises."""
    document = row_document(row, Path("rows.jsonl"), 1, SourceOptions(), Problems(strict=True))
    assert document is not None
    assert document.messages is not None
    return document


def render_row(tokenizer: TextTokenizer, case: Mapping[str, Any]) -> list[RenderedChat]:
    """The renderings of a case's row."""
    document = read_row(case["row"])
    chats = render_chats(
        tokenizer,
        document.messages or [],
        options_of(case),
        tools=document.tools,
        variables=document.variables,
    )
    return list(chats)


def marked(chat: RenderedChat) -> str:
    """The text with its learnt spans in ``[[ ]]``."""
    text, at = "", 0
    for start, end in chat.spans:
        text += f"{chat.text[at:start]}[[{chat.text[start:end]}]]"
        at = end
    return text + chat.text[at:]


def as_list(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


class Reference:
    """Transformers on the messages of a case, in the template's own form."""

    def __init__(self, folder: Path, case: Mapping[str, Any]) -> None:
        import transformers

        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        row = case["row"]
        given = case.get("transformers") or {"messages": row["messages"], "tools": row.get("tools")}
        self.messages = given["messages"]
        self.names = {
            **case.get("options", {}).get("variables", {}),
            **(row.get("chat_template_kwargs") or {}),
            **given.get("variables", {}),
            "tools": given.get("tools"),
            "documents": row.get("documents"),
        }

    def text(self, stop: int | None = None) -> str:
        """The first ``stop`` messages as text."""
        return self.tokenizer.apply_chat_template(self.messages[:stop], tokenize=False, **self.names)

    def ids(self, stop: int | None = None) -> list[int]:
        """The first ``stop`` messages as token ids."""
        return self.tokenizer.apply_chat_template(self.messages[:stop], return_dict=False, **self.names)


@pytest.mark.parametrize(("family", "case"), all_cases())
def test_a_row_in_its_family(tmp_path: Path, family: Mapping[str, Any], case: Mapping[str, Any]) -> None:
    """VocabForge's text, mask and unread keys are those of the case."""
    tokenizer = load_tokenizer(family_folder(tmp_path, family, case.get("ends")))
    if "error" in case:
        with pytest.raises(DataError) as refused:
            render_row(tokenizer, case)
        assert case["error"] in f"{refused.value.message} {refused.value.got}"
        return
    chats = render_row(tokenizer, case)
    assert [chat.text for chat in chats] == as_list(case["text"])
    assert [marked(chat) for chat in chats] == as_list(case["marked"])
    assert dict(chats[-1].unread) == case["unread"]


@pytest.mark.parametrize(("family", "case"), all_cases())
def test_its_text_in_transformers(tmp_path: Path, family: Mapping[str, Any], case: Mapping[str, Any]) -> None:
    """Transformers writes the text of the case, with the ids that VocabForge gives to that text."""
    if case.get("transformers", {}) is None:
        return
    folder = family_folder(tmp_path, family, case.get("ends"))
    reference = Reference(folder, case)
    if "error" in case:
        with pytest.raises(Exception, match=case["error"]):
            reference.text()
        return
    tokenizer = load_tokenizer(folder)
    for text, stop in zip(as_list(case["text"]), case.get("stops", [None]), strict=True):
        assert reference.text(stop) == text
        assert reference.ids(stop) == tokenizer.encode(text)


def test_every_text_is_its_marked_text_without_the_marks() -> None:
    """A golden text and its marked form agree, and something is learnt in each."""
    for parameter in all_cases():
        _, case = parameter.values
        if "error" in case:
            continue
        for text, with_marks in zip(as_list(case["text"]), as_list(case["marked"]), strict=True):
            assert with_marks.replace("[[", "").replace("]]", "") == text, parameter.id
            assert "[[" in with_marks, parameter.id
