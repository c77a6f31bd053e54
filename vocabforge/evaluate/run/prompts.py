"""Turn a benchmark's turns into prompt token ids, including the model's own earlier answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...core.errors import DataError, UsageError
from ...corpus.tokenizer.prompt_format import PromptFormat
from ...corpus.tokenizer.tokenizer import TextTokenizer, encode_prompt

if TYPE_CHECKING:
    from ..benchmarks import Question


def system_of(question: Question, given: str | None) -> str | None:
    """Return the system message: the question's own, otherwise ``given``; None if it is empty."""
    return None if given == "" else question.system or given


def check_system(
    tokenizer: TextTokenizer,
    prompt_format: PromptFormat,
    given: str | None,
    questions: Sequence[Question] = (),
) -> None:
    """Check before loading anything that the prompts would include the system message.

    In ``raw``, system messages of questions are dropped, but ``given`` by the user is an error.

    Raises:
        UsageError: the message cannot be part of a prompt, or the chat template rejects or omits it.
    """
    if prompt_format == "raw":
        refuse_raw(given)
        return
    for system in dict.fromkeys([given, *(system_of(question, given) for question in questions)]):
        if system:
            _check_shown(tokenizer, system, "--system" if system == given else "the benchmark's questions")


def refuse_raw(system: str | None) -> None:
    """Raise UsageError if the user gives a raw prompt a system message."""
    if system:
        raise UsageError(
            "a raw prompt has no place for a system message",
            got=repr(system),
            source="--system",
            remedy="leave --system out, or use --prompt-format chat with a model that has a chat template",
        )


def _check_shown(tokenizer: TextTokenizer, system: str, source: str) -> None:
    user = {"role": "user", "content": "Hello"}
    without = tokenizer.render([user], add_generation_prompt=True)
    try:
        shown = tokenizer.render([{"role": "system", "content": system}, user], add_generation_prompt=True)
    except DataError as error:
        got = f"it refuses one: {error.got}"
    else:
        if shown != without:
            return
        got = "it leaves it out"
    raise UsageError(
        "the chat template has no place for a system message",
        got=got,
        expected=f"a prompt with {system!r}, which comes from {source}",
        source=f"chat template of {tokenizer.source.parent}",
        remedy="leave --system out" if source == "--system" else "ask without system messages: --system ''",
    )


class PromptBuilder:
    """Prompts of a conversation with a method: ``ask``, generate, ``answer``, ``ask`` again.

    ``chat`` renders the whole history with the chat template each time (as in Spec-Bench, with answers as
    stripped text). ``raw`` is for base models: it concatenates the token ids of texts and answers. Later
    turns start on a new line, and system messages are dropped.
    """

    def __init__(
        self, tokenizer: TextTokenizer, prompt_format: PromptFormat, system: str | None = None
    ) -> None:
        self._tokenizer = tokenizer
        self._format = prompt_format
        self._messages = [{"role": "system", "content": system}] if system else []
        self._ids: list[int] = []

    def ask(self, text: str) -> list[int]:
        """Return the prompt's token ids for the next user turn.

        Raises:
            DataError: the chat template rejects the conversation, or the prompt has no tokens.
        """
        self._messages.append({"role": "user", "content": text})
        if self._format == "chat":
            # Templates include the BOS token: adding special tokens would duplicate it.
            return encode_prompt(self._tokenizer, self._messages)
        if self._ids:
            self._ids += self._tokenizer.encode("\n" + text, add_special=False)
        else:
            self._ids = list(encode_prompt(self._tokenizer, text))
        return list(self._ids)

    def answer(self, token_ids: Sequence[int], text: str) -> None:
        """Append the model's answer; stop tokens are excluded from the raw history."""
        self._messages.append({"role": "assistant", "content": text})
        if self._format == "raw":
            self._ids += [token for token in token_ids if token not in self._tokenizer.eos_ids]


def longest_conversation(
    question: Question,
    tokenizer: TextTokenizer,
    prompt_format: PromptFormat,
    system: str | None,
    max_new_tokens: int,
) -> int:
    """Return the maximum number of positions of a question: all turns, each answered up to the limit."""
    conversation = PromptBuilder(tokenizer, prompt_format, system)
    positions = 0
    for number, text in enumerate(question.turns, start=1):
        positions = len(conversation.ask(text)) + number * max_new_tokens
        conversation.answer((), "")
    return positions
