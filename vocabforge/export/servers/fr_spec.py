"""Folders as FR-Spec's engine reads them: an EAGLE-2 folder and ``freq_<R>.pt``, a list of ids in rank order.

It draws the draft head from the target's rows of these ids (Zhao et al. 2025, "FR-Spec", section 3).
"""

from __future__ import annotations

from .settings import configuration
from .sglang import read_eagle1
from .types import Folder, Served, ServedTarget
from .weights import KeyPlace


class FrSpecReader:
    """See the module."""

    NAME = "fr-spec"
    TITLE = "FR-Spec"
    LAYOUT = "fr-spec"

    @staticmethod
    def matches(folder: Folder) -> bool:
        """An EAGLE-1/2 folder with a token map beside."""
        return folder.token_map is not None and "fc.weight" in folder.tensors

    @staticmethod
    def read(folder: Folder, target: ServedTarget) -> Served:
        """See :class:`~vocabforge.export.servers.types.Reader`."""
        served = Served(FrSpecReader.NAME, FrSpecReader.TITLE, "EAGLE-2", own_head=False)
        config = configuration(served, folder.body)
        if config is None:
            return served
        biased = "fc.bias" in folder.tensors
        return read_eagle1(served, folder, config, target, _place, fc_bias=biased, map_option="its token map")


def _place(name: str) -> KeyPlace:
    if "lm_head" in name:
        return KeyPlace(None, "not needed: the draft head is the target's rows of the map")
    return KeyPlace(f"model.{name}")
