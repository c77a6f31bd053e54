"""What drafters of several kinds share: sizes, the target's tensors, rotary tables, attention against a cache.

The classes are mix-ins without state, not modules inside the drafter: those would change the serving names of its
parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import Field, asdict, dataclass, fields, replace
from typing import Any, ClassVar, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...core.errors import ConfigError, MismatchError
from ...ops.few_rows import linear
from ..kv_cache import KVCache, Sight, sight_attention
from ..rope import ROPE_TYPES, RopeSettings, layer_ropes, parse_rope, rope_tables
from ..target.logits import IDENTITY, LogitTransform
from ..target.text_config import text_config

_MOST = 1 << 28  # no size of any model comes near

_Sizes = TypeVar("_Sizes")


@dataclass(frozen=True)
class TargetSizes:
    """A target's sizes, from its text configuration; the defaults of every drafter.

    Attributes:
        intermediate_size: of a dense MLP; with experts, the width that one token passes.
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
        """The target's RoPE over whole heads; that of the sliding layers, if types of layers differ.

        Plain RoPE if the target has none. Source: speculators 0.9, which serves drafters so.

        Raises:
            UnsupportedError: a rotary embedding that is not computed.
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


@dataclass(frozen=True)
class SizeWishes:
    """What a user sets of a drafter's sizes; None takes the target's."""

    draft_vocab_size: int | None = None
    aux_layers: tuple[int, ...] | None = None
    intermediate_size: int | None = None
    num_heads: int | None = None
    num_kv_heads: int | None = None
    num_layers: int | None = None
    norm_before_residual: bool | None = None
    norm_before_fc: bool | None = None
    fc_norm: bool | None = None
    norm_output: bool | None = None
    qk_norm: bool | None = None
    medusa_heads: int | None = None
    medusa_layers: int | None = None
    medusa_own_heads: bool | None = None
    block_size: int | None = None
    mask_token_id: int | None = None
    markov_rank: int | None = None
    fc_bias: bool | None = None
    rope: RopeSettings | None = None

    def attention(self, target: TargetSizes) -> dict[str, Any]:
        """The fields of a drafter with one decoder layer."""
        heads = self.num_heads or target.num_heads
        return {
            "hidden_size": target.hidden_size,
            "intermediate_size": self.intermediate_size or target.intermediate_size,
            "num_heads": heads,
            "num_kv_heads": self.num_kv_heads or target.num_kv_heads,
            "head_dim": target.head_dim or target.hidden_size // heads,
            "vocab_size": target.vocab_size,
            "draft_vocab_size": self.draft_vocab_size,
            "max_position_embeddings": target.max_position_embeddings,
            # A smaller one would vanish in bf16 next to fresh norms.
            "rms_norm_eps": max(target.rms_norm_eps, 1e-6),
            "rope": self.rope or target.rope(),
        }


_NO_LIMIT = 32_768  # positions of a target that names no longest context


def read_target_sizes(config: Mapping[str, Any]) -> TargetSizes:
    """Sizes from a target's ``config.json`` (its text part, if it has several).

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
    if named("kv_lora_rank"):  # head_dim is the rotated part of a head; keys are not shared
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
    """The MLP's width; of a model that has experts of this width only, times the experts of a token."""
    width = named("intermediate_size_mlp", "intermediate_size", "n_inner", "ffn_hidden_size")
    if width is None:
        return 4 * hidden
    only_experts = named("num_local_experts", "num_experts") and not named(
        "moe_intermediate_size", "intermediate_size_mlp"
    )
    return int(width) * (int(named("num_experts_per_tok") or 1) if only_experts else 1)


def known_layers(layers: tuple[int, ...], target: TargetSizes) -> tuple[int, ...]:
    """The layers (0-based outputs) themselves.

    Raises:
        MismatchError: the target does not have one of them.
    """
    if not all(0 <= layer < target.num_layers for layer in layers):
        raise MismatchError(
            "the target has no such layers",
            got=f"drafter.aux_layers {list(layers)} (0-based)",
            expected=f"0 to {target.num_layers - 1}",
        )
    return layers


def size_problem(sizes: Any, *names: str) -> str | None:
    """The first thing wrong with a drafter's sizes, or None; ``names`` are further fields that must be 1 or more."""
    names = ("hidden_size", "vocab_size", "max_position_embeddings", *names)
    small = [f"{name} {getattr(sizes, name)}" for name in names if getattr(sizes, name) < 1]
    if small:
        return ", ".join(small)
    rows = sizes.draft_vocab_size
    if rows is not None and not 1 <= rows <= sizes.vocab_size:
        return f"draft_vocab_size {rows} is not within 1 to vocab_size {sizes.vocab_size}"
    return None


