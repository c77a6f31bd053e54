"""Interface of the on-disk layouts of drafters, and the data they are written from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from ..core.artifact import write_artifact
from ..core.files import atomic_write
from ..models.drafters.interface import Drafter
from ..models.heads.served import ServedHead
from ..models.target.head import TargetTensors

CARD = "README.md"


@dataclass(frozen=True)
class Export:
    """Input of a layout's writer."""

    drafter: Drafter  # the drafter to write, its head already restricted
    target: Mapping[str, Any]  # the target's ``config.json``
    shared: TargetTensors  # the target's embedding and LM head, for layouts that store copies
    target_name: str  # name or path of the target, for layouts that name their verifier
    dtype: torch.dtype  # dtype of the stored weights
    meta: Mapping[str, Any] = field(default_factory=dict)  # metadata for the manifest
    parents: Mapping[str, str] = field(default_factory=dict)  # role -> hash of each source
    config: Mapping[str, Any] | None = None  # the drafter's recipe with its target's folder, for the manifest
    ranked: tuple[int, ...] | None = None  # ids of the draft vocabulary in rank order, if known
    server: str | None = None  # the reader, for layouts that servers read differently; None: the default
    speculative_tokens: int = 5  # recommended number of draft tokens per cycle
    card: str | None = None  # text of the model card
    overwrite: bool = False
    # Writes further files into subfolders, which servers ignore.
    beside: Callable[[Path], object] | None = None
    head: ServedHead | None = None  # a draft head computed by VocabForge's class in the server
    target_path: Path | None = None  # the target's folder, for layouts that copy its tokenizer
    with_target: bool = False  # include the target if the layout supports it


class Layout(Protocol):
    """A row of ``FORMATS``: a class that is never instantiated, with the kind of its artefacts."""

    NAME: str
    KIND: str

    @staticmethod
    def matches(body: Mapping[str, Any]) -> bool:
        """Return whether a folder with this ``config.json`` has the layout, whichever tool wrote it."""
        return False

    @staticmethod
    def write(path: Path, export: Export) -> None:
        """Write a folder; raise MismatchError if the layout cannot express the drafter."""

    @staticmethod
    def read(path: Path, shared: TargetTensors, num_layers: int) -> Drafter:
        """Read a drafter from a folder of this layout, with no tensor missing or left over.

        Raises:
            VocabForgeError: the folder is damaged or does not fit a target with ``num_layers``.
        """


@contextmanager
def layout_folder(path: Path, kind: str, export: Export) -> Iterator[Path]:
    """Yield a temporary folder with model card and ``beside`` files; rename it into place on success."""
    record = {"parents": export.parents, "config": export.config}
    with write_artifact(path, kind, export.meta, overwrite=export.overwrite, **record) as folder:
        if export.card is not None:
            atomic_write(folder / CARD, export.card)
        if export.beside is not None:
            export.beside(folder)
        yield folder
        _readable(folder)


def _readable(folder: Path) -> None:
    """Set default permissions: safetensors creates owner-only files, but servers run as other users."""
    probe = folder / ".permissions"
    probe.touch()
    mode = probe.stat().st_mode
    probe.unlink()
    for file in folder.rglob("*"):
        if file.is_file():
            file.chmod(mode)
