"""Where everything of a study lies."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Layout:
    """Paths below a study's output folder.

    Attributes:
        root: the output folder.
    """

    root: Path

    @property
    def data(self) -> Path:
        """Artefact ``study-data``: conversations, questions, what was left out."""
        return self.root / "data"

    @property
    def train_texts(self) -> Path:
        return self.data / "train.jsonl"

    def heldout_texts(self, source: str) -> Path:
        """Conversations of one held-out source."""
        return self.data / f"heldout-{source}.jsonl"

    def questions(self, name: str) -> Path:
        """A set of questions, as Spec-Bench writes them."""
        return self.data / f"questions-{name}.jsonl"

    @property
    def tokenizer(self) -> Path:
        """Folder of tokenizer.json; absent where the target's tokenizer is made by its training."""
        return self.root / "tokenizer"

    @property
    def target(self) -> Path:
        """Hugging Face folder of the target, tokenizer included."""
        return self.root / "target"

    @property
    def answers(self) -> Path:
        """Artefact ``study-answers``: what the target itself writes."""
        return self.root / "answers"

    @property
    def own_texts(self) -> Path:
        """Conversations with the target's own answers, for drafters to learn from."""
        return self.answers / "own.jsonl"

    @property
    def vocab(self) -> Path:
        return self.root / "vocab"

    def subset(self, ranking: str, size: int) -> Path:
        """Draft vocabulary of the ranking ``fr`` or ``trim``."""
        return self.vocab / f"{ranking}-{size}"

    def clusters(self, count: int) -> Path:
        return self.vocab / f"clusters-{count}"

    def seed(self, seed: int) -> Path:
        """Everything trained for one seed."""
        return self.root / f"seed-{seed}"

    @property
    def replay(self) -> Path:
        return self.root / "replay"

    def replayed(self, seed: int) -> Path:
        """Artefact ``study-replay`` of a seed: ranks of the target's tokens."""
        return self.replay / f"seed-{seed}"

    @property
    def checked(self) -> Path:
        """What the decoder itself did, beside the replay."""
        return self.root / "check.json"

    @property
    def times(self) -> Path:
        return self.root / "times.json"

    @property
    def report(self) -> Path:
        """Folder of results.json, tables, plots and the page."""
        return self.root / "report"
