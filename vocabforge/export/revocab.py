"""Give a trained drafter another draft vocabulary, and write it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ..core.artifact import Artifact, check_output, open_artifact
from ..core.files import check_apart
from ..core.hub import hub_name
from ..core.registry import check_known
from ..corpus.tokenizer.files import named_eos_ids, read_side_files
from ..corpus.tokenizer.special_tokens import SpecialTokens
from ..corpus.tokenizer.tokenizer import TextTokenizer, load_tokenizer
from ..layouts.importing import folder_digest
from ..layouts.interface import Export
from ..layouts.registry import layout_of, load_drafter
from ..models.checkpoint import checkpoint_files, read_headers
from ..models.drafters.io import WEIGHTS, trained_for
from ..models.drafters.revocab import change_of, end_tokens, head_drift, revocab_head
from ..models.target.fingerprint import target_facts
from ..models.target.head import load_target_tensors
from ..models.target.hf import read_target_config
from ..models.target.load import DTYPES
from ..vocab.subset.subset import VocabSubset, load_subset
from .checked import write_checked
from .measured import recipe_of
from .request import FULL, RevocabRequest
from .run import trained_with

_STORED = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
_KEPT_FACTS = (
    "target_fingerprint",
    "target_norms",
    "target_name",
    "tokenizer_fingerprint",
    "eos_ids",
    "run",
    "steps",
)


def run_revocab(request: RevocabRequest, *, overwrite: bool = False) -> dict[str, Any]:
    """Build the new drafter and write it.

    Returns:
        Output of ``--json``: ``output``, ``format``, ``dtype``, ``head``, ``drift``, ``eos``.
    """
    _check(request, overwrite=overwrite)
    target = request.target or trained_with(request.drafter)
    shared, config = load_target_tensors(target), read_target_config(target)
    tokenizer = _tokenizer(request.tokenizer, target)
    drafter, artifact = load_drafter(request.drafter, shared, target)
    if artifact is None:
        parents = {"layout": folder_digest(request.drafter)}
    else:
        parents = {"drafter": artifact.content_hash}
    subset, ids = None, torch.arange(drafter.config.vocab_size)
    if request.vocab != FULL:
        subset = _subset(Path(request.vocab), tokenizer, artifact)
        ids = torch.from_numpy(subset.ids)
        parents["vocab"] = open_artifact(Path(request.vocab), "subset", verify=False).content_hash
    made = revocab_head(drafter, ids)
    eos = _end_tokens(tokenizer, target, drafter.config.vocab_size)
    record = {
        "head": change_of(drafter, made),
        "drift": head_drift(drafter),
        "eos": end_tokens(drafter.target_ids, made.target_ids, eos),
    }
    dtype = request.dtype or stored_dtype(request.drafter)
    written = {"format": request.format, "dtype": dtype}
    source = {"from": hub_name(request.drafter), "vocab": request.vocab}
    export = Export(
        made,
        config,
        shared,
        hub_name(target, revision=False),
        DTYPES[dtype],
        meta={
            **_facts(artifact, target, tokenizer, eos),
            **written,
            "draft_vocab_size": made.config.draft_vocab_size,
            "revocab": {**source, **record},
        },
        parents=parents,
        config=recipe_of(artifact) | {"target": hub_name(target)},
        ranked=None if subset is None else tuple(subset.ranked.tolist()),
        overwrite=overwrite,
    )
    layers = int(config.get("num_hidden_layers") or 0)
    write_checked(layout_of(request.format), request.output, export, layers)
    return {"output": str(request.output), **written, **record}


def _check(request: RevocabRequest, *, overwrite: bool) -> None:
    check_output(request.output, overwrite=overwrite)
    layout_of(request.format)
    if request.dtype is not None:
        check_known(request.dtype, DTYPES, "dtype", source="--dtype")
    read: list[tuple[str, Path | None]] = [
        ("--drafter", request.drafter),
        ("--target", request.target),
        ("--vocab", None if request.vocab == FULL else Path(request.vocab)),
    ]
    check_apart(request.output, read)


def _facts(
    artifact: Artifact | None, target: Path, tokenizer: TextTokenizer | None, eos: tuple[int, ...]
) -> dict[str, Any]:
    if artifact is not None:
        return {name: artifact.meta[name] for name in _KEPT_FACTS if name in artifact.meta}
    facts: dict[str, Any] = dict(target_facts(target))
    if tokenizer is not None:
        facts["tokenizer_fingerprint"] = tokenizer.fingerprint
    return {**facts, "eos_ids": list(eos)}


def stored_dtype(folder: Path) -> str:
    """Return the dtype of a drafter's weight files; float32 if there are several dtypes."""
    files = [folder / WEIGHTS] if (folder / WEIGHTS).is_file() else checkpoint_files(folder, pickles=True)
    found = {
        item.dtype for item in read_headers(files).values() if not item.dtype.startswith(("I", "U", "BOOL"))
    }
    return _STORED.get(found.pop(), "float32") if len(found) == 1 else "float32"


def _tokenizer(tokenizer: Path | None, target: Path) -> TextTokenizer | None:
    if tokenizer is None and not (target / "tokenizer.json").is_file():
        return None
    return load_tokenizer(tokenizer or target)


def _subset(path: Path, tokenizer: TextTokenizer | None, artifact: Artifact | None) -> VocabSubset:
    if tokenizer is not None:
        return load_subset(path, tokenizer.fingerprint, owner=tokenizer.source)
    return load_subset(path, trained_for(artifact), owner=f"the drafter {artifact.path if artifact else ''}")


def _end_tokens(tokenizer: TextTokenizer | None, target: Path, vocab_size: int) -> tuple[int, ...]:
    named = named_eos_ids(read_side_files(target))
    own = () if tokenizer is None else SpecialTokens.of(tokenizer).eos
    return tuple(sorted({token for token in (*named, *own) if token < vocab_size}))
