"""The lean decoder model: a Hugging Face causal LM without Hugging Face's per-call overhead.

One class serves every family of ``lean.config.FAMILIES``. All shapes are static and no tensor value is read
on the host, so a forward pass can be captured in a CUDA graph. A lean model over a loaded Hugging Face target
does not duplicate weights: they are moved into fused matrices, and Hugging Face's parameters become views.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...core.errors import MismatchError, UnsupportedError
from ...core.progress import ProgressBar
from ...ops.decoder_layers import WEIGHTS, decoder_layers, runs_layers
from ...ops.few_rows import MOST_ROWS, linear
from .. import checkpoint
from ..checkpoint import EMBEDDING, FINAL_NORM, LM_HEAD
from ..kv_cache import KVCache, Mask, TreeMask
from ..rope import (
    RopeSettings,
    attention_factor,
    inverse_frequencies,
    rope_at,
    rotated_size,
    rotation_partners,
)
from ..target.hf import HFTarget
from ..target.interface import TargetOutput
from ..target.load import read_target_config
from ..target.logits import LogitTransform
from .config import LeanConfig
from .layers import LeanLayer, StepInputs, fits_ops, frozen, one_plus_norm, rms_norm, sum_and_norm


class LeanModel(nn.Module):
    """A decoder for inference, without dropout or gradients; see ``load_target``.

    Run it under ``torch.inference_mode()``, which makes calls cheaper.
    """

    inverse: Tensor
    near_inverse: Tensor
    partners: Tensor | None
    eps: Tensor

    def __init__(
        self,
        config: LeanConfig,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        own_lm_head: bool | None = None,
        matrices: torch.dtype | None = None,
    ) -> None:
        """Allocate uninitialised tensors.

        Args:
            dtype: dtype that the model computes in.
            own_lm_head: overrides ``config.tie_word_embeddings``.
            matrices: dtype that the layers' matrices are stored in; None: ``dtype``.
        """
        super().__init__()
        self.config = config
        device = torch.device(device)
        shape = (config.vocab_size, config.hidden_size)
        self.embedding = frozen(torch.empty(shape, dtype=dtype, device=device))
        own = not config.tie_word_embeddings if own_lm_head is None else own_lm_head
        self.lm_head = frozen(torch.empty(shape, dtype=dtype, device=device)) if own else None
        layers = range(config.num_layers)
        self.layers = nn.ModuleList(LeanLayer(config, i, dtype, device, matrices or dtype) for i in layers)
        self.norm = frozen(torch.empty(config.hidden_size, dtype=dtype, device=device))
        self._norm = one_plus_norm if config.family.one_plus else rms_norm
        self._plain_rope = config.family.rope in ("halves", "some") and config.rope.kind != "yarn"
        # Rounded to the dtype, as in Gemma.
        self._embedding_scale = float(torch.tensor(config.embedding_scale, dtype=dtype))
        self._make_buffers(device)
        self._tables: list[Tensor] | None = None
        self._narrow = None if matrices == dtype else matrices
        self._narrow_head: Tensor | None = None  # the same numbers as the head's, once they are read
        self._joined: list[Tensor] = []  # concatenated tables; captured passes still read the older ones
        self._dense = not any(config.expert_layers)
        self._kinds = [
            int(near) | 2 * (not turned) for near, turned in zip(config.sliding_layers, config.rotated_layers)
        ]
        self.eval()

    @cached_property
    def _constants(self) -> dict[str, Any]:
        """Arguments of ``decoder_layers`` shared by all layers."""
        config = self.config
        return {
            "norm": self.norm,
            "partners": None if self._plain_rope else self.partners,
            "heads": config.num_heads,
            "activation": config.hidden_act,
            "eps": config.rms_norm_eps,
            "scale": config.attention_scale or config.head_dim**-0.5,
            "residual_scale": config.residual_scale,
            "one_plus": config.family.one_plus,
        }

    @cached_property
    def _weights(self) -> list[Tensor]:
        """Weights for ``decoder_layers``: the parameters themselves, so later in-place changes apply."""
        none = torch.empty(0, device=self.device)
        return [layer._tensors().get(name, none) for layer in self._layers() for name in WEIGHTS]

    def _make_buffers(self, device: torch.device) -> None:
        config, size = self.config, self.config.head_dim
        near = config.near_rope or config.rope
        partners = rotation_partners(
            rotated_size(config.rope, size), size, interleaved=config.family.rope == "neighbours"
        )
        made = {
            "inverse": inverse_frequencies(config.rope, size),
            "near_inverse": inverse_frequencies(near, size),
            "partners": partners,
            "eps": torch.tensor(config.rms_norm_eps),
        }
        for name, value in made.items():
            self.register_buffer(name, None if value is None else value.to(device), persistent=False)

    @property
    def lm_head_weight(self) -> Tensor:
        """LM head weight (V, H); the embedding itself if the two are tied."""
        return self.embedding if self.lm_head is None else self.lm_head

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.dtype

    @property
    def device(self) -> torch.device:
        return self.embedding.device

    @property
    def transform(self) -> LogitTransform:
        """Transform applied to the LM head's output."""
        return self.config.transform

    def widen(self) -> None:
        """Store all weights in the dtype that the model computes in, for passes outside the CPU ops."""
        if self._narrow is None:
            return
        self._narrow = self._narrow_head = None
        for layer in self._layers():
            for name, weight in list(layer.named_parameters()):
                layer.register_parameter(name, frozen(weight.to(self.dtype)))
        self.__dict__.pop("_weights", None)

    def new_cache(self, capacity: int, batch: int = 1) -> KVCache:
        """Return a cache with this model's sizes, dtype and device."""
        c = self.config
        return KVCache(c.num_layers, batch, c.num_kv_heads, capacity, c.head_dim, self.dtype, self.device)

    def embed(self, ids: Tensor) -> Tensor:
        """Embed token ids: (B, T) -> (B, T, H)."""
        x = F.embedding(ids, self.embedding)
        return x if self._embedding_scale == 1.0 else x * self._embedding_scale

    def logits(self, hidden: Tensor) -> Tensor:
        """Compute logits from hidden states after the final norm: (..., H) -> (..., V)."""
        rows = self.lm_head_weight
        if self._narrow is not None and hidden.numel() <= MOST_ROWS * hidden.shape[-1]:
            if self._narrow_head is None:
                self._narrow_head = rows.detach().to(self._narrow)
            rows = self._narrow_head
        return self.transform(linear(hidden, rows))

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        *,
        cache: KVCache,
        slots: Tensor,
        mask: Mask,
        window_mask: Tensor | None = None,
        aux_layers: tuple[int, ...] = (),
        layers: range | None = None,
        x: Tensor | None = None,
    ) -> TargetOutput:
        """Run T tokens of B sequences against the cache, writing their keys and values to it.

        Args:
            ids: (B, T) int64.
            positions: (B, T) int64 rotary positions.
            cache: from ``new_cache``.
            slots: (T,) or (B, T) int64 cache slots to write these tokens to; each below ``view``.
            mask: bool (T, view) or (B, T, view), True = visible; only the first ``view`` slots are read. A
                fully masked row gives finite but meaningless output. Or a ``TreeMask`` of the whole cache, which
                handles windows by itself. Or the integer ``view``: the last token attends to all of these
                slots, and each token to one more than the token before it.
            window_mask: mask of the layers with a sliding window; None if all ``view`` slots are within it.
            aux_layers: 0-based decoder layers whose outputs (residual stream) are returned, in this order.
            layers: layers to run; None for all. The final norm follows the last of them.
            x: (B, T, H) input of the first of ``layers``; None for the embedding of ``ids``.
        """
        config = self.config
        if (
            window_mask is None
            and config.sliding_window is not None
            and isinstance(mask, Tensor)
            and mask.shape[-1] > config.sliding_window
        ):
            raise ValueError(f"window_mask is needed: view {mask.shape[-1]} > window {config.sliding_window}")
        partners = None if self._plain_rope else self.partners
        run = range(len(self.layers)) if layers is None else layers
        if not isinstance(mask, TreeMask) and self._in_one_call(ids):
            angles = self._angles(positions, cache.capacity)
            return self._one_call(ids, x, run, angles, cache, slots, mask, window_mask, aux_layers)
        in_one = isinstance(mask, TreeMask)
        cos, sin, near_cos, near_sin = (
            self._angles_at_once(positions, cache.capacity) if in_one else self._rotations(positions)
        )
        if isinstance(mask, int) and ids.shape[1] > 1:
            seen = torch.ones(ids.shape[1], mask, dtype=torch.bool, device=ids.device)
            mask = seen.tril(mask - ids.shape[1])
        bias = self._additive(mask) if isinstance(mask, Tensor) else mask
        window_bias = bias if window_mask is None else self._additive(window_mask)
        step = StepInputs(self.eps, cos, sin, near_cos, near_sin, partners, cache, slots, bias, window_bias)
        x = self.embed(ids) if x is None else x
        x = x.flatten(0, 1)  # (B * T, H): 2-d matrix products take fewer calls on a CPU
        if isinstance(bias, TreeMask) and fits_ops(config):
            hidden, outputs = self._on_ops(x, run, step, bias, aux_layers)
        else:
            hidden, outputs = self._stack(x, run, step, aux_layers)
        aux = torch.cat([outputs[index] for index in aux_layers], -1) if aux_layers else None
        shape = ids.shape
        return TargetOutput(hidden.unflatten(0, shape), None if aux is None else aux.unflatten(0, shape))

    def _rotations(self, positions: Tensor) -> list[Tensor]:
        """Return cosines and signed sines of the full-attention layers, then of the sliding layers."""
        config = self.config
        full = self._rotation(positions, self.inverse, config.rope)
        near = config.near_rope
        return [*full, *(full if near is None else self._rotation(positions, self.near_inverse, near))]

    def _angles(self, positions: Tensor, capacity: int) -> list[Tensor]:
        """Look up :meth:`_rotations` (B * T, D) in tables with more positions than the cache has slots."""
        flat = positions.flatten()
        rotations = [table.index_select(0, flat) for table in self._tables_for(capacity)]
        return rotations if len(rotations) == 4 else rotations * 2

    def _angles_at_once(self, positions: Tensor, capacity: int) -> list[Tensor]:
        """Look up :meth:`_rotations` with one kernel."""
        tables = self._tables_for(capacity)
        if not self._joined or len(self._joined[-1]) < len(tables[0]):
            self._joined.append(torch.cat(tables, -1))
        rows = self._joined[-1].index_select(0, positions.flatten()).view(*positions.shape, 1, -1)
        rotations = list(rows.chunk(len(tables), -1))
        return rotations if len(rotations) == 4 else rotations * 2

    def _tables_for(self, capacity: int) -> list[Tensor]:
        if self._tables is None or len(self._tables[0]) <= capacity:
            count = (capacity // 256 + 1) * 256
            made = self._rotations(torch.arange(count, device=self.device)[None])
            self._tables = [
                table.view(count, -1) for table in made[: 2 if self.config.near_rope is None else 4]
            ]
        return self._tables

    def _rotation(self, positions: Tensor, inverse: Tensor, rope: RopeSettings) -> tuple[Tensor, Tensor]:
        """Compute cosines and signed sines (B, T, 1, D) of positions (B, T)."""
        if self._plain_rope:
            return rope_at(positions.unsqueeze(2), inverse, self.dtype)
        return rope_at(
            positions.unsqueeze(2),
            inverse,
            self.dtype,
            scale=attention_factor(rope),
            size=self.config.head_dim,
            interleaved=self.config.family.rope == "neighbours",
        )

    def _in_one_call(self, ids: Tensor) -> bool:
        """Return whether the CPU op can run all layers in one call."""
        return (
            self._dense
            and ids.numel() <= MOST_ROWS
            and not torch.compiler.is_compiling()
            and runs_layers(self.embedding)
        )

    def _one_call(
        self,
        ids: Tensor,
        x: Tensor | None,
        layers: range,
        angles: Sequence[Tensor],
        cache: KVCache,
        slots: Tensor,
        mask: Tensor | int,
        window_mask: Tensor | None,
        aux_layers: tuple[int, ...],
    ) -> TargetOutput:
        first, last = layers.start, layers.stop
        whole = last - first == len(cache.k_layers)
        x = self.embed(ids) if x is None else x
        seen, view = (None, mask) if isinstance(mask, int) else (mask, mask.shape[-1])
        hidden, aux = decoder_layers(
            x.flatten(0, 1),
            weights=self._weights[first * len(WEIGHTS) : last * len(WEIGHTS)],
            angles=angles,
            seen=seen,
            near_seen=seen if window_mask is None else window_mask,
            view=view,
            keys=cache.k if whole else cache.k[first:last],
            values=cache.v if whole else cache.v[first:last],
            slots=slots,
            kinds=self._kinds[first:last],
            aux=[layer - first for layer in aux_layers],
            **self._constants,
        )
        shape = ids.shape
        return TargetOutput(hidden.unflatten(0, shape), aux.unflatten(0, shape) if aux_layers else None)

    def _stack(
        self, x: Tensor, layers: range, step: StepInputs, wanted: tuple[int, ...]
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Run layers on x (B * T, H); return the final normed states and the outputs of wanted layers."""
        outputs: dict[int, Tensor] = {}
        stack = self._layers()
        for index in layers:
            x = stack[index].forward(x, index, step)
            if index in wanted:
                outputs[index] = x
        return self._norm(x, self.norm, self.eps), outputs

    def _on_ops(
        self, x: Tensor, layers: range, step: StepInputs, mask: TreeMask, wanted: tuple[int, ...]
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Run :meth:`_stack` in few kernels: each residual addition is fused with the following norm."""
        outputs: dict[int, Tensor] = {}
        stack = self._layers()
        change: Tensor | None = None
        for index in layers:
            change, x = stack[index].on_ops(change, x, index, step, mask)
            if index in wanted:
                outputs[index] = x = x if change is None else x + change
                change = None
        return sum_and_norm(change, x, self.norm, self.config.rms_norm_eps)[0], outputs

    def _layers(self) -> list[LeanLayer]:
        return cast("list[LeanLayer]", list(self.layers))

    def _additive(self, mask: Tensor) -> Tensor:
        bias = torch.zeros_like(mask, dtype=self.dtype).masked_fill_(~mask, torch.finfo(self.dtype).min)
        return bias if mask.dim() == 2 else bias.unsqueeze(1)  # (B, 1, T, view)

    def checkpoint_views(self, loaded: bool = False) -> dict[str, tuple[Tensor, ...]]:
        """Map each Hugging Face tensor name to the parameter views that it fills, each with a full copy.

        Args:
            loaded: use the names in a loaded Transformers model, which can differ from the checkpoint's.
        """
        views: dict[str, tuple[Tensor, ...]] = {
            checkpoint.EMBEDDING: (self.embedding.data,),
            checkpoint.FINAL_NORM: (self.norm.data,),
        }
        if self.lm_head is not None:
            views[checkpoint.LM_HEAD] = (self.lm_head.data,)
        for index, layer in enumerate(self._layers()):
            prefix = f"model.layers.{index}."
            views |= {prefix + name: parts for name, parts in layer.checkpoint_views(loaded).items()}
        return views


def load_target(
    path: Path, *, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
) -> LeanModel:
    """Load a Hugging Face model folder (``config.json`` and safetensors) as a lean decoder.

    If a tied model stores both embedding and LM head, they are shared if equal, as in Transformers 5.

    Raises:
        DataError: unsupported architecture or feature; missing, truncated or packed weight files.
        MismatchError: the tensors do not match the configuration.
    """
    read_target_config(path)  # raises a clear error if the folder has no model
    config = LeanConfig.from_hf_config(path)
    stored = checkpoint.read_headers(checkpoint.checkpoint_files(path))
    tied = config.tie_word_embeddings
    if tied and checkpoint.EMBEDDING not in stored and checkpoint.LM_HEAD in stored:
        stored[checkpoint.EMBEDDING] = stored.pop(checkpoint.LM_HEAD)
    own_lm_head = not tied or checkpoint.LM_HEAD in stored
    plan = LeanModel(config, dtype=dtype, device="meta", own_lm_head=own_lm_head).checkpoint_views()
    checkpoint.check_headers(stored, {name: parts[0] for name, parts in plan.items()}, path)
    # Compiled ops widen bf16 as they read it: half the bytes a pass, and the bits of a product of fp32 weights.
    narrow = dtype == torch.float32 and not any(config.expert_layers)
    narrow = narrow and all(item.dtype == "BF16" for item in stored.values() if len(item.shape) > 1)
    narrow = narrow and torch.device(device).type == "cpu" and runs_layers(torch.empty(0))
    matrices = torch.bfloat16 if narrow else None
    model = LeanModel(config, dtype=dtype, device=device, own_lm_head=own_lm_head, matrices=matrices)
    with ProgressBar(f"load {path.name}"):
        checkpoint.fill(stored, model.checkpoint_views())
    if tied and model.lm_head is not None and torch.equal(model.lm_head, model.embedding):
        model.lm_head = None
    return model


@torch.no_grad()
def share_target(target: HFTarget) -> LeanModel:
    """Create a lean decoder that shares memory with a loaded target's weights (per-head norms are copied).

    During creation, one layer at a time is held twice. The target's results do not change.

    Raises:
        UnsupportedError: the lean decoder does not support this architecture, or the weights are not on one
            device in one dtype.
        MismatchError: the target's tensors do not match its configuration.
    """
    parameters = dict(target.model.named_parameters())  # lists a tied LM head only as the embedding
    _check_whole(parameters, target.source)
    config = LeanConfig.from_hf_config(
        target.source
        if isinstance(target.source, Path)
        else {"architectures": [type(target.model).__name__], **_known(target.model.config.to_dict())}
    )
    weight = target.embedding
    model = LeanModel(config, dtype=weight.dtype, device="meta", own_lm_head=LM_HEAD in parameters)
    _check_names(model, parameters, target.source)
    with torch.inference_mode(False):  # training also reads these tensors
        model.embedding = frozen(parameters[EMBEDDING].data)
        model.norm = frozen(parameters[FINAL_NORM].data)
        if model.lm_head is not None:
            model.lm_head = frozen(parameters[LM_HEAD].data)
        model._make_buffers(weight.device)
        for index, layer in enumerate(model._layers()):
            for name, parameter in list(layer.named_parameters()):
                empty = torch.empty(parameter.shape, dtype=weight.dtype, device=weight.device)
                layer.register_parameter(name, frozen(empty))
            for name, parts in layer.checkpoint_views(loaded=True).items():
                theirs = parameters[f"model.layers.{index}.{name}"]
                for part in parts:
                    part.copy_(theirs.data)
                if len(parts) == 1:
                    theirs.data = parts[0]
    return model


def _known(config: Mapping[str, object]) -> dict[str, object]:
    return {key: value for key, value in config.items() if value is not None}


def _check_whole(parameters: Mapping[str, Tensor], source: object) -> None:
    """Reject weights on several devices or in several dtypes; the lean decoder runs no Hugging Face hooks."""
    from torch.distributed.tensor import DTensor

    problem = None
    devices = sorted({str(tensor.device) for tensor in parameters.values()})
    dtypes = sorted({str(tensor.dtype) for tensor in parameters.values()})
    if any(isinstance(tensor, DTensor) for tensor in parameters.values()):
        problem = "weights divided over processes (tensor parallelism)"
    elif len(devices) > 1 or devices == ["meta"]:
        problem = f"weights on {', '.join(devices)}"
    elif len(dtypes) > 1:
        problem = f"weights in {', '.join(dtypes)}"
    if problem is not None:
        raise UnsupportedError(
            "the lean decoder needs the whole target on one device, in one dtype",
            got=problem,
            source=source,
            remedy="load the target on one device, in one dtype",
        )


def _check_names(model: LeanModel, parameters: Mapping[str, Tensor], source: object) -> None:
    wanted = {name: parts[0] for name, parts in model.checkpoint_views(loaded=True).items()}
    if problems := checkpoint.disagreements(parameters, wanted):
        raise MismatchError(
            "the loaded target's tensors are not those of its configuration",
            got="; ".join(problems[:3]),
            expected=f"{len(wanted)} tensors",
            source=source,
        )
