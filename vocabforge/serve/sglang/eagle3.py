"""EAGLE-3 drafter with a VocabForge draft head for SGLang's draft worker (SGLang 0.5.23).

The worker takes logits over the target's tokens and picks the best of each row, for both chains and trees.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
from sglang.srt.layers.logits_processor import LogitsProcessor
from sglang.srt.models.llama_eagle3 import LlamaForCausalLMEagle3
from torch import Tensor

from ...core.errors import UsageError
from ...models.heads.interface import DraftHead, DraftState, HeadBase
from ...models.heads.served import KEY, dense_logits, read_served, without_head

# Heads that need the tokens and states fed, or the text, which SGLang's draft worker does not pass on.
_NEEDS_MORE = ("router", "context")


class HeadLogits(LogitsProcessor):
    """SGLang's logits processor with a draft head instead of the LM head.

    Args:
        config: configuration with the target's number of tokens.
        build: creates the head; called after SGLang has shared the LM head.
    """

    def __init__(self, config: Any, build: Callable[[], DraftHead]) -> None:
        super().__init__(config)
        self._vocab, self._build = int(config.vocab_size), build
        self._heads: list[DraftHead] = []  # a list keeps the head out of the model's own weights

    def _compute_lm_head(
        self,
        hidden_states: Tensor,
        lm_head: Any,
        embedding_bias: Tensor | None = None,
        *,
        out: Tensor | None = None,
    ) -> Tensor:
        """Return logits (N, V), -inf for tokens that the head does not score."""
        if not self._heads:
            self._heads.append(self._build())
        rows = len(hidden_states)
        state = DraftState(0, hidden_states.new_zeros(rows, dtype=torch.int64), hidden_states, rows)
        return dense_logits(self._heads[0], hidden_states, state, self._vocab)


class VocabForgeLlamaEagle3(LlamaForCausalLMEagle3):
    """Drafter written by ``export --format vllm``, for SGLang.

    Raises:
        UsageError: SGLang's class does not support the drafter's norms, or the head needs more than hidden
            states.
    """

    def __init__(self, config: Any, quant_config: Any = None, prefix: str = "") -> None:
        kind = getattr(config, KEY)["kind"]
        if kind in _NEEDS_MORE or config.norm_before_residual:
            raise UsageError(
                "SGLang cannot run this drafter",
                got="a drafter with norm_before_residual"
                if config.norm_before_residual
                else f"a {kind} head",
                expected="a ranker or low-rank head, and the norms of train-drafter",
                remedy="serve it with vLLM",
            )
        super().__init__(config, quant_config, prefix)
        # SGLang's class configures its processor with the rows of the reduced head.
        self.logits_processor = HeadLogits(copy.deepcopy(config), self._build)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Pass the drafter's tensors to SGLang's class; keep the head's until the LM head is available."""
        own: dict[str, Tensor] = {}
        super().load_weights(without_head(weights, own))
        self._served = read_served(getattr(self.config, KEY), own, self.config.name_or_path)
        # Otherwise the draft worker would interpret the logits as rows of the reduced head.
        self._ids, self.hot_token_id = self.hot_token_id, None  # type: ignore[has-type]

    def _build(self) -> DraftHead:
        rows = self.config.draft_vocab_size or self.config.vocab_size
        weight = self.lm_head.weight.detach()[:rows]
        ids = torch.arange(rows, device=weight.device) if self._ids is None else self._ids.to(weight.device)
        embedding = self.model.embed_tokens.weight.detach()[: self.config.vocab_size]
        return self._served.over(HeadBase(weight, ids, embedding, self._served.transform))


EntryClass = VocabForgeLlamaEagle3
