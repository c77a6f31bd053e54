"""``drafter.init`` in any layout: converted to the native artefact that training reads.

Training lies to the left of the layouts, and is handed from here what they hold.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..train.config import TrainConfig

IMPORTED = "init"  # of the output folder: the drafter to start from, where it came in another layout


def with_native(settings: TrainConfig, folder: Path, *, write: bool) -> TrainConfig:
    """Settings whose ``drafter.init`` is a native artefact: another layout is converted to ``folder/init``.

    Args:
        write: convert now; the other processes take what the first one made.

    Raises:
        VocabForgeError: it cannot be read, or is not of this target.
    """
    from ..core.progress import say
    from ..export.importing import import_drafter, is_native

    init = settings.drafter.init
    if init is None or is_native(init):
        return settings
    place = folder / IMPORTED
    if write and import_drafter(init, settings.target, place):
        say(f"Converted the drafter {init} to a native one")
    return settings.model_copy(update={"drafter": settings.drafter.model_copy(update={"init": place})})


@contextlib.contextmanager
def briefly_native(settings: TrainConfig) -> Iterator[TrainConfig]:
    """The same in a temporary folder, for a look at the drafter's sizes."""
    with tempfile.TemporaryDirectory() as folder:
        yield with_native(settings, Path(folder), write=True)
