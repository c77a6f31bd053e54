"""Questions as a server is asked them: it has the tokenizer and the chat template."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ...core.registry import check_known
from ...corpus.tokenizer.prompt_format import PROMPT_FORMATS, PromptFormat
from ...corpus.tokenizer.tokenizer import TextTokenizer
from ...decode.request import Generation
from ..benchmarks import Question
from ..results.answers import AnsweredTurn, ServedTurn
from ..run.prompts import refuse_raw
from ..run.request import Asking
from ..run.settings import RunSettings
from .generator import ServedGeneration


def served_format(wanted: str, system: str | None) -> PromptFormat:
    """``auto`` is ``chat``: a server that has no chat template says so.

    Raises:
        UsageError: an unknown format, or a system message that no raw prompt has a place for.
    """
    check_known(wanted, PROMPT_FORMATS, "prompt format", source="--prompt-format")
    if wanted != "raw":
        return "chat"
    refuse_raw(system)
    return "raw"


class ServedConversation:
    """One conversation with a server; ask, generate, ``answer``, ask again.

    A chat prompt is the list of messages; a raw one is the text of turns and answers, each turn on a new line.
    """

    def __init__(self, prompt_format: PromptFormat, system: str | None) -> None:
        self._chat = prompt_format == "chat"
        self._messages = [{"role": "system", "content": system}] if system else []
        self._text = ""

    def ask(self, text: str) -> list[dict[str, str]] | str:
        """The prompt of the next user turn."""
        self._messages.append({"role": "user", "content": text})
        self._text = f"{self._text}\n{text}" if self._text else text
        return list(self._messages) if self._chat else self._text

    def answer(self, token_ids: Sequence[int], text: str) -> None:
        """Feed the answer back."""
        self._messages.append({"role": "assistant", "content": text})
        self._text += text


@dataclass(frozen=True)
class ServerAsking(Asking):
    """How servers are asked; ``tokenizer`` is used for nothing here."""

    tokenizer: TextTokenizer | None  # type: ignore[assignment]
    settings: RunSettings
    synchronise: Callable[[], None]
    by_method: ClassVar[bool] = True

    def identity(self, questions: Sequence[Question]) -> dict[str, Any]:
        """Nothing: the server decides how a prompt is written."""
        return {}

    @property
    def stop_ids(self) -> Collection[int]:
        """None: the server ends its answers."""
        return ()

    def conversation(self, system: str | None) -> Any:
        """Makes the prompts of one question."""
        return ServedConversation(self.settings.prompt_format, system)

    def turn(self, prompt: Sequence[Any], generation: Generation, wall_time: float) -> AnsweredTurn:
        """The answer; its time is that of the request, without reading counters and further attempts."""
        assert isinstance(generation, ServedGeneration)
        found = generation.speculation
        return AnsweredTurn(
            generation.text.strip(),
            tuple(generation.token_ids) if generation.ids_known else None,
            generation.prompt_tokens,
            generation.prefill_s + generation.decode_s,
            generation,
            ServedTurn(
                generation.new_tokens,
                None if found is None else found.verifications,
                None if found is None else found.accepted,
            ),
        )
