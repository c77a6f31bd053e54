"""Select the files of an artefact for the Hub: its contents, its card, and a manifest without local paths."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..core.artifact import MANIFEST, Artifact, content_hash, record_hash
from ..core.errors import ArtifactError
from ..corpus.sources.inputs import DataOrigin
from ..layouts.interface import CARD
from ..vocab.subset.subset import KIND as SUBSET
from .card import NO_LICENCE, vocab_card


def published(artifact: Artifact, name: str, licence: str | None = None) -> dict[str, Path | bytes]:
    """Return the files of a Hub repository by path: only those of a verified artefact.

    The card is removed from the manifest so that it can be edited on the Hub.

    Args:
        name: name of the repository.
        licence: its licence identifier on the Hub; None keeps the card's placeholder line.

    Raises:
        ArtifactError: the artefact has no card and is not a draft vocabulary.
    """
    files: dict[str, Path | bytes] = {one: artifact.path / one for one in artifact.manifest["files"]}
    config = artifact.manifest.get("config") or {}
    if files.pop(CARD, None) is not None:
        card = (artifact.path / CARD).read_text("utf-8")
    elif artifact.kind == SUBSET:
        card = vocab_card(name, artifact.meta, [DataOrigin(**one) for one in config.get("data") or ()])
    else:
        raise ArtifactError(
            "this artefact has no card for the Hub",
            got=artifact.kind,
            expected="a drafter as export writes it, or a draft vocabulary",
            source=artifact.path,
            remedy="write a drafter with its card first: vocabforge export --format native",
        )
    if licence is not None:
        card = card.replace(NO_LICENCE, f"license: {json.dumps(licence)}", 1)
    kept = {one: entry for one, entry in artifact.manifest["files"].items() if one != CARD}
    manifest = {**artifact.manifest, "files": kept, "command": [], "config": _without_places(config)}
    manifest["content_hash"] = content_hash(artifact.kind, artifact.meta, kept)
    manifest["record_hash"] = record_hash(manifest)
    return {**files, CARD: card.encode(), MANIFEST: json.dumps(manifest, indent=2).encode()}


def _without_places(value: Any) -> Any:
    """Replace absolute paths by their last component."""
    if isinstance(value, dict):
        return {key: _without_places(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_without_places(one) for one in value]
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value
