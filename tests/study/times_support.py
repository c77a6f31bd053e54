"""What the stage ``times`` reads, in small."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.study.decoding_support import VOCAB, make_study, study_config
from tests.support import tiny_drafter
from vocabforge.corpus.tokenizer import load_tokenizer
from vocabforge.models.drafter_io import save_drafter
from vocabforge.models.fingerprint import target_fingerprint
from vocabforge.models.head_io import HeadOwner, drafter_digest, save_head
from vocabforge.models.low_rank import LowRankScorer
from vocabforge.models.router import Router
from vocabforge.models.target import HFTarget
from vocabforge.study.config import StudyConfig
from vocabforge.study.layout import Layout
from vocabforge.study.methods import FULL, LOW_RANK, PARTS, REDUCED, ranker_folder, router_folder
from vocabforge.vocab.subset import VocabSubset, save_subset

HIDDEN = 32


def times_config(root: Path, **times: Any) -> StudyConfig:
    """Few heads, small trees."""
    return study_config(
        root,
        methods={
            "static": [40, 80],
            "position": ["decay:80:20"],
            "ranks": [4, 8],
            "shortlists": [8, 24],
            "clusters": [6],
            "budgets": [0.5],
            "schedules": ["decay"],
            "cores": [20],
            "context": 16,
            "tail": 8,
        },
        replay={"levels": 3, "width": 4, "trees": [8]},
        check={"tree_topk": 3, "tree_depth": 1, "tree_nodes": 7},
        times={"budget_s": 0.1, "shape_hidden": 64, "shape_rows": 300, **times},
    )


def make_parts(root: Path) -> Layout:
    """A study up to its trained parts, all of them random."""
    layout = make_study(root)
    tokenizer, target = load_tokenizer(layout.target).fingerprint, target_fingerprint(layout.target)
    model = HFTarget.load(layout.target)
    meta = {"target_fingerprint": target, "tokenizer_fingerprint": tokenizer}
    ranked = np.random.default_rng(0).permutation(VOCAB)[:80].astype(np.int64)
    for ranking in ("fr", "trim"):
        for size in (40, 80):
            subset = VocabSubset.from_ranked(ranked[:size].copy(), vocab_size=VOCAB, fingerprint=tokenizer)
            save_subset(subset, layout.subset(ranking, size))
    place = layout.seed(3)
    save_drafter(place / FULL / "drafter", tiny_drafter(model), meta)
    ids = torch.from_numpy(np.sort(ranked[:40]))
    save_drafter(place / REDUCED / "drafter", tiny_drafter(model, own_head=40, target_ids=ids), meta)
    owner = HeadOwner(drafter_digest(place / FULL / "drafter"), target, tokenizer)
    for part in (4, 8):
        for training in PARTS:
            scorer = LowRankScorer(HIDDEN, VOCAB, HIDDEN // part)
            save_head(place / ranker_folder(part, training), "ranker", scorer, owner)
    save_head(place / LOW_RANK, "low-rank", LowRankScorer(HIDDEN, VOCAB, 8), owner)
    router = Router(HIDDEN, torch.arange(VOCAB) % 6, 6)
    save_head(place / router_folder(6), "router", router, owner)
    return layout
