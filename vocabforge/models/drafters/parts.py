"""Shared parts of drafters: sizes, rotary tables, attention over a cache."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import Field, asdict, dataclass, field, fields, replace
from typing import Any, ClassVar, TypeVar, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from ...core.errors import ConfigError, MismatchError
from ..kv_cache import CacheView, Mask, TreeMask
from ..rope import RopeSettings, layer_ropes, parse_rope, rope_tables
from ..target.text_config import text_config
from .interface import Drafter

_MOST = 1 << 28  # far above any size of a real model

_Sizes = TypeVar("_Sizes")
_Layers = TypeVar("_Layers", bound="LayerSizes")


@dataclass(frozen=True)
class TargetSizes:
    """A target's sizes from its text configuration, used as defaults of every drafter.

    Attributes:
        intermediate_size: width of a dense MLP, or the total width of a token's experts.
        config: the text configuration object.
    """

    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int | None
    vocab_size: int
    num_layers: int
    max_position_embeddings: int
    rms_norm_eps: float
    config: Any

    def rope(self) -> RopeSettings:
        """Return the target's RoPE over whole heads; that of the sliding layers if layer types differ.

        Plain RoPE if the target has none. Source: speculators 0.9, which serves drafters this way.

        Raises:
            UnsupportedError: the rotary embedding is not supported.
        """
        values: Mapping[str, Any] = getattr(self.config, "rope_parameters", None) or {}
        kinds = layer_ropes({"rope_parameters": values})
        if kinds:
            values = (
                kinds.get("sliding_attention") or kinds.get("full_attention") or next(iter(kinds.values()))
            )
        body = {"rope_parameters": values, "max_position_embeddings": self.max_position_embeddings}
        settings = parse_rope(body, 10_000.0, "the target's config.json", "set drafter.rope: plain")
        return replace(settings, partial=None)


_NO_LIMIT = 32_768  # context length of a target whose configuration has none


def read_target_sizes(config: Mapping[str, Any]) -> TargetSizes:
    """Read the sizes from a target's ``config.json`` (from the text part of a multimodal model).

    Raises:
        DataError: Transformers cannot read it.
        MismatchError: a size is missing.
    """
    text = text_config(config)

    def named(*names: str) -> Any:
        return next((value for name in names if (value := getattr(text, name, None))), None)

    if not all((named("hidden_size"), named("vocab_size"), named("num_hidden_layers"))):
        raise MismatchError(
            "the target's config.json lacks a size that a drafter needs",
            got=f"model_type {text.model_type}",
            expected="hidden_size, vocab_size, num_hidden_layers",
            remedy="give a causal language model's folder",
        )
    hidden = int(text.hidden_size)
    heads, head_dim = named("num_attention_heads"), named("head_dim")
    kv_heads = named("num_key_value_heads") or heads
    if named("kv_lora_rank"):  # head_dim is only the rotated part of a head, and heads do not share keys
        head_dim = int(text.v_head_dim)
        heads = kv_heads = max(hidden // head_dim, 1)
    if heads is None:  # no attention layer
        head_dim = head_dim if head_dim and hidden % head_dim == 0 else hidden
        heads = kv_heads = hidden // head_dim
    return TargetSizes(
        hidden_size=hidden,
        intermediate_size=_dense_width(named, hidden),
        num_heads=int(heads),
        num_kv_heads=int(kv_heads),
        head_dim=None if head_dim is None else int(head_dim),
        vocab_size=int(text.vocab_size),
        num_layers=int(text.num_hidden_layers),
        max_position_embeddings=int(named("max_position_embeddings") or _NO_LIMIT),
        rms_norm_eps=float(named("rms_norm_eps") or 1e-5),
        config=text,
    )


def _dense_width(named: Callable[..., Any], hidden: int) -> int:
    """Return the MLP's width, times the experts per token if the model has only experts of this width."""
    width = named("intermediate_size_mlp", "intermediate_size", "n_inner", "ffn_hidden_size")
    if width is None:
        return 4 * hidden
    only_experts = named("num_local_experts", "num_experts") and not named(
        "moe_intermediate_size", "intermediate_size_mlp"
    )
    return int(width) * (int(named("num_experts_per_tok") or 1) if only_experts else 1)


def known_layers(layers: tuple[int, ...], target: TargetSizes) -> tuple[int, ...]:
    """Check that the target has these layers (0-based outputs), and return them.

    Raises:
        MismatchError: a layer does not exist.
    """
    if not all(0 <= layer < target.num_layers for layer in layers):
        raise MismatchError(
            "the target has no such layers",
            got=f"drafter.aux_layers {list(layers)} (0-based)",
            expected=f"0 to {target.num_layers - 1}",
        )
    return layers


