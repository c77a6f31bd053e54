"""Export a drafter to the layout of a decoder or server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ..core.artifact import MANIFEST, Artifact, check_output, open_artifact
from ..core.console import say
from ..core.errors import DataError, UsageError
from ..core.files import check_apart
from ..core.hub import hub_name, model_folder
from ..core.registry import check_known
from ..corpus.tokenizer.files import named_eos_ids, read_side_files
from ..corpus.tokenizer.special_tokens import SpecialTokens
from ..corpus.tokenizer.tokenizer import load_tokenizer
from ..decode.build.heads import head_parts
from ..decode.spec import MethodSpec, option_of
from ..layouts.eagle1 import SERVERS, ranked_ids
from ..layouts.interface import Export
from ..layouts.registry import layout_of, load_drafter
from ..models.drafters.io import trained_for
from ..models.drafters.revocab import change_of, end_tokens, head_drift, revocab_head, with_stored_rows
from ..models.heads.io import HeadOwner, check_owner, drafter_digest, load_head
from ..models.heads.registry import base_of
from ..models.heads.served import ServedHead
from ..models.target.fingerprint import target_facts, target_fingerprint
from ..models.target.head import load_target_tensors
from ..models.target.load import DTYPES, read_target_config
from ..models.target.text_config import hidden_layers
from ..vocab.subset.subset import load_subset
from .card import model_card
from .checked import write_checked
from .measured import digests_of, measured_sections, recipe_of
from .request import FULL, ExportRequest

WITH_HEAD = "vllm"  # the only format that includes a draft head


def run_export(
    request: ExportRequest, drafting: MethodSpec, *, quiet: bool = False, overwrite: bool = False
) -> dict[str, Any]:
    """Write the exported folder.

    Args:
        drafting: settings of a draft head that is exported with the drafter.

    Returns:
        Output of ``--json``.
    """
    layout = layout_of(request.format)
    _check(request, overwrite=overwrite)
    target = request.target or trained_with(request.drafter)
    config, shared = read_target_config(target), load_target_tensors(target)
    loaded, artifact = load_drafter(request.drafter, shared, target)
    if request.format != "native":
        loaded = with_stored_rows(loaded)
    given = [*(["head"] if request.head is not None else []), *drafting.given()]
    if given and request.format != WITH_HEAD:
        raise UsageError(
            "this format holds no draft head",
            got=", ".join(map(option_of, given)),
            expected=f"--format {WITH_HEAD} --head DIR",
            remedy="other servers read a static draft vocabulary: --vocab SUBSET",
        )
    measured = measured_sections(
        request.eval, digests_of(request.drafter, artifact), target_fingerprint(target)
    )
    export = Export(
        loaded,
        config,
        shared,
        hub_name(target, revision=False),
        DTYPES[request.dtype],
        parents={} if artifact is None else {"drafter": artifact.content_hash},
        config=recipe_of(artifact) | {"target": hub_name(target)},
        server=request.server,
        speculative_tokens=request.speculative_tokens,
        overwrite=overwrite,
        target_path=target,
        with_target=request.with_target,
    )
    if request.format == WITH_HEAD:
        export = _with_head(request, drafting, target, export, artifact)
    elif request.vocab is not None:
        export = _over(request.vocab, target, export, artifact)
    else:
        export = replace(export, ranked=ranked_ids(request.drafter))
    facts = {
        "format": request.format,
        "draft_vocab_size": export.drafter.config.draft_vocab_size,
        "dtype": request.dtype,
        **({} if request.server is None else {"server": request.server}),
        **export.meta,
    }
    meta = _known(artifact, target, fresh=export.drafter is not loaded) | facts
    export = replace(export, meta=meta)
    card = model_card(request.output.resolve().name, request.format, export, measured)
    write_checked(layout, request.output, replace(export, card=card), hidden_layers(config, target))
    if not quiet:
        _tell(request, export)
        if "revocab" in facts:
            _tell_change(facts["revocab"], request.output)
    return {"output": str(request.output), **facts}


def _check(request: ExportRequest, *, overwrite: bool) -> None:
    check_known(request.dtype, DTYPES, "dtype", source="--dtype")
    known = SERVERS.get(request.format, ())
    if request.server is not None and request.server not in known:
        raise UsageError(
            "this format is not written for one server",
            got=f"--server {request.server} with --format {request.format}",
            expected=f"--server {' or '.join(known)}" if known else f"--server with {' or '.join(SERVERS)}",
            remedy="leave --server out: one folder serves every reader of this format"
            if not known
            else "vLLM reads --format eagle, which drafts over the whole vocabulary only",
        )
    if request.with_target and request.format not in ("gguf", "mtp"):
        raise UsageError(
            "only GGUF folders and checkpoints hold the target",
            got=f"--with-target with --format {request.format}",
            expected="--format gguf or mtp",
            remedy="leave --with-target out: other servers read the target's own folder",
        )
    check_output(request.output, overwrite=overwrite)
    read: list[tuple[str, Path | None]] = [
        ("--drafter", request.drafter),
        ("--target", request.target),
        ("--head", request.head),
        ("--vocab", None if request.vocab in (None, FULL) else Path(request.vocab)),
        *(("--eval", path) for path in request.eval),
    ]
    check_apart(request.output, read)


def _over(vocab: str, target: Path, export: Export, artifact: Artifact | None) -> Export:
    """Give the drafter the draft vocabulary ``vocab`` without training; ``meta`` records what changes."""
    before, tokens = export.drafter, target / "tokenizer.json"
    tokenizer = load_tokenizer(target) if tokens.is_file() else None
    ids, meta, parents = torch.arange(before.config.vocab_size), dict(export.meta), dict(export.parents)
    ranked = None
    if vocab != FULL:
        owner = f"the drafter {artifact.path if artifact else ''}"
        subset = load_subset(Path(vocab), trained_for(artifact), owner=owner)
        if not trained_for(artifact) and tokenizer is not None:
            # A drafter without a recorded tokenizer uses the target's.
            subset.check_tokenizer(tokenizer.fingerprint, tokenizer.source, source=vocab)
            meta["tokenizer_fingerprint"] = tokenizer.fingerprint
        ids, ranked = torch.from_numpy(subset.ids), tuple(subset.ranked.tolist())
        meta |= {} if subset.coverage is None else {"coverage": subset.coverage}
        parents["vocab"] = open_artifact(Path(vocab), "subset").content_hash
    made = revocab_head(before, ids)
    own = () if tokenizer is None else SpecialTokens.of(tokenizer).eos
    ends = sorted({*named_eos_ids(read_side_files(target)), *own})
    meta["revocab"] = {
        "vocab": vocab,
        "head": change_of(before, made),
        "drift": head_drift(before),
        "eos": end_tokens(before.target_ids, made.target_ids, ends),
    }
    return replace(export, drafter=made, ranked=ranked, meta=meta, parents=parents)


def _with_head(
    request: ExportRequest, drafting: MethodSpec, target: Path, export: Export, artifact: Artifact | None
) -> Export:
    loaded, trained, parents = export.drafter, None, dict(export.parents)
    tokenizer = trained_for(artifact) or load_tokenizer(target).fingerprint
    vocab = None if request.vocab is None else Path(request.vocab)
    spec = drafting.model_copy(update={"head": request.head, "vocab": vocab})
    if (problem := spec.contradiction()) is not None:
        raise UsageError(problem, expected="--head DIR, or --vocab DIR --dynamic context")
    if request.head is not None:
        trained = load_head(request.head)
        owner = HeadOwner(drafter_digest(request.drafter), target_fingerprint(target), tokenizer)
        check_owner(trained.artifact, owner, drafter=request.drafter)
        parents["head"] = trained.artifact.content_hash
    if vocab is not None:
        parents["vocab"] = open_artifact(vocab, "subset").content_hash
    parts = head_parts(base_of(loaded), spec, trained, tokenizer)
    if parts is None:
        raise UsageError(
            "this format is for a drafter with a draft head",
            got=f"--format {WITH_HEAD} without --head",
            expected="--head DIR with a ranker, low-rank head or router, or --vocab DIR --dynamic context",
            remedy="vLLM reads --format sglang-eagle3, with --vocab for a static draft vocabulary",
        )
    served = ServedHead(*parts, loaded.transform)
    served.over(base_of(loaded))  # fail before anything is written
    return replace(export, meta={"head": served.kind}, parents=parents, head=served)


def _known(artifact: Artifact | None, target: Path, *, fresh: bool) -> dict[str, Any]:
    """Return metadata that stays valid for the exported drafter; ``fresh``: its head is chosen anew."""
    stale = ("server", *(("coverage", "fallback", "heldout", "best") if fresh else ()))
    meta = (
        {} if artifact is None else {name: fact for name, fact in artifact.meta.items() if name not in stale}
    )
    return target_facts(target) | meta


def _tell(request: ExportRequest, export: Export) -> None:
    rows, config = len(export.drafter.target_ids), export.target
    say(f"Wrote {request.output} ({request.format}, {rows:,} draft tokens, {request.dtype})")
    stored = str(config.get("dtype") or config.get("torch_dtype") or "").removeprefix("torch.")
    if stored in DTYPES and stored != request.dtype:
        say(f"The target's weights are {stored}: --dtype {stored} writes the drafter in it.")
    if request.format == "fr-spec" and export.ranked is None:
        say("The draft tokens are listed in the order of their ids: their rank is not known.")


def _tell_change(record: Mapping[str, Any], output: Path) -> None:
    head, drift, eos = record["head"], record["drift"], record["eos"]
    say(f"{head['kept']:,} rows kept, {head['dropped']:,} dropped, {head['added']:,} added.")
    if not head["own_after"]:
        say("Every row is the target's: the drafter shares the target's head.")
    if head["added"]:
        say(
            "Training never scored the added rows; a single one may outrank the right token in every draft. "
            "Compare accepted lengths before and after (docs/guides/revocab.md)."
        )
    if drift is not None and head["added"]:
        say(
            f"Added rows are the target's. The drafter's own rows differ from the target's: median cosine "
            f"{drift['cosine']:.3f}, {drift['scale']:.2f} times as long. If either is far from 1, "
            f"continue training: train-drafter drafter.init={output}."
        )
    if eos["lost"]:
        say(
            f"Warning: the draft vocabulary no longer has the end tokens {', '.join(map(str, eos['lost']))}: the last "
            "cycle of every answer is wasted. Use a draft vocabulary with them (select-vocab --target forces "
            "them)."
        )
    elif eos["outside"]:
        say(f"End tokens outside the draft vocabulary, as before: {', '.join(map(str, eos['outside']))}.")


def trained_with(drafter: Path) -> Path:
    """Return the target's folder that is recorded in the drafter's manifest."""
    recorded = None
    if not drafter.is_dir():
        raise DataError("no drafter here", got=f"{drafter} (no such folder)", remedy="check the path")
    if (drafter / MANIFEST).is_file():
        config = open_artifact(drafter, verify=False).manifest.get("config")
        recorded = config.get("target") if isinstance(config, dict) else None
    elif (drafter / "drafter" / MANIFEST).is_file():
        raise DataError("no drafter here", got=drafter, remedy=f"give {drafter / 'drafter'}")
    if isinstance(recorded, str) and "@" in recorded:
        recorded = str(model_folder(Path(recorded)))
    if not isinstance(recorded, str) or not Path(recorded).is_dir():
        raise UsageError(
            "the drafter's target is not known",
            got=recorded or "nothing recorded",
            expected="a folder",
            source=drafter,
            remedy="give --target",
        )
    return Path(recorded)
