"""Ask questions of a server, which applies its own tokenizer and chat template."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, ClassVar

from ...core.registry import check_known
from ...corpus.tokenizer.prompt_format import PROMPT_FORMATS, PromptFormat
from ...decode.request import Generation
from ..benchmarks import Question
from ..results.answers import AnsweredTurn
from ..run.prompts import refuse_raw
from ..run.request import Asking
from .generator import ServedGeneration


def served_format(wanted: str, system: str | None) -> PromptFormat:
    """Resolve ``auto`` to ``chat``; a server without a chat template reports an error.

    Raises:
        UsageError: the format is unknown, or a raw prompt is given a system message.
    """
    check_known(wanted, PROMPT_FORMATS, "prompt format", source="--prompt-format")
    if wanted != "raw":
        return "chat"
    refuse_raw(system)
    return "raw"


class ServedConversation:
    """A conversation with a server: ``ask``, generate, ``answer``, ``ask`` again.

    A chat prompt is a list of messages. A raw prompt is the text of turns and answers, each turn on a new
    line.
    """

    def __init__(self, prompt_format: PromptFormat, system: str | None) -> None:
        self._chat = prompt_format == "chat"
        self._messages = [{"role": "system", "content": system}] if system else []
        self._text = ""

    def ask(self, text: str) -> list[dict[str, str]] | str:
        """Return the prompt of the next user turn."""
        self._messages.append({"role": "user", "content": text})
        self._text = f"{self._text}\n{text}" if self._text else text
        return list(self._messages) if self._chat else self._text

    def answer(self, token_ids: Sequence[int], text: str) -> None:
        """Append the answer to the history."""
        self._messages.append({"role": "assistant", "content": text})
        self._text += text


class ServerAsking(Asking):
    """How servers are asked; ``tokenizer`` is not used, and may be None."""

    by_method: ClassVar[bool] = True

    def identity(self, questions: Sequence[Question]) -> dict[str, Any]:
        """Return nothing: the server determines how prompts are built."""
        return {}

    @property
    def stop_ids(self) -> Collection[int]:
        """Return nothing: the server ends its answers."""
        return ()

    def conversation(self, system: str | None) -> Any:
        """Return the builder of a question's prompts."""
        return ServedConversation(self.settings.prompt_format, system)

    def turn(self, prompt: Sequence[Any], generation: Generation, wall_time: float) -> AnsweredTurn:
        """Return the answer with the time of its request, excluding counter reads and retries."""
        assert isinstance(generation, ServedGeneration)
        return AnsweredTurn(
            generation.text.strip(),
            tuple(generation.token_ids) if generation.ids_known else None,
            generation.prompt_tokens,
            generation.prefill_s + generation.decode_s,
            generation,
            generation,
        )
