"""What a server does with a drafter's folder, key by key."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

if TYPE_CHECKING:
    from .forward import ServedDrafter

LAYERS_FROM = "layers from"  # a fact: where the server has its layers from
Effect = Literal["read", "ignored", "refused"]
Source = Literal["target", "random"]
Check = Literal["configuration", "tensors", "layers", "draft tokens"]


@dataclass(frozen=True)
class KeyUse:
    """One stored tensor: ``read`` into a parameter of the server, ``ignored`` without an error, or ``refused``: the
    server does not start. The note tells why."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    effect: Effect
    parameter: str = ""
    note: str = ""

    @property
    def renamed(self) -> bool:
        """Whether the server's name differs by more than its prefix."""
        return self.effect == "read" and self.parameter.removeprefix("model.") != self.name

    def __str__(self) -> str:
        told = f" as {self.parameter}" if self.renamed else ""
        return f"{self.name} {list(self.shape)} {self.dtype}: {self.effect}{told}" + (
            f" ({self.note})" if self.note else ""
        )


@dataclass(frozen=True)
class Problem:
    """What is wrong, under which of the doctor's checks."""

    check: Check
    state: Literal["warning", "failed"]
    found: str
    remedy: str


@dataclass(frozen=True)
class ServedTarget:
    """What a server has of the target: ``config.json``, its number of layers, embedding and head (V, H)."""

    config: Mapping[str, Any]
    layers: int
    embedding: Tensor
    head: Tensor


@dataclass(frozen=True)
class Folder:
    """A drafter's folder, read once, with the ids in rank order from a file beside, for servers that take one."""

    path: Path
    body: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    token_map: Tensor | None = None

    @property
    def architectures(self) -> list[str]:
        """As the configuration names them; none where it names no list."""
        named = self.body.get("architectures")
        return [name for name in named if isinstance(name, str)] if isinstance(named, list) else []

    @property
    def d2t(self) -> Tensor | None:
        """The stored map of rows to ids, found as SGLang and vLLM find it."""
        return next((tensor for name, tensor in self.tensors.items() if "d2t" in name), None)


@dataclass
class Served:
    """A folder as one server has it."""

    server: str  # row of ``registry.READERS``,
    title: str  # and its name in words
    architecture: str  # class that loads it
    keys: list[KeyUse] = field(default_factory=list)  # every stored tensor
    # Every parameter without one, and its source: the target's, or random: whatever memory held.
    gaps: dict[str, Source] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    layers: tuple[int, ...] = ()  # of the target (0-based outputs) that it reads; (): the final hidden states
    target_ids: Tensor | None = None  # of each row of the head as the server maps them; None: rows are ids
    facts: dict[str, Any] = field(
        default_factory=dict
    )  # settings as the server reads them, defaults included
    drafter: ServedDrafter | None = None  # what it would compute; None if it would not start
    own_head: bool = True  # whether the LM head is the folder's

    def fail(self, check: Check, found: str, remedy: str) -> None:
        """Record what keeps the server from starting or from computing the drafter."""
        self.problems.append(Problem(check, "failed", found, remedy))

    def warn(self, check: Check, found: str, remedy: str) -> None:
        """Record what may only lower acceptance."""
        self.problems.append(Problem(check, "warning", found, remedy))

    def of(self, check: Check) -> list[Problem]:
        """The problems under one of the doctor's checks."""
        return [problem for problem in self.problems if problem.check == check]

    @property
    def failed(self) -> bool:
        """Whether a problem keeps the server from starting or from computing the drafter."""
        return any(problem.state == "failed" for problem in self.problems)


@dataclass(frozen=True)
class Reader:
    """A server's way to read a folder: a row of ``registry.READERS``.

    ``layout`` is what to export for it; ``matches`` whether the server knows the folder's architecture; ``fill``
    records in a ``Served`` what it has of the folder.
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
