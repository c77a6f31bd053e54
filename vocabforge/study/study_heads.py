"""The draft heads of one seed, each part of them loaded once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..core.artifact import Artifact
from ..export.formats import load_drafter, restrict
from ..models.drafter import Drafter
from ..models.drafter_io import TargetTensors
from ..models.head_io import LoadedHead, load_head
from ..models.heads import DraftHead, base_of, build_head, exact_head
from ..models.lean import LeanModel
from ..tune.types import HeadSetting, setting_of
from .layout import Layout
from .methods import FULL, Method

_DRAFTER = "drafter"  # in a run's folder


class StudyHeads:
    """Drafters and draft heads of a seed as its methods use them.

    Args:
        model: the study's target.

    Raises:
        VocabForgeError: a part is missing, damaged, or made for another target (when it is asked for).
    """

    def __init__(self, layout: Layout, seed: int, model: LeanModel) -> None:
        self.layout, self.seed, self.model = layout, seed, model
        self._drafters: dict[str, tuple[Drafter, Artifact | None]] = {}
        self._trained: dict[str, LoadedHead] = {}

    def folder(self, name: str) -> Path:
        """Of a part of the seed: a draft head, or a drafter, in or without the folder of the run that trained it."""
        found = self.layout.seed(self.seed) / name
        inside = found / _DRAFTER
        return inside if inside.is_dir() else found

    def drafter(self, name: str = FULL) -> Any:
        """A trained drafter as it is."""
        return self._loaded(name)[0]

    def head(self, way: Method) -> DraftHead:
        """The draft head of a method; parts with weights of their own are shared."""
        drafter, artifact = self._loaded(way.drafter)
        if way.vocab is not None:
            drafter = restrict(drafter, way.vocab, artifact)
        if way.kind is None:
            return exact_head(drafter)
        module = None
        if way.head is not None:
            if way.head not in self._trained:
                device, dtype = self.model.device, self.model.dtype
                self._trained[way.head] = load_head(self.folder(way.head), device=device, dtype=dtype)
            module = self._trained[way.head].module
        return build_head(way.kind, base_of(drafter), module, way.options)

    def setting(self, way: Method) -> HeadSetting:
        """Its sizes that time depends on."""
        return setting_of(self.head(way))

    def _loaded(self, name: str) -> tuple[Drafter, Artifact | None]:
        if name not in self._drafters:
            tensors = TargetTensors(self.model.embedding, self.model.lm_head_weight)
            self._drafters[name] = load_drafter(self.folder(name), tensors, self.layout.target)
        return self._drafters[name]