def attention_problem(sizes: Any) -> str | None:
    """The first thing wrong with the sizes of an attention, or None."""
    if sizes.num_heads % sizes.num_kv_heads:
        return f"num_heads {sizes.num_heads} is no multiple of num_kv_heads {sizes.num_kv_heads}"
    if sizes.head_dim % 2:
        return f"head_dim {sizes.head_dim} is odd, and rotary positions need pairs"
    rope, pairs = sizes.rope, sizes.head_dim // 2
    if rope.partial is not None:
        return f"rope.partial {rope.partial}: a drafter rotates whole heads (set drafter.rope: plain)"
    if {len(one) for one in (rope.short_factors, rope.long_factors) if one is not None} - {pairs}:
        return f"longrope's factors are not for {pairs} pairs (set drafter.rope: plain)"
    return None


def block_problem(sizes: Any) -> str | None:
    """The first thing wrong with the sizes of a block, or None."""
    if sizes.block_size < 2:
        return f"block_size {sizes.block_size}: a block has at least two rows"
    number = sizes.mask_token_id
    if number is not None and number >= sizes.vocab_size:
        return f"mask_token_id {number} is no row of {sizes.vocab_size:,}"
    return None


def refuse(problem: str | None) -> None:
    """Raises: ConfigError: there is a problem."""
    if problem is not None:
        raise ConfigError(
            "the drafter's sizes do not go together",
            got=problem,
            remedy="change these sizes: the section drafter of a recipe, the configuration of a folder",
        )


class DictSizes:
    """Mix-in of a kind's sizes, a dataclass: to a dictionary and back."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    # Fields that came later: left out at their default, so that older folders and runs keep their identity.
    later: ClassVar[tuple[str, ...]] = ()

    def to_dict(self) -> dict[str, Any]:
        plain = {
            name for name in self.later if getattr(self, name) == self.__dataclass_fields__[name].default
        }
        return {name: value for name, value in asdict(self).items() if name not in plain}

    @classmethod
    def from_dict(cls: type[_Sizes], values: Mapping[str, Any]) -> _Sizes:
        """Sizes from what ``to_dict`` and JSON made of them, strictly.

        Raises:
            ConfigError: a key is missing or unknown, or the sizes do not go together.
        """
        body = dict(values)
        try:
            _check_types(cls, body)
            if "aux_layers" in body:
                body["aux_layers"] = tuple(body["aux_layers"])
            if "rope" in body:
                _check_types(RopeSettings, body["rope"])
                rope: dict[str, Any] = {
                    key: tuple(one) if isinstance(one, list) else one for key, one in body["rope"].items()
                }
                body["rope"] = RopeSettings(**rope)
                if body["rope"].kind not in ROPE_TYPES:
                    raise TypeError(f"rope.kind {body['rope'].kind!r}")
            return cls(**body)
        except (KeyError, TypeError) as error:
            raise ConfigError(
                "the drafter's configuration is incomplete or has unknown keys",
                got=error,
                expected=", ".join(one.name for one in fields(cast(Any, cls))),
            ) from error


def _check_types(sizes_type: type[Any], body: Mapping[str, Any]) -> None:
    """Raises: TypeError: a value is not of its field's type, or no size that anything has."""
    for field in fields(sizes_type):
        value: Any = body.get(field.name)
        kind = str(field.type)
        if field.name not in body or (value is None and "None" in kind):
            continue
        if kind.startswith("int"):
            fits = type(value) is int and (not field.name.endswith("_id")) <= value <= _MOST
        elif kind.startswith("tuple[int"):
            fits = isinstance(value, (list, tuple)) and all(
                type(one) is int and 0 <= one <= _MOST for one in value
            )
        elif kind.startswith("float"):
            fits = _is_number(value)
        elif kind.startswith("tuple[float"):
            fits = isinstance(value, (list, tuple)) and all(map(_is_number, value))
        else:
            fits = not kind.startswith("bool") or type(value) is bool
        if not fits:
            raise TypeError(f"{field.name} {value!r}"[:120])


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and 0 <= cast("float", value) < math.inf


def cached_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cache: KVCache,
    slots: Tensor,
    mask: Tensor | Sight | int,
    index: int = 0,
) -> Tensor:
    """Attention (B, h, N, D) of one decoding step against a layer of the cache, which takes the step's keys.

    Args:
        q: (B, h, N, D); k, v: (B, kv, N, D), written to ``slots`` (N,) or (B, N).
        mask: bool (N, S') or (B, N, S') over the first S' cache slots, True = visible; or a ``Sight`` of all;
            or S' for one token that sees them all.
        index: the layer.
    """
    keys, values = cache.write(index, k, v, slots)
    if isinstance(mask, Sight):
        return sight_attention(q.transpose(1, 2), keys, values, mask).transpose(1, 2)
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


