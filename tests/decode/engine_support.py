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
from vocabforge.decode import target_side
from vocabforge.decode.engine import Decoder
from vocabforge.decode.proposers.eagle import EagleBackend
from vocabforge.decode.proposers.interface import Commit, Plan
from vocabforge.decode.proposers.model import ModelProposer
from vocabforge.decode.request import Generation
from vocabforge.decode.tree import DraftTree, TreeSettings
from vocabforge.decode.trees.dynamic import DynamicPolicy
from vocabforge.models.drafters.eagle3 import Eagle3Drafter
from vocabforge.models.heads.registry import DraftHead, FullHead, StaticHead
from vocabforge.models.kv_cache import KVCache
from vocabforge.models.lean.model import LeanModel, load_target
from vocabforge.models.target.hf import HFTarget

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

    def proposer(self, shape: TreeSettings, *, restricted: bool = False) -> ModelProposer:
        drafter = self.restricted if restricted else self.drafter
        head = (
            StaticHead(drafter.head_weight, drafter.target_ids)
            if restricted
            else FullHead(drafter.head_weight)
        )
        return eagle(drafter, head, shape, 16)


def eagle(drafter: Any, head: DraftHead, shape: TreeSettings, positions: int, rows: int = 1) -> ModelProposer:
    """An EAGLE proposer with a dynamic tree, ready to be driven by hand."""
    proposer = ModelProposer(EagleBackend(drafter, "eagle3", "EAGLE-3"), head, DynamicPolicy(shape))
    return ready(proposer, positions, rows)


def ready(proposer: Any, positions: int, rows: int = 1) -> Any:
    proposer.allocate(rows, positions, KVCache(1, rows, 1, 1, 1))
    for row in range(rows):
        proposer.begin(row, [])
    return proposer


def advance(proposer: Any, following: torch.Tensor, states: torch.Tensor | None, count: int) -> None:
    """Commit the first ``count`` of N positions of one row: tokens after them (N,), states (N, .)."""
    proposer.commit(
        Commit(
            following[None],
            None if states is None else states[None],
            torch.tensor([count]),
            torch.zeros(1, len(following), dtype=torch.int64),
            [following[:count].tolist()],
        )
    )


def propose(proposer: Any, root: int, plan: Plan | None = None) -> DraftTree:
    return proposer.propose(torch.tensor([root]), plan or proposer.plan, None, lambda part: None)


def make_pair(folder: Path, hf: Any) -> Pair:
    target = HFTarget(hf)
    ids = torch.arange(0, target.vocab_size, 3)
    return Pair(
        hf, load_target(folder), tiny_drafter(target), tiny_drafter(target, own_head=len(ids), target_ids=ids)
    )


class Knows:
    """Drafts as ever, then writes the true continuation into a part of one path of each row, so that much is
    accepted. ``truths`` are prompts with their continuations, one a row."""

    truths: list[list[int]]
    draw: random.Random

    def begin(self, row: int, prompt_ids: Any) -> None:
        super().begin(row, prompt_ids)  # type: ignore[misc]
        self.places = {**getattr(self, "places", {}), row: len(prompt_ids)}

    def commit(self, commit: Commit) -> None:
        super().commit(commit)  # type: ignore[misc]
        for row, tokens in enumerate(commit.tokens):
            if tokens:
                self.places[row] += len(tokens)

    def propose(self, roots: torch.Tensor, *rest: Any) -> DraftTree:
        tree = super().propose(roots, *rest)  # type: ignore[misc]
        tokens = tree.tokens.clone()
        for row, truth in enumerate(self.truths):
            rest = truth[self.places.get(row, 0) :]
            if rest and tokens[row, 0] == rest[0]:  # an idle row drafts anything
                self._tell(tokens[row], tree.parents[row].tolist(), rest[1:])
        return dataclasses.replace(tree, tokens=tokens)

    def _tell(self, tokens: torch.Tensor, parents: list[int], truth: list[int]) -> None:
        node = 0
        for right in truth:
            children = [n for n in range(1, len(tokens)) if parents[n] == node]
            if not children or self.draw.random() < 0.25:
                break
            node = next((n for n in children if tokens[n] == right), self.draw.choice(children))
            tokens[node] = right


def knowing(proposer: Any, *truths: list[int], seed: int = 0) -> Any:
    if not isinstance(proposer, Knows):
        proposer.__class__ = type("Knowing", (Knows, type(proposer)), {})
    proposer.truths, proposer.draw = list(truths), random.Random(seed)
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
    chunks = math.ceil(len(prompt) / target_side.PREFILL_CHUNK)
    assert result.target_forwards == chunks + cycles
    assert (
        len(result.token_ids) <= 1 + sum(result.accept_lengths) < len(result.token_ids) + decoder.levels + 1
    )
    assert result.drafted == cycles * (decoder.proposer.plan.nodes - 1)
    assert result.verified == result.drafted + cycles
    assert sum(result.accepted_by_depth) == sum(result.accept_lengths) - cycles
    assert all(a <= b <= cycles for a, b in zip(result.accepted_by_depth, result.drafted_by_depth))
    assert result.accepted_by_depth == sorted(result.accepted_by_depth, reverse=True)
    assert min(result.accept_lengths, default=1) >= 1
    assert set(result.timings) <= {"prefill", "layers", "head", "draft", "verify", "other"}
    assert result.prefill_s == result.timings["prefill"] > 0
    assert result.decode_s == pytest.approx(sum(v for k, v in result.timings.items() if k != "prefill"))


def watch_rows(proposer: Any) -> tuple[list[torch.Tensor], list[int]]:
    """Collects the states and the following tokens of every position that one row commits."""
    rows: list[torch.Tensor] = []
    tokens: list[int] = []
    prefill, commit = proposer.prefill, proposer.commit

    def watched_prefill(row: int, following: torch.Tensor, states: torch.Tensor) -> None:
        rows.append(states)
        tokens.extend(following.tolist())
        prefill(row, following, states)

    def watched_commit(given: Commit) -> None:
        count = int(given.counts[0])
        assert given.states is not None
        assert given.following[0, :count].tolist() == list(given.tokens[0])
        rows.append(given.states[0, :count])
        tokens.extend(given.tokens[0])
        commit(given)

    proposer.prefill, proposer.commit = watched_prefill, watched_commit
    return rows, tokens
