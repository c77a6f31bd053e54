"""The ways of drafting that a study compares, as candidates that the decoder can build."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ..models.heads import HeadOptions
from ..vocab.schedule import schedule_sizes
from ..vocab.subset import load_subset
from .config import MethodsConfig, StudyConfig
from .layout import Layout

FULL, REDUCED, LOW_RANK = "full", "reduced", "low-rank"  # families, and folders below that of the seed
PARTS = "joint", "alone"


@dataclass(frozen=True)
class Method:
    """One way of drafting.

    Attributes:
        family: what it is: ``full``, ``reduced``, ``fr``, ``trim``, ``pa-fr``, ``ranker``, ``low-rank``, ``router``,
            ``context``, ``hybrid``.
        name: for tables.
        setting: what it was set to, for tables.
        drafter: folder of its drafter, below the folder of the seed.
        vocab: draft vocabulary that the drafter's own head is cut to.
        kind: row of ``models.heads.HEADS``; None is the drafter's own head (cut to ``vocab``).
        head: folder of a trained draft head, below the folder of the seed.
        options: how that head is used.
        dynamic: its draft vocabulary changes with the text.
    """

    family: str
    name: str
    setting: str
    drafter: str = FULL
    vocab: Path | None = None
    kind: str | None = None
    head: str | None = None
    options: HeadOptions = field(default_factory=HeadOptions)
    dynamic: bool = False

    @property
    def key(self) -> str:
        """One word for files and tables of numbers."""
        words = f"{self.name} {self.setting}".lower()
        return "-".join("".join(c if c.isalnum() else " " for c in words).split())


def ranker_folder(part: int, training: str) -> str:
    """Folder of a ranker of rank d/``part``, below the folder of the seed."""
    return f"ranker-{part}-{training}"


def router_folder(clusters: int) -> str:
    """Folder of a router, below the folder of the seed."""
    return f"router-{clusters}"


def methods(config: StudyConfig, layout: Layout) -> list[Method]:
    """Every row of the study, the full head first.

    Raises:
        ArtifactError: a draft vocabulary is not there yet (the stage ``vocab`` makes them).
    """
    own, levels = config.methods, config.replay.levels
    found = [
        Method(FULL, "full head", f"V = {_vocab_size(config)}"),
        Method(REDUCED, "EAGLE-3 reduced", f"R = {config.drafters.reduced_size:,}", drafter=REDUCED),
    ]
    for ranking, name in (("fr", "FR-Spec"), ("trim", "VocabTrim")):
        found += [
            Method(ranking, name, f"R = {size:,}", vocab=layout.subset(ranking, size)) for size in own.static
        ]
    ranked = tuple(load_subset(layout.subset("fr", max(own.static))).ranked.tolist())
    found += [_position(text, ranked, levels) for text in own.position]
    found += _rankers(own)
    found.append(Method(LOW_RANK, "low rank", f"d/{own.ranks[0]}", kind="low-rank", head=LOW_RANK))
    found += _routers(own, levels)
    for core in own.cores:
        options = HeadOptions(ranked=ranked[:core], context=own.context)
        found.append(
            Method(
                "context",
                "context",
                f"core {core:,}, text {own.context:,}",
                kind="context",
                options=options,
                dynamic=True,
            )
        )
    for core in own.cores:
        options = HeadOptions(ranked=ranked[:core], shortlist=own.tail)
        found.append(
            Method(
                "hybrid",
                "hybrid",
                f"core {core:,}, tail {own.tail:,}",
                kind="hybrid",
                head=ranker_folder(own.ranks[0], PARTS[0]),
                options=options,
                dynamic=True,
            )
        )
    return found


def _vocab_size(config: StudyConfig) -> str:
    rows = config.target.rows
    return "all" if rows is None else f"{rows:,}"


def _position(text: str, ranked: tuple[int, ...], levels: int) -> Method:
    law, most, least = text.split(":")
    sizes = schedule_sizes(law, int(most), int(least), levels)
    options = HeadOptions(ranked=ranked[: int(most)], schedule=sizes)
    return Method(
        "pa-fr", "PA-FR", f"{law} {int(most):,} to {int(least):,}", kind="scheduled", options=options
    )


def _rankers(own: MethodsConfig) -> list[Method]:
    return [
        Method(
            "ranker",
            f"ranker d/{part}, {training}",
            f"k = {shortlist:,}",
            kind="ranker",
            head=ranker_folder(part, training),
            options=HeadOptions(shortlist=shortlist),
            dynamic=True,
        )
        for part in own.ranks
        for training in PARTS
        for shortlist in own.shortlists
    ]


def _routers(own: MethodsConfig, levels: int) -> list[Method]:
    found = []
    for clusters in own.clusters:
        counts = sorted({max(1, round(share * clusters)) for share in own.budgets})
        budgets: dict[str, tuple[int, ...]] = {f"{count}": (count,) for count in counts}
        for law in own.schedules:
            for count in counts[-2:]:
                least = max(1, count // 2)
                budgets[f"{law} {count} to {least}"] = schedule_sizes(law, count, least, levels)
        found += [
            Method(
                "router",
                f"router of {clusters:,}",
                f"{text} clusters",
                kind="router",
                head=router_folder(clusters),
                options=HeadOptions(budgets=budget, rows="own"),
                dynamic=True,
            )
            for text, budget in budgets.items()
        ]
    return found
