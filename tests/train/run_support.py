"""A whole training run in small: target with tokenizer, texts, configuration."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import yaml
from safetensors.torch import load_file
from torch import Tensor

from tests.worlds import byte_tokenizer, tiny_target
from vocabforge.core.config import parse_config
from vocabforge.core.journal import read_jsonl_log
from vocabforge.corpus.tokenizer.tokenizer import load_tokenizer
from vocabforge.models.target.head import open_head
from vocabforge.train import loop
from vocabforge.train.checkpoint import list_checkpoints
from vocabforge.train.config import TrainConfig
from vocabforge.train.loop import Window
from vocabforge.train.setup import build_trainer
from vocabforge.train.trainer import Trainer
from vocabforge.vocab.clusters.clusters import make_clusters, save_clusters
from vocabforge.vocab.clusters.kmeans import KMeansOptions, unit_rows

TEXT = "the cat sat on a mat and one dog ran to the red house while rain fell over green hills"
WORDS = TEXT.split()


def make_place(place: Path, texts: int = 40) -> Path:
    """``place/target`` (model and tokenizer) and ``place/texts.jsonl``."""
    tiny_target(place / "target", vocab_size=261, initializer_range=0.2)
    byte_tokenizer(place / "target")
    draw = random.Random(0)
    lines = [json.dumps({"text": " ".join(draw.choices(WORDS, k=draw.randint(4, 14)))}) for _ in range(texts)]
    (place / "texts.jsonl").write_text("\n".join(lines) + "\n")
    return place


def add_clusters(place: Path) -> None:
    """``place/clusters``: 16 clusters of the rows of the target's head."""
    tokenizer, head = load_tokenizer(place / "target"), open_head(place / "target")
    rows = unit_rows(head.rows()[: tokenizer.vocab_size], name="head")
    facts = {"digest": head.digest(tokenizer.vocab_size), "width": head.item.shape[1]}
    made = make_clusters(rows, KMeansOptions(16, 10), fingerprint=tokenizer.fingerprint, head=facts)
    save_clusters(made, place / "clusters")


def settings(place: Path, output: str, **sections: dict[str, Any]) -> dict[str, Any]:
    """Configuration values of a run of a dozen steps; ``sections`` update single keys."""
    values: dict[str, Any] = {
        "target": str(place / "target"),
        "output": str(place / output),
        "data": {
            "train": [str(place / "texts.jsonl")],
            "heldout_documents": 6,
            "heldout_prompts": 4,
            "prompt_tokens": 8,
            "sequence_length": 64,
        },
        "ttt": {"steps": 3},
        "optim": {"steps": 12, "batch_size": 3, "lr": 3e-3},
        "run": {
            "device": "cpu",
            "threads": 1,
            "log_every": 1,
            "eval_every": 6,
            "checkpoint_every": 4,
            "mixed_precision": "no",
            "live": {"prompts": 1, "max_new_tokens": 4},
        },
    }
    for section, changes in sections.items():
        values[section] = {**values.get(section, {}), **changes}
    return values


def config(place: Path, output: str, **sections: Any) -> TrainConfig:
    return parse_config(TrainConfig, settings(place, output, **sections), source="test")


def trainer(place: Path, output: str, **sections: Any) -> Trainer:
    return build_trainer(config(place, output, **sections))


def log_rows(folder: Path, kind: str = "train") -> list[dict[str, Any]]:
    return [row for row in read_jsonl_log(folder / "metrics.jsonl") if row["kind"] == kind]


def curve(folder: Path, key: str = "ttt_loss") -> list[Any]:
    return [row[key] for row in log_rows(folder)]


def weights(folder: Path) -> dict[str, Tensor]:
    """Tensors of a finished run's drafter."""
    return load_file(folder / "drafter" / "drafter.safetensors")


def state(folder: Path) -> dict[str, Tensor]:
    """Weights and optimiser state of the last checkpoint."""
    last = list_checkpoints(folder / "checkpoints")[-1]
    return load_file(last / "weights.safetensors") | load_file(last / "optimizer.safetensors")


def assert_same(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    assert first.keys() == second.keys()
    assert [name for name in first if not torch.equal(first[name], second[name])] == []


def write_config(place: Path, output: str, **sections: dict[str, Any]) -> Path:
    path = place / f"{output}.yaml"
    path.write_text(yaml.safe_dump(settings(place, output, **sections)))
    return path


@contextlib.contextmanager
def signalled(at: int, name: str = "SIGTERM") -> Iterator[None]:
    """Inside, a run is sent a signal as it begins step ``at`` (from 0)."""
    take = loop.take_step

    def stepping(run: Trainer, step: int, window: Window) -> int:
        if step == at:
            os.kill(os.getpid(), getattr(signal, name))
        return take(run, step, window)

    with mock.patch.object(loop, "take_step", stepping):
        yield
