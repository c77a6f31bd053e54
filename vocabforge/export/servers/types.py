"""Data types that describe how a server reads a drafter's folder, key by key."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

if TYPE_CHECKING:
    from .forward import ServedDrafter

LAYERS_FROM = "layers from"  # name of the fact: the source of the server's layer list
Effect = Literal["read", "ignored", "refused"]
Source = Literal["target", "random"]
Check = Literal["configuration", "tensors", "layers", "draft tokens"]


@dataclass(frozen=True)
class KeyUse:
    """How the server treats one stored tensor.

    ``read`` into a parameter, ``ignored`` without an error, or ``refused``: the server does not start.
    ``note`` gives the reason.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    effect: Effect
    parameter: str = ""
    note: str = ""

    @property
    def renamed(self) -> bool:
        """Return whether the server's name differs by more than its prefix."""
        return self.effect == "read" and self.parameter.removeprefix("model.") != self.name

    def __str__(self) -> str:
        told = f" as {self.parameter}" if self.renamed else ""
        return f"{self.name} {list(self.shape)} {self.dtype}: {self.effect}{told}" + (
            f" ({self.note})" if self.note else ""
        )


@dataclass(frozen=True)
class Problem:
    """A problem of the folder, under one of the doctor's checks."""

    check: Check
    state: Literal["warning", "failed"]
    message: str
    remedy: str


@dataclass(frozen=True)
class ServedTarget:
    """The target as a server loads it: ``config.json``, number of layers, embedding and head (V, H)."""

    config: Mapping[str, Any]
    layers: int
    embedding: Tensor
    head: Tensor


@dataclass(frozen=True)
class Folder:
    """A drafter's folder, read once, with the ranked ids of a token map for servers that take one."""

    path: Path
    body: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    token_map: Tensor | None = None

    @property
    def architectures(self) -> list[str]:
        """The architectures in the configuration; empty if they are not a list."""
        named = self.body.get("architectures")
        return [name for name in named if isinstance(name, str)] if isinstance(named, list) else []

    @property
    def d2t(self) -> Tensor | None:
        """The stored map of rows to ids, found as SGLang and vLLM find it."""
        return next((tensor for name, tensor in self.tensors.items() if "d2t" in name), None)


@dataclass
class Served:
    """A folder as one server reads it."""

    server: str  # row of ``registry.READERS``
    title: str  # display name of the server
    architecture: str  # class that loads it
    keys: list[KeyUse] = field(default_factory=list)  # every stored tensor
    # Parameters without a stored tensor -> their source: the target, or random (uninitialised memory).
    gaps: dict[str, Source] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    layers: tuple[int, ...] = ()  # target layers that it reads (0-based outputs); (): the final hidden states
    target_ids: Tensor | None = None  # target id of each row of the head; None: rows are ids
    facts: dict[str, Any] = field(
        default_factory=dict
    )  # settings as the server reads them, including defaults
    drafter: ServedDrafter | None = None  # the drafter that the server would run; None if it would not start
    own_head: bool = True  # whether the LM head is stored in the folder

    def fail(self, check: Check, message: str, remedy: str) -> None:
        """Record a problem that keeps the server from starting or from computing the drafter."""
        self.problems.append(Problem(check, "failed", message, remedy))

    def warn(self, check: Check, message: str, remedy: str) -> None:
        """Record a problem that may only lower acceptance."""
        self.problems.append(Problem(check, "warning", message, remedy))

    def of(self, check: Check) -> list[Problem]:
        """Return the problems under one of the doctor's checks."""
        return [problem for problem in self.problems if problem.check == check]

    @property
    def failed(self) -> bool:
        """Whether a problem keeps the server from starting or from computing the drafter."""
        return any(problem.state == "failed" for problem in self.problems)


@dataclass(frozen=True)
class Reader:
    """A server's way to read a folder: a row of ``registry.READERS``.

    ``layout`` names the export format for the server, ``matches`` returns whether the server supports the
    folder's architecture, and ``fill`` records in a ``Served`` how the server reads the folder.
    """

    name: str
    title: str
    layout: str
    matches: Callable[[Folder], bool]
    fill: Callable[[Served, Folder, ServedTarget], None]

    def read(self, folder: Folder, target: ServedTarget) -> Served:
        served = Served(self.name, self.title, ", ".join(folder.architectures))
        self.fill(served, folder, target)
        return served
