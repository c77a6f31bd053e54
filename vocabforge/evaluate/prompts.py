"""From a benchmark's turns to prompt token ids, the model's own earlier answers fed back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from ..core.errors import UsageError
from ..corpus.tokenizer import TextTokenizer, encode_prompt

PromptFormat = Literal["chat", "raw"]
PROMPT_FORMATS = ("auto", "chat", "raw")


def resolve_format(tokenizer: TextTokenizer, wanted: str) -> PromptFormat:
    """``auto`` becomes ``chat`` where the tokenizer has a chat template, else ``raw``.

    Raises:
        UsageError: an unknown format, or ``chat`` without a template.
    """
    if wanted not in PROMPT_FORMATS:
        raise UsageError(
            "there is no prompt format of this name",
            got=wanted,
            expected=", ".join(PROMPT_FORMATS),
            source="--prompt-format",
        )
    if wanted == "chat" and tokenizer.chat_template is None:
        raise UsageError(
            "the tokenizer has no chat template",
            got=tokenizer.source,
            expected="chat_template.jinja or a chat_template in tokenizer_config.json",
            source="--prompt-format chat",
            remedy="add the template of the model, or use --prompt-format raw",
        )
    if wanted == "raw" or tokenizer.chat_template is None:
        return "raw"
    return "chat"


class Conversation:
    """One conversation with one method; ask, generate, ``answer``, ask again.

    ``chat`` renders the whole history through the chat template each time (as Spec-Bench does, answers as
    stripped text). ``raw`` is for base models: the token ids of text and answers simply follow each other,
    a later turn beginning on a new line.
    """

    def __init__(self, tokenizer: TextTokenizer, prompt_format: PromptFormat) -> None:
        self._tokenizer = tokenizer
        self._format = prompt_format
        self._messages: list[dict[str, str]] = []
        self._ids: list[int] = []

    def ask(self, text: str) -> list[int]:
        """The prompt's token ids for the next user turn."""
        self._messages.append({"role": "user", "content": text})
        if self._format == "chat":
            rendered = self._tokenizer.render(self._messages, add_generation_prompt=True)
            # Templates write their own BOS: adding special tokens here would double it.
            return list(self._tokenizer.encode(rendered, add_special=False))
        if self._ids:
            self._ids += self._tokenizer.encode("\n" + text, add_special=False)
        else:
            self._ids = list(encode_prompt(self._tokenizer, text))
        return list(self._ids)

    def answer(self, token_ids: Sequence[int], text: str) -> None:
        """Feed the model's answer back; stop tokens are left out of the raw history."""
        self._messages.append({"role": "assistant", "content": text})
        if self._format == "raw":
            self._ids += [token for token in token_ids if token not in self._tokenizer.eos_ids]
