"""Multi-token-prediction modules of target families: decoder layers, conventions and tensor names.

A module consists of ``norm_e``, ``norm_h``, a projection, a decoder layer of the target's class, and a norm;
embedding and LM head are the target's. The layer is Transformers' class with its attention replaced by a
callback for queries, keys and values, so that training and decoding control which keys each row attends to.

Sources: DeepSeek-V3 (arXiv 2412.19437, section 2.2); the state fed back and the zero embedding at position 0
follow vLLM 0.33.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...core.errors import ConfigError
from ..target.text_config import text_config

# Maps queries (B, h, T, D), keys and values (B, kv, T, D) of a pass to the attention output (B, h, T, D).
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]

ATTENTION = "handed_over"
_EXPERTS = "grouped_mm"  # static shapes, so that passes can be captured and compiled


@dataclass(frozen=True)
class Family:
    """The MTP module of a family.

    Attributes:
        module: module in ``transformers.models``.
        layer, rotary, norm: names of classes in that module.
        prefix: prefix of the tensor names; ``{n}`` is replaced with the target's number of layers.
        block: prefix of the decoder layer's tensors, after ``prefix``.
        parts: our name -> the checkpoint name after ``prefix``, for all parts except the decoder layer.
        post_norm: the next step's input state is taken after the final norm.
        zero_first: the input embedding at position 0 is zero.
    """

    module: str
    layer: str
    rotary: str
    norm: str
    prefix: str
    block: str
    parts: Mapping[str, str]
    post_norm: bool
    zero_first: bool

    def class_of(self, name: str) -> Any:
        """Return one of the family's classes by name."""
        return getattr(importlib.import_module(f"transformers.models.{self.module}"), name)


_BEHIND_LAYERS = {"fc": "eh_proj", "token_norm": "enorm", "state_norm": "hnorm", "norm": "shared_head.norm"}
_BESIDE_MODEL = {
    "fc": "fc",
    "token_norm": "pre_fc_norm_embedding",
    "state_norm": "pre_fc_norm_hidden",
    "norm": "norm",
}


def _behind(package: str, stem: str, *, post_norm: bool) -> Family:
    """Describe a family whose module is stored as an additional layer."""
    names = f"{stem}DecoderLayer", f"{stem}RotaryEmbedding", f"{stem}RMSNorm"
    return Family(
        f"{package}.modeling_{package}", *names, "model.layers.{n}.", "", _BEHIND_LAYERS, post_norm, True
    )


def _beside(package: str, stem: str, rotary: str) -> Family:
    """Describe a family whose module is stored outside the model."""
    names = f"{stem}DecoderLayer", f"{stem}{rotary}", f"{stem}RMSNorm"
    return Family(f"{package}.modeling_{package}", *names, "mtp.", "layers.0.", _BESIDE_MODEL, True, False)


# model_type of the text configuration -> MTP module.
FAMILIES: dict[str, Family] = {
    "deepseek_v3": _behind("deepseek_v3", "DeepseekV3", post_norm=True),
    "glm4_moe": _behind("glm4_moe", "Glm4Moe", post_norm=False),
    "qwen3_next": _beside("qwen3_next", "Qwen3Next", "RotaryEmbedding"),
    # Its three rows of positions are identical for text, the only input used here.
    "qwen3_5_text": _beside("qwen3_5", "Qwen3_5", "TextRotaryEmbedding"),
    "qwen3_5_moe_text": _beside("qwen3_5_moe", "Qwen3_5Moe", "TextRotaryEmbedding"),
}


def layer_config(family: str, layer: Mapping[str, Any]) -> Any:
    """Return the configuration of a family's decoder layer: the target's with one layer of full attention.

    Raises:
        ConfigError: Transformers cannot read the configuration, or the rotary frequencies depend on the pass.
    """
    from transformers import AttentionInterface

    config = text_config(layer, "the drafter's layer")
    kind = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if config.model_type != family or kind in ("longrope", "dynamic"):
        raise ConfigError(
            "this decoder layer is not computed",
            got=f"model_type {config.model_type} with rope_type {kind}",
            expected=f"model_type {family}, and a rotary embedding with fixed frequencies",
        )
    # As in Transformers' ``get_mtp_config``: settings that depend on the layer index get the module's values.
    changes = {
        "num_hidden_layers": 1,
        "layer_types": ["full_attention"],
        "first_k_dense_replace": 0,
        "mlp_only_layers": [],
        "decoder_sparse_step": 1,
    }
    for name, value in changes.items():
        if getattr(config, name, None) is not None:
            setattr(config, name, value)
    AttentionInterface.register(ATTENTION, _hand_over)
    config._attn_implementation = ATTENTION
    config._experts_implementation = _EXPERTS
    return config


