"""Frequency tables: counts of each token id, in total and by domain, and their artefact."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast, get_args

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file, save_file

from ...core.artifact import open_artifact, write_artifact
from ...core.files import form_errors
from ...corpus.tokenizer.special_tokens import SpecialTokens

KIND = "counts"
CountMode = Literal["corpus", "assistant", "mixture"]
Counts = npt.NDArray[np.int64]
REST = "other"
"""Domain of documents outside the named domains, if there are named domains."""
_FILE = "counts.safetensors"
_DOMAIN = "domain/"


@dataclass(frozen=True, eq=False)
class Tally:
    """Result of a pass over documents: counts (V,) int64, documents, UTF-8 bytes."""

    counts: Counts
    documents: int
    bytes: int

    @property
    def tokens(self) -> int:
        """Total of all counts."""
        return int(self.counts.sum())

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.counts + other.counts, self.documents + other.documents, self.bytes + other.bytes)


@dataclass(frozen=True, eq=False)
class FrequencyTable(Tally):
    """Counts of each token id; V is the highest token id of the tokenizer + 1.

    Attributes:
        bytes: of the documents (mode ``assistant``: of the assistant's contents).
        mode: ``corpus`` counts every token of raw text without BOS or EOS; ``assistant`` counts the
            assistant's tokens in rendered conversations; ``mixture`` is a weighted mean of normalised
            frequencies as integers.
        sources: digest of each source by name.
        special: special ids of the tokenizer, which allow selecting a subset without it.
        domains: separately counted parts by name; together they are the whole.
        origin: inputs of a merged or mixed table, and counting options.
    """

    mode: CountMode
    fingerprint: str
    sources: Mapping[str, str]
    special: SpecialTokens
    domains: Mapping[str, Tally] = field(default_factory=dict)
    origin: Mapping[str, Any] = field(default_factory=dict)

    @property
    def vocab_size(self) -> int:
        return len(self.counts)

    @property
    def seen(self) -> int:
        """Number of ids with a count."""
        return int(np.count_nonzero(self.counts))

    def totals(self) -> dict[str, Any]:
        """Return the summary that commands report as JSON."""
        names = ("mode", "documents", "bytes", "tokens", "vocab_size", "fingerprint")
        return {name: getattr(self, name) for name in names} | {"ids_with_count": self.seen}


def save_counts(
    table: FrequencyTable, path: Path, *, parents: Mapping[str, str] | None = None, overwrite: bool = False
) -> None:
    """Write the artefact (kind ``counts``); ``parents`` are content hashes by role."""
    meta = {
        "vocab_size": table.vocab_size,
        "tokens": table.tokens,
        "documents": table.documents,
        "bytes": table.bytes,
        "mode": table.mode,
        "fingerprint": table.fingerprint,
        "sources": dict(table.sources),
        "special": table.special.to_json(),
        "domains": {
            name: {"tokens": part.tokens, "documents": part.documents, "bytes": part.bytes}
            for name, part in table.domains.items()
        },
        "origin": dict(table.origin),
    }
    arrays = {"counts": table.counts} | {_DOMAIN + name: part.counts for name, part in table.domains.items()}
    with write_artifact(path, KIND, meta, parents=parents, overwrite=overwrite) as folder:
        save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, folder / _FILE)


def load_counts(path: Path) -> FrequencyTable:
    """Load and verify the artefact.

    Raises:
        ArtifactError: no such artefact, or its content does not match its manifest.
    """
    artifact = open_artifact(path, KIND)
    meta = artifact.meta
    with form_errors("the frequency table cannot be read", path):
        arrays = load_file(artifact.file(_FILE))
        table = FrequencyTable(
            arrays["counts"],
            int(meta["documents"]),
            int(meta["bytes"]),
            cast("CountMode", meta["mode"]),
            str(meta["fingerprint"]),
            dict(meta["sources"]),
            SpecialTokens.from_json(meta["special"]),
            {
                name: Tally(arrays[_DOMAIN + name], int(part["documents"]), int(part["bytes"]))
                for name, part in meta.get("domains", {}).items()
            },
            dict(meta.get("origin", {})),
        )
        if problem := _disagreement(table, meta):
            raise ValueError(
                f"{problem}, but the manifest has ({meta['vocab_size']},), {meta['tokens']} tokens"
            )
    return table


def _disagreement(table: FrequencyTable, meta: Mapping[str, Any]) -> str | None:
    parts: list[Tally] = [table, *table.domains.values()]
    arrays = [part.counts for part in parts]
    for counts in arrays:
        if counts.dtype != np.int64 or counts.shape != (meta["vocab_size"],) or bool((counts < 0).any()):
            return f"{counts.dtype} {counts.shape}"
    if table.mode not in get_args(CountMode):
        return f"mode {table.mode}"
    if min(min(part.documents, part.bytes) for part in parts) < 0:
        return "a negative number of documents or bytes"
    special = table.special
    ids = (*special.eos, *special.control, *special.tools, *special.others)
    if ids and not 0 <= min(ids) <= max(ids) < table.vocab_size:
        return f"special ids {min(ids)} to {max(ids)}"
    if table.tokens != meta["tokens"]:
        return f"{table.tokens:,} tokens"
    if table.domains and not np.array_equal(np.sum(arrays[1:], axis=0), table.counts):
        return "domains that do not add up to the whole"
    return None
