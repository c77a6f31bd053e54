"""From a benchmark's turns to prompt token ids, the model's own earlier answers fed back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...core.errors import DataError, UsageError
from ...corpus.tokenizer.prompt_format import PromptFormat
from ...corpus.tokenizer.tokenizer import TextTokenizer, encode_prompt

if TYPE_CHECKING:
    from ..benchmarks import Question


def system_of(question: Question, given: str | None) -> str | None:
    """A conversation's system message: the question's own, else the user's ``given``; none if that is empty."""
    return None if given == "" else question.system or given


def check_system(
    tokenizer: TextTokenizer,
    prompt_format: PromptFormat,
    given: str | None,
    questions: Sequence[Question] = (),
) -> None:
    """Refuse, before anything is loaded, a system message that no prompt would show.

    In ``raw``, system messages of the questions are left out; the user's ``given`` one is refused.

    Raises:
        UsageError: the message cannot be in a prompt, or the chat template refuses it or leaves it out.
    """
    if prompt_format == "raw":
        refuse_raw(given)
        return
    for system in dict.fromkeys([given, *(system_of(question, given) for question in questions)]):
        if system:
            _check_shown(tokenizer, system, "--system" if system == given else "the benchmark's questions")


def refuse_raw(system: str | None) -> None:
    """Raises: UsageError: the user gives a raw prompt a system message."""
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
    """One conversation with one method; ask, generate, ``answer``, ask again.

    ``chat`` renders the whole history through the chat template each time (as Spec-Bench does, answers as
    stripped text). ``raw`` is for base models: the token ids of text and answers simply follow each other,
    a later turn beginning on a new line; a system message is left out.
    """

    def __init__(
        self, tokenizer: TextTokenizer, prompt_format: PromptFormat, system: str | None = None
    ) -> None:
        self._tokenizer = tokenizer
        self._format = prompt_format
        self._messages = [{"role": "system", "content": system}] if system else []
        self._ids: list[int] = []

    def ask(self, text: str) -> list[int]:
        """The prompt's token ids for the next user turn.

        Raises:
            DataError: the chat template refuses the conversation, or the prompt has no tokens.
        """
        self._messages.append({"role": "user", "content": text})
        if self._format == "chat":
            # Templates write their own BOS: adding special tokens here would double it.
            return encode_prompt(self._tokenizer, self._messages)
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


def longest_conversation(
    question: Question,
    tokenizer: TextTokenizer,
    prompt_format: PromptFormat,
    system: str | None,
    max_new_tokens: int,
) -> int:
    """Positions that a question takes at most: all its turns, each answered to the limit."""
    conversation = PromptBuilder(tokenizer, prompt_format, system)
    positions = 0
    for number, text in enumerate(question.turns, start=1):
        positions = len(conversation.ask(text)) + number * max_new_tokens
        conversation.answer((), "")
    return positions
