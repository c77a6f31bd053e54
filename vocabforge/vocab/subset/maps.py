"""Export draft vocabularies and counts in the formats of other projects, and import FR-Spec lists.

* FR-Spec and SGLang's ``--speculative-token-map``: ``torch.save`` of a plain list of ids in rank order.
* EAGLE-3: offsets ``d2t`` (R,) int64 and ``t2d`` (V,) bool, here as a safetensors file.
* SpecVocab: a text file with one count per line, line n + 1 for token id n.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from ...core.errors import DataError, UsageError
from ...core.files import atomic_write
from ...core.registry import resolve
from ...corpus.tokenizer.special_tokens import SpecialTokens
from ...corpus.tokenizer.tokenizer import TextTokenizer
from .select import Ids
from .subset import VocabSubset

# name -> "module:attr"; a writer gets (what, folder), writes one file, and returns its path.
EXPORTS: dict[str, str] = {
    "fr-spec": "vocabforge.vocab.subset.maps:write_fr_spec",
    "d2t": "vocabforge.vocab.subset.maps:write_d2t",
    "counts-text": "vocabforge.vocab.subset.maps:write_counts_text",
}


@dataclass(frozen=True, eq=False)
class ExportInputs:
    """Subset, the counts (V,) it was selected by, and the padded rows of the target's head for ``t2d``."""

    subset: VocabSubset
    counts: Ids | None = None
    rows: int | None = None


def exporters(names: Iterable[str], what: ExportInputs) -> list[Callable[[Path], Path]]:
    """Return writers by name, each to be called with a folder; missing inputs raise before any writer runs.

    Raises:
        UsageError: an unknown name, or an export that needs counts without counts.
    """
    wanted = list(dict.fromkeys(names))
    writers = [resolve(EXPORTS, name, "export") for name in wanted]
    if "counts-text" in wanted and what.counts is None:
        raise UsageError(
            "the export counts-text needs counts, but a list of ids has none",
            remedy="choose other exports, or give --counts",
        )
    return [partial(writer, what) for writer in writers]


def write_fr_spec(what: ExportInputs, folder: Path) -> Path:
    """Write ``freq_<R>.pt``: a plain list of ids in rank order, as FR-Spec and SGLang load it."""
    import torch

    path = folder / f"freq_{len(what.subset)}.pt"
    torch.save([int(token) for token in what.subset.ranked], path)
    return path


def write_d2t(what: ExportInputs, folder: Path) -> Path:
    """Write ``d2t.safetensors``: offsets ``d2t`` (R,) int64 and ``t2d`` (rows,) bool."""
    path = folder / "d2t.safetensors"
    save_file({"d2t": what.subset.d2t(), "t2d": what.subset.t2d(what.rows)}, path)
    return path


def write_counts_text(what: ExportInputs, folder: Path) -> Path:
    """Write ``counts.txt``: the count of every id, one per line, in SpecVocab's format."""
    if what.counts is None:
        raise ValueError("exporters() must reject counts-text without counts")
    path = folder / "counts.txt"
    atomic_write(path, "".join(f"{count}\n" for count in what.counts.tolist()))
    return path


def read_fr_spec(path: Path) -> Ids:
    """Read (R,) int64 ids in rank order from an FR-Spec list; a pickle with any other content is never run.

    Raises:
        DataError: the file is missing, is not a list of integers, or would run code.
    """
    import torch

    try:
        value = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise DataError("the list of token ids is missing", expected=path, remedy="check the path") from error
    except pickle.UnpicklingError as error:
        raise DataError(
            "the file holds more than a plain list, and could run code if it were opened",
            got=_refused(error),
            expected="torch.save of a list of token ids",
            source=path,
            remedy="do not trust it; ask its author for a plain list, or a subset artefact",
        ) from error
    except Exception as error:  # damaged archives raise many kinds
        raise DataError(
            "the list of token ids cannot be read",
            got=f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}",
            expected="torch.save of a list of token ids",
            source=path,
        ) from error
    if not isinstance(value, list) or not value or any(type(token) is not int for token in value):
        raise DataError(
            "the file holds no list of token ids",
            got=f"{type(value).__name__}: {str(value)[:60]}",
            expected="a plain list of whole numbers, in rank order",
            source=path,
        )
    try:
        return np.array(value, dtype=np.int64)
    except OverflowError as error:
        raise DataError(
            "an id of the list is not a token id", got=error, expected="ids of the tokenizer", source=path
        ) from error


def subset_from_list(
    ranked: Ids, tokenizer: TextTokenizer, *, source: object
) -> tuple[VocabSubset, list[int]]:
    """Return a draft vocabulary from ids in rank order, and the tokenizer's end tokens that it lacks.

    Raises:
        DataError: ids that repeat, or that the tokenizer does not have.
    """
    size, fingerprint = tokenizer.vocab_size, tokenizer.fingerprint
    subset = VocabSubset.from_ranked(
        ranked, vocab_size=size, fingerprint=fingerprint, source=source, owner=tokenizer.source
    )
    missing = [token for token in SpecialTokens.of(tokenizer).eos if not (subset.ids == token).any()]
    return subset, missing


def _refused(error: Exception) -> str:
    """Return what a pickle would have called, without torch's advice to load it anyway."""
    match = re.search(r".*\bunsupported (global|class|operand|opcode)\b.*", str(error), re.IGNORECASE)
    return match[0].strip() if match else "not a plain list"
