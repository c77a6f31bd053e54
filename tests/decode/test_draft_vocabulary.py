"""What names a method of decoding, and what its draft head scores in a draft step."""

from __future__ import annotations

import pytest
import torch

from vocabforge.decode.build.heads import DraftVocabulary, draft_vocabulary
from vocabforge.models.heads.registry import HeadBase, HeadOptions, build_head
from vocabforge.models.heads.router import Router
from vocabforge.models.heads.scorer import LowRankScorer

ROWS, WIDTH = 96, 16
RANKED = tuple(range(0, 80, 2))


def base() -> HeadBase:
    weight = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(0))
    return HeadBase(weight, torch.arange(ROWS), weight)


@pytest.mark.parametrize(
    ("kind", "options", "expected"),
    [
        ("full", HeadOptions(), ROWS),
        (
            "scheduled",
            HeadOptions(ranked=RANKED, schedule=(40, 20, 10)),
            20,
        ),  # 40, 20, 10, 10 over four steps
        ("context", HeadOptions(ranked=RANKED, context=24), 64),
        ("context", HeadOptions(ranked=RANKED, context=90), ROWS),  # no more than there are
        ("hybrid", HeadOptions(ranked=RANKED, context=24), 64),
        ("hybrid+ranker", HeadOptions(ranked=RANKED, shortlist=8), 48),
        ("ranker", HeadOptions(shortlist=12), 12),
        ("low-rank", HeadOptions(), ROWS),
        ("router", HeadOptions(budgets=(4, 2)), 30),  # clusters of 12: 48, 24, 24, 24
    ],
)
def test_the_tokens_scored_are_the_mean_over_the_steps(
    kind: str, options: HeadOptions, expected: int
) -> None:
    modules = {
        "ranker": lambda: LowRankScorer(WIDTH, ROWS, 4),
        "low-rank": lambda: LowRankScorer(WIDTH, ROWS, 4),
        "hybrid+ranker": lambda: LowRankScorer(WIDTH, ROWS, 4),
        "router": lambda: Router(WIDTH, torch.arange(ROWS) % 8, 8),
    }
    name = kind.partition("+")[0]
    head = build_head(name, base(), modules[kind]() if kind in modules else None, options)
    assert draft_vocabulary(head, 4, 128) == DraftVocabulary(name, expected, 128)
