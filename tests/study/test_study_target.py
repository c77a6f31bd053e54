"""The study's stage ``target``: what it trains from, and that it is not made twice."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from vocabforge.core.artifact import open_artifact
from vocabforge.core.journal import read_jsonl_log
from vocabforge.corpus.tokenizer.tokenizer import load_tokenizer
from vocabforge.demo.target.build import make_tokenizer
from vocabforge.demo.texts.writer import SampleSizes, write_sample
from vocabforge.study import stage_target as stage
from vocabforge.study.config import StudyConfig
from vocabforge.study.layout import StudyLayout

SOURCES = [
    {"name": "talks", "kind": "sample"},
    {"name": "later", "kind": "sample", "role": "heldout"},
    {"name": "far", "kind": "sample", "role": "rare"},
]


def study(output: Path, *, target: dict[str, Any] | None = None, **data: Any) -> StudyConfig:
    part = {"steps": 1}
    return StudyConfig.model_validate(
        {
            "size": "test",
            "output": output,
            "device": "cpu",
            "data": {"sources": SOURCES, "benchmarks": {}, "tokenizer_size": 400, **data},
            "target": {
                "hidden_size": 16,
                "intermediate_size": 24,
                "num_layers": 2,
                "num_heads": 2,
                "num_kv_heads": 1,
                "sequence_length": 64,
                "induction": False,  # there is no room for it
                "mixed_precision": False,  # as YAML reads a bare no
                "checkpoint_every": 3,
                "optim": {"steps": 6, "batch_size": 2, "lr": 1e-2},
                **(target or {}),
            },
            "drafters": {
                "aux_layers": [0],
                "reduced_size": 100,
                **dict.fromkeys(("full", "reduced", "alone", "router"), part),
            },
        }
    )


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the stage ``data`` would leave: conversations of three sources, and a tokenizer."""
    root = tmp_path_factory.mktemp("study")
    layout = StudyLayout(root)
    write_sample(layout.data, 0, SampleSizes(train=30, heldout=6, questions_per_category=1))
    (layout.data / "heldout.jsonl").rename(layout.heldout_texts("later"))
    shutil.copyfile(layout.train_texts, layout.heldout_texts("far"))
    layout.tokenizer.mkdir()
    said = [m["content"] for row in read_jsonl_log(layout.train_texts) for m in row["messages"]]
    make_tokenizer(said, 400, layout.tokenizer)
    return root


@pytest.fixture
def layout(texts: Path, tmp_path: Path) -> StudyLayout:
    shutil.copytree(texts, tmp_path / "study")
    return StudyLayout(tmp_path / "study")


def test_the_target_has_the_studys_tokenizer_and_sizes(layout: StudyLayout, capsys: Any) -> None:
    config = study(layout.root, tokenizer="given", target={"rows": 512, "candidates": 60})
    stage.run(config, layout)
    made = open_artifact(layout.target, "target")
    assert load_tokenizer(layout.target).fingerprint == load_tokenizer(layout.tokenizer).fingerprint
    assert made.meta["vocab_size"] == 512
    record = made.manifest["config"]
    assert (record["seed"], record["candidates"]) == (0, 60)
    assert record["loss_on"] == "all"
    losses = stage.losses_by_source(config, made.meta)
    assert set(losses) == {"later", "far"}
    said = capsys.readouterr().err
    assert f"{made.meta['parameters']:,} parameters" in said
    assert f"later {losses['later']:.2f}, far {losses['far']:.2f}" in said
    assert sorted(path.name for path in layout.root.iterdir()) == ["data", "target", "tokenizer"]


def test_without_a_given_tokenizer_one_is_made(layout: StudyLayout) -> None:
    shutil.rmtree(layout.tokenizer)
    stage.run(study(layout.root), layout)
    assert load_tokenizer(layout.target).vocab_size == open_artifact(layout.target).meta["vocab_size"] == 400


def test_a_finished_target_is_made_again_only_for_other_inputs(
    layout: StudyLayout, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    config = study(layout.root, tokenizer="given")
    stage.run(config, layout)
    first = open_artifact(layout.target).content_hash
    with monkeypatch.context() as patch:
        patch.setattr(stage, "train_tiny_target", None)
        stage.run(config, layout)
        assert "is made already" in capsys.readouterr().err
    with layout.train_texts.open("a", encoding="utf-8") as file:
        file.write(layout.heldout_texts("later").read_text("utf-8").splitlines()[0] + "\n")
    stage.run(config, layout)
    second = open_artifact(layout.target).content_hash
    assert second != first
    stage.run(study(layout.root, tokenizer="given", target={"init_std": 0.05}), layout)
    assert open_artifact(layout.target).content_hash not in (first, second)


def test_a_study_may_hold_nothing_out(layout: StudyLayout, capsys: Any) -> None:
    config = study(layout.root, sources=SOURCES[:1])
    stage.run(config, layout)
    meta = open_artifact(layout.target).meta
    assert meta["heldout_loss"] is None
    assert stage.losses_by_source(config, meta) == {}
    assert "no source is held out" in capsys.readouterr().err
    shutil.rmtree(layout.target)
    stage.run(study(layout.root), layout)
    assert open_artifact(layout.target).meta["train_tokens"] == meta["train_tokens"]
