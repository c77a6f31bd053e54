"""Static draft vocabularies: the artefact, and its maps d2t and t2d."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file, save_file

from ...core.artifact import open_artifact, write_artifact
from ...core.errors import DataError, UsageError
from ...core.files import form_errors
from ...corpus.tokenizer.tokenizer import check_fingerprint
from .select import Fill, Ids, select, shortened

KIND = "subset"
_FILE = "subset.safetensors"


@dataclass(frozen=True, eq=False)
class VocabSubset:
    """Draft vocabulary of R of the target's V token ids.

    Attributes:
        ids: (R,) int64, ascending; row j of a draft head is target id ``ids[j]``.
        ranked: (R,) int64, the same ids in rank order (the FR-Spec list).
        forced: ids included regardless of their counts, ascending.
        coverage: share of the counted tokens whose id is included, None if nothing was counted.
        filled: number of ids that are not forced and have no count.
        schedule: B(0), B(1), ...: draft step t may use the first B(t) ids of ``ranked`` (PA-FR); empty: all.
    """

    ids: Ids
    ranked: Ids
    vocab_size: int
    fingerprint: str
    forced: tuple[int, ...] = ()
    coverage: float | None = None
    filled: int = 0
    schedule: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        problem = self._problem()
        if problem is not None:
            raise DataError(
                "this is not a valid draft vocabulary",
                got=problem,
                expected="distinct ascending ids of the vocabulary, and a rank order of the same ids",
            )

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
            return "forced ids that are not included"
        if self.schedule and not 1 <= min(self.schedule) <= max(self.schedule) <= len(self.ids):
            return f"a schedule of {min(self.schedule)} to {max(self.schedule)} among {len(self.ids)} ids"
        if self.schedule and not set(self.forced) <= set(self.ranked[: min(self.schedule)].tolist()):
            return f"a schedule whose {min(self.schedule)} first ids lack some of the forced ones"
        return None

    def __len__(self) -> int:
        return len(self.ids)

    def d2t(self) -> Ids:
        """Return (R,) int64 **offsets**: draft index j is target id ``j + d2t[j]`` (EAGLE-3's layout)."""
        return self.ids - np.arange(len(self.ids), dtype=np.int64)

    def t2d(self, vocab_size: int | None = None) -> npt.NDArray[np.bool_]:
        """Return (V,) bool, True for included target ids; ``vocab_size`` may include a target's padded rows.

        Raises:
            UsageError: ``vocab_size`` is below the tokenizer's.
        """
        rows = self.vocab_size if vocab_size is None else vocab_size
        if rows < self.vocab_size:
            raise UsageError(
                "t2d needs an entry for every token", got=rows, expected=f"at least {self.vocab_size}"
            )
        inside = np.zeros(rows, dtype=np.bool_)
        inside[self.ids] = True
        return inside

    def digest(self) -> str:
        """Return the hex SHA-256 of ids, V and fingerprint, on which a trained drafter depends."""
        head = f"{self.vocab_size} {self.fingerprint} ".encode()
        return hashlib.sha256(head + self.ids.astype("<i8").tobytes()).hexdigest()

    def check_tokenizer(self, fingerprint: str, owner: object, *, source: object) -> None:
        """Check that this draft vocabulary (of ``source``) was made for the tokenizer of ``owner``.

        Raises:
            MismatchError: the fingerprints differ.
        """
        check_fingerprint(
            fingerprint,
            self.fingerprint,
            expected_from=owner,
            got_from=f"the draft vocabulary {source}",
            remedy="run count-freq with the target's tokenizer and select-vocab again",
        )

    @classmethod
    def from_ranked(
        cls, ranked: Ids, *, vocab_size: int, fingerprint: str, source: object = None, owner: object = None
    ) -> VocabSubset:
        """Create a draft vocabulary from ids in rank order (of ``source``) of a tokenizer (``owner``), without counts.

        Raises:
            DataError: ids that repeat, or beyond the vocabulary.
        """
        values, times = np.unique(ranked, return_counts=True)
        if (times > 1).any():
            raise DataError(
                "the list holds ids more than once",
                got=f"{len(ranked):,} ids, {len(values):,} different; repeated: {shortened(values[times > 1])}",
                source=source,
                remedy="make the list again; padding a list to its size repeats ids",
            )
        outside = values[(values < 0) | (values >= vocab_size)]
        if len(outside):
            raise DataError(
                "the list holds ids that the tokenizer does not have",
                got=f"{len(outside):,} ids: {shortened(outside)}",
                expected=f"0 to {vocab_size - 1:,}" + ("" if owner is None else f", of {owner}"),
                source=source,
                remedy="give the tokenizer, or the target, that the list was made with",
            )
        return cls(values, ranked, vocab_size, fingerprint)


def make_subset(
    counts: Ids,
    size: int,
    forced: Iterable[int],
    *,
    fingerprint: str,
    fill: Fill = "error",
    schedule: Sequence[int] = (),
) -> VocabSubset:
    """Select a draft vocabulary with :func:`select` and compute its coverage of the counts.

    Raises:
        UsageError: see :func:`select`; also a schedule with a step too small for the forced ids.
        DataError: see :func:`select`.
    """
    must = tuple(sorted(set(forced)))
    if schedule and min(schedule) < len(must):
        raise UsageError(
            "the schedule's smallest size is below the number of forced ids",
            got=f"{min(schedule):,}",
            expected=f"at least {len(must):,}",
            remedy="choose a larger --k-min, or force fewer ids",
        )
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
        schedule=tuple(schedule),
    )