class OverTarget:
    """Mix-in of a drafter over a frozen target, read by the target's LM head or by its own (``lm_head``)."""

    config: Any
    embedding: Tensor
    target_head: Tensor
    target_ids: Tensor
    target_transform: LogitTransform = IDENTITY
    lm_head: nn.Linear
    rows_by_token: ClassVar[tuple[str, ...]] = ()  # tensors with a row a draft token, beside the head

    @property
    def has_own_head(self) -> bool:
        return self.config.draft_vocab_size is not None

    @property
    def head_weight(self) -> Tensor:
        """The rows that score draft tokens: (R, H) or (V, H)."""
        return self.lm_head.weight if self.has_own_head else self.target_head

    @property
    def bias_weight(self) -> Tensor | None:
        """(R, r) further columns beside the head's rows, for states with r numbers more (DSpark's W2)."""
        return None

    @property
    def cache_layers(self) -> int:
        """Layers of the key cache that decoding needs."""
        return 1

    @property
    def heads_differ(self) -> bool:
        """Whether draft steps have LM heads of their own."""
        return False

    def head_rows(self, step: int) -> Tensor:
        """``head_weight`` of a draft step."""
        return self.head_weight

    @property
    def transform(self) -> LogitTransform:
        """Of the logits of ``head_weight``: the target's where the head is; an own head learns what comes of it."""
        return IDENTITY if self.has_own_head else self.target_transform

    @torch.no_grad()
    def init_own_head(self) -> None:
        """An own LM head takes the target's rows of the same tokens, with the target's scale."""
        if self.has_own_head:
            self.lm_head.weight.copy_(self.target_head[self.target_ids] * self.target_transform.scale)

    def fuse(self, features: Tensor) -> Tensor:
        """The target's hidden states as they are: (..., H)."""
        return features

    def read(self, g: Tensor) -> Tensor:
        """The LM head reads g itself."""
        return g

    def confidence(self, state: Tensor) -> Tensor | None:
        """Logits of acceptance (...) from what :meth:`read` gave, if the drafter estimates it."""
        return None

    def logits(self, g: Tensor, step: int = 0) -> Tensor:
        """(..., H) of a draft step -> (..., R or V) draft logits."""
        return self.transform(linear(self.read(g), self.head_rows(step)))

    def embed(self, ids: Tensor) -> Tensor:
        """(B, T) -> (B, T, H)."""
        return F.embedding(ids, self.embedding)


class RotaryPositions:
    """Mix-in of a drafter with rotary positions: tables ``cos`` and ``sin`` (P, D), see :func:`register_tables`."""

    config: Any
    cos: Tensor
    sin: Tensor

    @property
    def positions(self) -> int:
        """Length of the rotary tables."""
        return int(self.cos.shape[0])

    def ensure_positions(self, count: int) -> None:
        """Lengthen the rotary tables to at least ``count`` positions; what was made keeps its values."""
        if count > self.positions:
            # A table made in inference mode could not be used in training again.
            with torch.inference_mode(False):
                cos, sin = self.tables(count)
                self.cos, self.sin = cos.to(self.cos), sin.to(self.sin)

    def tables(self, count: int) -> tuple[Tensor, Tensor]:
        """Tables of that many positions, fp32."""
        return rope_tables(self.config.rope, self.config.head_dim, count)

    def angles(self, position: Tensor, mask: Tensor | Sight | int) -> tuple[Tensor, Tensor]:
        """cos and signed sin (B, T, D) of positions (B, T), unless a ``Sight`` has them."""
        known = mask.angles if isinstance(mask, Sight) else None
        return known or (self.cos[position], self.sin[position])

    def rotary(self, position: Tensor) -> tuple[Tensor, Tensor]:
        """cos and signed sin (B, 1, T, D) of positions (B, T)."""
        return self.cos[position][:, None], self.sin[position][:, None]


def share_target(
    drafter: nn.Module, sizes: Any, embedding: Tensor, head: Tensor, target_ids: Tensor | None
) -> None:
    """Register the target's tensors (V, H), and the own head's ids (R,), as buffers neither trained nor saved.

    Raises:
        MismatchError: other shapes, or no ids with R below V.
    """
    expected = (sizes.vocab_size, sizes.hidden_size)
    for name, tensor in (("input embedding", embedding), ("LM head", head)):
        if tuple(tensor.shape) != expected:
            raise MismatchError(
                f"the target's {name} does not fit the drafter",
                got=f"shape {tuple(tensor.shape)}",
                expected=f"shape {expected}",
                remedy="use the target that the drafter was trained for",
            )
    rows = sizes.draft_vocab_size
    if rows is not None and rows != sizes.vocab_size and (target_ids is None or len(target_ids) != rows):
        raise MismatchError(
            "the drafter's own head has no matching list of target ids",
            got="none" if target_ids is None else f"{len(target_ids)} ids",
            expected=f"{rows} ids",
        )
    if target_ids is None:
        target_ids = torch.arange(rows or sizes.vocab_size)
    drafter.register_buffer("embedding", embedding.detach(), persistent=False)
    drafter.register_buffer("target_head", head.detach(), persistent=False)
    drafter.register_buffer("target_ids", target_ids, persistent=False)


def register_tables(drafter: Any, sizes: Any) -> None:
    """Register rotary tables ``cos`` and ``sin`` (P, D), fp32, neither trained nor saved.

    P is at most 131,072: some configurations admit gigabytes of tables. ``ensure_positions`` makes more.
    """
    cos, sin = drafter.tables(min(sizes.max_position_embeddings, _READY_POSITIONS))
    drafter.register_buffer("cos", cos, persistent=False)
    drafter.register_buffer("sin", sin, persistent=False)
