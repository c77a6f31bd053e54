"""A target of a few tokens whose next-token distribution is exact, and which notices wrong masks, slots and compaction.

The distribution of a context is a row of a table, looked up by the last token and a checksum of the whole text before
it. Token and position of every node lie in the real key cache. A pass reads them back through its mask: where it
does not see each position up to its own exactly once, its state is BROKEN and its distribution another one. So a
distribution is bit for bit the same in a pass over a tree, in a plain pass and in the reference, or else the cache is
wrong.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vocabforge.models.kv_cache import KVCache
from vocabforge.models.lean.config import LeanConfig
from vocabforge.models.lean.model import LeanModel
from vocabforge.models.target.interface import TargetOutput

CHECK = 7  # checksums of a text: one wrong token always changes it where V < 7
NEVER = -1e9  # a logit whose softmax weight is exactly 0; the target itself answers -inf there
KINDS = ("plain", "ties", "zeros", "near", "hidden")


def state_of(prefix: Sequence[int], vocab: int) -> int:
    """Which of the ``vocab * CHECK`` states a text leads to."""
    checksum = sum((token + 1) * (1 + place % (CHECK - 1)) for place, token in enumerate(prefix))
    return prefix[-1] * CHECK + checksum % CHECK


def table(kind: str, vocab: int, seed: int, states: int) -> Tensor:
    """Logits (states, V), fp32.

    Args:
        kind: ``plain``; ``ties`` between few values; ``zeros``: some tokens never follow; ``near``: one token
            follows almost surely; ``hidden``: the highest id is the best everywhere, and a shortlist of the
            others misses it.
    """
    draw = random.Random(f"{kind} {vocab} {seed}")
    rows = []
    for _ in range(states):
        row = [draw.randint(-32, 32) / 16 for _ in range(vocab)]
        if kind == "ties":
            row = [draw.choice([0.0, 0.5]) for _ in range(vocab)]
        if kind == "zeros":
            for token in draw.sample(range(vocab), max(1, vocab - 2)):
                row[token] = NEVER
        if kind == "near":
            row[draw.randrange(vocab)] = draw.choice([9.0, 40.0])
        if kind == "hidden":
            row[-1] = 2.5
        rows.append(row)
    return torch.tensor(rows)


class MarkovTarget(LeanModel):
    """A lean model of L layers without weights.

    Layer l writes (token, position) to its own layer of the cache and turns the state of layer l - 1 into its own:
    hidden states are one-hot, (V embeddings, L times V * CHECK states, BROKEN), so the LM head is the table.
    The layers before the last have tables of their own, which an early exit drafts with.

    Args:
        kind: of the table, see :func:`table`.
        vocab: V, below CHECK.
        seed: of the tables.
        layers: L.
        dtype: fp64, so that a drafter's logits rounded to fp32 do not depend on the shape of a pass.
    """

    def __init__(
        self,
        kind: str = "plain",
        vocab: int = 3,
        seed: int = 0,
        layers: int = 3,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        nn.Module.__init__(self)
        self._embedding_scale = 1.0
        self.vocab, self.states = vocab, vocab * CHECK
        self.size = vocab + layers * self.states + 1
        self.broken = self.size - 1
        self.config = LeanConfig.from_hf_config(
            {
                "architectures": ["LlamaForCausalLM"],
                "model_type": "llama",
                "vocab_size": vocab,
                "hidden_size": self.size,
                "intermediate_size": 1,
                "num_hidden_layers": layers,
                "num_attention_heads": 1,
                "num_key_value_heads": 1,
                "head_dim": 2,
                "max_position_embeddings": 24,
            }
        )
        self.table = table(kind, vocab, seed, self.states)
        early = [table("zeros", vocab, seed + 1 + layer, self.states) for layer in range(layers - 1)]
        odd = torch.tensor([[40.0 if token == 0 else NEVER for token in range(vocab)]])
        logits = torch.cat([torch.zeros(vocab, vocab), *early, self.table, odd])  # (H, V)
        self.embedding = nn.Parameter(torch.eye(vocab, self.size, dtype=dtype), requires_grad=False)
        self.lm_head = nn.Parameter(logits.T.to(dtype).contiguous(), requires_grad=False)
        self.layers = nn.ModuleList(nn.Identity() for _ in range(layers))
        token = torch.arange(self.size) - vocab
        self._one_hot = torch.eye(self.size, dtype=dtype)
        self._at = torch.arange(self.config.max_positions)
        self._weights = (1 + self._at % (CHECK - 1)).to(dtype)
        self._token_of = torch.where(token < 0, token + vocab, token % self.states // CHECK)

    def reference(self, prefix: Sequence[int]) -> Tensor:
        """Logits (V,) after a text, without any cache: what every pass must give."""
        logits = self.table[state_of(prefix, self.vocab)]
        return logits.masked_fill(logits == NEVER, float("-inf")).to(self.dtype)

    def logits(self, hidden: Tensor) -> Tensor:
        logits = F.linear(hidden, self.lm_head_weight)
        return logits.masked_fill(logits == NEVER, float("-inf"))

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        *,
        cache: KVCache,
        slots: Tensor,
        mask: Tensor | int,
        window_mask: Tensor | None = None,
        aux_layers: tuple[int, ...] = (),
        layers: range | None = None,
        x: Tensor | None = None,
    ) -> TargetOutput:
        if isinstance(mask, int):
            count = ids.shape[1]
            mask = torch.ones(count, mask, dtype=torch.bool).tril(mask - count)
        x = self.embed(ids) if x is None else x
        x = x.unflatten(0, ids.shape) if x.dim() == 2 else x
        outputs: dict[int, Tensor] = {}
        for layer in layers or range(self.config.num_layers):
            x = self._layer(layer, x, positions, cache, slots, mask)
            if layer in aux_layers:
                outputs[layer] = x
        aux = torch.cat([outputs[layer] for layer in aux_layers], -1) if aux_layers else None
        return TargetOutput(x, aux)

    def _layer(
        self, layer: int, x: Tensor, positions: Tensor, cache: KVCache, slots: Tensor, mask: Tensor
    ) -> Tensor:
        """One-hot states (B, T, H) of the layer below -> those of this layer."""
        came = x.argmax(-1)  # (B, T)
        token = self._token_of[came]
        k = torch.stack([token + 1, positions + 1], -1).to(x.dtype)[:, None]  # (B, 1, T, 2); 0: never written
        keys, values = cache.write(layer, k, -k, slots)
        view, most = mask.shape[-1], self.config.max_positions
        kept = keys[:, 0, :view]
        spoiled = (kept != -values[:, 0, :view]).any(-1) | (kept == 0).any(-1)  # keys and values go together
        place = (kept[..., 1:] == self._at + 1).to(k.dtype)  # (B, view, P)
        facts = torch.cat([place, place * kept[..., :1], spoiled[..., None]], -1)
        counts, tokens, bad = (mask.to(k.dtype) @ facts).split([most, most, 1], -1)  # (B, T, P): token + 1
        wanted = self._at <= positions[..., None]
        sound = (counts == wanted).all(-1) & (bad[..., 0] == 0)
        own = tokens.gather(-1, positions[..., None].clamp(max=most - 1))[..., 0].long() - 1
        checksum = (tokens @ self._weights).long() % CHECK
        below = self._region(layer - 1)
        sound &= (came >= below) & (came < self._region(layer)) & (x.sum(-1) == 1) & (own == token)
        if layer > 0:
            sound &= came - below == own * CHECK + checksum  # the layer below saw the same text
        state = self._region(layer) + own * CHECK + checksum
        return self._one_hot[torch.where(sound, state, self.broken)]

    def _region(self, layer: int) -> int:
        """First place of a layer's states; of the embeddings for -1."""
        return 0 if layer < 0 else self.vocab + layer * self.states
