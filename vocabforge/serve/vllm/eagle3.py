"""EAGLE-3 drafters with a draft head of ours, as vLLM's proposer drives them (vLLM 0.32).

Attention, auxiliary states, KV cache, batching and graphs stay vLLM's. The head answers where vLLM asks for logits,
outside of its compiled and captured passes, as vLLM's own drafters do.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from vllm.forward_context import get_forward_context
from vllm.model_executor.models.llama_eagle3 import Eagle3LlamaForCausalLM
from vllm.model_executor.models.qwen3_eagle3 import Eagle3Qwen3ForCausalLM

from ...core.errors import UsageError
from ...models.heads.interface import DraftHead, DraftState, HeadBase
from ...models.heads.served import KEY, PREFIX, ServedHead, read_served


class SlotTexts:
    """The texts of all requests, by place in the drafter's KV cache: vLLM tells a draft model no more of them.

    The drafter reads the token behind each position, so that the place of position p has token p + 1; the first token
    of a text is in none. Blocks that requests share have the same tokens.

    Args:
        slots: places of the cache. block: of a block.
    """

    def __init__(self, slots: int, block: int, device: torch.device) -> None:
        self._block, self._places = block, None
        self._tokens = torch.zeros(
            slots + 1, dtype=torch.int64, device=device
        )  # the last takes what is padding

    def write(self, input_ids: Tensor, places: Any) -> None:
        """The tokens of a pass; ``places`` is the attention's metadata."""
        slots = places.slot_mapping[: len(input_ids)]
        slots = torch.where(slots < 0, len(self._tokens) - 1, slots).long()
        self._tokens[slots] = input_ids[: len(slots)].long()
        self._places = places

    def latest(self, positions: Tensor, size: int, vocab: int) -> Tensor:
        """The ``size`` distinct tokens met last up to a position (N,) of each request, padded with -1: (N, size)."""
        assert self._places is not None
        blocks = -(-int(self._places.max_seq_len) // self._block)
        table = self._places.block_table[: len(positions), :blocks].long()  # (N, blocks)
        steps = torch.arange(table.shape[1] * self._block, device=table.device)  # (S,)
        slots = table[:, steps // self._block] * self._block + steps % self._block
        behind = steps > positions[:, None]
        tokens = self._tokens[slots].masked_fill(behind, vocab)  # (N, S)
        last = torch.full((len(tokens), vocab + 1), -1, device=table.device)
        last.scatter_reduce_(1, tokens, steps.expand_as(tokens), "amax")
        met, ids = last[:, :vocab].topk(min(size, vocab))
        return ids.masked_fill(met < 0, -1)


class WithDraftHead:
    """Before a class of vLLM's: drafts with the draft head that the folder holds.

    A row of ``forward`` carries behind the normed state what the drafter was fed (a router reads it) and where: vLLM
    picks the rows to draft from out of what ``forward`` returns, and nothing else goes with them.
    """

    config: Any
    lm_head: Any
    model: Any
    _served: ServedHead
    _head: DraftHead | None
    _texts: SlotTexts | None
    _step = 0

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)  # type: ignore[call-arg]
        self._cache = vllm_config.cache_config
        self._texts = None

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """The drafter's tensors go to vLLM's class, the head's are kept until its LM head is known."""
        own: dict[str, Tensor] = {}

        def others() -> Iterable[tuple[str, Tensor]]:
            for name, tensor in weights:
                if name.startswith(PREFIX):
                    own[name] = tensor.clone()
                else:
                    yield name, tensor

        super().load_weights(others())  # type: ignore[misc]
        self._served = read_served(getattr(self.config, KEY), own, self.config.name_or_path)
        self._head = None

    def _build(self) -> DraftHead:
        """At the first pass, which measures memory: by then vLLM has shared embedding and LM head."""
        if self.lm_head.tp_size > 1:
            raise UsageError(
                "this draft head reads all rows of the LM head",
                got=f"an LM head over {self.lm_head.tp_size} devices",
                expected="one device",
                remedy='set "draft_tensor_parallel_size": 1 for a drafter with an LM head of its own, or serve the '
                "drafter without a draft head (--format sglang-eagle3)",
            )
        rows, vocab = self.config.draft_vocab_size, self.config.vocab_size
        weight = self.lm_head.weight.detach()[:rows]  # vLLM pads the rows
        ids = torch.arange(rows, device=weight.device)
        offsets = self.draft_id_to_target_id  # type: ignore[attr-defined]
        ids = ids if offsets is None else ids + offsets
        embedding = self.model.embed_tokens.weight.detach()[:vocab]
        return self._served.over(HeadBase(weight, ids, embedding, self._served.transform))

    def combine_hidden_states(self, hidden_states: Tensor) -> Tensor:
        """vLLM's; called once, where a draft begins."""
        self._step = 0
        return super().combine_hidden_states(hidden_states)  # type: ignore[misc]

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        hidden_states: Tensor,
        inputs_embeds: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Normed states (N, H) with the states and tokens fed behind them, and the states for the next step (N, H)."""
        if self._head is None:
            self._head = self._build()
        normed, following = super().forward(input_ids, positions, hidden_states, inputs_embeds)  # type: ignore[misc]
        if self._head.context_size:
            self._read(input_ids)
        ids = torch.stack([input_ids, positions], 1).to(torch.int32)
        fed = ids.view(normed.dtype)  # their bits, not their values
        return torch.cat([normed, hidden_states.to(normed.dtype), fed], -1), following

    def _read(self, input_ids: Tensor) -> None:
        """Note the tokens of this pass by their places in the KV cache."""
        found = get_forward_context().attn_metadata
        if not found:  # memory is measured
            return
        layer = self.model.layers[0].self_attn.attn.layer_name
        places = found.get(layer) if isinstance(found, dict) else None
        if not hasattr(places, "block_table") or not hasattr(places, "slot_mapping"):
            raise UsageError(
                "a draft head over the text of a request needs to know where its tokens lie in the KV cache",
                got=f"attention metadata {type(places).__name__}",
                expected="block_table and slot_mapping",
                remedy="start vLLM with --attention-backend FLASH_ATTN or TRITON_ATTN, without dual-batch overlap",
            )
        if self._texts is None:
            slots = int(self._cache.num_gpu_blocks) * int(self._cache.block_size)
            self._texts = SlotTexts(slots, int(self._cache.block_size), input_ids.device)
        self._texts.write(input_ids, places)

    def _split(self, carried: Tensor) -> tuple[DraftHead, Tensor, DraftState]:
        assert self._head is not None
        size = self.config.hidden_size
        tokens, positions = carried[:, 2 * size :].contiguous().view(torch.int32).long().unbind(1)
        if self._texts is not None and self._step == 0:
            self._context = self._texts.latest(positions, self._head.context_size, self.config.vocab_size)
        context = None if self._texts is None else self._context
        state = DraftState(self._step, tokens, carried[:, size : 2 * size], len(carried), context)
        self._step += 1
        return self._head, carried[:, :size].contiguous(), state

    def get_top_tokens(self, hidden_states: Tensor) -> Tensor:
        """(N,) int64 target ids; asked for with ``use_local_argmax_reduction``, without logits of all tokens."""
        head, hidden, state = self._split(hidden_states)
        return head.topk(hidden, 1, state)[1][:, 0]

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        """(N, V) fp32, -inf for what the head does not score."""
        head, hidden, state = self._split(hidden_states)
        logits, ids = head.scores(hidden, 1, state)  # (N, C); (C,) or (N, C)
        every = logits.new_full((len(logits), self.config.vocab_size), float("-inf"))
        return every.scatter_(-1, ids.expand(len(logits), -1), logits)


class VocabForgeLlamaEagle3(WithDraftHead, Eagle3LlamaForCausalLM):
    """A drafter of Llama's layer."""


class VocabForgeQwen3Eagle3(WithDraftHead, Eagle3Qwen3ForCausalLM):
    """A drafter with norms of q and k."""
