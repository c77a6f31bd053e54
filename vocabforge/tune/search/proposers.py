"""The drafter and the draft heads of a search, each built once, and the proposer of any candidate."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ...core.artifact import open_artifact
from ...core.errors import UsageError
from ...decode.build.heads import parse_dynamic, spec_head
from ...decode.build.models import Models, trained_for
from ...decode.build.spec import MethodSpec
from ...decode.proposers.registry import FITTING, Proposer, ProposerParts, make_proposer
from ...models.heads.io import check_owner
from ...models.heads.registry import DraftHead, base_of, exact_head
from ..settings import MethodSpace
from ..types import HeadSetting, TreeSetting, setting_of
from .space import FULL, HeadChoice, TuneCandidate

OWN = "own"


def head_choices(
    space: MethodSpace, own: str = FULL, cut: Sequence[tuple[str, Path]] = ()
) -> list[HeadChoice]:
    """Every draft head of a search, the drafter's own first.

    Args:
        cut: label and folder of further draft vocabularies.
        own: name of the drafter's own head.

    Raises:
        ArtifactError: a folder without a draft head.
        UsageError: an option that none of the heads has a use for.
    """
    vocabs = (*space.vocabs, *cut)
    found = [HeadChoice(own)] + [HeadChoice(label, MethodSpec(vocab=path)) for label, path in vocabs]
    kinds = {path: str(open_artifact(path, verify=False).meta.get("head")) for _, path in space.heads}
    for name, given, kind in (
        ("--shortlist", space.shortlists, "ranker"),
        ("--budget", space.budgets, "router"),
        ("--dynamic ranker", [one for one in space.dynamic if one.startswith("ranker")], "ranker"),
    ):
        if given and kind not in kinds.values():
            remedy = "the time for measuring is --seconds" if name == "--budget" else None
            raise UsageError(
                f"{name} means nothing here", got=list(given), expected=f"--head with a {kind}", remedy=remedy
            )
    if space.dynamic and not vocabs:
        raise UsageError("--dynamic adds tokens to a draft vocabulary", expected="--vocab or --ranking")
    for label, path in space.heads:
        if kinds[path] == "ranker" and space.shortlists:
            found += [
                HeadChoice(f"{label}-k{k}", MethodSpec(head=path, shortlist=k)) for k in space.shortlists
            ]
        elif kinds[path] == "router" and space.budgets:
            found += [
                HeadChoice(f"{label}-b{text.replace(':', '-')}", MethodSpec(head=path, budget=text))
                for text in space.budgets
            ]
        else:
            found.append(HeadChoice(label, MethodSpec(head=path)))
    for text in space.dynamic:
        what, tail = parse_dynamic(text), text.replace(":", "")
        for label, vocab in vocabs:
            if what.source == "context":
                found.append(HeadChoice(f"{label}+{tail}", MethodSpec(vocab=vocab, dynamic=text)))
                continue
            found += [
                HeadChoice(
                    f"{label}+{name}{what.size or ''}", MethodSpec(vocab=vocab, head=path, dynamic=text)
                )
                for name, path in space.heads
                if kinds[path] == "ranker"
            ]
    return found


class Proposing:
    """A drafter with its draft heads, and proposers over them.

    Args:
        models: the target, loaded.
        drafter: trained drafter, native or in another layout.

    Attributes:
        base: its exact head.

    Raises:
        VocabForgeError: anything missing, damaged, or not belonging together.
    """

    def __init__(self, models: Models, drafter: Path) -> None:
        self.models, self.path = models, drafter
        self.drafter, artifact = models.drafter(drafter)
        self._fingerprint = trained_for(artifact)
        self.base = base_of(self.drafter)
        self._heads: dict[tuple[HeadChoice, int], DraftHead] = {}

    @property
    def own(self) -> str:
        """Name of the drafter's own head."""
        return FULL if len(self.base.weight) == len(self.base.embedding) else OWN

    @property
    def most_levels(self) -> int | None:
        """Levels that the drafter can fill; None where there is no bound."""
        return self.drafter.max_steps

    def head(self, choice: HeadChoice, levels: int) -> DraftHead:
        """The draft head of a choice, built once.

        Args:
            levels: of its tree: a schedule of budgets is laid over them.

        Raises:
            VocabForgeError: a vocabulary or a head of another tokenizer or drafter, or a size beyond it.
        """
        key = choice, levels if ":" in (choice.spec.budget or "") else 0
        if key not in self._heads:
            self._heads[key] = self._build(choice, levels)
        return self._heads[key]

    def setting(self, candidate: TuneCandidate) -> HeadSetting:
        """The sizes of a candidate's draft head that its time depends on."""
        return setting_of(self.head(candidate.head, candidate.tree.levels))

    def proposer(self, candidate: TuneCandidate) -> Proposer:
        """A proposer of its own; drafter and head are shared."""
        tree = candidate.tree
        head = self.head(candidate.head, tree.levels)
        name = FITTING[self.drafter.kind][0]
        return make_proposer(name, ProposerParts(self.models.model, self.drafter, head, tree.options))

    def _build(self, choice: HeadChoice, levels: int) -> DraftHead:
        spec = TuneCandidate(choice, TreeSetting.chain(levels - 1)).recipe(self.path)
        trained = None
        if choice.spec.head is not None:
            trained = self.models.trained_head(choice.spec.head)
            check_owner(trained.artifact, self.models.owner(self.path), drafter=self.path)
        found = spec_head(self.base, spec, trained, self._fingerprint)
        return exact_head(self.drafter) if found is None else found.head
