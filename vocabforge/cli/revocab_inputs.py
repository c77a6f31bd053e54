"""What ``revocab`` reads: target, drafter, the new draft vocabulary, frequency tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core.artifact import Artifact, open_artifact
from ..core.errors import MismatchError, UsageError
from ..core.values import labelled
from ..corpus.fingerprint import check_fingerprint
from ..corpus.tokenizer import TextTokenizer, load_tokenizer
from ..corpus.tokenizer_files import eos_ids_in, read_side_files
from ..export.formats import load_drafter
from ..export.importing import folder_digest
from ..models.checkpoint import checkpoint_files, read_headers
from ..models.drafter import Drafter
from ..models.drafter_io import WEIGHTS, TargetTensors, load_target_tensors
from ..models.fingerprint import target_fingerprint
from ..vocab.special import SpecialTokens
from ..vocab.subset import VocabSubset, load_subset
from .table_inputs import load_part

FULL = "full"
_STORED = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
_KEPT_FACTS = ("target_fingerprint", "target_name", "tokenizer_fingerprint", "eos_ids", "run", "steps")


@dataclass(frozen=True, eq=False)
class Inputs:
    """Everything that was read, and found to belong together.

    Attributes:
        tokenizer: None where the target's folder holds none.
        shared: the target's embedding and LM head, fp32 on the CPU. drafter: the same.
        artifact: None for a folder made elsewhere.
        subset: None for the whole vocabulary. ids: (R,) target ids of it.
        eos: end tokens of the target. counts: (V,) by name of the frequency table.
        parents: hashes by role.
        stored: dtype that the drafter is stored in; float32 where there are several.
    """

    target: Path
    tokenizer: TextTokenizer | None
    shared: TargetTensors
    drafter: Drafter
    artifact: Artifact | None
    subset: VocabSubset | None
    ids: Tensor
    eos: tuple[int, ...]
    counts: Mapping[str, Any]
    parents: Mapping[str, str]
    stored: str

    def facts(self) -> dict[str, Any]:
        """What binds the new drafter to its target and tokenizer.

        Figures of the former vocabulary are left out; they stay in the former artefact, a parent of the new one.
        """
        if self.artifact is not None:
            return {name: self.artifact.meta[name] for name in _KEPT_FACTS if name in self.artifact.meta}
        facts = {"target_fingerprint": target_fingerprint(self.target), "target_name": self.target.name}
        if self.tokenizer is not None:
            facts["tokenizer_fingerprint"] = self.tokenizer.fingerprint
        return {**facts, "eos_ids": list(self.eos)}

    @property
    def recorded(self) -> Mapping[str, Any] | None:
        """The configuration that the drafter was trained with, where its manifest has one."""
        config = None if self.artifact is None else self.artifact.manifest.get("config")
        return config if isinstance(config, Mapping) else None


def read_inputs(
    drafter: Path, target: Path, vocab: str, tokenizer: Path | None, counts: Sequence[str]
) -> Inputs:
    """Read it all.

    Args:
        vocab: folder of a subset artefact, or ``full``.
        counts: frequency tables as ``DIR`` or ``NAME=DIR``.

    Raises:
        VocabForgeError: missing, damaged, or not belonging together.
    """
    shared = load_target_tensors(target)
    loaded_tokenizer = _tokenizer(tokenizer, target)
    loaded, artifact = load_drafter(drafter, shared, target)
    parents = {} if artifact is None else {"drafter": artifact.content_hash}
    if artifact is None:
        parents["layout"] = folder_digest(drafter)
    known = _fingerprint(loaded_tokenizer, artifact)
    subset = None if vocab == FULL else _subset(Path(vocab), known, loaded.config.vocab_size)
    if subset is None:
        ids = torch.arange(loaded.config.vocab_size)
    else:
        ids = torch.from_numpy(subset.ids)
        parents["vocab"] = open_artifact(Path(vocab), "subset", verify=False).content_hash
    tables = {}
    for name, path in map(labelled, counts):
        part = load_part(name, path)
        if known is not None:
            check_fingerprint(
                known[0],
                part.table.fingerprint,
                expected_from=known[1],
                got_from=f"the frequency table {path}",
            )
        if name in tables:
            raise UsageError("two frequency tables have one name", got=name, remedy="name them: NAME=DIR")
        tables[name] = part.table.counts
        parents[f"counts {name}"] = str(part.content_hash)
    return Inputs(
        target,
        loaded_tokenizer,
        shared,
        loaded,
        artifact,
        subset,
        ids,
        _end_tokens(loaded_tokenizer, target, loaded.config.vocab_size),
        tables,
        parents,
        stored_dtype(drafter),
    )


def stored_dtype(folder: Path) -> str:
    """The dtype of a drafter's weight files; float32, which holds all of them, where there are several."""
    files = [folder / WEIGHTS] if (folder / WEIGHTS).is_file() else checkpoint_files(folder)
    found = {
        item.dtype for item in read_headers(files).values() if not item.dtype.startswith(("I", "U", "BOOL"))
    }
    return _STORED.get(found.pop(), "float32") if len(found) == 1 else "float32"


def _tokenizer(tokenizer: Path | None, target: Path) -> TextTokenizer | None:
    if tokenizer is None and not (target / "tokenizer.json").is_file():
        return None
    return load_tokenizer(tokenizer or target)


def _fingerprint(tokenizer: TextTokenizer | None, artifact: Artifact | None) -> tuple[str, str] | None:
    """The tokenizer's fingerprint and where it comes from; None where neither names one."""
    if tokenizer is not None:
        return tokenizer.fingerprint, f"the target's tokenizer {tokenizer.source}"
    recorded = None if artifact is None else artifact.meta.get("tokenizer_fingerprint")
    return (str(recorded), f"the drafter {artifact.path}") if artifact and recorded else None


def _subset(path: Path, known: tuple[str, str] | None, vocab_size: int) -> VocabSubset:
    if not path.is_dir():
        raise UsageError(
            "there is no draft vocabulary here",
            got=path,
            expected="a folder of select-vocab, or full",
            source="--vocab",
        )
    subset = load_subset(path)
    if known is not None:
        check_fingerprint(
            known[0],
            subset.fingerprint,
            expected_from=known[1],
            got_from=f"the draft vocabulary {path}",
            remedy="run count-freq with the target's tokenizer and select-vocab again",
        )
    if subset.vocab_size > vocab_size:
        raise MismatchError(
            "the draft vocabulary is of a larger vocabulary than the target's",
            got=f"ids below {subset.vocab_size:,}",
            expected=f"below {vocab_size:,}",
            source=path,
        )
    return subset


def _end_tokens(tokenizer: TextTokenizer | None, target: Path, vocab_size: int) -> tuple[int, ...]:
    side = read_side_files(target)
    named = eos_ids_in(side["generation_config.json"]) or eos_ids_in(side["config.json"])
    own = () if tokenizer is None else SpecialTokens.of(tokenizer).eos
    return tuple(sorted({token for token in (*named, *own) if token < vocab_size}))
