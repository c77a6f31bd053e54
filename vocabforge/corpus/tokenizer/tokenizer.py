"""Load ``tokenizer.json`` and its companion files: end tokens, chat template, fingerprint."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from ...core.errors import DataError, MismatchError
from ..chat.forms import ContentFormat, TemplateForms, find_forms
from ..chat.template import render_template
from .files import (
    added_tokens,
    eos_ids_of,
    find_tokenizer_json,
    load_backend,
    model_rows,
    prefix_ids_of,
    read_chat_templates,
    read_side_files,
    special_texts,
)


def check_fingerprint(
    expected: str, got: str, *, expected_from: object, got_from: object, remedy: str | None = None
) -> None:
    """Check that two inputs were made with the same tokenizer; ``*_from`` name their origins.

    Raises:
        MismatchError: the fingerprints differ.
    """
    if expected != got:
        raise MismatchError(
            "these were made with different tokenizers, so their token ids mean different things",
            got=f"tokenizer {got[:16]}… of {got_from}",
            expected=f"tokenizer {expected[:16]}… of {expected_from}",
            remedy=remedy or "make both with the target's own tokenizer.json",
        )


def fingerprint_of(whole: Mapping[str, Any]) -> str:
    """Return the hex SHA-256 of a tokenizer's normaliser, pre-tokeniser, model and added tokens.

    Truncation, padding, decoder, post-processor and offset flags are excluded: tools that re-save a tokenizer
    write them differently, and the ids of a text do not depend on them.
    """
    added_keys = ("id", "content", "single_word", "lstrip", "rstrip", "normalized")
    body = {
        "normalizer": whole.get("normalizer"),
        "pre_tokenizer": _without(whole.get("pre_tokenizer"), "trim_offsets"),
        "model": whole["model"],
        "added_tokens": [
            {key: token.get(key) for key in added_keys} for token in whole.get("added_tokens") or ()
        ],
    }
    text = json.dumps(body, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def structure_of(whole: Mapping[str, Any]) -> dict[str, Any]:
    """Return a ``tokenizer.json`` without the vocabulary and merges, which are most of its size."""
    model = {key: value for key, value in whole["model"].items() if key not in ("vocab", "merges")}
    return {**whole, "model": model}


def _without(value: Any, key: str) -> Any:
    if isinstance(value, dict):
        return {name: _without(item, key) for name, item in value.items() if name != key}
    if isinstance(value, list):
        return [_without(item, key) for item in value]
    return value


@dataclass(frozen=True, eq=False)
class TextTokenizer:
    """Tokenizer with the properties that counting, training and decoding need.

    Attributes:
        backend: ``tokenizers`` object, without truncation and padding.
        structure: its JSON, see :func:`structure_of`.
        vocab_size: highest token id + 1, excluding ``beyond`` (a model's embedding may have padded rows).
        eos_ids: end tokens of the tokenizer and of ``generation_config.json`` (or else ``config.json``).
        control_ids: special added tokens used in the chat template.
        tool_ids: other added tokens used in the chat template (tool calls, thinking).
        prefix_ids: ids added before a text (usually BOS), may be empty.
        special_text: token texts available to templates (``bos_token``, ...).
        chat_template: default chat template.
        named_templates: other templates by name; ``tool_use`` is used for conversations with a tool list.
        content_format: form of message contents passed to templates; ``auto`` detects it.
        beyond: texts of added tokens without a row in the tokenizer's model, such as image tokens; a text
            that contains one is rejected.
    """

    backend: Tokenizer
    structure: Mapping[str, Any]
    source: Path
    vocab_size: int
    fingerprint: str
    bos_id: int | None
    eos_ids: tuple[int, ...]
    control_ids: tuple[int, ...]
    tool_ids: tuple[int, ...]
    chat_template: str | None
    prefix_ids: tuple[int, ...]
    special_text: Mapping[str, str]
    named_templates: Mapping[str, str] = field(default_factory=dict)
    content_format: ContentFormat = "auto"
    beyond: tuple[str, ...] = ()

    def check_text(self, text: str) -> None:
        """Reject a text that contains a token without a row in the model.

        Raises:
            DataError: the text contains a token of :attr:`beyond`.
        """
        for token in self.beyond:
            # A longer token of the model may begin with it.
            if (
                token in text
                and max(self.backend.encode(text, add_special_tokens=False).ids) >= self.vocab_size
            ):
                raise DataError(
                    f"the text contains {token}, an added token of the tokenizer without a row in the model",
                    got=f"an id beyond {self.vocab_size - 1:,}",
                    expected=f"ids below {self.vocab_size:,}",
                    source=self.source,
                    remedy="remove the token from the text; the model has no embedding for it",
                )

    def encode(self, text: str, *, add_special: bool = False) -> list[int]:
        """Return the token ids of a text; ``add_special`` prepends the tokenizer's prefix (BOS).

        Raises:
            DataError: see :meth:`check_text`; the other encoding methods also raise it.
        """
        self.check_text(text)
        ids: list[int] = self.backend.encode(text, add_special_tokens=False).ids
        return self._with_prefix(ids) if add_special else ids

    def encode_batch(self, texts: Sequence[str], *, add_special: bool = False) -> list[list[int]]:
        """Return the token ids of several texts, encoded on all cores; see :meth:`encode`."""
        for text in texts if self.beyond else ():
            self.check_text(text)
        rows = [row.ids for row in self.backend.encode_batch_fast(list(texts), add_special_tokens=False)]
        return [self._with_prefix(ids) for ids in rows] if add_special else rows

    def _with_prefix(self, ids: list[int]) -> list[int]:
        prefix = list(self.prefix_ids)
        # Do not add a second prefix to a text that already begins with it.
        return ids if prefix and ids[: len(prefix)] == prefix else prefix + ids

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Return ids without special tokens, and each token's (start, end) in characters of ``text``."""
        self.check_text(text)
        row = self.backend.encode(text, add_special_tokens=False)
        return row.ids, row.offsets

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Return the text of token ids."""
        return str(self.backend.decode(list(ids), skip_special_tokens=skip_special))

    def template_for(self, tools: Any) -> str:
        """Return the chat template for a conversation with this tool list: ``tool_use`` or the default.

        Raises:
            DataError: no such template.
        """
        template = self.named_templates.get("tool_use") if tools else None
        template = template or self.chat_template
        if template is None:
            names = ", ".join(self.named_templates)
            raise DataError(
                "the tokenizer has no default chat template, so a conversation cannot be rendered"
                if names
                else "the tokenizer has no chat template, so a conversation cannot be rendered",
                got=f"templates named {names}" if names else None,
                expected="chat_template.jinja, or chat_template in tokenizer_config.json",
                source=self.source.parent,
                remedy=f"save one of them as chat_template.jinja in the tokenizer's folder: {names}"
                if names
                else "use the instruction-tuned model's tokenizer folder, or plain text",
            )
        return template

    @property
    def templates_digest(self) -> str | None:
        """Hex SHA-256 of the chat template, or of all if there are several; None without templates."""
        if not self.named_templates:
            text = self.chat_template
        else:
            named = {**self.named_templates, "default": self.chat_template}
            text = json.dumps(named, sort_keys=True)
        return None if text is None else hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

    def forms(self, tools: Any = None, variables: Mapping[str, Any] | None = None) -> TemplateForms:
        """Return how the template for this tool list reads messages.

        Raises:
            DataError: no template, a syntax error, or a template that omits user or assistant contents.
        """
        return find_forms(
            self.template_for(tools),
            {**self.special_text, **(variables or {}), "tools": None, "documents": None},
            tools=bool(tools),
            content=self.content_format,
            source=self.source.parent,
        )

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,
        *,
        add_generation_prompt: bool = False,
        **variables: Any,
    ) -> str:
        """Render a conversation as text; ``variables`` are additional template variables (``tools``, ...).

        Raises:
            DataError: no template, or the template omits message contents or rejects the conversation.
        """
        tools = variables.get("tools")
        return render_template(
            self.template_for(tools),
            self.forms(tools, variables).shape(messages),
            add_generation_prompt=add_generation_prompt,
            variables={**self.special_text, **variables},
            source=self.source.parent,
        )


def encode_prompt(
    tokenizer: TextTokenizer, prompt: str | Sequence[Mapping[str, Any]], **variables: Any
) -> list[int]:
    """Return the token ids of a prompt for the target.

    A text gets the tokenizer's prefix; a conversation is rendered with the header of the assistant's turn.

    Raises:
        DataError: a conversation without a chat template, or a prompt without tokens.
    """
    if isinstance(prompt, str):
        ids = tokenizer.encode(prompt, add_special=True)
    else:
        ids = tokenizer.encode(tokenizer.render(prompt, add_generation_prompt=True, **variables))
    if not ids:
        raise DataError(
            "the prompt has no tokens", got=repr(prompt), remedy="give a prompt of at least one token"
        )
    return ids


def load_tokenizer(
    path: Path, content_format: ContentFormat = "auto", *, rows: int | None = None
) -> TextTokenizer:
    """Load a ``tokenizer.json`` (file or folder) with its companion configuration files.

    ``content_format`` is the form of message contents passed to the chat template. ``rows`` is the model's
    number of rows, by default from config.json in the same folder.

    Raises:
        DataError: no tokenizer.json, broken JSON, or content that the tokenizers library rejects.
    """
    file = find_tokenizer_json(Path(path))
    backend = load_backend(file)
    beside = read_side_files(file.parent)
    special = special_texts(beside)
    whole = json.loads(backend.to_str())
    vocab = backend.get_vocab(with_added_tokens=True)
    if not vocab:
        raise DataError("the tokenizer has no tokens", source=file, remedy="fetch or make it again")
    templates = read_chat_templates(file.parent, beside["tokenizer_config.json"])
    size, rows = max(vocab.values()) + 1, rows or model_rows(beside["config.json"])
    behind = {token_id for token_id in vocab.values() if rows is not None and token_id >= rows}
    beyond = {token_id: token.content for token_id, token in added_tokens(backend) if token_id in behind}
    if rows is None or len(beyond) != len(behind):  # ordinary tokens without a row: another model's tokenizer
        beyond = {}
    elif behind:
        size = rows
    written = [
        (token_id, token)
        for token_id, token in added_tokens(backend)
        if token_id < size and any(token.content in template for template in templates.values())
    ]
    prefix = prefix_ids_of(backend)
    return TextTokenizer(
        backend=backend,
        structure=structure_of(whole),
        source=file,
        vocab_size=size,
        fingerprint=fingerprint_of(whole),
        bos_id=vocab.get(special["bos_token"]) if "bos_token" in special else (prefix or (None,))[0],
        eos_ids=tuple(token for token in eos_ids_of(backend, beside, vocab) if not beyond or token < size),
        control_ids=tuple(token_id for token_id, token in written if token.special),
        tool_ids=tuple(token_id for token_id, token in written if not token.special),
        chat_template=templates.pop("default", None),
        prefix_ids=prefix,
        special_text=special,
        named_templates=templates,
        content_format=content_format,
        beyond=tuple(beyond.values()),
    )
