"""``vocabforge export --head``: a static draft vocabulary for servers, with the dynamic head beside it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...core.artifact import MANIFEST, open_artifact
from ...core.console import say
from ...core.errors import MismatchError, UsageError
from ...corpus.tokenizer.tokenizer import load_tokenizer
from ...decode.build.heads import NamedHead, head_options, head_parts, read_subset
from ...decode.build.models import Models
from ...decode.build.spec import MethodSpec
from ...decode.tree import TreeSettings
from ...evaluate.acceptance.fallback import FallbackRequest, card_section, choose_fallback
from ...evaluate.acceptance.prompts import read_prompts
from ...export.revocab import prune_head
from ...models.device import choose_device
from ...models.drafters.interface import Drafter
from ...models.drafters.io import save_drafter
from ...models.heads.io import HeadOwner, check_owner, drafter_digest, load_head, save_head
from ...models.heads.registry import base_of
from ...models.heads.served import ServedHead
from ...models.target.fingerprint import target_fingerprint
from ...models.target.load import DTYPES
from ...train.config import LiveConfig
from ...vocab.subset.select import SpecialTokens
from ...vocab.subset.subset import VocabSubset, save_subset
from .export import PROMPTS, ExportRequest

# Formats that hold a static draft vocabulary -> the kind of drafter that they hold.
STATIC_MAPS = {"sglang-eagle3": "eagle3", "speculators-eagle3": "eagle3", "fr-spec": "eagle1"}
WITH_HEAD = "vllm"  # the format that holds the draft head itself
NEW_TOKENS, PROMPT_TOKENS = 128, 2048  # most tokens of each answer and prompt
DYNAMIC = "dynamic"


@dataclass(frozen=True)
class HeadParts:
    """The drafter with its head as it is written, and what that head is.

    Attributes:
        ranked: its ids in rank order. vocab: hash of the subset artefact that it was restricted to.
        meta, parents: further ones for the manifest; ``meta["fallback"]`` of a static vocabulary in place of a head.
        card: a section of the model card. beside: writes ``dynamic/``. head: a draft head that goes with it.
    """

    drafter: Drafter
    ranked: tuple[int, ...] | None = None
    vocab: str | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)
    parents: Mapping[str, str] = field(default_factory=dict)
    card: str | None = None
    beside: Callable[[Path], object] | None = None
    head: ServedHead | None = None


def check_fallback(request: ExportRequest, kind: str) -> None:
    """Refuse, before anything is measured, what cannot be exported so.

    Args:
        kind: of the drafter.
    """
    if request.head is None or request.format == WITH_HEAD:
        options = {"--fallback-size": request.fallback_size, "--prompts": request.prompts}
        if given := [name for name, value in options.items() if value is not None]:
            raise UsageError(
                "there is no draft head to find a static fallback for",
                got=", ".join(given),
                expected=f"--head DIR beside it, with --format {' or '.join(STATIC_MAPS)}",
            )
        return
    if request.format not in STATIC_MAPS:
        raise UsageError(
            "this format holds no static draft vocabulary that could stand for a draft head",
            got=f"--head with --format {request.format}",
            expected=", ".join((WITH_HEAD, *STATIC_MAPS)),
            remedy="vocabforge eval and generate take --head as it is",
        )
    if kind != STATIC_MAPS[request.format]:
        raise MismatchError(
            "the format does not hold this kind of drafter",
            got=f"--format {request.format} for a drafter of kind {kind}",
            expected=STATIC_MAPS[request.format],
            source=request.drafter,
        )
    if request.prompts is None:
        raise UsageError(
            "a static fallback is counted on prompts, and there are none",
            expected="--prompts FILE with held-out prompts",
            remedy="train-drafter leaves some in OUTPUT/heldout_prompts.jsonl",
        )


def choose(request: ExportRequest, target: Path, loaded: Drafter) -> HeadParts:
    """Choose the static draft vocabulary that replaces ``request.head``.

    Args:
        loaded: the drafter with its own head; :attr:`HeadParts.beside` writes it.
    """
    head, prompts = request.head, request.prompts
    assert head is not None  # check_fallback
    assert prompts is not None
    # The target is measured in fp32 on a CPU, in the exported dtype on a GPU.
    models = Models(target, dtype="float32" if choose_device(None).type == "cpu" else request.dtype)
    asked = _request(request, head, models)  # mistakes are found before anything is measured
    own, _ = models.drafter(request.drafter)
    config = LiveConfig(
        prompts=PROMPTS,
        max_new_tokens=NEW_TOKENS,
        max_prompt_tokens=PROMPT_TOKENS,
        total=TreeSettings().total_nodes,
    )
    read = read_prompts(prompts, models.tokenizer, config, models.model.config.max_positions)
    subset, facts = choose_fallback(models.model, own, read, asked)
    vocabs = (
        {}
        if (path := request.vocab) is None
        else {f"vocab {path}": open_artifact(path, "subset").content_hash}
    )
    return HeadParts(
        prune_head(loaded, subset, source=head),
        tuple(subset.ranked.tolist()),
        meta={"fallback": facts},
        parents={"head": open_artifact(head).content_hash, **vocabs},
        card=card_section(facts),
        beside=lambda folder: _write_dynamic(
            folder / DYNAMIC, request, loaded, subset, models.owner(request.drafter)
        ),
    )


def with_head(request: ExportRequest, drafting: MethodSpec, target: Path, loaded: Drafter) -> HeadParts:
    """The drafter with its draft head as it is, over a hot core if there is a draft vocabulary."""
    trained, parents = None, {}
    tokenizer = load_tokenizer(target).fingerprint
    spec = drafting.model_copy(update={"head": request.head, "vocab": request.vocab})
    if request.head is not None:
        trained = load_head(request.head)
        owner = HeadOwner(drafter_digest(request.drafter), target_fingerprint(target), tokenizer)
        check_owner(trained.artifact, owner, drafter=request.drafter)
        parents["head"] = trained.artifact.content_hash
        if request.vocab is not None and spec.dynamic is None:
            spec = spec.model_copy(update={"dynamic": trained.kind})
    if request.vocab is not None:
        parents["vocab"] = open_artifact(request.vocab, "subset").content_hash
    found = head_parts(base_of(loaded), spec, trained, tokenizer)
    if found is None:
        raise UsageError(
            "this format is for a drafter with a draft head",
            got=f"--format {WITH_HEAD} without --head",
            expected="--head DIR with a ranker, low-rank head or router, or --vocab DIR --dynamic context",
            remedy="vLLM reads --format sglang-eagle3, with --vocab for a static draft vocabulary",
        )
    served = ServedHead(*found, loaded.transform)
    served.over(base_of(loaded))  # mistakes are found before anything is written
    return HeadParts(loaded, meta={"head": served.kind}, parents=parents, head=served)


def _request(request: ExportRequest, path: Path, models: Models) -> FallbackRequest:
    head = load_head(path, device=models.model.device, dtype=models.model.dtype)
    check_owner(head.artifact, models.owner(request.drafter), drafter=request.drafter)
    options = head_options(head.kind, head.artifact.meta, MethodSpec())
    tokenizer = models.tokenizer
    filler = None if request.vocab is None else read_subset(request.vocab, tokenizer.fingerprint).ranked
    special = SpecialTokens.of(tokenizer)
    wanted = sorted({*special.eos, *special.control})
    known = set(models.drafter(request.drafter)[0].target_ids.tolist())
    if lost := [token for token in wanted if token not in known]:
        say(f"Warning: the drafter's own head lacks the end or control tokens {', '.join(map(str, lost))}.")
    return FallbackRequest(
        NamedHead("head", path, head, options),
        request.fallback_size,
        filler,
        tuple(token for token in wanted if token in known),
        tokenizer.vocab_size,
        tokenizer.fingerprint,
        NEW_TOKENS,
    )


def _write_dynamic(
    folder: Path, request: ExportRequest, loaded: Drafter, subset: VocabSubset, owner: HeadOwner
) -> None:
    """The drafter with its own head, the dynamic head bound to it, and the static vocabulary as an artefact."""
    assert request.head is not None
    artifact = open_artifact(request.drafter) if (request.drafter / MANIFEST).is_file() else None
    prints = {"target_fingerprint": owner.target, "tokenizer_fingerprint": owner.tokenizer}
    meta = prints | dict(artifact.meta if artifact is not None else {})
    parents = {} if artifact is None else {"drafter": artifact.content_hash}
    config = None if artifact is None else artifact.manifest.get("config")
    save_drafter(folder / "drafter", loaded.to(DTYPES[request.dtype]), meta, parents=parents, config=config)
    head = load_head(request.head)
    bound = dataclasses.replace(owner, drafter=drafter_digest(folder / "drafter"))
    known = {"head", *owner.to_meta()}
    facts = {name: value for name, value in head.artifact.meta.items() if name not in known}
    hashes = {"head": head.artifact.content_hash}
    save_head(folder / "head", head.kind, head.module, bound, facts, parents=hashes)
    save_subset(subset, folder / "vocab", parents=hashes)
