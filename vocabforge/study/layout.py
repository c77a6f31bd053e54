"""Folders of a study: where everything is, and how runs begin and end."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..core.artifact import open_artifact
from ..core.files import atomic_write_json, read_json
from ..core.folders import mend, put_in_place, sibling


class StudyLayout:
    """Paths below a study's output folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.data = root / "data"  # artefact ``study-data``: conversations, questions, what was left out
        self.train_texts = self.data / "train.jsonl"
        self.tokenizer = root / "tokenizer"  # absent if the target's tokenizer is made by its training
        self.target = root / "target"  # Hugging Face folder, tokenizer included
        self.answers = root / "answers"  # artefact ``study-answers``: what the target itself writes
        self.own_texts = (
            self.answers / "own.jsonl"
        )  # conversations with its answers, for drafters to learn from
        self.vocab = root / "vocab"
        self.replay = root / "replay"
        self.checked = root / "check.json"
        self.times = root / "times.json"
        self.report = root / "report"

    def heldout_texts(self, source: str) -> Path:
        """Conversations of one held-out source."""
        return self.data / f"heldout-{source}.jsonl"

    def questions(self, name: str) -> Path:
        """A set of questions, as Spec-Bench writes them."""
        return self.data / f"questions-{name}.jsonl"

    def subset(self, ranking: str, size: int) -> Path:
        """Draft vocabulary of the ranking ``fr`` or ``trim``."""
        return self.vocab / f"{ranking}-{size}"

    def clusters(self, count: int) -> Path:
        """Clusters of the LM head's rows."""
        return self.vocab / f"clusters-{count}"

    def seed(self, seed: int) -> Path:
        """Everything trained for one seed."""
        return self.root / f"seed-{seed}"

    def replayed(self, seed: int) -> Path:
        """Artefact ``study-replay`` of a seed: ranks of the target's tokens."""
        return self.replay / f"seed-{seed}"


_BEGUN = "study.json"
_NEEDED_NO_MORE = "checkpoints", "best", "heads", "router"


def begin(output: Path, key: Mapping[str, Any]) -> None:
    """Take a run folder for a run that this key decides; what a run with another key left there goes.

    A folder that no study began is left alone, and the training says whether it fits.
    """
    digest = hashlib.sha256(json.dumps(key, sort_keys=True, default=str).encode()).hexdigest()
    mend(output)  # what a killed process left beside it
    mark = output / _BEGUN
    if mark.is_file() and read_json(mark, "mark of a run").get("key") != digest:
        aside = sibling(output, "tmp")  # under another name first: half a folder must not pass for a run
        os.rename(output, aside)
        shutil.rmtree(aside, ignore_errors=True)
    output.mkdir(parents=True, exist_ok=True)
    atomic_write_json(mark, {"key": digest})


def publish(made: Path, place: Path) -> None:
    """Copy an artefact to where the study looks for it; there it is whole, or not at all."""
    mend(place)
    temporary = sibling(place, "tmp")
    try:
        shutil.copytree(made, temporary)
        open_artifact(temporary)
        put_in_place(temporary, place, overwrite=True)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def tidy(output: Path) -> None:
    """Remove what a finished run needs no more: checkpoints, and copies of what stands elsewhere."""
    for name in _NEEDED_NO_MORE:
        shutil.rmtree(output / name, ignore_errors=True)
