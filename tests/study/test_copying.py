"""A fresh EAGLE-3 drafter whose first head copies from what stood before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.worlds import tiny_target
from vocabforge.capture.online import CapturedBatch, OnlineCapture, RowBatch
from vocabforge.core.errors import UsageError
from vocabforge.models.drafters.eagle3 import Eagle3Config, Eagle3Drafter
from vocabforge.models.rope import RopeSettings
from vocabforge.models.target.hf import HFTarget
from vocabforge.models.ttt.attention import TTTState
from vocabforge.study.copying import start_copying
from vocabforge.train.setup import start_from_target

VOCAB, LENGTH, HIDDEN = 900, 120, 128


@dataclass(frozen=True)
class Place:
    """A random target with captured rows: half a row is a text, the other half the same text again."""

    target: HFTarget
    batch: CapturedBatch

    def drafter(self, **changes: Any) -> Eagle3Drafter:
        torch.manual_seed(1)
        sizes: dict[str, Any] = {
            "hidden_size": HIDDEN,
            "intermediate_size": 64,
            "num_heads": 4,
            "num_kv_heads": 2,
            "head_dim": 32,
            "vocab_size": VOCAB,
            "draft_vocab_size": None,
            "aux_layers": self.target.aux_layers,
            "max_position_embeddings": 256,
            "rope": RopeSettings(theta=1e6),
        }
        made = Eagle3Drafter(Eagle3Config(**sizes | changes), self.target.embedding, self.target.head_weight)
        start_from_target(made, self.batch)
        return made

    @torch.no_grad()
    def drafted(self, drafter: Eagle3Drafter, steps: int = 2) -> list[Tensor]:
        """What each row t (B, T - steps) drafts for x_{t+2}, x_{t+3}, ... when it is fed the right tokens."""
        batch, g, found = self.batch, drafter.fuse(self.batch.features), []
        state = TTTState(batch.document)
        count = batch.input_ids.shape[1]
        for k in range(steps):
            ids = batch.input_ids.roll(-1 - k, 1)
            g = drafter.ttt_step(ids, g, batch.position + k, state)
            found.append(drafter.logits(g).argmax(-1)[:, : count - steps - 1])
        return found


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Place:
    sizes: dict[str, Any] = {
        "tie_word_embeddings": True,
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "head_dim": 32,
        "initializer_range": 0.05,
        "rope_theta": 1.0e6,
    }
    target = HFTarget.load(tiny_target(tmp_path_factory.mktemp("target"), **sizes), aux_layers=(0, 1, 2))
    generator = torch.Generator().manual_seed(3)
    texts = torch.stack([torch.randperm(VOCAB, generator=generator)[: LENGTH // 2] for _ in range(6)])
    ids = torch.cat([texts, texts], dim=1)
    ones = torch.ones_like(ids)
    rows = RowBatch(ids, ones.bool(), ones, torch.arange(LENGTH).expand_as(ids))
    return Place(target, OnlineCapture(target, 0)(rows, [("train", i) for i in range(len(ids))]))


def shares(made: Place, drafter: Eagle3Drafter) -> list[float]:
    """Share of right tokens in the second half, by draft step."""
    ids, half, found = made.batch.input_ids, LENGTH // 2, []
    for k, tokens in enumerate(made.drafted(drafter)):
        here = torch.arange(half, tokens.shape[1])
        found.append(float((tokens[:, here] == ids[:, here + 2 + k]).float().mean()))
    return found


def test_it_drafts_what_stood_behind_the_same_token(made: Place) -> None:
    drafter = made.drafter()
    before = shares(made, drafter)
    start_copying(drafter, made.batch, LENGTH)
    after = shares(made, drafter)
    assert max(before) < 0.05
    # The second step still finds the first one's token in g: that is left to training.
    assert after[0] > 0.6, after
    assert after[1] > 0.2, after


def test_without_slow_pairs_it_is_refused(made: Place) -> None:
    drafter = made.drafter(rope=RopeSettings(theta=30.0))
    with pytest.raises(UsageError, match=r"(?s)no room for a head that copies.*0 of 16 rotary pairs"):
        start_copying(drafter, made.batch, LENGTH)