def save_subset(
    subset: VocabSubset,
    path: Path,
    *,
    parents: Mapping[str, str] | None = None,
    config: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    exports: Iterable[Callable[[Path], object]] = (),
) -> None:
    """Write the artefact (kind ``subset``); each of ``exports`` is called with the folder to write a file."""
    meta = {
        "size": len(subset),
        "vocab_size": subset.vocab_size,
        "fingerprint": subset.fingerprint,
        "forced": list(subset.forced),
        "coverage": subset.coverage,
        "filled": subset.filled,
        "schedule": list(subset.schedule),
    }
    with write_artifact(path, KIND, meta, parents=parents, config=config, overwrite=overwrite) as folder:
        arrays = {"ids": np.ascontiguousarray(subset.ids), "ranked": np.ascontiguousarray(subset.ranked)}
        save_file(arrays, folder / _FILE)
        for export in exports:
            export(folder)


def load_subset(path: Path, fingerprint: str | None = None, *, owner: object = "the drafter") -> VocabSubset:
    """Load and verify the artefact.

    Args:
        fingerprint: of the tokenizer of ``owner``, for which it must have been made; None if not known.

    Raises:
        ArtifactError: no such artefact, or its content does not match its manifest.
        MismatchError: it was made for another tokenizer.
    """
    artifact = open_artifact(path, KIND)
    meta = artifact.meta
    with form_errors("the draft vocabulary cannot be read", path, remedy="make it again with select-vocab"):
        arrays = load_file(artifact.file(_FILE))
        try:
            subset = VocabSubset(
                ids=arrays["ids"],
                ranked=arrays["ranked"],
                vocab_size=int(meta["vocab_size"]),
                fingerprint=meta["fingerprint"],
                forced=tuple(int(token) for token in meta["forced"]),
                coverage=meta["coverage"],
                filled=int(meta["filled"]),
                schedule=tuple(int(size) for size in meta.get("schedule", ())),
            )
        except DataError as error:
            raise ValueError(error.got) from error
        if not isinstance(subset.fingerprint, str):
            raise ValueError(f"fingerprint {subset.fingerprint!r}")
        share = subset.coverage
        if share is not None and not (type(share) in (int, float) and 0 <= share <= 1):
            raise ValueError(f"coverage {share!r}")
        if len(subset) != meta["size"]:
            raise ValueError(f"{len(subset):,} ids, which disagrees with its manifest ({meta['size']})")
    if fingerprint:
        subset.check_tokenizer(fingerprint, owner, source=path)
    return subset
