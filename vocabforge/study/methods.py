"""The ways of drafting that a study compares, and their draft heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from ..core.artifact import Artifact, open_artifact
from ..export.registry import load_drafter, restrict
from ..models.drafters.interface import Drafter
from ..models.drafters.io import TargetTensors
from ..models.heads.io import LoadedHead, drafter_digest, load_head
from ..models.heads.registry import DraftHead, HeadOptions, base_of, build_head, exact_head
from ..models.lean.model import LeanModel
from ..train.heads.draft_heads import head_name
from ..vocab.subset.schedule import schedule_sizes
from ..vocab.subset.subset import load_subset
from .config import StudyConfig, StudyLayout

FULL, REDUCED, LOW_RANK = "full", "reduced", "low-rank"  # families; the first two are run folders, too
# Keys of `train-drafter`'s heads, in the order of methods.ranks: a run trains two rankers side by side.
RANKERS = "ranker", "small_ranker"
# How rankers are trained -> run folder below that of the seed.
RUNS = {"joint": FULL, "alone": "rankers"}


@dataclass(frozen=True)
class StudyMethod:
    """One way of drafting.

    Attributes:
        family, name, setting: what it is and what it was set to, for tables.
        drafter, head: folders of its drafter and trained draft head, below the folder of the seed.
        vocab: draft vocabulary that the drafter's own head is cut to.
        kind: row of ``models.heads.HEADS``; None is the drafter's own head.
        options: how the head is used.
    """

    family: str
    name: str
    setting: str
    drafter: str = FULL
    vocab: Path | None = None
    kind: str | None = None
    head: str | None = None
    options: HeadOptions = field(default_factory=HeadOptions)

    @property
    def key(self) -> str:
        """One word for files and tables of numbers."""
        words = f"{self.name} {self.setting}".lower()
        return "-".join("".join(c if c.isalnum() else " " for c in words).split())

    @property
    def label(self) -> str:
        return f"{self.name}, {self.setting}"


def router_folder(clusters: int) -> str:
    """Run folder of a router, below the folder of the seed."""
    return f"router-{clusters}"


def methods(config: StudyConfig, layout: StudyLayout) -> list[StudyMethod]:
    """Every row of the study, the full head first.

    Raises:
        ArtifactError: a draft vocabulary is not there yet (the stage ``vocab`` makes them).
    """
    own, levels, rows = config.methods, config.replay.levels, config.target.rows
    found = [
        StudyMethod(FULL, "full head", f"V = {'all' if rows is None else f'{rows:,}'}"),
        StudyMethod(REDUCED, "EAGLE-3 reduced", f"R = {config.drafters.reduced_size:,}", drafter=REDUCED),
    ]
    found += [
        StudyMethod(family, name, f"R = {size:,}", vocab=layout.subset(family, size))
        for family, name in (("fr", "FR-Spec"), ("trim", "VocabTrim"))
        for size in own.static
    ]
    ranked = tuple(load_subset(layout.subset("fr", max(own.static))).ranked.tolist())
    for text in own.position:
        schedule, most, least = text.split(":")
        sizes = schedule_sizes(schedule, int(most), int(least), levels)
        options = HeadOptions(ranked=ranked[: int(most)], schedule=sizes)
        setting = f"{schedule} {int(most):,} to {int(least):,}"
        found.append(StudyMethod("pa-fr", "PA-FR", setting, kind="scheduled", options=options))
    for key, part in zip(RANKERS, own.ranks):
        for training, run in RUNS.items():
            name, head = f"ranker d/{part}, {training}", f"{run}/heads/{head_name(key)}"
            found += ranker_methods(name, head, own.shortlists)
    found.append(
        StudyMethod(LOW_RANK, "low rank", f"d/{own.ranks[0]}", kind="low-rank", head=f"{FULL}/heads/low-rank")
    )
    for clusters in own.clusters:
        counts = sorted({max(1, round(share * clusters)) for share in own.budgets})
        budgets: dict[str, tuple[int, ...]] = {f"{count}": (count,) for count in counts}
        for schedule in own.schedules:
            for count in counts[-2:]:
                least_of = max(1, count // 2)
                budgets[f"{schedule} {count} to {least_of}"] = schedule_sizes(
                    schedule, count, least_of, levels
                )
        name, head = f"router of {clusters:,}", f"{router_folder(clusters)}/router"
        for text, budget in budgets.items():
            # In a tree the union over a level's nodes would be open by default, which no single path tells: each row
            # opens its own clusters, also in trees.
            options = HeadOptions(budgets=budget, rows="own")
            found.append(dynamic("router", name, f"{text} clusters", head, options))
    for core in own.cores:
        options = HeadOptions(ranked=ranked[:core], context=own.context)
        setting = f"core {core:,}, text {own.context:,}"
        found.append(dynamic("context", "context", setting, None, options))
    for core in own.cores:
        options = HeadOptions(ranked=ranked[:core], shortlist=own.tail)
        setting, head = f"core {core:,}, tail {own.tail:,}", f"{FULL}/heads/{head_name(RANKERS[0])}"
        found.append(dynamic("hybrid", "hybrid", setting, head, options))
    return found


def ranker_methods(
    name: str, head: str, shortlists: Sequence[int], rows: Literal["shared"] | None = None
) -> list[StudyMethod]:
    """A ranker with each k."""
    options = [HeadOptions(shortlist=k, rows=rows) for k in shortlists]
    return [dynamic("ranker", name, f"k = {one.shortlist:,}", head, one) for one in options]


def dynamic(kind: str, name: str, setting: str, head: str | None, options: HeadOptions) -> StudyMethod:
    """A method over the whole drafter; ``family`` is its head's kind."""
    return StudyMethod(kind, name, setting, kind=kind, head=head, options=options)


