"""A study with drafters that know their target well, all draft heads of its methods, and the replay of its answers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.study.decoding_support import VOCAB, make_study, study_config
from tests.study.replay_support import knowing_drafter, sharpen
from vocabforge.core.registry import resolve
from vocabforge.corpus.tokenizer.tokenizer import load_tokenizer
from vocabforge.models.drafters.io import save_drafter
from vocabforge.models.heads.io import HeadOwner, drafter_digest, save_head
from vocabforge.models.heads.registry import HEADS, HeadSizes
from vocabforge.models.heads.router import Router
from vocabforge.models.heads.scorer import LowRankScorer
from vocabforge.models.lean.model import load_target
from vocabforge.models.target.fingerprint import target_fingerprint
from vocabforge.study.config import StudyConfig, StudyLayout
from vocabforge.study.methods import FULL, REDUCED
from vocabforge.study.replay import stage as replaying
from vocabforge.study.replay.types import Replayed
from vocabforge.study.stages import answers
from vocabforge.vocab.subset.subset import VocabSubset, save_subset

SEED, HIDDEN, SIZE, CLUSTERS = 3, 32, 120, 8


def drafted_config(root: Path, **sections: Any) -> StudyConfig:
    """A few methods of every family."""
    own: dict[str, Any] = {
        "methods": {
            "static": (SIZE,),
            "position": (f"decay:{SIZE}:30",),
            "ranks": (2,),
            "shortlists": (40,),
            "clusters": (CLUSTERS,),
            "budgets": (0.5,),
            "schedules": ("decay",),
            "cores": (40,),
            "context": 30,
            "tail": 20,
        },
        "answers": {"tokens": 12},
        "check": {"questions": 2, "tokens": 9, "tree_topk": 3, "tree_depth": 2, "tree_nodes": 9},
        "replay": {"levels": 4, "trees": (12,)},
    }
    return study_config(
        root, **{name: own.get(name, {}) | sections.get(name, {}) for name in {**own, **sections}}
    )


def make_drafted(root: Path) -> StudyLayout:
    """All that the stages before ``check`` leave."""
    layout = make_study(root, initializer_range=0.12, num_hidden_layers=4)
    sharpen(layout.target)
    answers.run(drafted_config(root), layout)
    tokenizer, model = load_tokenizer(layout.target), load_target(layout.target)
    written = [one.continuation.tokens for one in answers.load_answers(layout, "drawn")]
    ids = np.array([token for tokens in written for token in tokens if token < tokenizer.vocab_size])
    counts = np.bincount(ids, minlength=tokenizer.vocab_size)
    ranked = np.argsort(-counts, kind="stable")[:SIZE].astype(np.int64)
    for ranking in ("fr", "trim"):
        subset = VocabSubset(np.sort(ranked), ranked, tokenizer.vocab_size, tokenizer.fingerprint)
        save_subset(subset, layout.subset(ranking, SIZE))
        ranked = ranked[::-1].copy()
    prints = target_fingerprint(layout.target), tokenizer.fingerprint
    meta = dict(zip(("target_fingerprint", "tokenizer_fingerprint"), prints))
    place = layout.seed(SEED)
    some = torch.from_numpy(np.sort(ranked)[::2].copy())
    parts = model.embedding.detach(), model.lm_head_weight.detach(), model.norm, (0, 1, 2)
    save_drafter(place / FULL / "drafter", knowing_drafter(*parts), meta)
    save_drafter(place / REDUCED / "drafter", knowing_drafter(*parts, some), meta)
    owner = HeadOwner(drafter_digest(place / FULL / "drafter"), *prints)
    for folder, kind in (
        ("full/heads/ranker", "ranker"),
        ("rankers/heads/ranker", "ranker"),
        ("full/heads/low-rank", "low-rank"),
        (f"router-{CLUSTERS}/router", "router"),
    ):
        clusters = CLUSTERS if kind == "router" else None
        sizes = HeadSizes(HIDDEN, VOCAB, rank=HIDDEN // 2, clusters=clusters, width=12)
        module = resolve(HEADS, kind, "draft head").new_module(sizes)
        if isinstance(module, LowRankScorer):
            module.init_from_head(model.lm_head_weight.detach(), 0)
        if isinstance(module, Router):
            module.init(0, 4)
        save_head(place / folder, kind, module, owner, {})
    replaying.run(drafted_config(root), layout, SEED)
    return layout


def with_planted(found: Mapping[str, Replayed], key: str, row: int) -> dict[str, Replayed]:
    """The same, but for one row that says that its first draft was missed, or was not."""
    ranks = found[key].ranks.copy()
    ranks[row, 0] = 0 if ranks[row, 0] else 200
    return {**found, key: dataclasses.replace(found[key], ranks=ranks)}
