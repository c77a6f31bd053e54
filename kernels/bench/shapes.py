"""Targets and drafters of known shapes with random weights, and the bytes that their cycles must read.

Time depends on shapes, not on weights. Accepted lengths depend on weights and are never measured here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vocabforge.decode.proposers.eagle import EagleBackend
from vocabforge.decode.proposers.interface import Plan
from vocabforge.decode.proposers.model import ModelProposer
from vocabforge.decode.tree import TreeSettings
from vocabforge.decode.trees.dynamic import DynamicPolicy
from vocabforge.models.drafters.eagle3 import Eagle3Config, Eagle3Drafter
from vocabforge.models.heads.registry import base_of
from vocabforge.models.lean.config import LeanConfig
from vocabforge.models.lean.model import LeanModel

from .cases.heads import BenchHead, build_setting, head_cost, settings
from .cases.types import ModelShape, generator

POSITIONS = 4096  # maximum cache positions
_SPREAD = 0.02


@dataclass(frozen=True)
class Pair:
    """A target and a drafter that reads its hidden states.

    Attributes:
        shape: sizes of both models.
    """

    shape: ModelShape
    target: LeanModel
    drafter: Eagle3Drafter

    def proposer(self, setting: BenchHead) -> ModelProposer:
        """Create an EAGLE-3 proposer with a dynamic tree and this draft head."""
        random = generator(self.target.device, 7)
        head, _, _ = build_setting(self.shape, setting, base_of(self.drafter), random)
        tree = TreeSettings(self.shape.topk, self.shape.depth, self.shape.nodes)
        return ModelProposer(EagleBackend(self.drafter, "eagle3", "EAGLE-3"), head, DynamicPolicy(tree))

    def plan(self) -> Plan:
        """Return the levels and nodes of a cycle."""
        return Plan(self.shape.levels, self.shape.nodes)

    def prompt(self) -> list[int]:
        """Return random tokens of the shape's prefix length."""
        random = torch.Generator().manual_seed(3)
        return torch.randint(self.shape.vocab, (self.shape.prefix,), generator=random).tolist()

    def plain_bytes(self) -> float:
        """Return the bytes read by a step of plain decoding: layers, final norm, LM head, keys and values."""
        read = [self.target.lm_head_weight, self.target.norm, *self.target.layers.parameters()]
        return _bytes(read) + self._cached(self.shape.layers)

    def cycle_bytes(self, setting: BenchHead) -> float:
        """Return the bytes that one speculative cycle must read.

        This is the target once; the drafter's layer once for the commit and once per further level; and its
        head once per level, assuming that all rows of a level list the same LM-head rows.
        """
        drafter, levels = self.drafter, self.shape.levels
        head, _ = head_cost(self.shape, setting, self.target.embedding.element_size())
        layer = _bytes([*drafter.midlayer.parameters(), *drafter.norm.parameters()]) + self._cached(1)
        fuse = _bytes(drafter.fc.parameters())
        return self.plain_bytes() + fuse + levels * (layer + head)

    def _cached(self, layers: int) -> float:
        shape = self.shape
        row = 2 * shape.kv_heads * shape.head_dim * self.target.embedding.element_size()
        return float(layers * row * shape.prefix)


def _bytes(tensors: Iterable[Tensor]) -> float:
    return float(sum(one.numel() * one.element_size() for one in tensors))


def lean_config(shape: ModelShape) -> LeanConfig:
    """Return the configuration of a model with this shape, without reading a file."""
    family = ("Qwen3ForCausalLM", "qwen3") if shape.qk_norm else ("LlamaForCausalLM", "llama")
    return LeanConfig.from_hf_config(
        {
            "architectures": [family[0]],
            "model_type": family[1],
            "vocab_size": shape.vocab,
            "hidden_size": shape.hidden,
            "intermediate_size": shape.intermediate,
            "num_hidden_layers": shape.layers,
            "num_attention_heads": shape.heads,
            "num_key_value_heads": shape.kv_heads,
            "head_dim": shape.head_dim,
            "hidden_act": "silu",
            "rms_norm_eps": shape.eps,
            "max_position_embeddings": POSITIONS,
            "rope_theta": 500_000.0,
            "tie_word_embeddings": False,
        }
    )


def random_pair(shape: ModelShape, device: torch.device, dtype: torch.dtype) -> Pair:
    """Create a target and an EAGLE-3 drafter that uses the target's LM head."""
    config = lean_config(shape)
    random = generator(device, 5)
    target = LeanModel(config, dtype=dtype, device=device)
    _fill(target, random)
    middle = config.num_layers // 2
    sizes = Eagle3Config(
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_heads=shape.heads,
        num_kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        vocab_size=shape.vocab,
        draft_vocab_size=None,
        aux_layers=(min(2, middle), middle, config.num_layers - 1),
        max_position_embeddings=POSITIONS,
        rms_norm_eps=shape.eps,
        rope=config.rope,
    )
    with torch.device(device):
        drafter = Eagle3Drafter(sizes, target.embedding.detach(), target.lm_head_weight.detach())
    drafter = drafter.to(device=device, dtype=dtype).eval().requires_grad_(False)
    _fill(drafter, random)
    return Pair(shape, target, drafter)


class ShapePairs:
    """Model pairs, created on first use and kept one at a time: two of real size may not fit on a device."""

    def __init__(self, device: str) -> None:
        self._device = torch.device(device)
        self._pair: Pair | None = None

    def of(self, shape: ModelShape) -> Pair:
        """Return the pair of a shape and drop the previous pair."""
        if self._pair is None or self._pair.shape != shape:
            self._pair = None
            with torch.inference_mode(False):
                self._pair = random_pair(shape, self._device, torch.bfloat16)
        return self._pair


def _fill(module: nn.Module, random: torch.Generator) -> None:
    """Fill matrices with small Gaussian values and norms with 1."""
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, _SPREAD, generator=random)
            else:
                parameter.fill_(1.0)


def head_settings(shape: ModelShape) -> list[BenchHead]:
    """Return the heads for the cycle benchmark."""
    shortlist = 2048 if 2048 in shape.shortlists else max(shape.shortlists)
    found = {
        one.kind: one for one in settings(shape) if one.ops and not one.fp8 and _usual(one, shape, shortlist)
    }
    return [found[kind] for kind in ("full", "static", "ranker", "router", "hybrid")]


def _usual(setting: BenchHead, shape: ModelShape, shortlist: int) -> bool:
    same = setting.shortlist == shortlist and setting.rank == shape.ranks[-1] and setting.alike
    return same or setting.kind != "ranker"


def label_of(setting: BenchHead) -> str:
    """Return the head's label without the suffix that is irrelevant for cycles."""
    return setting.label.removesuffix(", rows alike")
