"""What a search is made of: models, prompts and heads, loaded once; acceptance and latency of any candidate, joined."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from ...core.artifact import open_artifact
from ...core.errors import MismatchError
from ...decode.build.models import Models
from ...evaluate.run.environment import describe_environment
from ...models.heads.registry import DraftHead
from ..latency.table import LatencyTable
from ..questions import Halves, read_halves
from ..settings import MethodSpace, TuneSettings
from ..types import CycleSetting, setting_of
from .acceptance import AcceptanceSource, AcceptanceStore, PromptRow
from .predict import Prediction, mean_prefix, predict, predict_plain
from .proposers import Proposing, head_choices
from .search import Entry
from .space import HeadChoice, TuneCandidate, candidates, cut_vocabs, trees_of


class TuneSession:
    """Everything that a run has loaded.

    Args:
        output: its folder.

    Raises:
        VocabForgeError: anything missing, damaged, or not belonging together.
    """

    def __init__(self, output: Path, settings: TuneSettings, space: MethodSpace) -> None:
        self.output, self.settings, self.space = output, settings, space
        self.models = Models(
            settings.target, settings.tokenizer, device=settings.device, dtype=settings.dtype
        )
        self.proposing = Proposing(self.models, settings.drafter)
        self.trees = trees_of(space, self.proposing.most_levels)
        most = max(tree.total for tree in self.trees)
        self.halves: Halves = read_halves(
            settings.prompts,
            self.models.tokenizer,
            form=settings.prompt_format,
            limit=settings.limit,
            room=self.models.model.config.max_positions - settings.max_new_tokens - most,
            new_tokens=settings.max_new_tokens,
        )
        self.choices = self._choices()
        self.source = AcceptanceSource(
            self.models.model,
            self.halves.tuning,
            settings.max_new_tokens,
            AcceptanceStore(output / "acceptance"),
            {**self.hashes, "dtype": settings.dtype},
        )

    @cached_property
    def hashes(self) -> dict[str, str]:
        """Of target, drafter and tokenizer."""
        owner = self.models.owner(self.settings.drafter)
        return {"target": owner.target, "drafter": owner.drafter, "tokenizer": owner.tokenizer}

    @cached_property
    def input_hashes(self) -> dict[str, str]:
        """The same, and of all draft vocabularies and heads, by role."""
        found = dict(self.hashes)
        for choice in self.choices:
            for role, path in (("vocabulary", choice.spec.vocab), ("draft head", choice.spec.head)):
                if path is not None:
                    found[f"{role} {path.name}"] = open_artifact(path, verify=False).content_hash
        return found

    @cached_property
    def environment(self) -> dict[str, Any]:
        return describe_environment(device=str(self.models.model.device), dtype=self.settings.dtype)

    @property
    def levels(self) -> int:
        """Of the deepest tree; a head with a schedule is laid over them."""
        return max(tree.levels for tree in self.trees)

    def heads(self) -> list[DraftHead]:
        """Of :attr:`choices`, the drafter's own first."""
        return [self.proposing.head(choice, self.levels) for choice in self.choices]

    def about(self, candidate: TuneCandidate) -> dict[str, Any]:
        """What decides a candidate's drafts, by content."""
        head = candidate.head.spec
        given = {
            name: None if path is None else open_artifact(path, verify=False).content_hash
            for name, path in (("vocab", head.vocab), ("head", head.head))
        }
        return {
            **given,
            "shortlist": head.shortlist,
            "budget": head.budget,
            "dynamic": head.dynamic,
            "tree": candidate.tree.model_dump(mode="json"),
        }

    def _choices(self) -> list[HeadChoice]:
        settings, cut = self.settings, list[tuple[str, Path]]()
        if settings.ranking is not None:
            cut = cut_vocabs(settings.ranking, settings.size, settings.target, self.output / "vocab")
        return head_choices(self.space, self.proposing.own, cut)


class Joined:
    """Acceptance and latency of candidates, as :func:`~vocabforge.tune.search.search.search` asks for them.

    Attributes:
        candidates: heads times trees, without those that the latency table lacks.
        settings: sizes of each head.
        left_out: heads that are not searched, and why.

    Raises:
        MismatchError: no candidate is left.
    """

    def __init__(self, loaded: TuneSession, latency: LatencyTable) -> None:
        self.loaded, self.latency = loaded, latency
        self._abouts: dict[str, dict[str, Any]] = {}
        heads = dict(zip(loaded.choices, loaded.heads()))
        self.settings = {choice: setting_of(head) for choice, head in heads.items()}
        self.left_out: dict[str, str] = {}
        self.candidates: list[TuneCandidate] = []
        for one in candidates({choice: head.size for choice, head in heads.items()}, loaded.trees):
            head = self.settings[one.head]
            try:
                for batch in loaded.settings.batch:
                    latency.cycle(CycleSetting(head=head, tree=one.tree, batch=batch, prefix=64))
            except MismatchError as error:
                why = f"the latency table has no {head.label}; {error.remedy}"
                self.left_out.setdefault(one.head.name, why)
            else:
                self.candidates.append(one)
        if not self.candidates:
            raise MismatchError(
                "the latency table has none of the draft heads",
                got="; ".join(f"{name}: {why}" for name, why in self.left_out.items()),
                source=loaded.settings.what_if,
                remedy="run tune --measure-only there with the same draft heads and trees",
            )

    def measure(self, candidate: TuneCandidate, prompts: int) -> list[PromptRow]:
        """Acceptance on the first prompts; decoded only where it is not known."""
        about = self._abouts.setdefault(candidate.name, self.loaded.about(candidate))
        make = partial(self.loaded.proposing.proposer, candidate)
        return self.loaded.source.rows(about, make, range(prompts))

    def predict(self, candidate: TuneCandidate, rows: Sequence[PromptRow]) -> dict[int, Prediction]:
        """By batch size."""
        head, tree = self.loaded.proposing.setting(candidate), candidate.tree
        return {
            batch: predict(rows, head, tree, self.latency, batch=batch)
            for batch in self.loaded.settings.batch
        }

    def plain(self) -> dict[int, Prediction]:
        """Plain decoding on all prompts."""
        rows = self.loaded.source.plain(range(len(self.loaded.source)))
        return {batch: predict_plain(rows, self.latency, batch=batch) for batch in self.loaded.settings.batch}

    def warnings(self, entry: Entry) -> dict[int, list[str]]:
        """Why its seconds rest on more than what was measured, by batch size."""
        if not entry.rows:
            return {}
        head, prefix = self.loaded.proposing.setting(entry.candidate), mean_prefix(entry.rows)
        return {
            batch: self.latency.warnings(
                CycleSetting(head=head, tree=entry.candidate.tree, batch=batch, prefix=prefix)
            )
            for batch in self.loaded.settings.batch
        }
