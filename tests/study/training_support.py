"""A study's inputs in small: a random target, conversations, held-out sources, the target's own answers."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.study.decoding_support import study_config as least_config
from tests.train.run_support import WORDS
from tests.worlds import byte_tokenizer, tiny_target
from vocabforge.corpus.tokenizer.tokenizer import load_tokenizer
from vocabforge.study.config import StudyConfig, StudyLayout
from vocabforge.study.stages.answers import COUNTS
from vocabforge.vocab.counts.table import FrequencyTable, save_counts
from vocabforge.vocab.subset.select import SpecialTokens

V, ROWS = 261, 270  # the tokenizer's tokens, and the embedding's rows


def conversations(path: Path, count: int, words: Sequence[str], sources: Sequence[str], seed: int) -> None:
    """Conversations of one turn; the sources take turns."""
    draw = random.Random(seed)
    lines = []
    for number in range(count):
        ask, reply = (" ".join(draw.choices(words, k=draw.randint(3, 8))) for _ in range(2))
        messages = [{"role": "user", "content": ask}, {"role": "assistant", "content": reply}]
        lines.append(json.dumps({"messages": messages, "source": sources[number % len(sources)]}) + "\n")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(lines))


def make_inputs(root: Path) -> StudyLayout:
    """What the stages before ``vocab`` leave: target, texts, held-out texts, own answers with their counts."""
    layout = StudyLayout(root)
    tiny_target(layout.target, vocab_size=ROWS, initializer_range=0.2)
    byte_tokenizer(layout.target)
    conversations(layout.train_texts, 60, WORDS, ("one", "two"), 0)
    conversations(layout.heldout_texts("apart"), 12, ["zebra", "quiz", "the"], ("apart",), 1)
    write_own(layout, ["the", "xylophone", "jazz"], 2)
    return layout


def write_own(layout: StudyLayout, words: Sequence[str], seed: int) -> None:
    """The target's own answers, and the counts of their tokens."""
    conversations(layout.own_texts, 30, words, ("one",), seed)
    tokenizer = load_tokenizer(layout.target)
    rows = [json.loads(line) for line in layout.own_texts.read_text().splitlines()]
    ids = [
        token
        for row in rows
        for token in (*tokenizer.encode(row["messages"][1]["content"]), tokenizer.eos_ids[0])
    ]
    counts = np.bincount(ids, minlength=tokenizer.vocab_size).astype(np.int64)
    special = SpecialTokens.of(tokenizer)
    table = FrequencyTable(counts, len(rows), len(ids), "assistant", tokenizer.fingerprint, {}, special)
    save_counts(table, layout.answers / COUNTS, overwrite=True)


def study_config(root: Path, **sections: Any) -> StudyConfig:
    """Settings of a study of a few steps; ``sections`` replace keys."""
    sources = [{"name": "one"}, {"name": "two"}, {"name": "apart", "role": "heldout"}]
    values: dict[str, Any] = {
        "seeds": [0],
        "threads": 1,
        "data": {"sources": sources, "benchmarks": {}},
        "target": {"hidden_size": 32, "rows": None},
        "drafters": {
            "aux_layers": [0, 1, 2],
            "steps": 2,
            "sequence_length": 64,
            "candidates": 120,
            "reduced_size": 50,
            "full": {"steps": 4, "batch_size": 2},
            "reduced": {"steps": 3, "batch_size": 2},
            "alone": {"steps": 2, "batch_size": 2},
            "router": {"steps": 2, "batch_size": 2},
        },
        "methods": {
            "static": [40, 100],
            "position": ["decay:100:40"],
            "ranks": [4, 8],
            "shortlists": [16],
            "clusters": [8, 4],
            "budgets": [0.25, 0.5],
            "cores": [20],
        },
    }
    for name, section in sections.items():
        values[name] = values.get(name, {}) | section if isinstance(section, dict) else section
    return least_config(root, **values)
