"""``vocabforge export --head``: what of a drafter is written, and the draft head that goes with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...core.artifact import Artifact, open_artifact
from ...core.errors import UsageError
from ...corpus.tokenizer.tokenizer import load_tokenizer
from ...decode.build.heads import head_parts
from ...decode.build.models import trained_for
from ...decode.build.spec import MethodSpec
from ...models.drafters.interface import Drafter
from ...models.heads.io import HeadOwner, check_owner, drafter_digest, load_head
from ...models.heads.registry import base_of
from ...models.heads.served import ServedHead
from ...models.target.fingerprint import target_fingerprint
from .export import ExportRequest

WITH_HEAD = "vllm"  # the format that holds the draft head itself


@dataclass(frozen=True)
class HeadParts:
    """The drafter with its head as it is written, and what that head is.

    Attributes:
        ranked: its ids in rank order. vocab: hash of the subset artefact that it was restricted to.
        meta, parents: further ones for the manifest. head: a draft head that goes with it.
    """

    drafter: Drafter
    ranked: tuple[int, ...] | None = None
    vocab: str | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)
    parents: Mapping[str, str] = field(default_factory=dict)
    head: ServedHead | None = None


def with_head(
    request: ExportRequest, drafting: MethodSpec, target: Path, loaded: Drafter, artifact: Artifact | None
) -> HeadParts:
    """The drafter with its draft head as it is, over a hot core if there is a draft vocabulary."""
    trained, parents = None, {}
    tokenizer = trained_for(artifact) or load_tokenizer(target).fingerprint
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
