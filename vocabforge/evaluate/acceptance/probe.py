"""Run the target on a few texts to get the states that servers pass to a drafter, and its own choices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...decode.engine import Decoder
from ...models.target.interface import Target
from ..identity.rounding import whole_pass

_PROMPTS = (
    "The capital of France is",
    "def add(a, b):\n    return",
    "Once upon a time there was a little",
    "To make bread, first mix the flour with",
    "Question: What is 12 + 30?\nAnswer:",
    "The weather was cold, so she",
    "import numpy as np\n\nx =",
    "In the year 1969, the first",
)


@dataclass(frozen=True)
class ProbedText:
    """A text and the target's outputs for it.

    Attributes:
        ids: (T,) prompt and the target's own greedy continuation.
        start: number of prompt tokens.
        hidden: (T, H) states after the final norm.
        outputs: layer (0-based) -> (T, H) output.
        choices: (T,) the target's next token at each position.
    """

    ids: Tensor
    start: int
    hidden: Tensor
    outputs: dict[int, Tensor]
    choices: Tensor

    def features(self, layers: Sequence[int]) -> Tensor:
        """Return the (T, n * H) outputs of some layers; the (T, H) final hidden states if there are none."""
        return torch.cat([self.outputs[layer] for layer in layers], -1) if layers else self.hidden


def default_prompts(encode: Callable[[str], Sequence[int]]) -> list[list[int]]:
    """Return the default prompts as token ids."""
    return [ids for text in _PROMPTS if (ids := list(encode(text)))]


@torch.inference_mode()
def probe(
    model: Target, prompts: Sequence[Sequence[int]], new: int, layers: Sequence[int]
) -> list[ProbedText]:
    """Continue every prompt greedily by ``new`` tokens; run the whole text for the states of ``layers``."""
    wanted = tuple(sorted(set(layers)))
    return [_text(model, list(prompt), new, wanted) for prompt in prompts]


def _text(model: Target, prompt: list[int], new: int, layers: tuple[int, ...]) -> ProbedText:
    context = min(model.config.max_positions, len(prompt) + new + 1)
    made = Decoder(model, None, context=context).generate(
        prompt, max_new_tokens=context - len(prompt) - 1, stop_ids=()
    )
    ids = torch.tensor([*prompt, *made.token_ids])
    output = whole_pass(model, ids[None], layers)
    hidden = output.hidden[0].float().cpu()
    parts = () if output.aux is None else output.aux[0].float().cpu().chunk(len(layers), -1)
    choices = model.logits(output.hidden)[0].argmax(-1).cpu()
    return ProbedText(ids, len(prompt), hidden, dict(zip(layers, parts)), choices)
