"""Any Transformers causal language model as a decoding target: its own code, our cache, masks and positions.

The lean model is faster but supports fewer architectures; this model runs the others. A pass takes the tokens
of B rows with explicit positions, additive masks and the cache slots to write to.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from ...core.errors import DataError, UsageError
from ..target.interface import TargetConfig, TargetOutput
from ..target.load import Placement, load_causal_lm
from ..target.logits import LogitTransform
from ..target.stack import find_ends, find_stack
from .cache import RowOfSlots, SlotCache, StateReplay, rows_of

_FAR = 1 << 20  # position limit of a model whose configuration has none
_GROUPED = "grouped_sdpa"
_OTHER_INPUTS = ("softcap", "position_bias")  # that change masks or scores


def _grouped_sdpa(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **given: Any
) -> tuple[Tensor, Any]:
    """Compute Transformers' ``sdpa`` on a CPU without repeating keys and values.

    (B, h, T, D) queries and (B, kv, S, D) keys -> (B, T, h, D).
    """
    if attention_mask is None or any(given.get(name) is not None for name in _OTHER_INPUTS):
        return sdpa_attention_forward(module, query, key, value, attention_mask, **given)
    out = F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=attention_mask,
        scale=given.get("scaling"),
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return out.transpose(1, 2).contiguous(), None


AttentionInterface.register(_GROUPED, _grouped_sdpa)
AttentionMaskInterface.register(_GROUPED, sdpa_mask)


class _HeadInput(nn.Module):
    """Placeholder for the LM head that stores its input and returns one column instead of V."""

    def __init__(self, head: Any) -> None:
        super().__init__()
        self.hidden: Tensor | None = None
        self.__dict__["weight"] = head.weight  # some models cast to its dtype

    def forward(self, hidden: Tensor) -> Tensor:
        self.hidden = hidden
        return hidden[..., :1]


class TransformersModel:
    """A loaded Transformers model with the interface of the lean model.

    The LM head is separate: :meth:`forward` returns its input and :meth:`logits` applies it.

    Args:
        model: a model as returned by ``AutoModelForCausalLM``.
        source: origin of the model, for error messages.
        placement: placement of the weights; None for the model's single device. Under tensor parallelism
            every process must run the same passes.

    Attributes:
        config: sizes.
        device: device of the inputs (ids, positions, masks) and outputs (hidden states, logits).
        transform: transform that the model applies to the output of the LM head.

    Raises:
        DataError: the model has no logits or no decoder layers, or its logits are not those of the head and
            the transform.
    """

    def __init__(self, model: Any, source: object = None, placement: Placement | None = None) -> None:
        self.model = model.eval().requires_grad_(False)
        self.source = source
        text = model.config.get_text_config(decoder=True)
        self._text = text
        self.head, self.lm_head_weight, self.embedding, self.device = find_ends(model, placement, source)
        self._spread = placement is not None and placement.spread
        self.transform = LogitTransform.of(text)
        self._layers = find_stack(model, source).layers
        names = inspect.signature(type(model).forward).parameters
        self._cache_name = "past_key_values" if "past_key_values" in names else "cache_params"
        self._positional = "position_ids" in names
        self._mask_keys = _mask_keys(model, text)
        # These create no mask for a single token. _GROUPED is set if another decoder already wraps this model.
        self._maskless = text._attn_implementation in ("sdpa", _GROUPED)
        if self._maskless and self.device.type == "cpu":
            text._attn_implementation = _GROUPED
        self._all_near = self._mask_keys is None and getattr(text, "sliding_window", None) is not None
        self._stand_in = _HeadInput(self.head)
        self._body: Any = None  # base model, if it computes the head's input by itself
        self._wanted: tuple[int, ...] = ()  # empty between passes: training also runs this model
        self._kept: dict[int, Tensor] = {}
        self._hooked: set[int] = set()
        probe = SlotCache(text, 1, 1)
        self.config = _sizes(model, text, self.head, probe, self._mask_keys, source)
        self._last_position = self.config.max_positions - 1 if self._has_position_table() else None
        self._replay = StateReplay(model) if self.config.recurrent else None
        self._check()

    @property
    def dtype(self) -> torch.dtype:
        return self.lm_head_weight.dtype

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Return all weights by name."""
        return cast("Iterator[tuple[str, Tensor]]", self.model.named_parameters())

    def new_cache(self, capacity: int, batch: int = 1) -> SlotCache:
        """Return a cache of ``batch`` rows of ``capacity`` slots; layers allocate memory in their first pass.

        Raises:
            UsageError: several rows, but the model uses one position for all of them (Llama 4).
        """
        if batch > 1 and getattr(self._text, "attn_temperature_tuning", False):
            raise UsageError(
                "this target scales attention by one position for all rows, so it decodes one request at a time",
                got=f"{batch} rows of {self.config.architecture}",
                expected="1 row",
                remedy="leave --batch or --rows out",
            )
        return SlotCache(self._text, batch, capacity, self._replay, self.device)

    def embed(self, ids: Tensor) -> Tensor:
        """Embed token ids: (B, T) -> (B, T, H)."""
        return cast(Tensor, self.model.get_input_embeddings()(ids))

    def logits(self, hidden: Tensor) -> Tensor:
        """Apply the LM head and the model's softcap or scale: (..., H) -> (..., V)."""
        if not self._spread:  # the hooks of a spread model move the states to the weights
            hidden = hidden.to(self.head.weight.device)
        return self.transform(self.head(hidden).to(self.device))

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        *,
        cache: SlotCache | RowOfSlots,
        slots: Tensor,
        mask: Tensor | int,
        window_mask: Tensor | None = None,
        aux_layers: tuple[int, ...] = (),
    ) -> TargetOutput:
        """Run T tokens of B rows; see :meth:`~vocabforge.models.lean.model.LeanModel.forward`.

        Returns:
            the output; ``hidden`` is the input of the LM head.
        """
        whole, rows = rows_of(cache)
        view = mask if isinstance(mask, int) else mask.shape[-1]
        whole.enter(rows, slots, positions, view)
        near = mask if window_mask is None else window_mask
        given: dict[str, Any] = {self._cache_name: whole, "attention_mask": self._masks(mask, near)}
        if self._positional:
            # Draft nodes may lie beyond the last position of a request, and draft models beyond their context.
            given["position_ids"] = (
                positions.clamp(max=self._last_position) if self._last_position else positions
            )
        self._hook(aux_layers)
        self._wanted = aux_layers
        hidden = self._run(ids, given).to(self.device)
        aux = None
        if aux_layers:
            aux = torch.cat([self._kept[index].to(self.device) for index in aux_layers], -1)
        self._wanted = ()
        self._kept.clear()
        return TargetOutput(hidden, aux)

    def _has_position_table(self) -> bool:
        """Return whether positions are rows of a table (GPT-2, GPT-J) that ends at the limit."""
        base, size = self.model.base_model, self.config.max_positions
        tables = [module.weight for module in base.modules() if isinstance(module, nn.Embedding)]
        tables += [buffer for buffer in base.buffers() if buffer.dim() == 2]
        # OPT's has two more rows.
        return any(size <= len(table) <= size + 2 for table in tables if table is not self.embedding)

    def _run(self, ids: Tensor, given: dict[str, Any]) -> Tensor:
        """Run the model without its LM head: (B, T) ids -> (B, T, H) input of the head."""
        if self._body is not None:
            return cast(Tensor, self._body(input_ids=ids, use_cache=True, return_dict=True, **given)[0])
        return self._head_input(input_ids=ids, use_cache=True, return_dict=True, **given)

    def _head_input(self, **given: Any) -> Tensor:
        self.model.set_output_embeddings(self._stand_in)
        try:
            self.model(**given)
            hidden = self._stand_in.hidden
        finally:
            self.model.set_output_embeddings(self.head)
            self._stand_in.hidden = None
        if hidden is None:
            raise self._other_logits()
        return hidden

    def _masks(self, mask: Tensor | int, near: Tensor | int) -> Any:
        """Return additive float masks, since boolean masks are wrong with Transformers' eager attention."""
        if self._mask_keys is None:
            return self._additive(near if self._all_near else mask)
        masks = {"full_attention": mask, "sliding_attention": near, "chunked_attention": near}
        if not masks.keys() & set(self._mask_keys):
            return None
        # Recurrent layers take no mask.
        return {key: self._additive(masks[key]) if key in masks else None for key in self._mask_keys}

    def _additive(self, mask: Tensor | int) -> Tensor | None:
        """Convert (T, S) or (B, T, S) to (B or 1, 1, T, S): 0 if visible, else the lowest finite number."""
        if isinstance(mask, int):
            return (
                None if self._maskless else torch.zeros(1, 1, 1, mask, dtype=self.dtype, device=self.device)
            )
        bias = torch.zeros(mask.shape, dtype=self.dtype, device=mask.device)
        bias.masked_fill_(~mask, torch.finfo(self.dtype).min)
        return bias[None, None] if mask.dim() == 2 else bias.unsqueeze(1)

    def _hook(self, layers: Sequence[int]) -> None:
        for index in set(layers) - self._hooked:

            def keep(_module: nn.Module, _inputs: Any, output: Any, index: int = index) -> None:
                if index in self._wanted:
                    self._kept[index] = output[0] if isinstance(output, tuple) else output

            self._layers[index].register_forward_hook(keep)
            self._hooked.add(index)

    @torch.no_grad()
    def _check(self) -> None:
        """Check that the head and its transform reproduce the model's logits."""
        ids = torch.arange(min(8, self.config.vocab_size), device=self.device)[None]
        given: dict[str, Any] = {}
        if self._positional:
            given["position_ids"] = torch.arange(ids.shape[1], device=self.device)[None]
        given |= {"input_ids": ids, "use_cache": False, "return_dict": True}
        whole = self.model(**given).logits
        hidden = self._head_input(**given)
        ours = self.logits(hidden)
        if ours.shape != whole.shape or not torch.allclose(ours, whole.to(ours), rtol=1e-3, atol=1e-4):
            raise self._other_logits()
        body = self.model.base_model
        if not self._spread and body is not self.model and torch.equal(body(**given)[0], hidden):
            self._body = body  # fewer calls than the whole model

    def _other_logits(self) -> DataError:
        return DataError(
            "this target's logits are not the scaled and capped output of its LM head",
            got=type(self.model).__name__,
            expected="logits = softcap(scale x LM head(hidden))",
            source=self.source,
        )


