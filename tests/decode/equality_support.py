"""Tiny models and prompts for token equality, and proposers that are told what follows."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.decode.drafting import make_drafter
from tests.support import DATA, tiny_target
from vocabforge.decode.build.spec import MethodSpec
from vocabforge.decode.proposers.interface import Commit
from vocabforge.decode.proposers.registry import Proposer, ProposerParts, make_proposer
from vocabforge.decode.tree import DraftTree
from vocabforge.models.kv_cache import causal_mask
from vocabforge.models.lean.model import LeanModel, load_target
from vocabforge.models.target.hf import HFTarget

VOCAB = 512
DRAFTERS = {"eagle1": "eagle1", "eagle2": "eagle1", "eagle3": "eagle3", "medusa": "medusa"}
OPTIONS = {
    "n-gram": MethodSpec(depth=3, ngram=(1, 4)),
    "draft-model": MethodSpec(depth=3),
    "early-exit": MethodSpec(depth=2, exit_layers=3),
    "eagle1": MethodSpec(tree="static", topk=3, depth=2, total_nodes=9),
    "medusa": MethodSpec(tree="static", topk=3, depth=2, total_nodes=9),
}
DYNAMIC = MethodSpec(tree="dynamic", topk=3, depth=2, total_nodes=10)


def spec_bench_prompts(count: int, longest: int) -> list[list[int]]:
    """The first turns of Spec-Bench in the ids of a 512-token tokenizer, evenly spread, cut to ``longest``."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(DATA / "models" / "tok512" / "tokenizer.json"))
    lines = (DATA / "spec_bench" / "question.jsonl").read_text(encoding="utf-8").splitlines()
    chosen = lines[:: max(1, len(lines) // count)][:count]
    return [tokenizer.encode(json.loads(line)["turns"][0]).ids[:longest] for line in chosen]


def own_prompts(count: int, longest: int) -> list[list[int]]:
    """Random ids with repeated parts, of all lengths."""
    draw = random.Random(5)
    prompts = []
    for _ in range(count):
        phrase = [draw.randrange(VOCAB) for _ in range(draw.randint(1, 9))]
        prompts.append((phrase * 9)[: draw.randint(1, longest)])
    return prompts


class Pair:
    """A tiny target in one dtype, and every proposer over it."""

    def __init__(self, folder: Path, dtype: torch.dtype) -> None:
        if not (folder / "config.json").is_file():
            tiny_target(folder, vocab_size=VOCAB, num_hidden_layers=5, initializer_range=0.4)
        self.folder, self.dtype = folder, dtype
        self.lean = load_target(folder, dtype=dtype)
        self.plain: dict[Any, list[list[int]]] = {}  # what plain decoding gave

    def proposer(self, name: str) -> Proposer:
        drafter: Any = None
        if name == "draft-model":
            drafter = noisy(load_target(self.folder, dtype=self.dtype))
        elif name in DRAFTERS:
            drafter = make_drafter(DRAFTERS[name], self.folder, HFTarget.load(self.folder), "own")
            drafter = drafter.to(self.dtype)
        return make_proposer(name, ProposerParts(self.lean, drafter, None, OPTIONS.get(name, DYNAMIC)))


def noisy(model: LeanModel) -> LeanModel:
    """The same model with slightly wrong weights: it mostly agrees."""
    stream = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.empty(parameter.shape).normal_(1.0, 0.03, generator=stream)
            parameter.mul_(noise.to(parameter.dtype))
    return model


class Told:
    """Drafts as ever, then writes the true continuation into a part of one path of each row's tree.

    Args:
        proposer: the real one.
        texts: prompts with what plain decoding made of them.
    """

    def __init__(self, proposer: Proposer, prompts: Sequence[Sequence[int]], truth: Sequence[Sequence[int]]):
        self._inner, self._draw = proposer, random.Random(11)
        self._texts = {tuple(prompt): [*prompt, *rest] for prompt, rest in zip(prompts, truth)}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def allocate(self, rows: int, positions: int, cache: Any) -> None:
        self._rows: list[list[int]] = [[]] * rows
        self._counts = [0] * rows
        self._inner.allocate(rows, positions, cache)

    def begin(self, row: int, prompt_ids: Sequence[int]) -> None:
        self._rows[row], self._counts[row] = self._texts[tuple(prompt_ids)], len(prompt_ids)
        self._inner.begin(row, prompt_ids)

    def commit(self, commit: Commit) -> None:
        self._counts = [old + len(new) for old, new in zip(self._counts, commit.tokens)]
        self._inner.commit(commit)

    def propose(self, roots: Tensor, plan: Any, draws: Any, lap: Any) -> DraftTree:
        tree = self._inner.propose(roots, plan, draws, lap)
        tokens, parents = tree.tokens.tolist(), tree.parents.tolist()
        for row, (text, count) in enumerate(zip(self._rows, self._counts)):
            node = 0
            if tokens[row][0] != (text[count] if count < len(text) else -1):
                continue  # an idle row
            for right in text[count + 1 :]:
                alive = range(1, len(parents[row]))
                if tree.alive is not None:
                    alive = [n for n in alive if bool(tree.alive[row, n])]
                children = [n for n in alive if parents[row][n] == node]
                if not children or self._draw.random() < 0.25:
                    break
                node = next((n for n in children if tokens[row][n] == right), self._draw.choice(children))
                tokens[row][node] = right
        return dataclasses.replace(tree, tokens=torch.tensor(tokens), laws=None)


def fresh_pass(lean: LeanModel, text: Sequence[int]) -> tuple[Tensor, Any]:
    """Logits (T, V) of a text in one pass over a new cache, and that cache."""
    slots = torch.arange(len(text))
    cache = lean.new_cache(len(text))
    output = lean.forward(
        torch.tensor([list(text)]), slots[None], cache=cache, slots=slots, mask=causal_mask(slots, slots)
    )
    return lean.logits(output.hidden[0]), cache
