"""Any causal language model of Transformers as a decoding target: its own code, our cache, masks and positions.

The lean model is faster where it knows the architecture; this one serves the others. A pass takes the tokens of B rows
at explicit positions, sees what additive masks say, and writes to the slots that it is given.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from ...core.errors import DataError, UsageError
from ..target.interface import TargetConfig, TargetOutput
from ..target.load import Placement, load_causal_lm
from ..target.logits import LogitTransform
from ..target.stack import find_ends, find_stack
from . import attention
from .cache import RowOfSlots, SlotCache, rows_of
from .replay import StateReplay

_ATTENTION = {"full_attention", "sliding_attention", "chunked_attention"}
_FAR = 1 << 20  # positions of a model that names no limit


class _HeadInput(nn.Module):
    """Stands in for the LM head: keeps what it would read, and gives one column instead of V."""

    def __init__(self, head: Any) -> None:
        super().__init__()
        self.hidden: Tensor | None = None
        self.__dict__["weight"] = head.weight  # some models cast to its dtype

    def forward(self, hidden: Tensor) -> Tensor:
        self.hidden = hidden
        return hidden[..., :1]


class TransformersModel:
    """A loaded model of Transformers behind the lean model's interface.

    The model's LM head is taken out: :meth:`forward` gives its input, :meth:`logits` applies it.

    Args:
        model: as ``AutoModelForCausalLM`` gives it.
        source: where it comes from, for messages.
        placement: where it was put; None is one device, the model's. Under tensor parallelism every process must run
            the same passes.

    Attributes:
        config: sizes.
        device: where ids, positions and masks are expected, and hidden states and logits are given.
        transform: what the model does to its logits behind the LM head.

    Raises:
        DataError: no logits, no decoder layers, or logits that are not those of the head and the transform.
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
        # It makes no mask by itself for one token. A second decoder may come over the same model.
        self._maskless = text._attn_implementation in ("sdpa", attention.NAME)
        if self._maskless and self.device.type == "cpu":
            text._attn_implementation = attention.NAME
        self._all_near = self._mask_keys is None and getattr(text, "sliding_window", None) is not None
        self._stand_in = _HeadInput(self.head)
        self._body: Any = None  # what the head reads comes of it alone
        self._wanted: tuple[int, ...] = ()  # training runs this model, too: nothing of its passes is kept
        self._kept: dict[int, Tensor] = {}
        self._hooked: set[int] = set()
        probe = SlotCache(text, 1, 1)
        self.config = _sizes(model, text, self.head, probe, self._mask_keys, source)
        self._replay = StateReplay(model) if self.config.recurrent else None
        self._check()

    @property
    def dtype(self) -> torch.dtype:
        return self.lm_head_weight.dtype

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """All weights."""
        return cast("Iterator[tuple[str, Tensor]]", self.model.named_parameters())

    def new_cache(self, capacity: int, batch: int = 1) -> SlotCache:
        """A cache of ``batch`` rows of ``capacity`` slots; layers take memory at their first pass.

        Raises:
            UsageError: several rows of a model that takes one position for all of them (Llama 4).
        """
        if batch > 1 and getattr(self._text, "attn_temperature_tuning", False):
            raise UsageError(
                "this target scales attention by one position for all rows, so it decodes one request at a time",
                got=f"{batch} rows of {self.config.architecture}",
                expected="1 row",
                remedy="leave --batch out",
            )
        return SlotCache(self._text, batch, capacity, self._replay, self.device)

    def logits(self, hidden: Tensor) -> Tensor:
        """(..., H) what the LM head reads -> (..., V), with the model's own softcap or scale."""
        if not self._spread:  # hooks bring the states of a spread model to its weights
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
            ``hidden`` is what the LM head reads.
        """
        whole, rows = rows_of(cache)
        view = mask if isinstance(mask, int) else mask.shape[-1]
        whole.enter(rows, slots, positions, view)
        near = mask if window_mask is None else window_mask
        given: dict[str, Any] = {self._cache_name: whole, "attention_mask": self._masks(mask, near)}
        if self._positional:
            given["position_ids"] = positions
        self._hook(aux_layers)
        self._wanted = aux_layers
        hidden = self._run(ids, given).to(self.device)
        aux = None
        if aux_layers:
            aux = torch.cat([self._kept[index].to(self.device) for index in aux_layers], -1)
        self._wanted = ()
        self._kept.clear()
        return TargetOutput(hidden, aux)

    def _run(self, ids: Tensor, given: dict[str, Any]) -> Tensor:
        """(B, T) ids -> (B, T, H) what the LM head would read."""
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
        """Additive float masks, right with every attention of Transformers; booleans are not with eager."""
        if self._mask_keys is None:
            return self._additive(near if self._all_near else mask)
        if not _ATTENTION & set(self._mask_keys):
            return None
        made: dict[str, Tensor | None] = {}
        for key in self._mask_keys:
            if key == "full_attention":
                made[key] = self._additive(mask)
            elif key in ("sliding_attention", "chunked_attention"):
                made[key] = self._additive(near)
            else:  # a recurrent layer reads all of its row
                made[key] = None
        return made

    def _additive(self, mask: Tensor | int) -> Tensor | None:
        """(T, S) or (B, T, S) -> (B or 1, 1, T, S): 0 where visible, else the lowest finite number."""
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
        """The head and its transform give the model's logits."""
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
            self._body = body  # fewer calls than the whole model's

    def _other_logits(self) -> DataError:
        return DataError(
            "this target's logits are not its LM head's, a scale and a softcap",
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
    """Load a Hugging Face folder for decoding by Transformers' own code.

    Args:
        device, device_map, tp_plan: see :class:`~vocabforge.models.target.load.Placement`.

    Raises:
        DataError: no model, or one that cannot be verified.
        UsageError: a placement that does not suit how the processes were launched.
    """
    placement = Placement(torch.device(device), device_map, tp_plan)
    return TransformersModel(load_causal_lm(path, dtype, placement), path, placement)


def _mask_keys(model: Any, text: Any) -> list[str] | None:
    """Layer types that the model's forward takes masks of; None: it takes one mask."""
    from transformers.masking_utils import create_masks_for_generate

    types = set(getattr(text, "layer_types", None) or ())
    if "chunked_attention" in types:  # Transformers before 5.20 cannot be asked for these
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
    tables = rope.values() if any(isinstance(one, dict) for one in rope.values()) else [rope]
    for table in tables:
        if table.get("rope_type") in ("longrope", "dynamic"):
            # Frequencies change for the whole pass where any position lies beyond.
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


_ROOM = 64  # a tree's nodes lie beyond its request's last position
