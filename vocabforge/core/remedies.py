"""What errors tell someone whose folder is not there yet: the command that makes it, or that fetches it."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from .errors import ArtifactError
from .swap import leftovers

_MAKERS = {
    "counts": "count-freq",
    "subset": "select-vocab",
    "clusters": "cluster-vocab",
    "overlap": "compare-vocab --save",
    "responses": "regenerate",
    "prepared-data": "prepare-data",
    "capture": "capture",
    "drafter": "train-drafter",
    "draft-head": "train-drafter",
    "evaluation": "eval",
}
# The form of a name on the Hugging Face Hub: two parts, no dots that mean folders.
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def maker_of(kinds: Sequence[str]) -> str | None:
    """The sentence with the command that makes the first of ``kinds`` that one makes; None where none does."""
    return next((f"vocabforge {_MAKERS[kind]} makes one" for kind in kinds if kind in _MAKERS), None)


def no_artifact(path: Path, kinds: Sequence[str], manifest: str) -> ArtifactError:
    """The error for a folder without the file ``manifest``, where an artefact of one of ``kinds`` was wanted."""
    maker = maker_of(kinds) or "run the command that makes it again"
    remedy = f"check the path; {maker}, and an interrupted run leaves none"
    inside = sorted(one.parent.name for one in path.glob(f"*/{manifest}"))
    if inside:
        remedy = f"there are artefacts inside it: {', '.join(inside[:8])}"
    final = Path(os.path.realpath(path))
    if aside := leftovers(final, "old"):
        remedy = f"a run was killed while replacing it; the former artefact is {aside[-1]}: move it back"
    return ArtifactError(
        "this is not a VocabForge artefact",
        got=f"{path} ({f'no {manifest} in it' if path.is_dir() else 'no such folder'})",
        expected=f"an artefact folder ({' or '.join(kinds or ('any kind',))})",
        remedy=remedy,
    )


def model_remedy(path: Path) -> str:
    """What to do about a model or tokenizer that is not at ``path``: names of the Hub are not fetched by themselves."""
    name = str(path)
    if path.exists() or path.parent.exists() or not _HUB_NAME.fullmatch(name):
        return "check the path"
    return f"check the path; a model of the Hub is fetched first: hf download {name} --local-dir {path.name}"