def make_layer(family: str, config: Any) -> nn.Module:
    """Create a family's decoder layer for a :func:`layer_config`, without initialising it.

    Raises:
        ConfigError: the class rejects the sizes.
    """
    row = FAMILIES[family]
    with _accepted("the decoder layer's sizes are inconsistent", f"a configuration of {family}"):
        made: nn.Module = row.class_of(row.layer)(config, 0)
    return made


def rotary_tables(family: str, config: Any, count: int) -> tuple[Tensor, Tensor]:
    """Compute cos and sin (count, D') of a family's rotary embedding, fp32.

    Raises:
        ConfigError: the class rejects the settings.
    """
    row, failed = FAMILIES[family], "the rotary embedding of the decoder layer cannot be computed"
    with _accepted(failed, f"rope_parameters of {family}"), torch.device("cpu"):
        position = torch.arange(count)[None]
        cos, sin = row.class_of(row.rotary)(config)(torch.zeros(1), position)
    return cos[0], sin[0]


@contextmanager
def _accepted(failed: str, expected: str) -> Iterator[None]:
    """Convert the various errors of a family's classes into one clear error."""
    try:
        yield
    except Exception as error:
        got = f"{type(error).__name__}: {error}"[:300]
        raise ConfigError(failed, got=got, expected=expected) from error


def run_layer(
    layer: nn.Module, x: Tensor, position: Tensor, angles: tuple[Tensor, Tensor], attend: Attend
) -> Tensor:
    """Run a family's decoder layer on x (B, T, H) at positions (B, T); ``angles`` are (B, T, D') each."""
    out = layer(
        x,
        attention_mask=None,
        position_ids=position,
        position_embeddings=tuple(table.to(x.dtype) for table in angles),
        attend=attend,
    )
    return out[0] if isinstance(out, tuple) else out


def _hand_over(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    attend: Attend,
    **_: Any,
) -> tuple[Tensor, None]:
    """Implement a Transformers attention with ``attend``.

    ``attend`` scales by D^-0.5 and has the same D for keys and values. Latent attention has wider keys than
    values, so the narrower tensors are padded with zeros.
    """
    width, size = value.shape[-1], max(query.shape[-1], value.shape[-1])
    scale = scaling * math.sqrt(size)
    if not math.isclose(scale, 1.0):
        query = query * scale
    query, key, value = (_widened(tensor, size) for tensor in (query, key, value))
    return attend(query, key, value)[..., :width].transpose(1, 2).contiguous(), None


def _widened(states: Tensor, size: int) -> Tensor:
    return states if states.shape[-1] == size else F.pad(states, (0, size - states.shape[-1]))


def stored_views(
    family: str, layers: int, tensors: Mapping[str, Tensor], stored: Collection[str]
) -> Iterator[tuple[str, Tensor]]:
    """Yield the checkpoint name and a view of each tensor of a module (our names).

    Args:
        layers: number of layers of the target.
        stored: names in the checkpoint; experts are split unless their merged tensor is among them.
    """
    row = FAMILIES[family]
    prefix = row.prefix.format(n=layers)
    for name, tensor in tensors.items():
        part, _, rest = name.partition(".")
        theirs = f"{prefix}{row.block if part == 'layer' else row.parts[part] + '.'}{rest}"
        if ".experts." not in name or theirs in stored:
            yield theirs, tensor
            continue
        place, _, matrix = theirs.rpartition(".")
        for index, expert in enumerate(tensor):
            if matrix == "gate_up_proj":
                gate, up = expert.chunk(2)
                yield f"{place}.{index}.gate_proj.weight", gate
                yield f"{place}.{index}.up_proj.weight", up
            else:
                yield f"{place}.{index}.{matrix}.weight", expert
