"""Local target that answers in this process, with a decoder that continues token ids."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ...core.errors import DataError
from ..tokenizer.tokenizer import TextTokenizer
from .rows import ChatCompletion, ChatRequest, GenerationSettings

Continue = Callable[[Sequence[tuple[list[int], int]]], Iterator[tuple[int, list[int]]]]
"""Continues prompts, given as token ids and a seed each; yields the prompt's index and the new ids, including
the end token, in order of completion."""


@dataclass(frozen=True)
class Prompt:
    """Request as token ids; ``reason`` is why it cannot be answered, or None."""

    request: ChatRequest
    ids: list[int]
    reason: str | None = None


class LocalTarget:
    """Causal LM that answers requests in batches.

    Args:
        continue_ids: the decoder; its result for a request does not depend on other requests.
        context: maximum tokens of prompt and answer together.

    Raises:
        DataError: the tokenizer has no chat template or end token.
    """

    def __init__(
        self, continue_ids: Continue, tokenizer: TextTokenizer, generation: GenerationSettings, context: int
    ) -> None:
        self._continue, self._context = continue_ids, context
        self.tokenizer, self._generation = tokenizer, generation
        check_answers_end(tokenizer)

    def prompt(self, request: ChatRequest) -> Prompt:
        """Return the token ids of a request, or the reason why it cannot be answered."""
        variables: dict[str, Any] = {**self._generation.template_arguments, **request.variables}
        if request.tools is not None:
            variables["tools"] = list(request.tools)
        try:
            text = self.tokenizer.render(request.messages, add_generation_prompt=True, **variables)
        except DataError as error:
            return Prompt(request, [], f"{error.message}: {error.got}")
        ids = self.tokenizer.encode(text)
        if not ids:
            return Prompt(request, [], "the prompt has no tokens")
        if len(ids) + self._generation.max_tokens > self._context:
            return Prompt(
                request,
                ids,
                f"{len(ids):,} tokens of prompt and {self._generation.max_tokens:,} of answer exceed the "
                f"target's context of {self._context:,}",
            )
        return Prompt(request, ids)

    def answer(self, prompts: Sequence[Prompt]) -> Iterator[tuple[Prompt, ChatCompletion]]:
        """Yield prompts with their answers in order of completion."""
        asked = [(prompt.ids, prompt.request.seed) for prompt in prompts]
        for number, new in self._continue(asked):
            yield prompts[number], self._answer(prompts[number], new)

    def _answer(self, prompt: Prompt, new: list[int]) -> ChatCompletion:
        stopped = bool(new) and new[-1] in self.tokenizer.eos_ids
        return ChatCompletion(
            message={"role": "assistant", "content": self.tokenizer.decode(new[:-1] if stopped else new)},
            finish_reason="stop" if stopped else "length",
            seed=prompt.request.seed,
            prompt_tokens=len(prompt.ids),
            completion_tokens=len(new),
            response_ids=tuple(new),
        )


def check_answers_end(tokenizer: TextTokenizer) -> None:
    """Check, before a model is loaded, that a tokenizer can render prompts and end answers.

    Raises:
        DataError: it has no chat template or end token, or its template omits message contents.
    """
    if not tokenizer.eos_ids:
        raise DataError(
            "no end token is known, so no answer would ever end",
            source=tokenizer.source,
            remedy="name it as eos_token in tokenizer_config.json",
        )
    tokenizer.forms()
