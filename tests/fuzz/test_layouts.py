"""Every layout that a drafter is exported in is among what is spoilt."""

from __future__ import annotations

import json
from pathlib import Path

from tests.fuzz.readers import READERS
from vocabforge.core.artifact import MANIFEST
from vocabforge.layouts.gguf.layout import is_gguf
from vocabforge.layouts.registry import FORMATS, layout_of


def test_every_layout_is_read_as_others_leave_it(goods: Path) -> None:
    """A folder without a manifest, or (native) with a resealed one, is a good example of some reader."""
    found = set()
    for good in {reader.good for reader in READERS.values()}:
        folder = goods / good
        if (folder / MANIFEST).is_file() or not folder.is_dir():
            found |= {"native"} if (folder / "drafter.json").is_file() else set()
        elif is_gguf(folder):
            found.add("gguf")
        elif (folder / "config.json").is_file():
            body = json.loads((folder / "config.json").read_bytes())
            found |= {next((name for name in FORMATS if layout_of(name).matches(body)), "")}
            found |= {"fr-spec"} if any(folder.glob("freq_*.pt")) else set()
    assert found - {""} == set(FORMATS)
