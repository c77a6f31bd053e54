"""Every architecture of the documentation decodes as its ``generate`` does, through Transformers' own code and, if the
lean decoder knows it, through that."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.models.architectures import ARCHITECTURES, VOCAB, make_architecture
from vocabforge.core.errors import UsageError
from vocabforge.decode.engine import Decoder
from vocabforge.decode.interface import Commit, Plan, shallower_plans
from vocabforge.decode.request import Request
from vocabforge.decode.tree import DraftTree, build_tree
from vocabforge.models.backends import lean_problem
from vocabforge.models.hf.model import TransformersModel
from vocabforge.models.lean.model import load_target

NODES, LEVELS, NEW = 8, 4, 16
LENGTHS = (24, 17, 9)


class KnowingDrafts:
    """Drafts random trees, or chains, in which about seven tokens of ten are the text that is to come."""

    kind, label, reads, aux_layers, samples, head, scratch = "test", "test", "aux", (0, 2), False, None, 0

    def __init__(self, texts: dict[tuple[int, ...], list[int]], *, chain: bool) -> None:
        self.texts, self.chain = texts, chain
        self.plan = Plan(NODES - 1, NODES) if chain else Plan(LEVELS, NODES)
        self.draw = random.Random(0)
        self.accepted = 0

    def plans(self) -> list[Plan]:
        return shallower_plans(self.plan)

    def allocate(self, rows: int, positions: int, cache: Any) -> None:
        self.coming: list[list[int]] = [[0] * 64 for _ in range(rows)]

    def begin(self, row: int, prompt_ids: Sequence[int]) -> None:
        self.coming[row] = [*self.texts[tuple(prompt_ids)][1:], *[0] * 64]

    def prefill(self, row: int, following: Tensor, states: Tensor | None) -> None:
        assert states is not None
        assert len(states) == len(following)

    def commit(self, commit: Commit) -> None:
        for row, tokens in enumerate(commit.tokens):
            self.coming[row] = self.coming[row][len(tokens) :]
            self.accepted += max(len(tokens) - 1, 0)

    def propose(self, roots: Tensor, plan: Plan, draws: object, lap: object) -> DraftTree:
        tokens, parents = [], []
        for row, root in enumerate(roots.tolist()):
            nodes, above, depth = [root], [0], [0]
            for node in range(1, NODES):
                parent = (
                    node - 1
                    if self.chain
                    else self.draw.choice([n for n in range(node) if depth[n] < LEVELS])
                )
                above.append(parent)
                depth.append(depth[parent] + 1)
                known = self.coming[row][depth[parent]]
                nodes.append(known if self.draw.random() < 0.7 else self.draw.randrange(VOCAB))
            tokens.append(nodes)
            parents.append(above)
        levels = NODES - 1 if self.chain else LEVELS
        tree = build_tree(torch.tensor(tokens), torch.tensor(parents), levels)
        return DraftTree(tree.tokens, tree.parents, tree.depths, tree.ancestors, chain=self.chain)


def prompts(rows: int) -> list[list[int]]:
    draw = random.Random(1)
    return [[draw.randrange(2, VOCAB) for _ in range(length)] for length in LENGTHS[:rows]]


def generated(model: Any, prompt: list[int]) -> list[int]:
    with torch.inference_mode():
        made = model.generate(
            torch.tensor([prompt]), max_new_tokens=NEW, do_sample=False, eos_token_id=None, pad_token_id=0
        )
    return [int(token) for token in made[0, len(prompt) :]]


LEAN = [
    "llama",
    "llama-3 rope",
    "qwen2.5",
    "qwen3",
    "qwen3-moe",
    "mixtral",
    "mistral",
    "smollm3",
    "gpt-oss",
    "gemma-3",
    "olmo-2",
    "olmo-3",
    "glm-4",
    "granite",
]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_decoding_equals_generate(name: str, tmp_path: Path) -> None:
    """Through Transformers, and through the lean decoder where it takes the architecture."""
    row, model = ARCHITECTURES[name], make_architecture(name)
    model.save_pretrained(tmp_path)
    problem = lean_problem(tmp_path)
    assert (problem is None) == (name in LEAN)
    assert problem is None or problem.remedy
    asked = prompts(row.rows)
    expected = [generated(model, prompt) for prompt in asked]
    targets: list[Any] = [TransformersModel(model)]
    if problem is None:
        targets.append(load_target(tmp_path))
    for target in targets:
        drafts: Any = KnowingDrafts(
            {tuple(prompt): text for prompt, text in zip(asked, expected)}, chain=row.drafts == "chains"
        )
        made = Decoder(target, drafts, rows=row.rows).generate_batch([Request(one, NEW, ()) for one in asked])
        assert [one.token_ids for one in made] == expected
        assert drafts.accepted > NEW * row.rows // 4


def test_one_position_for_all_rows_is_refused() -> None:
    target = TransformersModel(make_architecture("llama-4"))
    with pytest.raises(UsageError, match="one request at a time"):
        Decoder(target, rows=2)
