"""Multi-token-prediction modules as target families have them: their decoder layer, their rules, their names.

A module is ``norm_e``, ``norm_h``, a projection, one decoder layer of the target's own class, and a norm; embedding and
LM head are the target's. The layer is Transformers' class. Its attention is taken out: it hands queries, keys and
values over, so that training and decoding decide which rows see which.

Sources: DeepSeek-V3 (arXiv 2412.19437, section 2.2); which state is fed back, and where the first embedding is zero,
as vLLM 0.33 computes it.
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

# Of queries (B, h, T, D), keys and values (B, kv, T, D) of a pass: the attention (B, h, T, D).
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]

ATTENTION = "handed_over"
_EXPERTS = "grouped_mm"  # static shapes, so that passes can be captured and compiled


@dataclass(frozen=True)
class Family:
    """One family's module.

    Attributes:
        module: in ``transformers.models``; ``layer``, ``rotary`` and ``norm`` are classes there.
        prefix: of the module's tensors; ``{n}`` stands for the target's number of layers.
        block: of the decoder layer's tensors, behind the prefix.
        parts: our name -> the name behind the prefix, of what is not the decoder layer.
        post_norm: the state that the next step is fed is behind the final norm.
        zero_first: the embedding fed at position 0 is zero.
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
        """One of the family's classes."""
        return getattr(importlib.import_module(f"transformers.models.{self.module}"), name)


_BEHIND_LAYERS = {"fc": "eh_proj", "token_norm": "enorm", "state_norm": "hnorm", "norm": "shared_head.norm"}
_BESIDE_MODEL = {
    "fc": "fc",
    "token_norm": "pre_fc_norm_embedding",
    "state_norm": "pre_fc_norm_hidden",
    "norm": "norm",
}


def _behind(package: str, stem: str, *, post_norm: bool) -> Family:
    """A family whose module is stored as one layer more."""
    names = f"{stem}DecoderLayer", f"{stem}RotaryEmbedding", f"{stem}RMSNorm"
    return Family(
        f"{package}.modeling_{package}", *names, "model.layers.{n}.", "", _BEHIND_LAYERS, post_norm, True
    )


def _beside(package: str, stem: str, rotary: str) -> Family:
    """A family whose module is stored beside the model."""
    names = f"{stem}DecoderLayer", f"{stem}{rotary}", f"{stem}RMSNorm"
    return Family(f"{package}.modeling_{package}", *names, "mtp.", "layers.0.", _BESIDE_MODEL, True, False)


# model_type of the text configuration -> its module; a new family is a row.
FAMILIES: dict[str, Family] = {
    "deepseek_v3": _behind("deepseek_v3", "DeepseekV3", post_norm=True),
    "glm4_moe": _behind("glm4_moe", "Glm4Moe", post_norm=False),
    "qwen3_next": _beside("qwen3_next", "Qwen3Next", "RotaryEmbedding"),
    # Its three rows of positions are one for text, which is all that a target is used with here.
    "qwen3_5_text": _beside("qwen3_5", "Qwen3_5", "TextRotaryEmbedding"),
    "qwen3_5_moe_text": _beside("qwen3_5_moe", "Qwen3_5Moe", "TextRotaryEmbedding"),
}


def layer_config(family: str, layer: Mapping[str, Any]) -> Any:
    """The configuration of a family's decoder layer: the target's text configuration for one layer of full attention.

    Raises:
        ConfigError: Transformers cannot read it, or a rotary embedding whose frequencies depend on the pass.
    """
    config = text_config(layer, "the drafter's layer")
    kind = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if config.model_type != family or kind in ("longrope", "dynamic"):
        raise ConfigError(
            "this decoder layer is not computed",
            got=f"model_type {config.model_type} with rope_type {kind}",
            expected=f"model_type {family}, and a rotary embedding with fixed frequencies",
        )
    # As Transformers' own ``get_mtp_config``: whatever depends on the place of a layer is the module's.
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
    _register_attention()
    config._attn_implementation = ATTENTION
    config._experts_implementation = _EXPERTS
    return config


def make_layer(family: str, config: Any) -> nn.Module:
    """A family's decoder layer of :func:`layer_config`, not initialised.

    Raises:
        ConfigError: sizes that its class refuses.
    """
    row = FAMILIES[family]
    with _accepted("the decoder layer's sizes do not go together", f"a configuration of {family}"):
        made: nn.Module = row.class_of(row.layer)(config, 0)
    return made


def rotary_tables(family: str, config: Any, count: int) -> tuple[Tensor, Tensor]:
    """cos and sin (count, D') of a family's rotary embedding, fp32.

    Raises:
        ConfigError: settings that its class refuses.
    """
    row, failed = FAMILIES[family], "the rotary embedding of the decoder layer cannot be computed"
    with _accepted(failed, f"rope_parameters of {family}"), torch.device("cpu"):
        position = torch.arange(count)[None]
        cos, sin = row.class_of(row.rotary)(config)(torch.zeros(1), position)
    return cos[0], sin[0]


@contextmanager
def _accepted(failed: str, expected: str) -> Iterator[None]:
    """A family's own classes raise errors of many kinds; all mean the same to a user."""
    try:
        yield
    except Exception as error:
        got = f"{type(error).__name__}: {error}"[:300]
        raise ConfigError(failed, got=got, expected=expected) from error


def run_layer(
    layer: nn.Module, x: Tensor, position: Tensor, angles: tuple[Tensor, Tensor], attend: Attend
) -> Tensor:
    """A family's decoder layer over x (B, T, H) at positions (B, T); ``angles`` (B, T, D') each."""
    out = layer(
        x,
        attention_mask=None,
        position_ids=position,
        position_embeddings=tuple(one.to(x.dtype) for one in angles),
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
    """An attention of Transformers that asks ``attend``, which scales by D^-0.5 and has one D for keys and values.

    Latent attention has wider keys than values: the narrower ones are padded with zeros.
    """
    width, size = value.shape[-1], max(query.shape[-1], value.shape[-1])
    scale = scaling * math.sqrt(size)
    if not math.isclose(scale, 1.0):
        query = query * scale
    query, key, value = (_widened(one, size) for one in (query, key, value))
    return attend(query, key, value)[..., :width].transpose(1, 2).contiguous(), None


def _widened(states: Tensor, size: int) -> Tensor:
    return states if states.shape[-1] == size else F.pad(states, (0, size - states.shape[-1]))


def _register_attention() -> None:
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION, _hand_over)


def stored_views(
    family: str, layers: int, tensors: Mapping[str, Tensor], stored: Collection[str]
) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a module (our names) as a checkpoint has them: its name, and a view of ours.

    Args:
        layers: of the target.
        stored: names in the checkpoint: experts are one by one there, unless it has them all in one tensor.
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