class StudyHeads:
    """Drafters and draft heads of a seed as its methods use them, each part loaded once.

    Args:
        place: folder of the seed.
        target: folder of the target; ``model`` the same, loaded.
    """

    def __init__(self, place: Path, target: Path, model: LeanModel) -> None:
        self.place, self.target, self.model = place, target, model
        self._drafters: dict[str, tuple[Drafter, Artifact | None]] = {}
        self._trained: dict[str, LoadedHead] = {}

    def drafter(self, name: str = FULL) -> Any:
        """A trained drafter as it is."""
        return self._loaded(name)[0]

    def head(self, way: StudyMethod) -> DraftHead:
        """The draft head of a method; trained parts are shared."""
        drafter, artifact = self._loaded(way.drafter)
        if way.vocab is not None:
            drafter = restrict(drafter, way.vocab, artifact)
        if way.kind is None:
            return exact_head(drafter)
        module = None
        if way.head is not None:
            if way.head not in self._trained:
                device, dtype = self.model.device, self.model.dtype
                self._trained[way.head] = load_head(self.place / way.head, device=device, dtype=dtype)
            module = self._trained[way.head].module
        return build_head(way.kind, base_of(drafter), module, way.options)

    def _loaded(self, name: str) -> tuple[Drafter, Artifact | None]:
        if name not in self._drafters:
            tensors = TargetTensors(self.model.embedding, self.model.lm_head_weight, self.model.transform)
            self._drafters[name] = load_drafter(drafter_folder(self.place, name), tensors, self.target)
        return self._drafters[name]


def drafter_folder(place: Path, name: str) -> Path:
    """Folder of a drafter inside the folder of the run that trained it."""
    return place / name / "drafter"


def content_of_method(place: Path, way: StudyMethod) -> dict[str, Any]:
    """Everything that decides what a method drafts, by content.

    Args:
        place: folder of the seed.
    """

    def content(path: Path | None) -> str | None:
        return None if path is None else open_artifact(path, verify=False).content_hash

    return {
        "method": way.name,
        "setting": way.setting,
        "drafter": drafter_digest(drafter_folder(place, way.drafter)),
        "vocab": content(way.vocab),
        "head": content(None if way.head is None else place / way.head),
        "options": asdict(way.options),
    }
