"""Folders of a study: where everything is."""

from __future__ import annotations

from pathlib import Path


class StudyLayout:
    """Paths below a study's output folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.data = root / "data"  # artefact ``study-data``: conversations, questions, what was left out
        self.train_texts = self.data / "train.jsonl"
        self.tokenizer = self.data / "tokenizer"  # absent if the target's tokenizer is made by its training
        self.target = root / "target"  # Hugging Face folder, tokenizer included
        self.answers = root / "answers"  # artefact ``study-answers``: what the target itself writes
        self.own_texts = self.answers / "own.jsonl"  # conversations that end with its answers
        self.vocab = root / "vocab"
        self.replay = root / "replay"
        self.checked = root / "check.json"
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
