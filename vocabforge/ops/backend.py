"""Backend selection for ops: the PyTorch reference, the compiled library, or its emulation.

- ``reference``: plain PyTorch, on any device.
- ``native``: the compiled library (`make kernels`): CUDA kernels on CUDA tensors, a CPU implementation on
  others.
- ``emulated``: the CUDA kernels run thread by thread on CPU tensors; loaded by tests (tests/ops/conftest.py).
- ``auto``: ``native`` for CUDA tensors of supported dtypes if the library is built, otherwise ``reference``.
  A fallback on CUDA is reported once. For CPU ops (``host``) the same holds for CPU tensors.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core.console import say
from ..core.errors import UsageError

LIBRARY = Path(__file__).parent / "lib" / "libvocabforge_ops.so"
BACKENDS = ("auto", "reference", "native", "emulated")
HALVES = frozenset({torch.bfloat16, torch.float16})
FLOATS = HALVES | {torch.float32}


@dataclass(frozen=True)
class Op:
    """An op: its name in the library and its PyTorch reference.

    Args:
        name: name in ``torch.ops.vocabforge``.
        reference: PyTorch function with the same arguments in the same order.
        dtypes: dtypes of the first argument that the CUDA kernel supports (with ``host``, the CPU kernel).
        host: the op is for CPUs and has no CUDA kernel.
    """

    name: str
    reference: Callable[..., Any]
    dtypes: frozenset[torch.dtype] = HALVES
    host: bool = False
    _said: list[str] = field(default_factory=list, compare=False)
    # Cached: torch.compile cannot trace the selection, and repeating it in every call is slow.
    _chosen: dict[tuple[object, ...], Callable[..., Any]] = field(default_factory=dict, compare=False)

    def __call__(self, backend: str, *args: Any) -> Any:
        """Run the op with positional arguments, the first of which is a tensor.

        Raises:
            UsageError: the backend is unknown or unavailable, or the kernel does not support the sizes.
        """
        if backend == "auto" and args[0].numel() == 0:
            return self.reference(*args)  # kernels cannot be launched on empty tensors
        key = backend, args[0].is_cuda, args[0].dtype
        chosen = self._chosen.get(key)
        if chosen is None:
            chosen = self._chosen[key] = self.implementation(backend, args[0])
        if torch.compiler.is_compiling():
            return chosen(*args)
        try:
            return chosen(*args)
        except RuntimeError as error:
            said = str(error).split(f"{self.name}: ", 1)
            if chosen is self.reference or len(said) == 1:
                raise
            raise UsageError(
                f"the compiled {self.name} does not take these tensors",
                got=said[1].splitlines()[0],
                remedy="if the library was built from older sources, build it again (`vocabforge kernels build`, "
                "without nvcc with --cpu); else use backend reference",
            ) from error

    def compiled(self, tensor: Tensor) -> Callable[..., Any] | None:
        """Return the compiled op if ``auto`` selects it for such a tensor, otherwise None."""
        key = "auto", tensor.is_cuda, tensor.dtype
        chosen = self._chosen.get(key)
        if chosen is None:
            chosen = self._chosen[key] = self.implementation("auto", tensor)
        return None if chosen is self.reference else chosen

    def implementation(self, backend: str, tensor: Tensor) -> Callable[..., Any]:
        """Return the function that runs this op for such a tensor."""
        if backend == "auto":
            if tensor.is_cuda == self.host or (self.host and tensor.dtype not in self.dtypes):
                return self.reference
            if problem := self._problem(tensor):
                self._say(problem)
                return self.reference
            return self._native()
        if backend == "reference":
            return self.reference
        if backend == "native":
            if problem := self._problem(tensor):
                raise UsageError(
                    f"the compiled {self.name} cannot run here",
                    got=problem,
                    expected="the library of `vocabforge kernels build` and a supported dtype",
                    remedy="build it, or use backend auto or reference",
                )
            return self._native()
        if backend == "emulated":
            if not hasattr(torch.ops.vocabforge_emulated, self.name):
                raise UsageError(
                    f"the emulated {self.name} is not loaded",
                    got="no such op",
                    expected="a library built with --emulator and loaded with torch.ops.load_library",
                )
            return _registered("vocabforge_emulated", self.name)
        raise UsageError("no such kernel backend", got=backend, expected=", ".join(BACKENDS))

    def _native(self) -> Callable[..., Any]:
        _tell_shapes(self.name, self.reference)
        return _registered("vocabforge", self.name)

    def _problem(self, tensor: Tensor) -> str | None:
        """Return the reason why the compiled op cannot run for this tensor, or None."""
        facts = library_facts()
        if facts is None:
            return f"no library at {LIBRARY} (`vocabforge kernels build`, without nvcc with --cpu)"
        if not hasattr(torch.ops.vocabforge, self.name):
            return f"a library without {self.name}: it was built from older sources"
        if tensor.is_cuda and self.host:
            return "it is made for CPUs"
        if tensor.is_cuda and facts["variant"] != "native":
            return "a library without CUDA kernels (built with --cpu)"
        if tensor.is_cuda != self.host and tensor.dtype not in self.dtypes:
            return f"{tensor.dtype}; its kernel takes {', '.join(sorted(map(str, self.dtypes)))}"
        return None

    def _say(self, problem: str) -> None:
        if problem not in self._said:
            self._said.append(problem)
            say(f"{self.name} runs in PyTorch: {problem}")


@cache
def library_facts() -> dict[str, Any] | None:
    """Load the compiled library and return its build metadata; None if the library does not exist."""
    if not LIBRARY.is_file():
        return None
    try:
        facts: dict[str, Any] = json.loads(LIBRARY.with_suffix(".json").read_text())
        # Loading a truncated library crashes the process instead of raising.
        if hashlib.sha256(LIBRARY.read_bytes()).hexdigest() != facts.get("sha256"):
            raise ValueError("it is not the file that was built")
        torch.ops.load_library(str(LIBRARY))
    except (OSError, ValueError, AttributeError) as error:
        raise UsageError(
            "the compiled kernels cannot be loaded",
            got=error if error.__cause__ is None else error.__cause__,
            source=LIBRARY,
            remedy="rebuild them for this machine and torch version with `vocabforge kernels build`",
        ) from error
    return facts


def _registered(namespace: str, name: str) -> Callable[..., Any]:
    op: Callable[..., Any] = getattr(getattr(torch.ops, namespace), name).default
    return op


@cache
def _tell_shapes(name: str, reference: Callable[..., Any]) -> None:
    """Register the reference as the fake implementation, from which torch infers output shapes."""
    torch.library.register_fake(f"vocabforge::{name}", reference)
