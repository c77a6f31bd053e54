"""The tiny target: tokenizer, chat template, training, and a folder that Hugging Face loads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.packing import pack
from vocabforge.core.artifact import Artifact
from vocabforge.core.errors import DataError
from vocabforge.corpus.chat.render import render_with_mask
from vocabforge.corpus.prepared.dataset import TrainingSequence
from vocabforge.corpus.tokenizer.tokenizer import TextTokenizer, load_tokenizer
from vocabforge.demo.target.build import END, train_tiny_target
from vocabforge.demo.target.config import TinyTargetConfig
from vocabforge.demo.target.train import TextRows, batch_loss
from vocabforge.evaluate.benchmarks.sample.writer import SampleSizes, write_sample
from vocabforge.train.config import OptimConfig

VOCAB = 512


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    write_sample(folder, 0, SampleSizes(train=160, heldout=16, questions_per_category=1))
    return folder


@pytest.fixture(scope="module")
def config(texts: Path) -> TinyTargetConfig:
    return TinyTargetConfig(
        train=texts / "train.jsonl",
        heldout=texts / "heldout.jsonl",
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_layers=2,
        num_heads=2,
        num_kv_heads=1,
        sequence_length=128,
        optim=OptimConfig(steps=60, batch_size=2, lr=1e-2, clip=1.0),
        threads=1,
    )


@pytest.fixture(scope="module")
def target(config: TinyTargetConfig, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return train_tiny_target(config, tmp_path_factory.mktemp("made") / "target")


@pytest.fixture(scope="module")
def tokenizer(target: Artifact) -> TextTokenizer:
    return load_tokenizer(target.path)


def conversations(path: Path) -> list[list[dict]]:
    return [json.loads(line)["messages"] for line in path.read_text("utf-8").splitlines()]


def test_tokenizer_round_trips_every_text(tokenizer: TextTokenizer, texts: Path) -> None:
    assert tokenizer.vocab_size == VOCAB
    said = [
        m["content"]
        for name in ("train", "heldout")
        for c in conversations(texts / f"{name}.jsonl")
        for m in c
    ]
    for text in [*said, "ünïcödé 漢字 \U0001f600\n\t  x  ", "<not special>"]:
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert max(ids) < VOCAB


def test_chat_template_is_prefix_stable(tokenizer: TextTokenizer, texts: Path) -> None:
    for messages in conversations(texts / "heldout.jsonl"):
        whole = tokenizer.render(messages)
        for at in range(1, len(messages) + 1):
            assert whole.startswith(tokenizer.render(messages[:at]))
            if messages[at - 1]["role"] == "assistant":
                assert whole.startswith(tokenizer.render(messages[: at - 1], add_generation_prompt=True))
        ids, mask = render_with_mask(tokenizer, messages)
        answers = [m["content"] for m in messages if m["role"] == "assistant"]
        kept = [token for token, counted in zip(ids, mask) if counted]
        assert tokenizer.decode(kept, skip_special=False) == "".join(answer + END for answer in answers)


def test_loss_falls_and_heldout_loss_is_finite(target: Artifact) -> None:
    assert target.meta["last_loss"] < target.meta["first_loss"] - 1.0
    assert 0.0 < target.meta["heldout_loss"] < target.meta["first_loss"]


def test_loss_counts_assistant_tokens_of_one_document(target: Artifact, tokenizer: TextTokenizer) -> None:
    """Packed beside another conversation, a conversation has the loss that it has alone."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(target.path).eval()
    first = [
        {"role": "user", "content": "Who was Ida?"},
        {"role": "assistant", "content": "Ida was a baker."},
    ]
    second = [{"role": "user", "content": "What is 2 + 2?"}, {"role": "assistant", "content": "It is 4."}]
    sequences = [TrainingSequence(*render_with_mask(tokenizer, messages)) for messages in (first, second)]

    def loss(chosen: list[TrainingSequence]) -> tuple[float, int]:
        rows = TextRows(pack(chosen, 128), "assistant")
        with torch.no_grad():
            value, count = batch_loss(model, rows.batch(torch.arange(len(rows))))
        return float(value), count

    (one, n_one), (two, n_two), (both, n_both) = loss(sequences[:1]), loss(sequences[1:]), loss(sequences)
    assert (n_one, n_two) == tuple(sum(sequence.loss_mask) for sequence in sequences)
    assert n_both == n_one + n_two
    assert both == pytest.approx((one * n_one + two * n_two) / n_both, rel=1e-5)
    ids = torch.tensor([sequences[0].ids])
    with torch.no_grad():
        logits = model(input_ids=ids).logits[0, :-1]
    mask = torch.tensor(sequences[0].loss_mask[1:]).bool()
    expected = torch.nn.functional.cross_entropy(logits[mask], ids[0, 1:][mask])
    assert one == pytest.approx(float(expected), rel=1e-4)


def test_errors_leave_nothing_behind(config: TinyTargetConfig, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="too few for a tokenizer"):
        train_tiny_target(config.model_copy(update={"vocab_size": 30_000}), tmp_path / "a")
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"messages": [\n', "utf-8")
    with pytest.raises(DataError):
        train_tiny_target(config.model_copy(update={"train": bad}), tmp_path / "b")
    with pytest.raises(DataError):
        train_tiny_target(config.model_copy(update={"train": tmp_path / "none.jsonl"}), tmp_path / "c")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.jsonl"]
