"""The study's stage ``target``: what it trains from, its loss on candidates, and that it is not made twice."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.packing import pack
from tests.study.decoding_support import study_config
from tests.worlds import tiny_target
from vocabforge.core.artifact import open_artifact
from vocabforge.core.errors import UsageError
from vocabforge.core.journal import read_jsonl_log
from vocabforge.corpus.prepared.dataset import TrainingSequence
from vocabforge.corpus.tokenizer.tokenizer import load_tokenizer
from vocabforge.demo.target.build import make_tokenizer
from vocabforge.demo.target.train import (
    TextRows,
    WorkFolder,
    batch_loss,
    heldout_loss,
    train_model,
)
from vocabforge.demo.texts.writer import SampleSizes, write_sample
from vocabforge.study.candidates import CandidateSampler
from vocabforge.study.config import StudyConfig, StudyLayout
from vocabforge.study.stages import target as stage
from vocabforge.train.config import OptimConfig
from vocabforge.train.data import corpus_counts

SOURCES = [{"name": "talks"}, {"name": "later", "role": "heldout"}, {"name": "far", "role": "rare"}]


def study(output: Path, *, target: dict[str, Any] | None = None, **data: Any) -> StudyConfig:
    sizes: dict[str, Any] = {
        "rows": None,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_layers": 2,
        "num_heads": 2,
        "num_kv_heads": 1,
        "sequence_length": 64,
        "induction": False,  # there is no room for it
        "checkpoint_every": 3,
        "optim": {"steps": 6, "batch_size": 2, "lr": 1e-2},
    }
    return study_config(
        output,
        data={"sources": SOURCES, "benchmarks": {}, "tokenizer_size": 400, **data},
        target=sizes | (target or {}),
        drafters={"aux_layers": [0]},
        mixed_precision=False,  # as YAML reads a bare no
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
    said = capsys.readouterr().err
    assert f"{made.meta['parameters']:,} parameters" in said
    assert f"held-out loss in nats a token: {made.meta['heldout_loss']:.2f}" in said
    assert sorted(path.name for path in layout.root.iterdir()) == ["data", "target"]


def test_a_finished_target_is_made_again_only_for_other_inputs(
    layout: StudyLayout, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    config = study(layout.root, tokenizer="given")
    stage.run(config, layout)
    first = open_artifact(layout.target).content_hash
    with monkeypatch.context() as patch:
        patch.setattr(stage, "train_tiny_target", None)
        stage.run(config, layout)
        assert "is up to date" in capsys.readouterr().err
    with layout.train_texts.open("a", encoding="utf-8") as file:
        file.write(layout.heldout_texts("later").read_text("utf-8").splitlines()[0] + "\n")
    stage.run(config, layout)
    second = open_artifact(layout.target).content_hash
    assert second != first
    stage.run(study(layout.root, tokenizer="given", target={"init_std": 0.05}), layout)
    assert open_artifact(layout.target).content_hash not in (first, second)


def test_a_study_may_hold_nothing_out_and_make_its_tokenizer(layout: StudyLayout, capsys: Any) -> None:
    shutil.rmtree(layout.tokenizer)
    config = study(layout.root, sources=SOURCES[:1])
    stage.run(config, layout)
    meta = open_artifact(layout.target).meta
    assert load_tokenizer(layout.target).vocab_size == meta["vocab_size"] == 400
    assert meta["heldout_loss"] is None
    assert "no source is held out" in capsys.readouterr().err


def test_a_given_target_is_linked(layout: StudyLayout, tmp_path: Path) -> None:
    tiny_target(tmp_path / "given", max_position_embeddings=4096)
    config = study(layout.root, target={"path": tmp_path / "given"})
    stage.run(config, layout)
    stage.run(config, layout)
    assert layout.target.resolve() == (tmp_path / "given").resolve()
    stage.run(study(layout.root), layout)
    assert not layout.target.is_symlink()
    assert not (tmp_path / "given" / "manifest.json").exists()
    with pytest.raises(UsageError, match="trained its own target"):
        stage.run(config, layout)


V, T = 709, 24


def model_of() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    settings = LlamaConfig(
        vocab_size=V,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        initializer_range=0.3,
        tie_word_embeddings=True,
        attn_implementation="sdpa",
    )
    return LlamaForCausalLM(settings)


def rows_of(number: int = 12) -> TextRows:
    """Rows of two or three documents each; the tokens are those below 40."""
    random = np.random.default_rng(0)
    lengths = random.integers(5, 12, size=2 * number)
    sequences = [
        TrainingSequence(random.integers(0, 40, n).tolist(), [0, 0] + [1] * (n - 2)) for n in lengths
    ]
    return TextRows(pack(sequences, T), "assistant")


def test_over_all_tokens_it_is_the_exact_loss() -> None:
    model, rows = model_of(), rows_of()
    batch = rows.batch(torch.arange(4))
    exact, count = batch_loss(model, batch)
    exact.backward()
    wanted = {name: p.grad.clone() for name, p in model.named_parameters()}
    assert count > 20
    model.zero_grad(set_to_none=True)
    candidates = CandidateSampler(corpus_counts(rows.packed, V), V, V, 0).draw(0, batch.input_ids)
    loss = stage.candidate_loss(model, batch, candidates)
    loss.backward()
    assert loss.item() == pytest.approx(exact.item(), rel=1e-6)
    for name, gradient in wanted.items():
        torch.testing.assert_close(model.get_parameter(name).grad, gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_the_estimate_teaches_what_the_exact_loss_teaches(tmp_path: Path, precision: str) -> None:
    rows = rows_of(8)
    everything = torch.arange(len(rows))
    optim = OptimConfig(steps=60, batch_size=4, lr=1e-2, clip=1.0, fused=True)
    began = model_of().lm_head.weight[40:].detach()
    losses = {}
    for size in (None, 80):
        config = stage.StudyTinyTargetConfig.model_validate(
            {"train": "a", "heldout": "b", "sequence_length": T, "optim": optim, "candidates": size}
            | {"mixed_precision": precision}
        )
        model = model_of().train()
        train_model(model, rows, config, WorkFolder(tmp_path / f"{size}"), {}, stage.make_target_step)
        total, count = heldout_loss(model.eval(), rows, everything)
        losses[size] = total / count
    total, count = heldout_loss(model_of().eval(), rows, everything)
    assert losses[None] < 0.6 * total / count
    assert losses[80] == pytest.approx(losses[None], abs=0.15 * total / count)
    moved = model.lm_head.weight[40:].detach() - began  # ids that never occur are all unlearnt alike
    assert torch.allclose(moved, moved[:1].expand_as(moved), atol=1e-4)
    assert moved.norm() > 0.1
