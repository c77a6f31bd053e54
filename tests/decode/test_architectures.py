"""Every architecture of the documentation decodes as its ``generate`` does, through Transformers' own code and, if the
lean decoder knows it, through that."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.decode.drafting import knowing
from tests.decode.proofs import FixedTree
from tests.models.architectures import ARCHITECTURES, VOCAB, make_architecture
from vocabforge.core.errors import UsageError
from vocabforge.decode.engine import Decoder
from vocabforge.decode.request import Request
from vocabforge.models.backends import lean_problem
from vocabforge.models.hf.model import TransformersModel
from vocabforge.models.lean.model import load_target

NODES, NEW = 8, 16
LENGTHS = (24, 17, 9)


def known_drafts(texts: Sequence[list[int]], *, chain: bool) -> Any:
    """A proposer of trees, or chains, that hold much of these texts, prompts and what is to come; it reads states."""
    parents = [0, *range(NODES - 1)] if chain else [0, 0, 0, 1, 1, 3, 2, 5]
    drafts = knowing(FixedTree([0] * NODES, parents), *texts)
    drafts.reads, drafts.aux_layers = "aux", (0, 2)
    return drafts


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
        texts = [prompt + text for prompt, text in zip(asked, expected)]
        drafts = known_drafts(texts, chain=row.drafts == "chains")
        made = Decoder(target, drafts, rows=row.rows).generate_batch([Request(one, NEW, ()) for one in asked])
        assert [one.token_ids for one in made] == expected
        assert sum(sum(one.accepted_by_depth) for one in made) > NEW * row.rows // 4


def test_one_position_for_all_rows_is_refused() -> None:
    target = TransformersModel(make_architecture("llama-4"))
    with pytest.raises(UsageError, match="one request at a time"):
        Decoder(target, rows=2)
