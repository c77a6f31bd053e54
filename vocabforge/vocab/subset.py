"""Static draft vocabularies: selection by count, and the two forms in which they are used."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from ..core.artifact import open_artifact, write_artifact
from ..core.errors import ArtifactError, DataError, UsageError
from ..corpus.fingerprint import check_fingerprint
from ..corpus.tokenizer import TextTokenizer

KIND = "subset"
Fill = Literal["error", "lowest-id"]
Ids = npt.NDArray[np.int64]
_FILE = "subset.safetensors"


def select(counts: Ids, size: int, forced: Iterable[int] = (), *, fill: Fill = "error") -> Ids:
    """The ``size`` ids of a draft vocabulary, in rank order.

    Forced ids come first, then the others by count, descending; ties go to the lower id (within the forced
    ids too). FR-Spec (Zhao et al. 2025) and VocabTrim (Goel et al. 2025) differ in what was counted only.

    Args:
        counts: (V,) int64.
        size: R, 1..V.
        forced: ids that must be inside.
        fill: when fewer than R ids are forced or have a count: ``error``, or ``lowest-id`` takes the lowest
            ids without a count.

    Returns:
        (R,) int64, unique.

    Raises:
        UsageError: R outside 1..V or below the number of forced ids, or a forced id outside the vocabulary.
        DataError: too few ids have a count and ``fill`` is ``error``.
    """
    vocab_size = len(counts)
    must = np.unique(np.fromiter(forced, dtype=np.int64))
    if not 1 <= size <= vocab_size:
        raise UsageError(
            "the size is outside the vocabulary", got=f"{size:,}", expected=f"1 to {vocab_size:,}"
        )
    if len(must) and not (must[0] >= 0 and must[-1] < vocab_size):
        outside = must[(must < 0) | (must >= vocab_size)].tolist()
        raise UsageError(
            "a forced id is no token of the vocabulary", got=outside, expected=f"0 to {vocab_size - 1:,}"
        )
    if size < len(must):
        raise UsageError(
            "the size is below the number of forced ids",
            got=f"{size:,}",
            expected=f"at least {len(must):,}, for {_shorten(must)}",
            remedy="choose a larger size, or force fewer ids",
        )
    order = np.argsort(-counts, kind="stable")  # ties keep ascending ids
    is_forced = np.zeros(vocab_size, dtype=np.bool_)
    is_forced[must] = True
    ranked = np.concatenate([order[is_forced[order]], order[~is_forced[order]]])[:size]
    available = int(np.count_nonzero(is_forced | (counts > 0)))
    if available < size and fill == "error":
        raise DataError(
            "too few token ids have a count for this size",
            got=f"{available:,} ids with a count or forced",
            expected=f"{size:,}",
            remedy="count more text, choose a smaller size, or pass --fill lowest-id",
        )
    return ranked.astype(np.int64)


def _shorten(ids: Ids) -> str:
    shown = ", ".join(map(str, ids[:12].tolist()))
    return shown + (f", … ({len(ids):,} ids)" if len(ids) > 12 else "")


@dataclass(frozen=True, eq=False)
class VocabSubset:
    """A draft vocabulary of R of the target's V token ids.

    Attributes:
        ids: (R,) int64, ascending; row j of a draft head stands for target id ``ids[j]``.
        ranked: (R,) int64, the same ids in rank order (the FR-Spec list).
        vocab_size: V of the tokenizer; a target's head may have more, padded rows.
        fingerprint: the tokenizer's.
        forced: ids that are inside whatever their counts, ascending.
        coverage: share of the counted tokens whose id is inside, None when nothing was counted.
        filled: how many ids have neither a count nor a reason to be forced.
    """

    ids: Ids
    ranked: Ids
    vocab_size: int
    fingerprint: str
    forced: tuple[int, ...] = ()
    coverage: float | None = None
    filled: int = 0

    def __post_init__(self) -> None:
        problem = self._problem()
        if problem is not None:
            raise DataError("this is no valid draft vocabulary", got=problem)

    def _problem(self) -> str | None:
        if (
            self.ids.ndim != 1
            or self.ids.dtype != np.int64
            or self.ranked.dtype != np.int64
            or not len(self.ids)
        ):
            return (
                f"ids of shape {self.ids.shape} and type {self.ids.dtype}, ranked of type {self.ranked.dtype}"
            )
        if (np.diff(self.ids) <= 0).any():
            return "ids that repeat or do not ascend"
        if self.ids[0] < 0 or self.ids[-1] >= self.vocab_size:
            return f"ids {self.ids[0]} to {self.ids[-1]} in a vocabulary of {self.vocab_size}"
        if not np.array_equal(np.sort(self.ranked), self.ids):
            return "a rank order of other ids"
        if not np.isin(np.asarray(self.forced, dtype=np.int64), self.ids).all():
            return "forced ids that are not inside"
        return None

    def __len__(self) -> int:
        return len(self.ids)

    def d2t(self) -> Ids:
        """(R,) int64 **offsets**: draft index j stands for target id ``j + d2t[j]`` (EAGLE-3's layout)."""
        return self.ids - np.arange(len(self.ids), dtype=np.int64)

    def t2d(self, vocab_size: int | None = None) -> npt.NDArray[np.bool_]:
        """(V,) bool, True where the target id is inside; ``vocab_size`` counts a target's padded rows too.

        Raises:
            UsageError: ``vocab_size`` is below the tokenizer's.
        """
        rows = self.vocab_size if vocab_size is None else vocab_size
        if rows < self.vocab_size:
            raise UsageError(
                "t2d needs a place for every token", got=rows, expected=f"at least {self.vocab_size}"
            )
        inside = np.zeros(rows, dtype=np.bool_)
        inside[self.ids] = True
        return inside

    def digest(self) -> str:
        """Hex SHA-256 over the ids, V and the fingerprint: what a drafter trained on it depends on."""
        head = f"{self.vocab_size} {self.fingerprint} ".encode()
        return hashlib.sha256(head + self.ids.astype("<i8").tobytes()).hexdigest()

    def check_tokenizer(self, tokenizer: TextTokenizer, *, source: object) -> None:
        """Refuse a tokenizer that this draft vocabulary was not made for; ``source`` is where it stands.

        Raises:
            MismatchError: the fingerprints differ.
        """
        check_fingerprint(
            tokenizer.fingerprint,
            self.fingerprint,
            expected_from=tokenizer.source,
            got_from=f"the draft vocabulary {source}",
            remedy="run count-freq with the target's tokenizer and select-vocab again",
        )

    @classmethod
    def from_ranked(
        cls, ranked: Ids, *, vocab_size: int, fingerprint: str, forced: Iterable[int] = ()
    ) -> VocabSubset:
        """From ids in rank order, without counts."""
        return cls(np.sort(ranked), ranked, vocab_size, fingerprint, tuple(sorted(set(forced))))

    @classmethod
    def from_d2t(cls, d2t: Ids, *, vocab_size: int, fingerprint: str) -> VocabSubset:
        """From a drafter's offsets; the rank order is lost and replaced by the order of ids.

        Raises:
            DataError: the offsets do not give ascending ids inside the vocabulary.
        """
        offsets = np.asarray(d2t).astype(np.int64)
        ids = np.arange(offsets.shape[-1], dtype=np.int64) + offsets
        return cls(ids, ids.copy(), vocab_size, fingerprint)

    @classmethod
    def full(cls, vocab_size: int, fingerprint: str) -> VocabSubset:
        """All ids of the vocabulary."""
        ids = np.arange(vocab_size, dtype=np.int64)
        return cls(ids, ids.copy(), vocab_size, fingerprint, coverage=1.0)


def make_subset(
    counts: Ids, size: int, forced: Iterable[int], *, fingerprint: str, fill: Fill = "error"
) -> VocabSubset:
    """:func:`select`, with the coverage of the counts that it was made from."""
    must = tuple(sorted(set(forced)))
    ranked = select(counts, size, must, fill=fill)
    tokens = int(counts.sum())
    unused = ranked[counts[ranked] == 0]
    return VocabSubset(
        ids=np.sort(ranked),
        ranked=ranked,
        vocab_size=len(counts),
        fingerprint=fingerprint,
        forced=must,
        coverage=int(counts[ranked].sum()) / tokens if tokens else None,
        filled=int(np.count_nonzero(~np.isin(unused, np.asarray(must, dtype=np.int64)))),
    )


def save_subset(
    subset: VocabSubset, path: Path, *, parents: Mapping[str, str] | None = None, overwrite: bool = False
) -> None:
    """Write the artefact (kind ``subset``); ``parents`` are content hashes by role."""
    meta = {
        "size": len(subset),
        "vocab_size": subset.vocab_size,
        "fingerprint": subset.fingerprint,
        "forced": list(subset.forced),
        "coverage": subset.coverage,
        "filled": subset.filled,
    }
    with write_artifact(path, KIND, meta, parents=parents, overwrite=overwrite) as folder:
        arrays = {"ids": np.ascontiguousarray(subset.ids), "ranked": np.ascontiguousarray(subset.ranked)}
        save_file(arrays, folder / _FILE)


def load_subset(path: Path) -> VocabSubset:
    """Read the artefact back, verified.

    Raises:
        ArtifactError: no such artefact, or one that does not hold what its manifest says.
    """
    artifact = open_artifact(path, KIND)
    meta = artifact.meta
    try:
        arrays = load_file(artifact.file(_FILE))
        subset = VocabSubset(
            ids=arrays["ids"],
            ranked=arrays["ranked"],
            vocab_size=int(meta["vocab_size"]),
            fingerprint=str(meta["fingerprint"]),
            forced=tuple(int(token) for token in meta["forced"]),
            coverage=meta["coverage"],
            filled=int(meta["filled"]),
        )
    except (SafetensorError, KeyError, TypeError, ValueError, DataError) as error:
        got = error.got if isinstance(error, DataError) else error
        raise ArtifactError("the draft vocabulary cannot be read", got=got, source=path) from error
    if len(subset) != meta["size"]:
        raise ArtifactError(
            "the draft vocabulary disagrees with its own manifest",
            got=f"{len(subset):,} ids",
            expected=f"{meta['size']:,}",
            source=path,
        )
    return subset
