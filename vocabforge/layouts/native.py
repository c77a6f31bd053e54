"""VocabForge's native artefact as a layout."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..models.drafters.interface import Drafter
from ..models.drafters.io import KIND, fill_native, load_native
from ..models.target.head import TargetTensors
from .interface import Export, layout_folder


class Native:
    """Trained tensors under their own names, with ``drafter.json``."""

    NAME = "native"
    KIND = KIND

    @staticmethod
    def matches(body: Mapping[str, Any]) -> bool:
        """Return False: native artefacts are recognised by their manifest."""
        return False

    @staticmethod
    def write(path: Path, export: Export) -> None:
        """Write the artefact, see :func:`~vocabforge.models.drafters.io.save_drafter`."""
        with layout_folder(path, KIND, export) as folder:
            fill_native(folder, export.drafter, export.dtype)

    @staticmethod
    def read(path: Path, shared: TargetTensors, num_layers: int) -> Drafter:
        """Read the artefact, see :func:`~vocabforge.models.drafters.io.load_native`."""
        return load_native(path, shared)[0]
