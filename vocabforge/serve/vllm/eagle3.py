"""EAGLE-3 drafters with a VocabForge draft head for vLLM's proposer (vLLM 0.32).

Attention, auxiliary states, KV cache, batching and graphs are vLLM's. The head computes the logits outside
compiled and captured passes, like vLLM's own drafters.
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
from ...models.heads.served import KEY, ServedHead, dense_logits, read_served, without_head


class SlotTexts:
    """Token ids of all requests by slot of the drafter's KV cache, the only request data that vLLM provides.

    The drafter reads the token after each position, so the slot of position p holds token p + 1. The first
    token of a text is not stored. Blocks shared by requests have the same tokens.

    Args:
        slots: number of cache slots.
        block: slots per block.
        device: device of the token ids.
    """

    def __init__(self, slots: int, block: int, device: torch.device) -> None:
        self._block, self._places = block, None
        # The last slot is for padding.
        self._tokens = torch.zeros(slots + 1, dtype=torch.int64, device=device)

    def write(self, input_ids: Tensor, places: Any) -> None:
        """Store the tokens of a pass; ``places`` is the attention metadata."""
        slots = places.slot_mapping[: len(input_ids)]
        slots = torch.where(slots < 0, len(self._tokens) - 1, slots).long()
        self._tokens[slots] = input_ids[: len(slots)].long()
        self._places = places

    def latest(self, positions: Tensor, size: int, vocab: int) -> Tensor:
        """Return each request's ``size`` most recent distinct tokens up to its position (N,).

        Returns:
            (N, size) token ids, padded with -1.
        """
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
    """Mixin for vLLM's drafter classes that drafts with the draft head in the folder.

    vLLM selects the rows to draft from in the output of ``forward`` and passes on nothing else. Each row
    therefore holds the normed state followed by the state, token and position fed to the drafter (a router
    needs them).
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
        """Pass the drafter's tensors to vLLM's class; keep the head's until the LM head is available."""
        own: dict[str, Tensor] = {}
        super().load_weights(without_head(weights, own))  # type: ignore[misc]
        self._served = read_served(getattr(self.config, KEY), own, self.config.name_or_path)
        self._head = None

    def _build(self) -> DraftHead:
        """Build the head in the first pass (memory profiling), when vLLM has shared embedding and LM head."""
        if self.lm_head.tp_size > 1:
            raise UsageError(
                "this draft head reads all rows of the LM head",
                got=f"an LM head over {self.lm_head.tp_size} devices",
                expected="one device",
                remedy='set "draft_tensor_parallel_size": 1 for a drafter with its own LM head, or serve the '
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
        """Call vLLM's method, which runs once at the start of a draft."""
        self._step = 0
        return super().combine_hidden_states(hidden_states)  # type: ignore[misc]

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        hidden_states: Tensor,
        inputs_embeds: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Run the drafter on N tokens.

        Returns:
            (N, 2 H + 2 ids as bits): normed states, followed by the states, tokens and positions fed; and the
            states (N, H) for the next step.
        """
        if self._head is None:
            self._head = self._build()
        normed, following = super().forward(input_ids, positions, hidden_states, inputs_embeds)  # type: ignore[misc]
        if self._head.context_size:
            self._read(input_ids)
        ids = torch.stack([input_ids, positions], 1).to(torch.int32)
        fed = ids.view(normed.dtype)  # reinterpreted bits
        return torch.cat([normed, hidden_states.to(normed.dtype), fed], -1), following

    def _read(self, input_ids: Tensor) -> None:
        """Store the tokens of this pass by KV cache slot."""
        metadata = get_forward_context().attn_metadata
        if not metadata:  # memory profiling
            return
        layer = self.model.layers[0].self_attn.attn.layer_name
        places = metadata.get(layer) if isinstance(metadata, dict) else None
        if not hasattr(places, "block_table") or not hasattr(places, "slot_mapping"):
            raise UsageError(
                "a draft head over the text of a request needs the KV cache slots of its tokens",
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
        """Return target ids (N,) int64 without logits of all tokens (with ``use_local_argmax_reduction``)."""
        head, hidden, state = self._split(hidden_states)
        return head.topk(hidden, 1, state)[1][:, 0]

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        """Return logits (N, V) fp32, -inf for tokens that the head does not score."""
        head, hidden, state = self._split(hidden_states)
        return dense_logits(head, hidden, state, self.config.vocab_size)


class VocabForgeLlamaEagle3(WithDraftHead, Eagle3LlamaForCausalLM):
    """Drafter with a Llama layer."""


class VocabForgeQwen3Eagle3(WithDraftHead, Eagle3Qwen3ForCausalLM):
    """Drafter with q and k norms."""