def size_problem(sizes: Any, *names: str) -> str | None:
    """Return the problem with a drafter's sizes, or None; ``names`` are further sizes to check."""
    names = ("hidden_size", "vocab_size", "max_position_embeddings", *names)
    wrong = [f"{name} {getattr(sizes, name)}" for name in names if not 1 <= getattr(sizes, name) <= _MOST]
    if wrong:
        return ", ".join(wrong)
    rows = sizes.draft_vocab_size
    if rows is not None and not 1 <= rows <= sizes.vocab_size:
        return f"draft_vocab_size {rows} is not within 1 to vocab_size {sizes.vocab_size}"
    return None


def aux_problem(sizes: Any) -> str | None:
    """Return the problem with the auxiliary layers, or None."""
    layers = sizes.aux_layers
    return None if layers and min(layers) >= 0 else f"aux_layers {list(layers)}"


def block_problem(sizes: Any) -> str | None:
    """Return the first problem with the sizes of a block, or None."""
    if sizes.block_size < 2:
        return f"block_size {sizes.block_size}: a block needs at least two rows"
    if sizes.block_size > sizes.max_position_embeddings:
        return (
            f"block_size {sizes.block_size} is above max_position_embeddings {sizes.max_position_embeddings}"
        )
    number = sizes.mask_token_id
    if number is not None and not 0 <= number < sizes.vocab_size:
        return f"mask_token_id {number} is not a row of {sizes.vocab_size:,}"
    return None


def refuse(problem: str | None) -> None:
    """Raise an error if there is a problem.

    Raises:
        ConfigError: there is one.
    """
    if problem is not None:
        raise ConfigError(
            "the drafter's sizes do not go together",
            got=problem,
            remedy="change them in the recipe's drafter section, or in the folder's configuration",
        )


