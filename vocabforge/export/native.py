"""The toolkit's own artefact as a layout."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..models.drafter import Drafter
from ..models.drafter_io import KIND, TargetTensors, load_native, save_drafter
from .layout import Export


class Native:
    """Trained tensors under their own names, beside ``drafter.json``."""

    NAME = "native"
    KIND = KIND

    @staticmethod
    def matches(body: Mapping[str, Any]) -> bool:
        """Never: without a manifest nothing is of this layout."""
        return False

    @staticmethod
    def write(path: Path, export: Export) -> None:
        """See :func:`~vocabforge.models.drafter_io.save_drafter`."""
        save_drafter(
            path,
            export.drafter.to(export.dtype),
            export.meta,
            parents=export.parents,
            overwrite=export.overwrite,
        )

    @staticmethod
    def read(path: Path, shared: TargetTensors, num_layers: int) -> Drafter:
        """See :func:`~vocabforge.models.drafter_io.load_native`."""
        return load_native(path, shared)[0]
