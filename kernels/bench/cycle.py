"""Time full decode cycles at real shapes with random weights, against the bytes that they must read.

A cycle covers the draft loop, verification, commit, and the host's read of the accepted count. Its time depends on
shapes and not on weights or the accepted length, so tokens/s = accepted length with real weights / cycle seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from vocabforge.decode.accelerate.graphs import capture_passes
from vocabforge.decode.engine import Decoder
from vocabforge.decode.proposers.eagle import EagleBackend
from vocabforge.decode.proposers.model import ModelProposer
from vocabforge.decode.request import Generation, Request
from vocabforge.decode.tree import TreeSettings
from vocabforge.decode.trees.dynamic import DynamicPolicy
from vocabforge.models.drafters.eagle3 import Eagle3Config, Eagle3Drafter
from vocabforge.models.heads.registry import base_of
from vocabforge.models.lean.config import LeanConfig
from vocabforge.models.lean.model import LeanModel

from .cases.heads import BenchHead, build_setting, head_cost, settings
from .cases.types import ModelShape, generator
from .timing import Protocol

POSITIONS = 4096  # maximum cache positions
_SPREAD = 0.02  # standard deviation of the random weights
_WARM = 4  # untimed cycles: graph captures, first allocations


@dataclass(frozen=True)
class Pair:
    """A target and a drafter that reads its hidden states; ``shape`` has the sizes of both."""

    shape: ModelShape
    target: LeanModel
    drafter: Eagle3Drafter

    def proposer(self, setting: BenchHead) -> ModelProposer:
        """Create an EAGLE-3 proposer with a dynamic tree and this draft head."""
        random = generator(self.target.device, 7)
        head = build_setting(self.shape, setting, base_of(self.drafter), random)
        tree = TreeSettings(self.shape.topk, self.shape.depth, self.shape.nodes)
        return ModelProposer(EagleBackend(self.drafter, "eagle3", "EAGLE-3"), head, DynamicPolicy(tree))

    def prompt(self) -> list[int]:
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
        return self.plain_bytes() + _bytes(drafter.fc.parameters()) + levels * (layer + head)

    def _cached(self, layers: int) -> float:
        shape = self.shape
        row = 2 * shape.kv_heads * shape.head_dim * self.target.embedding.element_size()
        return float(layers * row * shape.prefix)


def _bytes(tensors: Iterable[Tensor]) -> float:
    return float(sum(tensor.nbytes for tensor in tensors))


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
    config, random = lean_config(shape), generator(device, 5)
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


def _fill(module: nn.Module, random: torch.Generator) -> None:
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, _SPREAD, generator=random)
            else:
                parameter.fill_(1.0)


def head_settings(shape: ModelShape) -> list[BenchHead]:
    """Return the heads for the cycle benchmark, the ranker first."""
    shortlist = 2048 if 2048 in shape.shortlists else max(shape.shortlists)

    def usual(head: BenchHead) -> bool:
        same = head.shortlist == shortlist and head.rank == shape.ranks[-1] and head.alike
        return same or head.kind != "ranker"

    by_kind = {head.kind: head for head in settings(shape) if usual(head)}
    return [by_kind[kind] for kind in ("ranker", "full", "static", "context")]


def cycles(models: Sequence[ModelShape], protocol: Protocol) -> dict[str, Callable[[], dict[str, Any]]]:
    """Return by name what measures plain decoding, and a cycle with each head, of every model."""
    held: list[Pair] = []  # one at a time: two of real size may not fit on a device

    def measure(shape: ModelShape, setting: BenchHead | None) -> dict[str, Any]:
        if not held or held[0].shape != shape:
            held.clear()
            with torch.inference_mode(False):
                held.append(random_pair(shape, protocol.device, torch.bfloat16))
        pair = held[0]
        return {
            "us": median(cycle_times(pair, setting, protocol)) * 1e6,
            "bytes": pair.plain_bytes() if setting is None else pair.cycle_bytes(setting),
            "flops": 0.0,
        }

    return {
        f"cycle {shape.name}, {'plain' if head is None else head.label.removesuffix(', rows alike')}": partial(
            measure, shape, head
        )
        for shape in models
        for head in (None, *head_settings(shape))
    }


def cycle_times(pair: Pair, setting: BenchHead | None, protocol: Protocol) -> list[float]:
    """Measure host seconds between committed cycles; each ends when the host reads the accepted count."""
    proposer = None if setting is None else pair.proposer(setting)
    capture = capture_passes(protocol.device) if protocol.cuda else None
    count = max(8, int(protocol.seconds * 1000)) if protocol.cuda else 3
    levels = 0 if setting is None else pair.shape.levels
    most = (levels + 1) * (count + _WARM + 2)
    decoder = Decoder(pair.target, proposer, pair.shape.prefix + most, wrap=capture)
    stream = decoder.stream(Request(pair.prompt(), most, ()), Generation())
    for _ in range(_WARM):
        next(stream)
    marks = [time.perf_counter()]
    for _ in range(count):
        next(stream)
        marks.append(time.perf_counter())
    stream.close()  # type: ignore[attr-defined]
    return [after - before for before, after in pairwise(marks)]
