"""A local target that answers in this process, through Hugging Face generate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...core.errors import DataError
from ..tokenizer.tokenizer import TextTokenizer
from .rows import ChatCompletion, ChatRequest, GenerationSettings

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Prompt:
    """A request as the target reads it; ``reason`` says why it cannot be answered, None when it can."""

    request: ChatRequest
    ids: list[int]
    reason: str | None = None


class LocalTarget:
    """A Hugging Face causal LM that answers batches of requests.

    Args:
        load: gives the model; called when the tokenizer has been found to suit.

    Raises:
        DataError: the tokenizer has no chat template or end token, or more ids than the model has rows.
    """

    def __init__(
        self, load: Callable[[], Any], tokenizer: TextTokenizer, generation: GenerationSettings
    ) -> None:
        self.tokenizer, self._generation = tokenizer, generation
        if not tokenizer.eos_ids:
            raise DataError(
                "no end token is known, so no answer would ever end",
                source=tokenizer.source,
                remedy="name it as eos_token in tokenizer_config.json",
            )
        # Raises where there is no chat template.
        tokenizer.render([{"role": "user", "content": "?"}], add_generation_prompt=True)
        from transformers import GenerationConfig

        self._model = load().eval()
        # A model's own defaults (top-k, penalties) would be mixed into ours without a word.
        self._model.generation_config = GenerationConfig()
        config = self._model.config.get_text_config(decoder=True)
        self._context = int(getattr(config, "max_position_embeddings", 0) or 0)
        if tokenizer.vocab_size > (rows := self._model.get_input_embeddings().weight.shape[0]):
            raise DataError(
                "the tokenizer does not match the target",
                got=f"{tokenizer.vocab_size:,} token ids in {tokenizer.source}",
                expected=f"at most {rows:,}, the rows of the target's embedding",
                remedy="use the target's own tokenizer",
            )

    def prompt(self, request: ChatRequest) -> Prompt:
        """Token ids of a request; why it cannot be answered, where it cannot."""
        variables: dict[str, Any] = dict(self._generation.template_arguments)
        if request.tools is not None:
            variables["tools"] = list(request.tools)
        try:
            text = self.tokenizer.render(request.messages, add_generation_prompt=True, **variables)
        except DataError as error:
            return Prompt(request, [], f"{error.message}: {error.got}")
        ids = self.tokenizer.encode(text)
        if not ids:
            return Prompt(request, [], "the prompt has no tokens")
        if self._context and len(ids) + self._generation.max_tokens > self._context:
            return Prompt(
                request,
                ids,
                f"{len(ids):,} tokens of prompt and {self._generation.max_tokens:,} of answer exceed the "
                f"target's context of {self._context:,}",
            )
        return Prompt(request, ids)

    def answer(self, prompts: Sequence[Prompt]) -> list[ChatCompletion]:
        """Answers to one batch, padded on the left."""
        import torch
        from transformers import GenerationConfig

        length = max(len(prompt.ids) for prompt in prompts)
        ids = torch.full((len(prompts), length), self.tokenizer.eos_ids[0])  # (B, T)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, length - len(prompt.ids) :] = torch.tensor(prompt.ids)
            mask[row, length - len(prompt.ids) :] = 1
        settings = GenerationConfig(
            max_new_tokens=self._generation.max_tokens,
            do_sample=False,  # sampling is the processor's, which has a generator for each row
            eos_token_id=list(self.tokenizer.eos_ids),
            pad_token_id=self.tokenizer.eos_ids[0],
        )
        with torch.inference_mode():
            out = self._model.generate(
                input_ids=ids.to(self._model.device),
                attention_mask=mask.to(self._model.device),
                generation_config=settings,
                logits_processor=self._processors(prompts),
            )
        return [
            self._answer(prompt, new) for prompt, new in zip(prompts, out[:, length:].tolist(), strict=True)
        ]

    def _processors(self, prompts: Sequence[Prompt]) -> Any:
        from transformers import LogitsProcessorList

        if self._generation.temperature == 0:
            return LogitsProcessorList([refuse_nan])
        seeds = [prompt.request.seed for prompt in prompts]
        return LogitsProcessorList(
            [refuse_nan, SeededDraw(seeds, self._generation.temperature, self._generation.top_p)]
        )

    def _answer(self, prompt: Prompt, new: list[int]) -> ChatCompletion:
        ends = set(self.tokenizer.eos_ids)
        stop = next((at for at, token in enumerate(new) if token in ends), None)
        kept = new if stop is None else new[: stop + 1]
        text = self.tokenizer.decode(kept if stop is None else kept[:-1])
        return ChatCompletion(
            message={"role": "assistant", "content": text},
            finish_reason="length" if stop is None else "stop",
            seed=prompt.request.seed,
            prompt_tokens=len(prompt.ids),
            completion_tokens=len(kept),
            response_ids=tuple(kept),
        )


def refuse_nan(input_ids: Tensor, scores: Tensor) -> Tensor:
    """A processor of logits (B, V) that changes nothing; DataError for NaN, which would become empty answers."""
    if bool(scores.amax(dim=-1).isnan().any()):
        raise DataError(
            "the target's logits hold NaN",
            got=f"at position {input_ids.shape[1]:,} of prompt and answer",
            expected="finite numbers",
            remedy="check the target's weights; a narrower dtype may overflow, so try --dtype float32",
        )
    return scores


class SeededDraw:
    """Sampling as a processor of logits: the arg-max of ``p(v) / e(v)``, e exponential, is a draw from p.

    Each row has its own generator, so that its draws do not depend on its neighbours. Called by generate with ids
    (B, T) and logits (B, V).
    """

    supports_continuous_batching = False

    def __init__(self, seeds: Sequence[int], temperature: float, top_p: float) -> None:
        self._seeds, self._temperature, self._top_p = list(seeds), temperature, top_p
        self._generators: list[Any] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        import torch

        logs = torch.log_softmax(scores.float() / self._temperature, dim=-1)  # (B, V)
        if self._top_p < 1:
            ordered, order = logs.sort(dim=-1, descending=True, stable=True)
            mass = ordered.exp().cumsum(dim=-1)
            behind = torch.zeros_like(mass, dtype=torch.bool)
            behind[:, 1:] = mass[:, :-1] >= self._top_p  # the token that reaches the share is kept
            logs = logs.masked_fill(behind.scatter(1, order, behind), float("-inf"))
        if not self._generators:  # on the device of the logits, which generate chooses
            self._generators = [torch.Generator(logs.device).manual_seed(seed) for seed in self._seeds]
        race = torch.empty_like(logs)
        for row, generator in zip(race, self._generators, strict=True):
            row.exponential_(generator=generator)
        return logs - race.clamp_min_(1e-37).log_()
