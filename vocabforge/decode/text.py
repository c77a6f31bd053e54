"""Decoding of text prompts to text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from ..corpus.tokenizer.prompt_format import resolve_format
from ..corpus.tokenizer.tokenizer import encode_prompt
from .build.methods import Method, build_method
from .build.models import Models
from .engine import Decoder
from .interface import Wrap
from .request import Generation, Request, SamplingParams
from .spec import MethodSpec
from .stops import INCOMPLETE, StopStrings
from .threads import choose_threads

Prompt = str | Sequence[Mapping[str, Any]]
# Number of prompt tokens decoded with the continuation: decoders strip the first space of a text.
_CONTEXT = 8


@dataclass
class Answer:
    """The answer to one prompt.

    Attributes:
        text: text of the new tokens, without a stop string.
        generation: token ids, accepted lengths and times.
        prompt: the text that was continued; empty if the chat template rendered the prompt.
    """

    text: str = ""
    generation: Generation = field(default_factory=Generation)
    prompt: str = ""

    @property
    def tokens_per_s(self) -> float:
        """New tokens per second, prefill included."""
        return len(self.generation.token_ids) / (self.generation.prefill_s + self.generation.decode_s)

    def __str__(self) -> str:
        return self.text


class TextDecoder:
    """Decode prompts with one target and one drafting method.

    Args:
        models: a target from ``load_target``.
        spec: drafting settings; without a drafter and a proposer, decoding is plain.
        sampled: prepare for a temperature above 0 first; some defaults of the settings depend on it.
        wrap: compiles or captures passes; see ``accelerate/``.

    Raises:
        VocabForgeError: a folder is missing or damaged, or the parts do not belong together.
    """

    def __init__(
        self, models: Models, spec: MethodSpec, *, sampled: bool = False, wrap: Wrap | None = None
    ) -> None:
        self._models, self._spec, self._wrap = models, spec, wrap
        self.tokenizer = models.tokenizer
        self._built: dict[bool, Method] = {}
        self._warm: list[Decoder] = []  # decoders with compiled or captured passes
        self.method = self._method(sampled)

    def _method(self, sampled: bool) -> Method:
        if sampled not in self._built:
            method = build_method(
                self._models, self._spec, self._spec.label, wrap=self._wrap, sampled=sampled
            )
            choose_threads([method.generator], self._wrap, sampled=sampled)
            self._built[sampled] = method
        return self._built[sampled]

    def stream(
        self,
        prompt: Prompt,
        *,
        max_new_tokens: int = 256,
        sampling: SamplingParams | None = None,
        stop: Sequence[str] = (),
        prompt_format: str = "auto",
        answer: Answer | None = None,
    ) -> Iterator[str]:
        """Yield the answer's text in pieces as it is decoded, a few tokens at a time.

        Args:
            prompt: a text, or a conversation: a list of ``{"role": ..., "content": ...}``.
            max_new_tokens: limit of the output, in tokens.
            sampling: sampling parameters; None is greedy.
            stop: stop strings. The output ends before the first of them.
            prompt_format: ``chat`` renders a text as a user message with the chat template, ``raw`` continues
                it, ``auto`` is ``chat`` if there is a template.
            answer: an object to fill with the text, token ids and times.

        Raises:
            UsageError: the prompt is empty or fills the context, or the tokenizer has no chat template.
        """
        sampling, answer = sampling or SamplingParams(), answer or Answer()
        self.method = self._method(not sampling.greedy)
        decoder = self.method.generator
        assert isinstance(decoder, Decoder)
        ids, before = self._read(prompt, prompt_format, answer)
        stops = StopStrings(self.tokenizer, stop, before) if stop else None
        request = Request(ids, max_new_tokens, set(self.tokenizer.eos_ids), sampling, stops)
        if self._wrap is not None and decoder not in self._warm:
            # Compile or capture passes before the clock starts, with the same cache size and the same kind of
            # sampling; three cycles run every pass.
            for _ in islice(decoder.stream(Request(ids, max_new_tokens, (), sampling), Generation()), 4):
                pass
            self._warm.append(decoder)
        base = len(self.tokenizer.decode(before)) if before else 0
        result, written = answer.generation, ""

        def text() -> str:
            return self.tokenizer.decode([*before, *result.token_ids])[base:]

        for _ in decoder.stream(request, result):
            now = text() if stops is None else stops.settled
            now = now.rstrip(INCOMPLETE)  # the rest of a character may follow
            if now.startswith(written) and now != written:
                yield now[len(written) :]
                written = now
        answer.text = text() if stops is None else stops.text
        if answer.text.startswith(written) and answer.text != written:
            yield answer.text[len(written) :]

    def generate(self, prompt: Prompt, **settings: Any) -> Answer:
        """Return the whole answer; ``settings`` are the arguments of ``stream``."""
        answer = Answer()
        for _ in self.stream(prompt, answer=answer, **settings):
            pass
        return answer

    def _read(self, prompt: Prompt, prompt_format: str, answer: Answer) -> tuple[list[int], tuple[int, ...]]:
        if not isinstance(prompt, str):
            return encode_prompt(self.tokenizer, prompt), ()
        if resolve_format(self.tokenizer, prompt_format) == "chat":
            return encode_prompt(self.tokenizer, [{"role": "user", "content": prompt}]), ()
        answer.prompt = prompt
        ids = encode_prompt(self.tokenizer, prompt)
        return ids, tuple(ids[-_CONTEXT:])


def continue_batches(
    models: Models,
    spec: MethodSpec,
    *,
    rows: int,
    max_new_tokens: int,
    temperature: float = 0.0,
    top_p: float = 1.0,
) -> tuple[Callable[[Sequence[tuple[list[int], int]]], Iterator[tuple[int, list[int]]]], int]:
    """Return a function that continues many prompts, ``rows`` of them in parallel, and the decoder's context.

    The function takes token ids and a seed for each prompt. It yields a prompt's number and its new ids,
    including the end token, as soon as that answer ends. The row then takes the next prompt.

    Raises:
        VocabForgeError: see :class:`TextDecoder`.
    """
    sampled = temperature > 0
    method = build_method(models, spec, spec.label, rows=rows, sampled=sampled)
    decoder = method.generator
    assert isinstance(decoder, Decoder)
    ends = set(models.tokenizer.eos_ids)

    def run(prompts: Sequence[tuple[list[int], int]]) -> Iterator[tuple[int, list[int]]]:
        requests = [
            Request(ids, max_new_tokens, ends, SamplingParams(temperature, top_p=top_p, seed=seed))
            for ids, seed in prompts
        ]
        results = [Generation() for _ in requests]
        for number, _ in decoder.stream_batch(requests, results):
            if results[number].done:
                yield number, results[number].token_ids

    return run, decoder.context
