"""The ways of drafting that are searched: draft heads times draft trees."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...core.artifact import MANIFEST, open_artifact
from ...core.errors import ArtifactError, DataError, UsageError
from ...decode.build.spec import MethodSpec
from ...vocab.counts.table import load_counts
from ...vocab.subset.forced import ForceOptions, forced_ids
from ...vocab.subset.subset import VocabSubset, load_subset, make_subset, save_subset
from ..types import TreeSetting

FULL = "full"


@dataclass(frozen=True)
class HeadChoice:
    """A draft head as a recipe asks for it.

    Attributes:
        name: behind which its trees are named.
        vocab, head, shortlist, budget, dynamic: as in :class:`~vocabforge.decode.build.spec.MethodSpec`.
    """

    name: str = FULL
    vocab: Path | None = None
    head: Path | None = None
    shortlist: int | None = None
    budget: str | None = None
    dynamic: str | None = None


@dataclass(frozen=True)
class TuneCandidate:
    """A draft head with a draft tree."""

    head: HeadChoice
    tree: TreeSetting

    @property
    def name(self) -> str:
        """Unique in a space, and fit for files: ``full+chain4``, ``r128+tree6x10x60`` (levels, width, nodes)."""
        tree = self.tree
        shape = (
            f"chain{tree.levels}" if tree.kind == "chain" else f"tree{tree.levels}x{tree.topk}x{tree.total}"
        )
        return f"{self.head.name}+{shape}"

    def recipe(self, drafter: Path) -> MethodSpec:
        """What ``eval --recipe`` runs."""
        head = self.head
        own = {
            "drafter": drafter,
            "vocab": head.vocab,
            "head": head.head,
            "shortlist": head.shortlist,
            "budget": head.budget,
            "dynamic": head.dynamic,
        }
        return self.tree.options.model_copy(update=own)


@dataclass(frozen=True)
class TreeGrid:
    """Sizes that trees are made of; combinations that are no tree are left out.

    Attributes:
        chains: draft tokens of chains.
        levels, topk, nodes: of dynamic trees; nodes count the root.
    """

    chains: tuple[int, ...] = (1, 2, 3, 4, 6)
    levels: tuple[int, ...] = (2, 4, 6)
    topk: tuple[int, ...] = (2, 4, 8)
    nodes: tuple[int, ...] = (8, 16, 32, 60)

    def __post_init__(self) -> None:
        for name in ("chains", "levels", "topk", "nodes"):
            sizes = getattr(self, name)
            if len(set(sizes)) != len(sizes) or any(size < 1 for size in sizes):
                raise UsageError(
                    "sizes of draft trees stand once each, from 1 up",
                    got=sizes,
                    expected="numbers from 1 up, each once",
                    source=name,
                )


def trees_of(grid: TreeGrid, most_levels: int | None = None) -> list[TreeSetting]:
    """Every tree of a grid, chains first.

    A dynamic tree of one child a node is a chain and is left out.

    Args:
        most_levels: levels that the drafter can fill; None where there is no bound.

    Raises:
        UsageError: nothing is left.
    """
    deep = most_levels or 1 << 30
    found = [TreeSetting.chain(size - 1) for size in sorted(grid.chains) if size <= deep]
    for levels in sorted(grid.levels):
        for topk in sorted(grid.topk):
            if levels <= deep and topk > 1:
                most = topk + (levels - 1) * topk**2 + 1
                fitting = [nodes for nodes in sorted(grid.nodes) if levels < nodes <= most]
                found += [TreeSetting(topk=topk, depth=levels - 1, total=nodes) for nodes in fitting]
    if not found:
        raise UsageError(
            "no draft tree can be made of these sizes",
            got=f"chains {grid.chains}, levels {grid.levels}, topk {grid.topk}, nodes {grid.nodes}",
            expected="levels below nodes, and nodes that levels and topk can fill"
            + (f", at most {most_levels} levels" if most_levels else ""),
        )
    return found


def candidates(heads: Mapping[HeadChoice, int], trees: Iterable[TreeSetting]) -> list[TuneCandidate]:
    """Heads times trees that are no wider than the head.

    Args:
        heads: tokens that each scores.

    Raises:
        UsageError: two heads share a name, or there is no tree that fits.
    """
    names = [head.name for head in heads]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(
            "two draft heads have one name", got=", ".join(twice), remedy="name them: --vocab LABEL=DIR"
        )
    shapes = list(trees)
    found = [
        TuneCandidate(head, tree) for head, size in heads.items() for tree in shapes if tree.topk <= size
    ]
    if not found:
        raise UsageError(
            "every draft tree is wider than every draft head",
            got=f"topk of {min(tree.topk for tree in shapes)} and more",
            expected=f"at most {max(heads.values())}",
            remedy="give a smaller --topk",
        )
    return found


def cut_vocabs(ranking: Path, sizes: Sequence[int], target: Path, folder: Path) -> list[tuple[str, Path]]:
    """Subset artefacts ``folder/rSIZE``, made where they are not there yet.

    Args:
        ranking: a frequency table (the target's end tokens and control tokens are forced), or a subset artefact,
            whose first ids in rank order are taken.

    Returns:
        Label and folder of each, from the smallest.

    Raises:
        ArtifactError: neither of the two.
        UsageError: a size below the forced ids, or beyond the ranking.
    """
    found = open_artifact(ranking)
    if found.kind not in ("counts", "subset"):
        raise ArtifactError(
            "this is no ranking", got=found.kind, expected="counts or a subset", source=ranking
        )
    made = []
    for size in sorted(set(sizes)):
        subset = _from_counts(ranking, size, target) if found.kind == "counts" else _first(ranking, size)
        path = folder / f"r{size}"
        if not (path / MANIFEST).is_file() or load_subset(path).digest() != subset.digest():
            save_subset(subset, path, parents={"ranking": found.content_hash}, overwrite=True)
        made.append((path.name, path))
    return made


def _from_counts(ranking: Path, size: int, target: Path) -> VocabSubset:
    table = load_counts(ranking)
    forced = forced_ids(table, ForceOptions(target=target))
    try:
        return make_subset(table.counts, size, forced, fingerprint=table.fingerprint)
    except DataError as error:  # its remedy is select-vocab's
        remedy = "leave this size out, count more text, or give vocabularies of select-vocab with --vocab"
        raise DataError(
            error.message, got=error.got, expected=error.expected, source=ranking, remedy=remedy
        ) from error


def _first(ranking: Path, size: int) -> VocabSubset:
    whole = load_subset(ranking)
    if not max(len(whole.forced), 1) <= size <= len(whole):
        raise UsageError(
            "the ranking does not have this size",
            got=f"{size:,}",
            expected=f"{max(len(whole.forced), 1):,} (its forced ids) to {len(whole):,}",
            source=ranking,
        )
    forced = set(whole.forced)
    first = [*forced, *(token for token in whole.ranked.tolist() if token not in forced)][:size]
    order = {token: place for place, token in enumerate(whole.ranked.tolist())}
    ranked = whole.ranked[sorted(order[token] for token in first)]
    return VocabSubset.from_ranked(
        ranked, vocab_size=whole.vocab_size, fingerprint=whole.fingerprint, forced=whole.forced
    )
