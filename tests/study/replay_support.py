"""A tiny target with a drafter that knows it well, and draft heads of every kind over it."""

from __future__ import annotations

import dataclasses
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from replay import Continuation

from tests.worlds import tiny_target
from vocabforge.core.registry import resolve
from vocabforge.decode.engine import Decoder
from vocabforge.decode.proposers.eagle import EagleBackend
from vocabforge.decode.proposers.model import ModelProposer
from vocabforge.decode.request import Generation, Request, SamplingParams
from vocabforge.decode.trees.fixed import ShapePolicy
from vocabforge.decode.trees.shapes import TreeShape
from vocabforge.models.drafters.eagle3 import Eagle3Config, Eagle3Drafter
from vocabforge.models.heads.registry import HEADS, DraftHead, HeadOptions, HeadSizes, base_of, build_head
from vocabforge.models.heads.router import Router
from vocabforge.models.heads.scorer import LowRankScorer
from vocabforge.models.lean.model import LeanModel, load_target
from vocabforge.models.target.hf import HFTarget

VOCAB, HIDDEN, CLUSTERS, NEW = 97, 32, 11, 22
STOP = 5  # seldom written
SUBSET = tuple(i for i in range(VOCAB) if i % 4)
PROMPTS = ([3, 17, 8, 44, 21, 9], [60, 2, 0, 11], [33, 90, 7, 7, 7, 18, 95, 33, 1], [12])


@dataclass
class World:
    """A target, a drafter over all ids and one over :data:`SUBSET`, and the ids by how often they are written."""

    folder: Path
    lean: LeanModel
    hf: HFTarget
    drafter: Any
    reduced: Any
    ranked: tuple[int, ...]

    def head(self, kind: str, drafter: Any = None, **changes: Any) -> DraftHead:
        """A head with settings that leave much out."""
        drafter = drafter or self.drafter
        options = dataclasses.replace(self.options(kind), **changes)
        return build_head(kind, base_of(drafter), self.module(kind), options)

    def options(self, kind: str) -> HeadOptions:
        by_kind = {
            "ranker": HeadOptions(shortlist=9),
            "router": HeadOptions(budgets=(6, 5, 4), rows="own"),
            "scheduled": HeadOptions(ranked=self.ranked[:45], schedule=(45, 30, 20)),
            "context": HeadOptions(ranked=self.ranked[:12], context=7),
        }
        return by_kind.get(kind, HeadOptions())

    def module(self, kind: str) -> torch.nn.Module | None:
        clusters = CLUSTERS if kind == "router" else None
        size = VOCAB - 3 if kind == "router" else VOCAB  # the last ids are in no cluster
        found = resolve(HEADS, kind, "draft head").new_module(
            HeadSizes(HIDDEN, size, rank=14, clusters=clusters, width=12)
        )
        if isinstance(found, LowRankScorer):
            found.init_from_head(self.hf.head_weight, 0)
        if isinstance(found, Router):
            found.init(0, 4)
        return found

    def decode(
        self, drafter: Any, head: DraftHead, shape: TreeShape, seed: int | None = None
    ) -> list[Generation]:
        """What the engine makes of all prompts, side by side: greedily, or drawn at temperature 1 with a seed."""
        backend = EagleBackend(drafter, "eagle3", "EAGLE-3")
        return self._generate(ModelProposer(backend, head, ShapePolicy(shape)), seed)

    def answers(self, seed: int | None = None) -> list[Continuation]:
        """The target's own, decoded plainly."""
        made = self._generate(None, seed)
        return [Continuation(tuple(p), tuple(one.token_ids)) for p, one in zip(PROMPTS, made)]

    def _generate(self, proposer: ModelProposer | None, seed: int | None) -> list[Generation]:
        decoder = Decoder(self.lean, proposer, context=64, rows=len(PROMPTS))
        return decoder.generate_batch(
            [
                Request(
                    prompt,
                    NEW,
                    {STOP},
                    SamplingParams(0.0 if seed is None else 1.0, seed=(seed or 0) + number),
                )
                for number, prompt in enumerate(PROMPTS)
            ]
        )


@cache
def world() -> World:
    """Made once. The target's layers do little, so that what it writes depends mostly on the token before."""
    folder = Path(tempfile.mkdtemp()) / "target"
    tiny_target(folder, vocab_size=VOCAB, initializer_range=0.12, num_hidden_layers=4)
    sharpen(folder)
    hf, lean = HFTarget.load(folder), load_target(folder)
    ids = torch.tensor(SUBSET)
    parts = hf.embedding, hf.head_weight, lean.norm, hf.aux_layers
    drafter, reduced = knowing_drafter(*parts), knowing_drafter(*parts, ids)
    written = torch.tensor([token for seed in range(3) for token in _written(lean, seed)])
    counts = written.bincount(minlength=VOCAB)
    return World(folder, lean, hf, drafter, reduced, tuple(counts.argsort(descending=True).tolist()))


def sharpen(folder: Path) -> None:
    """Larger embeddings, beside which the layers do little, and larger logits, so that draws follow them."""
    from safetensors.torch import load_file, save_file

    file = folder / "model.safetensors"
    tensors = load_file(file)
    tensors["model.embed_tokens.weight"] *= 12.0
    tensors["lm_head.weight"] *= 7.0
    save_file(tensors, file, metadata={"format": "pt"})


def _written(lean: LeanModel, seed: int) -> list[int]:
    made = Decoder(lean, context=64).generate(
        [seed], max_new_tokens=40, stop_ids=(), temperature=1.0, seed=seed
    )
    return made.token_ids


@torch.no_grad()
def knowing_drafter(
    embedding: torch.Tensor,
    head: torch.Tensor,
    norm: torch.Tensor,
    aux_layers: tuple[int, ...],
    ids: torch.Tensor | None = None,
) -> Eagle3Drafter:
    """A drafter whose next state is the embedding of the token fed, blurred by what was fed before.

    Attention looks for the token's own key and hands on its embedding; the residual adds the states before it, so that
    deeper drafts are worse. With ``ids`` it has a head of its own over these.
    """
    vocab, hidden = embedding.shape
    config = Eagle3Config(
        hidden_size=hidden,
        intermediate_size=40,
        num_heads=4,
        num_kv_heads=4,
        head_dim=8,
        vocab_size=vocab,
        draft_vocab_size=None if ids is None else len(ids),
        aux_layers=aux_layers,
        max_position_embeddings=256,
    )
    torch.manual_seed(1)
    drafter = Eagle3Drafter(config, embedding, head, ids)
    for parameter in drafter.parameters():
        if parameter.dim() == 2:
            parameter.normal_(0.0, 0.05)
        else:
            parameter.fill_(1.0)
    attention, eye = drafter.midlayer.self_attn, torch.eye(hidden)
    for projection, scale in ((attention.q_proj, 2.5), (attention.k_proj, 2.5), (attention.v_proj, 1.0)):
        projection.weight[:, :hidden] += scale * eye
    attention.o_proj.weight += 2.0 * eye
    drafter.norm.weight.copy_(norm)
    if ids is not None:
        drafter.lm_head.weight.copy_(head[ids])
    return drafter.eval().requires_grad_(False)
