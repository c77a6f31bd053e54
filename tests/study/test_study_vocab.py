"""The stage ``vocab``: whose tokens are counted, what a subset holds, what is made again."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.study.training_support import V, make_inputs, study_config, write_own
from vocabforge.core.errors import ConfigError, MismatchError, UsageError
from vocabforge.corpus.tokenizer.tokenizer import load_tokenizer
from vocabforge.study.config import StudyLayout
from vocabforge.study.methods import methods
from vocabforge.study.stages import vocab
from vocabforge.study.stages.answers import COUNTS
from vocabforge.vocab.clusters.clusters import load_clusters
from vocabforge.vocab.counts.table import load_counts, save_counts
from vocabforge.vocab.subset.select import SpecialTokens
from vocabforge.vocab.subset.subset import load_subset


@pytest.fixture
def layout(tmp_path: Path) -> StudyLayout:
    return make_inputs(tmp_path / "study")


def stamps(layout: StudyLayout) -> dict[str, int]:
    return {path.parent.name: path.stat().st_mtime_ns for path in layout.vocab.glob("*/manifest.json")}


def contents(path: Path) -> str:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return "".join(message["content"] for row in rows for message in row["messages"])


def test_rankings_are_of_texts_and_of_what_the_target_writes(layout: StudyLayout) -> None:
    config = study_config(layout.root)
    vocab.run(config, layout)
    tokenizer = load_tokenizer(layout.target)
    texts = load_counts(layout.vocab / "counts-texts")
    own = load_counts(layout.answers / COUNTS)
    said = contents(layout.train_texts)
    for letter in "eotx":
        assert texts.counts[tokenizer.backend.token_to_id(letter)] == said.count(letter)  # questions, too
    for size in (40, 100):
        for name, table in (("fr", texts), ("trim", own)):
            subset = load_subset(layout.subset(name, size))
            assert len(subset) == size
            assert set(subset.forced) >= {*tokenizer.eos_ids, *SpecialTokens.of(tokenizer).control}
            best = np.argsort(-table.counts, kind="stable")[: size - len(subset.forced)]
            assert set(best.tolist()) <= set(subset.ids.tolist())
            assert subset.filled == size - len({*subset.forced, *np.flatnonzero(table.counts).tolist()})
    assert len(load_subset(layout.subset("fr", 50))) == 50  # the reduced drafter's
    assert not layout.subset("trim", 50).exists()
    assert [len(load_clusters(layout.clusters(count))) for count in (8, 4)] == [8, 4]
    named = {method.vocab for method in methods(config, layout) if method.vocab is not None}
    assert all(load_subset(path).vocab_size == V for path in named)


def test_only_what_must_be_is_made_again(layout: StudyLayout) -> None:
    vocab.run(study_config(layout.root), layout)
    before = stamps(layout)
    assert len(before) == 1 + 3 + 2 + 2
    vocab.run(study_config(layout.root), layout)
    assert stamps(layout) == before
    more = {"static": [40, 100, 120], "position": [], "cores": [20], "clusters": [8, 5]}
    vocab.run(study_config(layout.root, methods=more), layout)
    after = stamps(layout)
    assert {name for name in after if after[name] != before.get(name)} == {
        "fr-120",
        "trim-120",
        "clusters-5",
    }
    write_own(layout, ["quack"], 3)
    vocab.run(study_config(layout.root), layout)
    assert {name for name, stamp in stamps(layout).items() if stamp != after[name]} == {
        "trim-40",
        "trim-100",
    }
    (layout.subset("fr", 40) / "manifest.json").unlink()
    (layout.subset("fr", 40) / "subset.safetensors").unlink()
    vocab.run(study_config(layout.root), layout)
    assert len(load_subset(layout.subset("fr", 40))) == 40


def test_counts_of_another_tokenizer_are_refused(layout: StudyLayout) -> None:
    table = load_counts(layout.answers / COUNTS)
    other = dataclasses.replace(table, fingerprint="sha256:other")
    save_counts(other, layout.answers / COUNTS, overwrite=True)
    with pytest.raises(MismatchError):
        vocab.run(study_config(layout.root), layout)


@pytest.mark.parametrize(
    ("methods", "said"),
    [
        ({"cores": [101]}, "largest of methods.static, 100"),
        ({"position": ["decay:101:40"]}, "methods.position"),
    ],
)
def test_more_of_a_ranking_than_there_is(layout: StudyLayout, methods: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        study_config(layout.root, methods=methods)
    assert said in caught.value.render()


@pytest.mark.parametrize("methods", [{"static": [40, V + 100]}, {"clusters": [V + 1]}])
def test_more_than_the_vocabulary(layout: StudyLayout, methods: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        vocab.run(study_config(layout.root, methods={"position": [], "cores": [20], **methods}), layout)