def load_transformers(
    path: Path,
    *,
    dtype: torch.dtype | str = torch.float32,
    device: torch.device | str = "cpu",
    device_map: str | Mapping[str, Any] | None = None,
    tp_plan: str | None = None,
) -> TransformersModel:
    """Load a Hugging Face folder for decoding with Transformers' own code.

    Args:
        device, device_map, tp_plan: see :class:`~vocabforge.models.target.load.Placement`.

    Raises:
        DataError: the folder has no model, or its drafts cannot be verified.
        UsageError: the placement does not suit how the processes were launched.
    """
    placement = Placement(torch.device(device), device_map, tp_plan)
    return TransformersModel(load_causal_lm(path, dtype, placement), path, placement)


def _mask_keys(model: Any, text: Any) -> list[str] | None:
    """Return the layer types that the model's forward takes masks for; None if it takes a single mask."""
    from transformers.masking_utils import create_masks_for_generate

    types = set(getattr(text, "layer_types", None) or ())
    if "chunked_attention" in types:  # the probe below fails for these before Transformers 5.20
        return sorted(types)
    make = getattr(model, "create_masks_for_generate", create_masks_for_generate)
    weight = model.get_input_embeddings().weight
    embeds = torch.zeros(1, 2, text.hidden_size, dtype=weight.dtype)
    probe = make(
        config=model.config,
        inputs_embeds=embeds,
        attention_mask=None,
        past_key_values=None,
        position_ids=None,
    )
    return list(probe) if isinstance(probe, dict) else None


