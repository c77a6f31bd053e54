"""Run folders of a study: begun for one set of inputs, their results put where the study looks, then tidied."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..core.artifact import open_artifact
from ..core.files import atomic_write_json, read_json
from ..core.swap import mend, put_in_place, sibling

_BEGUN = "study.json"
_NEEDED_NO_MORE = "checkpoints", "best", "heads", "router"


def begin(output: Path, key: Mapping[str, Any]) -> None:
    """Take a run folder for a run that this key decides; what a run with another key left there goes.

    A folder that no study began is left alone, and the training says whether it fits.
    """
    digest = hashlib.sha256(json.dumps(key, sort_keys=True, default=str).encode()).hexdigest()
    mend(output)  # what a killed process left beside it
    mark = output / _BEGUN
    if mark.is_file() and read_json(mark, "mark of a run").get("key") != digest:
        aside = sibling(output, "tmp")  # under another name first: half a folder must not pass for a run
        os.rename(output, aside)
        shutil.rmtree(aside, ignore_errors=True)
    output.mkdir(parents=True, exist_ok=True)
    atomic_write_json(mark, {"key": digest})


def publish(made: Path, place: Path) -> None:
    """Copy an artefact to where the study looks for it; there it is whole, or not at all."""
    mend(place)
    temporary = sibling(place, "tmp")
    try:
        shutil.copytree(made, temporary)
        open_artifact(temporary)
        put_in_place(temporary, place, overwrite=True)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def tidy(output: Path) -> None:
    """Remove what a finished run needs no more: checkpoints, and copies of what stands elsewhere."""
    for name in _NEEDED_NO_MORE:
        shutil.rmtree(output / name, ignore_errors=True)
