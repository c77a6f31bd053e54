"""Folders as FR-Spec's engine reads them: an EAGLE-2 folder and ``freq_<R>.pt``, a list of ids in rank order.

It draws the draft head from the target's rows of these ids (Zhao et al. 2025, "FR-Spec", section 3).
"""

from __future__ import annotations

from .forward import ServedDrafter
from .settings import check_sizes, configuration, sizes_of
from .sglang import apply_map
from .types import Folder, Served, TargetSide
from .weights import EMBEDDING, HEAD, Place, judge, load, share, slots_of


class FrSpec:
    """See the module."""

    NAME = "fr-spec"
    TITLE = "FR-Spec"
    LAYOUT = "fr-spec"

    @staticmethod
    def matches(folder: Folder) -> bool:
        """An EAGLE-1/2 folder with a token map beside."""
        return folder.token_map is not None and "fc.weight" in folder.tensors

    @staticmethod
    def read(folder: Folder, target: TargetSide) -> Served:
        """See :class:`~vocabforge.export.readers.types.Reader`."""
        served = Served(FrSpec.NAME, FrSpec.TITLE, "EAGLE-2", own_head=False)
        config = configuration(served, folder.body)
        if config is None:
            return served
        sizes = sizes_of(
            served,
            config,
            "eagle1",
            target_hidden=config.hidden_size,
            head_rows=config.vocab_size,
            fc_bias="fc.bias" in folder.tensors,
        )
        if sizes is None:
            return served
        check_sizes(served, sizes, target)
        slots = slots_of(sizes)
        loaded = load(served, folder, slots, _place)
        parameters = share(served, loaded, slots, {EMBEDDING: target.embedding, HEAD: target.head})
        apply_map(served, folder, parameters, target, "its token map")
        judge(served)
        if not served.failed:
            served.drafter = ServedDrafter(sizes, parameters)
        return served


def _place(name: str) -> Place:
    if "lm_head" in name:
        return Place(None, "not needed: the draft head is the target's rows of the map")
    return Place(f"model.{name}")
