"""Draft heads of a training configuration: made, used, saved."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.support import tiny_drafter, tiny_target
from vocabforge.core.errors import ConfigError, UsageError
from vocabforge.models.drafter_io import save_drafter
from vocabforge.models.head_io import drafter_digest, load_head, owner_of
from vocabforge.models.low_rank import factor_head
from vocabforge.models.target import HFTarget
from vocabforge.train.config import HeadsConfig
from vocabforge.train.draft_heads import draft_heads, make_heads, save_heads

BOTH = HeadsConfig.model_validate(
    {"ranker": {"rank": 6, "shortlist": 11, "weight": 0.2}, "low_rank": {"init": "random"}}
)
META = {"target_fingerprint": "t" * 64, "tokenizer_fingerprint": "k" * 64, "steps": 3}


@pytest.fixture(scope="module")
def target(tmp_path_factory) -> HFTarget:
    return HFTarget.load(tiny_target(tmp_path_factory.mktemp("heads") / "t"))


def test_heads_are_made_as_configured(target: HFTarget) -> None:
    assert len(make_heads(HeadsConfig(), target.head_weight, seed=0)) == 0
    made = make_heads(BOTH, target.head_weight, seed=4)
    assert list(made) == ["ranker", "low_rank"]
    assert [made[key].rank for key in made] == [6, 32 // 8]
    vocab, down = factor_head(target.head_weight, 6, 4)
    assert torch.equal(made["ranker"].head_weight, vocab)
    assert torch.equal(made["ranker"].down.weight, down)
    assert float(made["low_rank"].head_weight.detach().std()) < 0.03
    again = make_heads(BOTH, target.head_weight, seed=4)
    assert all(torch.equal(a, b) for a, b in zip(made.parameters(), again.parameters()))
    other = make_heads(BOTH, target.head_weight, seed=5)
    assert not torch.equal(other["low_rank"].head_weight, made["low_rank"].head_weight)
    assert all(p.requires_grad and p.dtype == torch.float32 for p in made.parameters())
    with torch.device("meta"):
        sizes = make_heads(BOTH, torch.empty(61, 32, device="meta"), seed=0)
    assert [p.shape for p in sizes.parameters()] == [p.shape for p in made.parameters()]
    with pytest.raises(ConfigError, match="rank"):
        make_heads(HeadsConfig.model_validate({"ranker": {"rank": 99}}), target.head_weight, seed=0)
    for shortlist in (62, 2048):
        asked = HeadsConfig.model_validate({"ranker": {"shortlist": shortlist}})
        with pytest.raises(UsageError, match=r"(?s)than the vocabulary.*at most 61.*heads.ranker.shortlist"):
            make_heads(asked, torch.empty(61, 32, device="meta"), seed=0)
    for ranker in ({"shortlist": 61}, {}):
        make_heads(HeadsConfig.model_validate({"ranker": ranker}), target.head_weight, seed=0)


def test_they_draft_and_come_back_bound_to_their_drafter(target: HFTarget, tmp_path: Path) -> None:
    drafter = tiny_drafter(target)
    save_drafter(tmp_path / "drafter", drafter, META)
    made = make_heads(BOTH, target.head_weight, seed=1)
    heads = draft_heads(drafter, made, BOTH)
    assert {name: head.KIND for name, head in heads.items()} == {"ranker": "ranker", "low-rank": "low-rank"}
    assert heads["ranker"].shortlist == 11
    assert heads["ranker"].topk(torch.randn(2, 32), 3)[0].shape == (2, 3)
    for _ in range(2):  # a run that is finished again replaces them
        paths = save_heads(tmp_path, made, BOTH, drafter=tmp_path / "drafter", meta=META, resolved={"a": 1})
    assert paths == {kind: tmp_path / "heads" / kind for kind in ("ranker", "low-rank")}
    for kind, key in (("ranker", "ranker"), ("low-rank", "low_rank")):
        loaded = load_head(paths[kind])
        assert loaded.kind == kind
        assert all(torch.equal(a, b) for a, b in zip(loaded.module.parameters(), made[key].parameters()))
        owner = owner_of(loaded.artifact)
        assert (owner.drafter, owner.target) == (drafter_digest(tmp_path / "drafter"), "t" * 64)
        assert "drafter" in loaded.artifact.manifest["parents"]
    assert load_head(paths["ranker"]).artifact.meta["shortlist"] == 11
    assert load_head(paths["ranker"]).artifact.meta["weight"] == 0.2
    assert "shortlist" not in load_head(paths["low-rank"]).artifact.meta
