"""Draft heads, a drafter's layer and a target's layer of a large shape with random weights: time depends on sizes.

What depends on weights is at its dearest: siblings of a draft step have nothing in common, so that their shortlists
overlap as little as they can; a random router opens clusters evenly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..evaluate.bench_cycle_models import Pair, random_pair
from ..evaluate.op_benches.types import QWEN3_8B, ModelShape, distinct_ids, generator, normal
from ..models.heads import DraftHead, DraftState, HeadBase, HeadOptions, RouterHead, build_head
from ..models.heads_router import Router
from ..models.kv_cache import Sight, line_sight
from ..models.low_rank import LowRankScorer
from ..tune.types import HeadSetting

Call = Callable[[], Any]

_LOGIT = 3.0  # standard deviation of random logits
_FEW = 64  # rows of an embedding that nothing but a layer's input is read from


def shape_of(hidden: int, rows: int) -> ModelShape:
    """A model of that hidden size built as Qwen3-8B is: its number of layers, heads in proportion.

    With 4,096 it is Qwen3-8B itself.
    """
    of = QWEN3_8B
    head = min(of.head_dim, hidden)
    heads = max(1, hidden // head)
    return replace(
        of,
        name=f"H = {hidden:,}",
        hidden=hidden,
        vocab=rows,
        intermediate=hidden * of.intermediate // of.hidden,
        heads=heads,
        kv_heads=max(1, heads * of.kv_heads // of.heads),
        head_dim=head,
    )


class ShapeHeads:
    """Draft heads over one random LM head.

    Args:
        rows, hidden: V and H.
        text: most tokens of a text that a context head may be asked to read.

    Attributes:
        weight: (V, H) bf16.
    """

    def __init__(self, rows: int, hidden: int, device: torch.device, *, text: int = 1, seed: int = 0) -> None:
        self._random = generator(device, seed)
        self.weight = self._normal((rows, hidden), _LOGIT / hidden**0.5)
        self._base = HeadBase(
            nn.Parameter(self.weight, False), torch.arange(rows, device=device), self.weight
        )
        self._text = distinct_ids(rows, (1, min(text, rows)), self._random)  # (1, C)
        self._scorers: dict[int, LowRankScorer] = {}
        self._routers: dict[tuple[int, str], RouterHead] = {}

    def head(self, setting: HeadSetting) -> DraftHead:
        """A head of these sizes; what several have in common is made once."""
        scored, core = setting.scored[0], setting.core
        if setting.kind == "router":
            return self._router(setting.clusters, scored, "shared" if setting.shared else "own")
        if setting.kind in ("static", "scheduled"):  # a part of the rows lies in one piece
            base = self._base
            part = HeadBase(base.weight[:scored], base.target_ids[:scored], base.embedding)
            return build_head("static", part)
        scorer = self._scorer(setting.rank) if setting.rank else None
        options = HeadOptions()
        if setting.kind == "ranker":
            options = HeadOptions(shortlist=scored, rows="shared" if setting.shared else "own")
        elif setting.kind == "context":
            options = HeadOptions(ranked=self._spread(core), context=max(1, scored - core))
        elif setting.kind == "hybrid":
            options = HeadOptions(ranked=self._spread(core), shortlist=max(1, scored - core))
        return build_head(setting.kind, self._base, scorer, options)

    def call(self, head: DraftHead, rows: int, k: int) -> Call:
        """What a draft step asks of a head: the ``k`` best tokens of ``rows`` siblings."""
        width = self.weight.shape[1]
        hidden, previous = (self._siblings(rows, width) for _ in range(2))
        tokens = torch.zeros(rows, dtype=torch.int64, device=hidden.device)
        text = self._text[:, : head.context_size] if head.context_size else None
        state = DraftState(1, tokens, previous, 1, text)
        most = min(k, head.size)
        return lambda: head.topk(hidden, most, state)

    def logits(self, rows: int) -> Call:
        """The target's LM head and its choice."""
        hidden = self._siblings(rows, self.weight.shape[1])
        return lambda: nn.functional.linear(hidden, self.weight).argmax(-1)

    def _normal(self, size: tuple[int, ...], scale: float) -> Tensor:
        return normal(size, self._random, torch.bfloat16, scale)

    def _siblings(self, rows: int, width: int) -> Tensor:
        """(N, H) hidden states of unit scale."""
        return self._normal((rows, width), 1.0)

    def _spread(self, count: int) -> tuple[int, ...]:
        rows = len(self.weight)
        return tuple(place * rows // count for place in range(count))

    def _scorer(self, rank: int) -> LowRankScorer:
        if rank not in self._scorers:
            rows, hidden = self.weight.shape
            with torch.device("meta"):
                made = LowRankScorer(hidden, rows, rank)
            made.down.weight = nn.Parameter(self._normal((rank, hidden), hidden**-0.5), False)
            made.vocab.weight = nn.Parameter(self._normal((rows, rank), _LOGIT / rank**0.5), False)
            self._scorers[rank] = made
        return self._scorers[rank]

    def _router(self, clusters: int, scored: int, each: Literal["own", "shared"]) -> RouterHead:
        """One that opens about so many tokens; all of one number of clusters share their rows."""
        rows, hidden = self.weight.shape
        budget = min(clusters, max(1, round(scored * clusters / rows)))
        if (clusters, each) not in self._routers:
            assignment = torch.arange(rows, device=self.weight.device) % clusters
            with torch.device("meta"):
                router = Router(hidden, torch.zeros(1, dtype=torch.int64), clusters)
            router.assignment = assignment
            for layer in (*router.layers, router.out):
                assert isinstance(layer, nn.Linear)
                fan = layer.in_features
                layer.weight = nn.Parameter(self._normal((layer.out_features, fan), fan**-0.5), False)
                layer.bias = nn.Parameter(self._normal((layer.out_features,), 0.1), False)
            made = build_head("router", self._base, router, HeadOptions(budgets=(budget,), rows=each))
            assert isinstance(made, RouterHead)
            self._routers[clusters, each] = made
        return self._routers[clusters, each].with_budgets((budget,))


class ShapeLayers:
    """One layer of a target and the layer of an EAGLE-3 drafter, each with caches of some positions.

    Args:
        prefix: positions that the caches hold.
        most: rows of a pass at most.
    """

    def __init__(self, shape: ModelShape, device: torch.device, *, prefix: int, most: int) -> None:
        few = replace(shape, vocab=_FEW, layers=1)
        self._pair: Pair = random_pair(few, device, torch.bfloat16)
        self._prefix, self._device = prefix, device
        self._cache = self._pair.target.new_cache(prefix + most)
        self._own = self._pair.target.new_cache(prefix + most)
        self._random = generator(device, 1)
        self._width = shape.hidden

    def target(self, rows: int) -> Call:
        """One layer of the target over ``rows`` tokens, with the final norm."""
        ids, slots, seen = self._fed(rows)
        x = self._states(rows)
        model, cache = self._pair.target, self._cache
        return lambda: model.forward(ids, slots, cache=cache, slots=slots, mask=seen, layers=range(1), x=x)

    def drafter(self, rows: int) -> Call:
        """A draft step before its head: the layer, and the norm that the head reads."""
        ids, slots, seen = self._fed(rows)
        g = self._states(rows)
        drafter, cache = self._pair.drafter, self._own
        return lambda: drafter.read(drafter.extend(ids, g, slots, cache=cache, slots=slots, mask=seen))

    def fuse(self) -> Call:
        """What a cycle adds before its first step: the target's features fused."""
        drafter = self._pair.drafter
        features = self._states(1).repeat(1, 1, len(drafter.config.aux_layers))
        return lambda: drafter.fuse(features)

    def _states(self, rows: int) -> Tensor:
        return normal((1, rows, self._width), self._random, torch.bfloat16)

    def _fed(self, rows: int) -> tuple[Tensor, Tensor, Tensor | Sight]:
        """Tokens (1, T), slots (1, T), and what each token sees: all before it."""
        slots = torch.arange(self._prefix, self._prefix + rows, device=self._device)[None]
        ids = torch.zeros_like(slots)
        if self._device.type == "cuda":
            return ids, slots, line_sight(slots)
        places = torch.arange(self._prefix + rows)
        return ids, slots, (places <= slots[0][:, None])[None]
