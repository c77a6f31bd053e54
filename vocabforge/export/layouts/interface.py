"""What a layout of drafters on disk is, and what it is written from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from ...core.artifact import write_artifact
from ...core.files import atomic_write
from ...models.drafters.interface import Drafter
from ...models.drafters.io import TargetTensors
from ...models.heads.served import ServedHead

CARD = "README.md"


@dataclass(frozen=True)
class Export:
    """What a layout is written from."""

    drafter: Drafter  # as it is to be written, its head already restricted
    target: Mapping[str, Any]  # the target's ``config.json``
    shared: TargetTensors  # the target's embedding and LM head, for layouts that repeat them
    target_name: str  # name or path of the target, for layouts that name their verifier
    dtype: torch.dtype  # of the weights written
    meta: Mapping[str, Any] = field(default_factory=dict)  # facts for the manifest
    parents: Mapping[str, str] = field(default_factory=dict)  # hashes of what it was made from, by role
    config: Mapping[str, Any] | None = None  # the drafter's recipe with its target's folder, for the record
    ranked: tuple[int, ...] | None = None  # ids of the draft vocabulary in rank order, if that is known
    server: str | None = None  # the reader, if two servers read one layout differently; None: the default
    speculative_tokens: int = 5  # draft tokens a cycle that a layout recommends to its reader
    card: str | None = None  # text of the model card
    overwrite: bool = False
    # Writes further files into the folder, in folders of their own: servers look at the top only.
    beside: Callable[[Path], object] | None = None
    head: ServedHead | None = None  # a draft head that the server's class of ours computes
    target_path: Path | None = None  # the target's folder, for layouts that repeat its tokenizer
    with_target: bool = False  # whether a layout that can hold the target holds it


class Layout(Protocol):
    """What a row of the table ``FORMATS`` names: a class without instances, and the kind of its artefacts."""

    NAME: str
    KIND: str

    @staticmethod
    def matches(body: Mapping[str, Any]) -> bool:
        """Whether a folder with this ``config.json`` is of the layout, whoever wrote it."""

    @staticmethod
    def write(path: Path, export: Export) -> None:
        """Write a folder; a drafter that the layout cannot express is a MismatchError."""

    @staticmethod
    def read(path: Path, shared: TargetTensors, num_layers: int) -> Drafter:
        """A drafter from a folder of this layout, strictly: no tensor missing, none left over.

        Raises:
            VocabForgeError: damaged, or not of the sizes of this target with ``num_layers``.
        """


@contextmanager
def layout_folder(path: Path, kind: str, export: Export) -> Iterator[Path]:
    """The folder to fill, model card and ``beside`` written; it takes its name when all is there."""
    record = {"parents": export.parents, "config": export.config}
    with write_artifact(path, kind, export.meta, overwrite=export.overwrite, **record) as folder:
        if export.card is not None:
            atomic_write(folder / CARD, export.card)
        if export.beside is not None:
            export.beside(folder)
        yield folder
        _readable(folder)


def _readable(folder: Path) -> None:
    """Give every file the permissions of an ordinary one: safetensors writes for the owner's eyes only, and servers run
    under other users."""
    probe = folder / ".permissions"
    probe.touch()
    mode = probe.stat().st_mode
    probe.unlink()
    for file in folder.rglob("*"):
        if file.is_file():
            file.chmod(mode)
