"""The ways of drafting that are searched: draft heads times draft trees."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ...core.artifact import MANIFEST, open_artifact
from ...core.errors import ArtifactError, DataError, UsageError
from ...decode.build.spec import MethodSpec
from ...vocab.counts.table import load_counts
from ...vocab.subset.forced import ForceOptions, forced_ids
from ...vocab.subset.subset import VocabSubset, load_subset, make_subset, save_subset
from ..settings import MethodSpace
from ..types import TreeSetting

FULL = "full"


@dataclass(frozen=True)
class HeadChoice:
    """A draft head.

    Attributes:
        name: behind which its trees are named.
        spec: the fields of a method that ask for it.
    """

    name: str = FULL
    spec: MethodSpec = field(default_factory=MethodSpec)


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
        own = {**self.tree.options.given(), "drafter": drafter}
        return self.head.spec.model_copy(update=own)


def trees_of(space: MethodSpace, most_levels: int | None = None) -> list[TreeSetting]:
    """Every tree of a space, chains first.

    A dynamic tree of one child a node is a chain and is left out.

    Args:
        most_levels: levels that the drafter can fill; None where there is no bound.

    Raises:
        UsageError: nothing is left.
    """
    deep = most_levels or 1 << 30
    found = [TreeSetting.chain(depth) for depth in sorted(space.chains) if depth < deep]
    for levels in sorted(depth + 1 for depth in space.depths):
        for topk in sorted(space.topk):
            if levels <= deep and topk > 1:
                most = topk + (levels - 1) * topk**2 + 1
                fitting = [nodes for nodes in sorted(space.nodes) if levels < nodes <= most]
                found += [TreeSetting(topk=topk, depth=levels - 1, total=nodes) for nodes in fitting]
    if not found:
        raise UsageError(
            "no draft tree can be made of these sizes",
            got=f"depths {(*space.chains, *space.depths)}, topk {space.topk}, nodes {space.nodes}",
            expected="depths at least 2 below the nodes, and nodes that depth and topk can fill"
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
