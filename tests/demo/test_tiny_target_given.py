"""A target with a given tokenizer, several held-out files, and runs that are stopped on their way."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from vocabforge.core.artifact import Artifact
from vocabforge.core.errors import DataError, MismatchError, UsageError
from vocabforge.core.journal import read_jsonl_log
from vocabforge.corpus.chat.render import render_with_mask
from vocabforge.corpus.tokenizer.tokenizer import load_tokenizer
from vocabforge.demo.target.build import (
    END,
    PAD,
    make_tokenizer,
    train_tiny_target,
)
from vocabforge.demo.target.config import TinyTargetConfig
from vocabforge.demo.target.train import MakeStep, plain_step
from vocabforge.evaluate.benchmarks.sample.writer import SampleSizes, write_sample
from vocabforge.train.config import OptimConfig

ROWS, STEPS = 640, 12


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Conversations, a second held-out file, and a tokenizer of 400 entries."""
    folder = tmp_path_factory.mktemp("given")
    write_sample(folder, 0, SampleSizes(train=40, heldout=8, questions_per_category=1))
    shutil.copyfile(folder / "train.jsonl", folder / "second.jsonl")
    (folder / "tokenizer").mkdir()
    said = [m["content"] for row in read_jsonl_log(folder / "train.jsonl") for m in row["messages"]]
    make_tokenizer(said, 400, folder / "tokenizer")
    return folder


@pytest.fixture(scope="module")
def config(place: Path) -> TinyTargetConfig:
    return TinyTargetConfig(
        train=place / "train.jsonl",
        heldout=(place / "heldout.jsonl", place / "second.jsonl"),
        tokenizer=place / "tokenizer",
        rows=ROWS,
        hidden_size=16,
        intermediate_size=24,
        num_layers=2,
        num_heads=2,
        num_kv_heads=1,
        sequence_length=512,
        loss_on="all",
        checkpoint_every=4,
        optim=OptimConfig(steps=STEPS, batch_size=2, lr=1e-2, clip=1.0, fused=True),
        threads=1,
    )


@pytest.fixture(scope="module")
def target(config: TinyTargetConfig, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return train_tiny_target(config, tmp_path_factory.mktemp("made") / "target")


def test_the_folder_has_the_given_tokenizer(target: Artifact, place: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert target.file(name).read_bytes() == (place / "tokenizer" / name).read_bytes()
    given, copied = load_tokenizer(place / "tokenizer"), load_tokenizer(target.path)
    assert copied.fingerprint == given.fingerprint
    assert copied.chat_template == given.chat_template
    end, pad = (given.backend.token_to_id(token) for token in (END, PAD))
    generation = GenerationConfig.from_pretrained(target.path)
    assert generation.eos_token_id == [end, pad]
    assert generation.pad_token_id == pad
    assert copied.eos_ids == (end, pad)
    theirs = AutoTokenizer.from_pretrained(target.path)
    messages = [{"role": "user", "content": "Add 12 and 7."}]
    assert theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) == copied.render(
        messages, add_generation_prompt=True
    )
    model, info = AutoModelForCausalLM.from_pretrained(target.path, output_loading_info=True)
    assert not info["missing_keys"]
    assert model.config.vocab_size == ROWS > copied.vocab_size
    assert model.config.tie_word_embeddings
    assert model.config.eos_token_id == end
    assert target.meta["parameters"] == sum(p.numel() for p in model.parameters())


def test_the_held_out_loss_is_exact(target: Artifact, place: Path) -> None:
    """Conversation by conversation, without packing, by the model as others load it."""
    from transformers import AutoModelForCausalLM

    model, tokenizer = AutoModelForCausalLM.from_pretrained(target.path), load_tokenizer(target.path)
    total, count = 0.0, 0
    for row in (row for name in ("heldout", "second") for row in read_jsonl_log(place / f"{name}.jsonl")):
        ids = torch.tensor([render_with_mask(tokenizer, row["messages"])[0]])
        assert ids.shape[1] <= 512
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0, :-1]
        total += float(F.cross_entropy(logits, ids[0, 1:], reduction="sum"))
        count += ids.shape[1] - 1
    assert target.meta["heldout_loss"] == pytest.approx(total / count, abs=2e-4)
    assert target.meta["heldout_tokens"] == count


class Killed(Exception):
    pass


def fail() -> None:
    raise Killed


def with_event(at: int, event: Callable[[], None]) -> MakeStep:
    """Ordinary steps; before the one of this number something happens."""

    def make(*arguments: Any) -> Any:
        take = plain_step(*arguments)

        def step(number: int, batch: Any) -> Any:
            if number == at:
                event()
            return take(number, batch)

        return step

    return make


@pytest.mark.parametrize("step", [2, 6, 11])
def test_a_killed_run_goes_on_to_the_same_weights(
    target: Artifact, config: TinyTargetConfig, tmp_path: Path, step: int, capsys: Any
) -> None:
    """Killed before the first checkpoint, between two, behind the last; twice, to kill a resumed run, too."""
    for at in (step, min(step + 3, STEPS - 1)):
        with pytest.raises(Killed):
            train_tiny_target(config, tmp_path / "target", make_step=with_event(at, fail))
        assert not (tmp_path / "target").exists()
        torch.rand(7)  # whatever others do with the global random numbers
    again = train_tiny_target(config, tmp_path / "target")
    assert "Using prepared data with the same content" in capsys.readouterr().err
    assert again.content_hash == target.content_hash  # weights, log and figures
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


def test_a_run_asked_to_stop_says_how_it_goes_on(
    target: Artifact, config: TinyTargetConfig, tmp_path: Path, capsys: Any
) -> None:
    interrupted = with_event(5, lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        train_tiny_target(config, tmp_path / "target", make_step=interrupted)
    said = capsys.readouterr().err
    assert "Stopped at step 6; the same command resumes from there." in said
    assert [p.name for p in (tmp_path / "target.checkpoints" / "steps").iterdir()] == [
        "step-00000004",
        "step-00000006",
    ]
    again = train_tiny_target(config, tmp_path / "target")
    assert "Resuming at step 6 of 12" in capsys.readouterr().err
    assert again.content_hash == target.content_hash


def test_a_run_begun_with_other_settings_is_not_gone_on_with(
    config: TinyTargetConfig, tmp_path: Path
) -> None:
    with pytest.raises(Killed):
        train_tiny_target(config, tmp_path / "target", make_step=with_event(6, fail))
    with pytest.raises(UsageError, match="init_std"):
        train_tiny_target(config.model_copy(update={"init_std": 0.1}), tmp_path / "target")


def test_what_does_not_fit_is_refused(config: TinyTargetConfig, place: Path, tmp_path: Path) -> None:
    with pytest.raises(MismatchError, match="tokenizer"):
        train_tiny_target(config.model_copy(update={"rows": 399}), tmp_path / "a")
    with pytest.raises(DataError, match=r"tokenizer\.json"):
        train_tiny_target(config.model_copy(update={"tokenizer": place}), tmp_path / "b")
    values = config.model_dump()
    assert TinyTargetConfig.model_validate(values) == config
    for changes, said in (
        ({"vocab_size": 500}, "give rows"),
        ({"max_position_embeddings": 32}, "longer than max_position"),
        ({"num_heads": 3}, "multiple of num_heads"),
    ):
        with pytest.raises(ValueError, match=said):
            TinyTargetConfig.model_validate({**values, **changes})
    assert not list(tmp_path.iterdir())
