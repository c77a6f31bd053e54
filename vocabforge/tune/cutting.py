"""Static draft vocabularies of several sizes from one ranking."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..core.artifact import MANIFEST, open_artifact
from ..core.errors import ArtifactError, DataError, UsageError
from ..vocab.forced import ForceOptions, forced_ids
from ..vocab.subset import VocabSubset, load_subset, make_subset, save_subset
from ..vocab.table import load_counts

NAME = "r{size}"


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
        path = folder / NAME.format(size=size)
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
