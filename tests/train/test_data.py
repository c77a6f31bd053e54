"""Packing leaves every token's loss as it is; the data section, its cache, and prepared data by path."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.packing import pack
from tests.worlds import byte_tokenizer, other_tokenizer, tiny_drafter, tiny_target
from vocabforge.core.config import parse_config
from vocabforge.core.errors import ArtifactError, ConfigError, MismatchError
from vocabforge.corpus.prepared.packing import PackedRows, TrainingSequence
from vocabforge.corpus.tokenizer.tokenizer import TextTokenizer, load_tokenizer
from vocabforge.models.device import choose_device
from vocabforge.models.target.hf import HFTarget
from vocabforge.train.capture.online import OnlineCapture, RowBatch, to_tensors
from vocabforge.train.config import DataConfig
from vocabforge.train.data import prepare, with_prepared
from vocabforge.train.setup import start_from_target
from vocabforge.train.ttt import shift_left, unroll

STEPS = 4
LENGTH = 24


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> HFTarget:
    return HFTarget.load(tiny_target(tmp_path_factory.mktemp("target"), initializer_range=0.1))


def packed(sequences: list[TrainingSequence]) -> PackedRows:
    return pack(sequences, LENGTH, open_rows=2)


def losses(drafter: Any, target: HFTarget, rows: PackedRows) -> dict[tuple[int, ...], torch.Tensor]:
    """For each document (its ids): (K, its length) soft cross-entropy, 0 where a row is not counted."""
    batch = to_tensors(rows, range(len(rows)), torch.device("cpu"))
    captured = OnlineCapture(target, 0)(batch, [("train", row) for row in range(len(rows))])
    steps = []
    with torch.no_grad():
        for step in unroll(drafter, captured, STEPS, attention="eager"):
            teacher = target.logits(shift_left(captured.hidden, step.index + 1)).softmax(-1)
            found = -(teacher * drafter.logits(step.g).log_softmax(-1)).sum(-1)
            steps.append(torch.where(step.counted, found, 0.0))
    whole = torch.stack(steps)  # (K, B, T)
    out = {}
    for row in range(len(rows)):
        for number in range(1, int(rows.document[row].max()) + 1):
            place = np.flatnonzero(rows.document[row] == number)
            out[tuple(rows.input_ids[row, place].tolist())] = whole[:, row, place]
    return out


@st.composite
def documents(draw: Any) -> list[TrainingSequence]:
    """Documents of 1 to T tokens, no two alike."""
    found = {}
    for _ in range(draw(st.integers(1, 6))):
        size = draw(st.integers(1, LENGTH))
        ids = tuple(draw(st.lists(st.integers(3, 60), min_size=size, max_size=size)))
        mask = draw(st.lists(st.sampled_from([0, 1, 1, 1]), min_size=size, max_size=size))
        found[ids] = TrainingSequence(list(ids), mask)
    return list(found.values())


@settings(deadline=None, max_examples=15)
@given(documents())
def test_packing_changes_no_loss(target: HFTarget, sequences: list[TrainingSequence]) -> None:
    drafter = tiny_drafter(target)
    together = losses(drafter, target, packed(sequences))
    assert len(together) == len(sequences)
    for sequence in sequences:
        (alone,) = losses(drafter, target, packed([sequence])).values()
        found = together[tuple(sequence.ids)]
        assert torch.equal(found != 0, alone != 0)
        mask = torch.tensor([*sequence.loss_mask, *[0] * (STEPS + 1)])
        size = len(sequence.ids)
        for step in range(STEPS):
            counted = (mask[step + 1 : step + 1 + size] & mask[step + 2 : step + 2 + size]).bool()
            assert torch.equal(alone[step] != 0, counted[:size])
        torch.testing.assert_close(found, alone, rtol=1e-4, atol=1e-4)


@pytest.fixture
def tokenizer(tmp_path: Path) -> TextTokenizer:
    return load_tokenizer(byte_tokenizer(tmp_path / "tokenizer"))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(json.dumps({"text": f"{n} and " * (n % 5 + 2)}) for n in range(30)))
    return path


def section(**values: Any) -> DataConfig:
    return parse_config(DataConfig, values, source="test")


SIZES = {"heldout_documents": 5, "sequence_length": 40, "heldout_prompts": 3, "prompt_tokens": 4}


def test_prepared_rows_are_found_by_content(tmp_path, tokenizer, file, capsys):
    config = section(train=[str(file)], **SIZES)
    cache = tmp_path / "cache"
    kept = prepare(config, tokenizer, cache)
    assert "same content" not in capsys.readouterr().err
    again = prepare(config, tokenizer, cache)
    assert "same content" in capsys.readouterr().err
    own = prepare(config.model_copy(update={"cache": tmp_path / "own"}), tokenizer, cache)
    assert kept.digest() == again.digest() == own.digest()
    assert len(list((tmp_path / "own").iterdir())) == 1
    assert kept.figures["heldout"]["documents"] == 5
    ends = [0, len(kept.train) - 1]
    batch = to_tensors(kept.train, ends, torch.device("cpu"))
    assert batch.input_ids.dtype == batch.document.dtype == batch.position.dtype == torch.int64
    assert batch.loss_mask.dtype == torch.bool
    assert np.array_equal(batch.input_ids.numpy(), np.asarray(kept.train.input_ids[ends]))
    changed = prepare(section(train=[str(file)], **{**SIZES, "append_eos": False}), tokenizer, cache)
    assert changed.digest() != kept.digest()
    questions = [json.loads(line) for line in kept.prompts.read_text().splitlines()]
    assert [question["question_id"] for question in questions] == [81, 82, 83]
    assert all(len(question["turns"][0]) == 4 for question in questions)


def test_prepared_data_by_path(tmp_path, tokenizer, file, capsys):
    cache = tmp_path / "cache"
    made = prepare(section(train=[str(file)], **SIZES), tokenizer, cache)
    path = made.artifact.path
    config = with_prepared(section(prepared=str(path)))
    assert (config.sequence_length, config.heldout_documents) == (40, 5)
    assert with_prepared(config) == config
    assert prepare(section(prepared=str(path)), tokenizer, cache).digest() == made.digest()
    prepare(section(prepared=str(path), sequence_length=40), tokenizer, cache)
    assert "prepared data hold" not in capsys.readouterr().err
    recipe = section(prepared=str(path), sequence_length=2048, thinking="drop", append_eos=True)
    resolved = with_prepared(recipe)
    assert (resolved.sequence_length, resolved.thinking, resolved.append_eos) == (40, "keep", True)
    told = " ".join(capsys.readouterr().err.split())
    assert told.count("The prepared data hold:") == 1
    assert 'sequence_length 40 (not 2,048), thinking "keep" (not "drop"); other' in told
    assert "append_eos" not in told
    assert prepare(resolved, tokenizer, cache).digest() == made.digest()
    assert "hold" not in capsys.readouterr().err, "it is said once"
    for bad in ({"train": [str(file)]}, {"heldout": [str(file)]}):
        with pytest.raises(ConfigError, match="holds the rows already"):
            section(prepared=str(path), **bad)
    with pytest.raises(ConfigError, match=r"data.train is empty"):
        section()
    with pytest.raises(ArtifactError, match="not a VocabForge artefact"):
        prepare(section(prepared=str(tmp_path / "none")), tokenizer, cache)
    other = other_tokenizer(tmp_path / "other")
    with pytest.raises(MismatchError, match="different tokenizers"):
        prepare(section(prepared=str(path)), load_tokenizer(other), cache)


@pytest.mark.parametrize("gain", [0.01, 1.0, 7.0])
def test_scales_follow_the_target(tmp_path: Path, gain: float) -> None:
    target = HFTarget.load(tiny_target(tmp_path))
    with torch.no_grad():
        target.backbone.norm.weight.mul_(gain)
    ids = torch.arange(40).reshape(2, 20)
    document = torch.ones_like(ids)
    document[1, 15:] = 0  # padding must not count
    rows = RowBatch(ids, ids > 0, document, torch.arange(20).expand(2, 20))
    batch = OnlineCapture(target, 0)(rows, [0, 1])
    chosen = torch.tensor([1, 4, 9, 30])
    drafter = tiny_drafter(target, own_head=4, target_ids=chosen)
    drafter.requires_grad_(True)
    with torch.no_grad():
        drafter.lm_head.weight.zero_()
    start_from_target(drafter, batch)
    real = document != 0
    assert float(drafter.fuse(batch.features[real]).pow(2).mean().sqrt()) == pytest.approx(1.0, rel=1e-4)
    expected = batch.hidden[real].pow(2).mean(0).sqrt()
    torch.testing.assert_close(drafter.norm.weight.detach(), expected)
    torch.testing.assert_close(drafter.lm_head.weight.detach(), target.head_weight[chosen])


def test_a_cpu_launch_keeps_auto_off_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.delenv("ACCELERATE_USE_CPU", raising=False)
    assert choose_device("auto").type == "cuda"
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    assert choose_device("auto").type == "cpu"
