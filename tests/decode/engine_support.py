"""Tiny targets with drafters, and a proposer that knows the answer."""

from __future__ import annotations

import dataclasses
import math
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support import tiny_drafter
from vocabforge.decode import engine
from vocabforge.decode.engine import Decoder
from vocabforge.decode.proposer_eagle3 import Eagle3Proposer
from vocabforge.decode.result import Generation
from vocabforge.decode.tree import DraftTree, TreeSettings
from vocabforge.models.eagle3 import Eagle3Drafter
from vocabforge.models.heads import FullHead, StaticHead
from vocabforge.models.lean import LeanModel, load_target
from vocabforge.models.target import HFTarget

PROMPT = [3, 17, 8, 44, 21, 9]
SHAPES = {
    "chain": TreeSettings(1, 4, 6),
    "wide": TreeSettings(7, 0, 8),
    "tree": TreeSettings(3, 3, 17),
    "smallest": TreeSettings(1, 0, 2),
    "whole": TreeSettings(2, 2, 11),
}
CASES = [
    "llama",
    "llama-tied",
    "llama-llama3-rope",
    "mistral-window",
    "qwen2-layer-types",
    "qwen3-bias-window",
]


@dataclass
class Pair:
    """A target twice, and a random drafter for it."""

    hf: Any
    lean: LeanModel
    drafter: Eagle3Drafter
    restricted: Eagle3Drafter

    def proposer(self, shape: TreeSettings, *, restricted: bool = False) -> Eagle3Proposer:
        drafter = self.restricted if restricted else self.drafter
        head = (
            StaticHead(drafter.head_weight, drafter.target_ids)
            if restricted
            else FullHead(drafter.head_weight)
        )
        return Eagle3Proposer(drafter, head, shape, 16)


def make_pair(folder: Path, hf: Any) -> Pair:
    target = HFTarget(hf)
    ids = torch.arange(0, target.vocab_size, 3)
    return Pair(
        hf, load_target(folder), tiny_drafter(target), tiny_drafter(target, own_head=len(ids), target_ids=ids)
    )


class Knowing(Eagle3Proposer):
    """Drafts as ever, then writes the true continuation into a part of one path, so that much is accepted."""

    truth: list[int]
    draw: random.Random

    def propose(self, root_token: torch.Tensor) -> DraftTree:
        tree = super().propose(root_token)
        tokens, parents = tree.tokens.tolist(), tree.parents.tolist()
        assert self.truth[self.rows] == tokens[0], "the root is the last committed token"
        node = 0
        for right in self.truth[self.rows + 1 :]:
            children = [n for n in range(1, len(tokens)) if parents[n] == node]
            if not children or self.draw.random() < 0.25:
                break
            node = next((n for n in children if tokens[n] == right), self.draw.choice(children))
            tokens[node] = right
        return dataclasses.replace(tree, tokens=torch.tensor(tokens))


def knowing(proposer: Eagle3Proposer, truth: list[int], seed: int = 0) -> Eagle3Proposer:
    proposer.__class__ = Knowing
    proposer.truth, proposer.draw = truth, random.Random(seed)
    return proposer


def hf_greedy(model: Any, prompt: list[int], count: int) -> list[int]:
    model.generation_config.eos_token_id = None
    ids = torch.tensor([prompt])
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False, pad_token_id=0
    )
    return out[0, len(prompt) :].tolist()


def check_figures(result: Generation, decoder: Decoder, prompt: list[int]) -> None:
    """What must hold between the figures of any drafted generation."""
    cycles = len(result.accept_lengths)
    chunks = math.ceil(len(prompt) / engine.PREFILL_CHUNK)
    assert result.target_forwards == chunks + cycles
    assert (
        len(result.token_ids) <= 1 + sum(result.accept_lengths) < len(result.token_ids) + decoder.levels + 1
    )
    assert result.drafted == cycles * (decoder.proposer.settings.total_nodes - 1)
    assert sum(result.accepted_by_depth) == sum(result.accept_lengths) - cycles
    assert all(a <= b <= cycles for a, b in zip(result.accepted_by_depth, result.drafted_by_depth))
    assert result.accepted_by_depth == sorted(result.accepted_by_depth, reverse=True)
    assert min(result.accept_lengths, default=1) >= 1
    assert set(result.timings) <= {"prefill", "draft", "verify", "other"}
    assert result.prefill_s == result.timings["prefill"] > 0
    assert result.decode_s == pytest.approx(sum(v for k, v in result.timings.items() if k != "prefill"))
