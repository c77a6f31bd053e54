"""Which implementation of an op runs: PyTorch's reference, the compiled library, or its emulation.

- ``reference``: plain PyTorch, on any device.
- ``native``: the compiled library (`make kernels`): CUDA kernels on CUDA tensors, a CPU implementation on others.
- ``emulated``: the CUDA kernels run on CPU tensors, thread by thread; tests load it (tests/ops/conftest.py).
- ``auto``: ``native`` for CUDA tensors of the dtypes that the kernels take, where the library is built; else
  ``reference``. A fall-back on CUDA is said once. Ops made for CPUs (``host``): the same there.
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
# The one switch of `fused_linear` and `fused_qkv`: the backend with which decoder layers take them; None: they take the
# ops that these replace, until a GPU has measured both (`kernels/measure.py ops=fused_linear,fused_qkv`).
FUSED_LAYERS: str | None = None


@dataclass(frozen=True)
class Op:
    """One op: its name in the library and what computes it otherwise.

    Args:
        name: as in ``torch.ops.vocabforge``.
        reference: the same arguments in the same order, in plain PyTorch.
        dtypes: of the first argument, that the CUDA kernel takes, or the CPU's where ``host``.
        host: made for CPUs; it has no CUDA kernel.
    """

    name: str
    reference: Callable[..., Any]
    dtypes: frozenset[torch.dtype] = HALVES
    host: bool = False
    _said: list[str] = field(default_factory=list, compare=False)
    # torch's compiler cannot trace the choice, only read what was chosen; nor is it worth making in every call.
    _chosen: dict[tuple[object, ...], Callable[..., Any]] = field(default_factory=dict, compare=False)

    def __call__(self, backend: str, *args: Any) -> Any:
        """Run with positional arguments, the first a tensor.

        Raises:
            UsageError: no such backend, one that is asked for and missing, or sizes that the kernel refuses.
        """
        if backend == "auto" and args[0].numel() == 0:
            return self.reference(*args)  # kernels have no launch of nothing
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
                remedy="use backend reference",
            ) from error

    def compiled(self, tensor: Tensor) -> Callable[..., Any] | None:
        """The library's, where ``auto`` takes that for such a tensor."""
        key = "auto", tensor.is_cuda, tensor.dtype
        chosen = self._chosen.get(key)
        if chosen is None:
            chosen = self._chosen[key] = self.implementation("auto", tensor)
        return None if chosen is self.reference else chosen

    def implementation(self, backend: str, tensor: Tensor) -> Callable[..., Any]:
        """What runs this op for such a tensor."""
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
                    expected="the library of `vocabforge kernels build`, and a dtype that it takes",
                    remedy="build it, or use backend auto or reference",
                )
            return self._native()
        if backend == "emulated":
            if not hasattr(torch.ops.vocabforge_emulated, self.name):
                raise UsageError(
                    f"the emulated {self.name} is not loaded",
                    got="no such op",
                    expected="a library of `python kernels/build.py --emulator`, loaded by torch.ops.load_library",
                )
            return _registered("vocabforge_emulated", self.name)
        raise UsageError("no such kernel backend", got=backend, expected=", ".join(BACKENDS))

    def _native(self) -> Callable[..., Any]:
        _tell_shapes(self.name, self.reference)
        return _registered("vocabforge", self.name)

    def _problem(self, tensor: Tensor) -> str | None:
        """Why the compiled op cannot run for this tensor."""
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
            return f"{tensor.dtype}; its kernel takes {', '.join(sorted(str(one) for one in self.dtypes))}"
        return None

    def _say(self, problem: str) -> None:
        if problem not in self._said:
            self._said.append(problem)
            say(f"{self.name} runs in PyTorch: {problem}")


@cache
def library_facts() -> dict[str, Any] | None:
    """Load the compiled library; what its build wrote beside it, or None where there is none."""
    if not LIBRARY.is_file():
        return None
    try:
        facts: dict[str, Any] = json.loads(LIBRARY.with_suffix(".json").read_text())
        # A truncated library would end the process, not raise.
        if hashlib.sha256(LIBRARY.read_bytes()).hexdigest() != facts.get("sha256"):
            raise ValueError("it is not the file that was built")
        torch.ops.load_library(str(LIBRARY))
    except (OSError, ValueError, AttributeError) as error:
        raise UsageError(
            "the compiled kernels cannot be loaded",
            got=error if error.__cause__ is None else error.__cause__,
            source=LIBRARY,
            remedy="build them again for this machine and torch with `vocabforge kernels build`",
        ) from error
    return facts


def _registered(namespace: str, name: str) -> Callable[..., Any]:
    found: Callable[..., Any] = getattr(getattr(torch.ops, namespace), name).default
    return found


@cache
def _tell_shapes(name: str, reference: Callable[..., Any]) -> None:
    """Torch's tracers learn the shapes of a compiled op's results from its reference."""
    torch.library.register_fake(f"vocabforge::{name}", reference)
