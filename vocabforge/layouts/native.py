"""VocabForge's native artefact as a layout."""

from __future__ import annotations

from pathlib import Path

from ..models.drafters.interface import Drafter
from ..models.drafters.io import KIND, fill_native, load_native
from ..models.target.head import TargetTensors
from .interface import Export, Layout, layout_folder


class Native(Layout):
    """Trained tensors under their own names, with ``drafter.json``; recognised by its manifest."""

    NAME = "native"
    KIND = KIND

    @staticmethod
    def write(path: Path, export: Export) -> None:
        """Write the artefact, see :func:`~vocabforge.models.drafters.io.save_drafter`."""
        with layout_folder(path, KIND, export) as folder:
            fill_native(folder, export.drafter, export.dtype)

    @staticmethod
    def read(path: Path, shared: TargetTensors, num_layers: int) -> Drafter:
        """Read the artefact, see :func:`~vocabforge.models.drafters.io.load_native`."""
        return load_native(path, shared)[0]