class DictSizes:
    """Mix-in for dataclasses of sizes with conversion to and from dictionaries."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    # Fields added later, omitted at their defaults so that older folders and runs keep their identity.
    later: ClassVar[tuple[str, ...]] = ()

    def to_dict(self) -> dict[str, Any]:
        plain = {
            name for name in self.later if getattr(self, name) == self.__dataclass_fields__[name].default
        }
        return {name: value for name, value in asdict(self).items() if name not in plain}

    @classmethod
    def from_dict(cls: type[_Sizes], values: Mapping[str, Any]) -> _Sizes:
        """Parse the output of ``to_dict`` after a JSON round trip, strictly.

        Raises:
            ConfigError: missing or unknown keys, values of the wrong type, or inconsistent sizes.
        """
        from pydantic import TypeAdapter, ValidationError  # GPU checks run without it

        try:
            return TypeAdapter(cls).validate_json(json.dumps(values), strict=True)
        except ValidationError as error:
            first = error.errors()[0]
            raise ConfigError(
                "the drafter's configuration is incomplete or has unknown keys",
                got=f"{'.'.join(map(str, first['loc']))}: {first['msg']}",
                expected=", ".join(key.name for key in fields(cast(Any, cls))),
            ) from error


@dataclass(frozen=True)
class LayerSizes(DictSizes):
    """Sizes of a drafter with decoder layers.

    Attributes:
        hidden_size: H, equal to the target's.
        vocab_size: V, rows of the target's LM head.
        draft_vocab_size: R, rows of the drafter's own LM head; None to share the target's.
    """

    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    draft_vocab_size: int | None
    max_position_embeddings: int
    rms_norm_eps: float = 1e-5
    rope: RopeSettings = field(default_factory=RopeSettings)

    def __post_init__(self) -> None:
        names = "intermediate_size", "num_heads", "num_kv_heads", "head_dim", "num_layers"
        refuse(size_problem(self, *names) or self._attention_problem())

    @staticmethod
    def default_layers(layers: int, wishes: Mapping[str, Any]) -> tuple[int, ...]:
        """Return the default auxiliary layers for a target with ``layers`` layers."""
        return ()

    @classmethod
    def from_target(cls: type[_Layers], target: TargetSizes, wishes: Mapping[str, Any]) -> _Layers:
        """Create sizes from ``wishes``, values by field, and from the target for all other fields.

        Raises:
            MismatchError: the target does not have the auxiliary layers.
        """
        heads = wishes.get("num_heads", target.num_heads)
        sizes: dict[str, Any] = {
            "hidden_size": target.hidden_size,
            "intermediate_size": target.intermediate_size,
            "num_heads": heads,
            "num_kv_heads": target.num_kv_heads,
            "head_dim": target.head_dim or target.hidden_size // heads,
            "vocab_size": target.vocab_size,
            "draft_vocab_size": None,
            "max_position_embeddings": target.max_position_embeddings,
            # Smaller values would vanish in bf16 next to untrained norms.
            "rms_norm_eps": max(target.rms_norm_eps, 1e-6),
        }
        if "rope" not in wishes:
            sizes["rope"] = target.rope()
        if any(key.name == "aux_layers" for key in fields(cls)):
            layers = wishes.get("aux_layers") or cls.default_layers(target.num_layers, wishes)
            sizes["aux_layers"] = known_layers(layers, target)
        return cls(**{**sizes, **wishes})

    def _attention_problem(self) -> str | None:
        if self.num_heads % self.num_kv_heads:
            return f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}"
        if self.head_dim % 2:
            return f"head_dim {self.head_dim} is odd, but rotary positions need pairs"
        rope, pairs = self.rope, self.head_dim // 2
        if rope.partial is not None:
            return f"rope.partial {rope.partial}: a drafter rotates whole heads (set drafter.rope: plain)"
        lists = [factors for factors in (rope.short_factors, rope.long_factors) if factors is not None]
        if any(len(factors) != pairs for factors in lists):
            return f"longrope's factors are not for {pairs} pairs (set drafter.rope: plain)"
        return None


def cached_attention(q: Tensor, k: Tensor, v: Tensor, cached: CacheView, index: int = 0) -> Tensor:
    """Write a decoding step's keys and values to a layer of the cache and compute attention: (B, h, N, D).

    Args:
        q: (B, h, N, D); k, v: (B, kv, N, D), written to ``cached.slots``.
        index: index of the layer.
    """
    mask = cached.mask
    keys, values = cached.cache.write(index, k, v, cached.slots)
    if isinstance(mask, TreeMask):
        return mask.attend(q.transpose(1, 2), keys, values).transpose(1, 2)
    view = mask if isinstance(mask, int) else mask.shape[-1]
    if isinstance(mask, Tensor) and mask.dim() == 3:
        mask = mask.unsqueeze(1)
    return F.scaled_dot_product_attention(
        q,
        keys[:, :, :view],
        values[:, :, :view],
        attn_mask=None if isinstance(mask, int) else mask,
        enable_gqa=q.shape[1] != k.shape[1],
    )


_READY_POSITIONS = 131_072


class RotaryPositions(Drafter):
    """A drafter with rotary positions from tables ``cos`` and ``sin`` (P, D); see :meth:`register_tables`."""

    cos: Tensor
    sin: Tensor

    def register_tables(self) -> None:
        """Register fp32 tables that are neither trained nor saved.

        P is at most 131,072, since some configurations would need gigabytes; see ``ensure_positions``.
        """
        count = min(self.config.max_position_embeddings, _READY_POSITIONS)
        # On meta only names and shapes are wanted, and arithmetic imports torch._dynamo: a second.
        if torch.get_default_device().type == "meta":
            cos = sin = torch.empty(count, self.config.head_dim)
        else:
            cos, sin = self.tables(count)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    @property
    def positions(self) -> int:
        """Length of the rotary tables."""
        return int(self.cos.shape[0])

    def ensure_positions(self, count: int) -> None:
        """Extend the rotary tables to at least ``count`` positions; existing values do not change."""
        if count > self.positions:
            # Tables created in inference mode could not be used in training.
            with torch.inference_mode(False):
                cos, sin = self.tables(count)
                self.cos, self.sin = cos.to(self.cos), sin.to(self.sin)

    def tables(self, count: int) -> tuple[Tensor, Tensor]:
        """Compute fp32 tables of ``count`` positions."""
        return rope_tables(self.config.rope, self.config.head_dim, count)

    def angles(self, position: Tensor, mask: Mask) -> tuple[Tensor, Tensor]:
        """Return cos and signed sin (B, T, D) of positions (B, T), from the ``TreeMask`` if it has them."""
        known = mask.angles if isinstance(mask, TreeMask) else None
        return known or (self.cos[position], self.sin[position])

    def rotary(self, position: Tensor) -> tuple[Tensor, Tensor]:
        """Return cos and signed sin (B, 1, T, D) of positions (B, T)."""
        return self.cos[position][:, None], self.sin[position][:, None]