def _sizes(
    model: Any, text: Any, head: Any, probe: SlotCache, keys: Sequence[str] | None, source: object
) -> TargetConfig:
    limit = getattr(text, "max_position_embeddings", None) or _FAR
    rope = getattr(text, "rope_parameters", None) or {}
    tables = rope.values() if any(isinstance(entry, dict) for entry in rope.values()) else [rope]
    for table in tables:
        if table.get("rope_type") in ("longrope", "dynamic"):
            # If any position exceeds the limit, the frequencies of the whole pass change.
            before = table.get("original_max_position_embeddings") or getattr(
                text, "original_max_position_embeddings", None
            )
            limit = min(limit, int(before or limit) - _ROOM)
    window = getattr(text, "sliding_window", None)
    chunk = getattr(text, "attention_chunk_size", None) if keys and "chunked_attention" in keys else None
    if keys is not None and not {"sliding_attention", "chunked_attention"} & set(keys):
        window = None
    return TargetConfig(
        architecture=type(model).__name__,
        vocab_size=int(head.weight.shape[0]),
        hidden_size=int(head.weight.shape[1]),
        num_layers=len(find_stack(model, source).layers),
        max_positions=int(limit),
        sliding_window=None if chunk else window,
        chunk=chunk,
        recurrent=any(True for layer in probe.layers if hasattr(layer, "memory")),
    )


_ROOM = 64  # tree nodes have positions beyond the last of the request
