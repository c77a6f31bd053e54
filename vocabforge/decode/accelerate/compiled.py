"""Compiled passes on the CPU: ``torch.compile`` for functions of tensors with static shapes.

Decoding a small model consists of many small operations, and on a CPU call overhead dominates. A pass is
compiled once for each set of shapes into one native function: weights are constants in it (packed for its
number of rows), pointwise operations are fused, and no checks run in Python. Only the view of the cache may
change between calls without a new compilation.
"""

from __future__ import annotations

import hashlib
import inspect
import time
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import torch
from torch import Tensor, fx

from ...core.console import say
from ...core.errors import UsageError, VocabForgeError
from .graphs import MadePass

# Parameters of a pass whose last dimension is the view of the cache, the only size that may change between
# calls.
VIEWS = ("mask", "window_mask", "view")

_SETTINGS: dict[str, Any] = {
    "freezing": True,  # weights are constants: packed once
    "cpp_wrapper": True,  # calls between kernels are native as well
    "cpp.enable_concat_linear": True,
}
# Inductor's own matrix product is faster than the library's at 1 to 32 rows. It is the only candidate,
# because measuring both would take seconds per shape. It does not support matrices that are not constant;
# these use the library.
_OWN_PRODUCT: dict[str, Any] = {"max_autotune_gemm": True, "max_autotune_gemm_backends": "CPP"}
_NO_OWN_PRODUCT = "NoValidChoicesError"


class PassCompiler:
    """``Wrap`` that compiles passes; see :func:`compile_passes`. ``done`` lists the compiled passes."""

    def __init__(self) -> None:
        self.done: list[MadePass] = []

    def __call__(self, name: str, function: Callable[..., Any]) -> CompiledPass:
        """Return the function, to be compiled at the first call with new shapes.

        Args:
            name: shown in messages.
            function: takes tensors (or None) by position. It accesses everything else through attributes:
                module parameters and buffers are constants, other tensors are looked up in every call, and
                other values must not change. It may write to tensors that it accesses.
        """
        return CompiledPass(name, function, self.done)

    @property
    def seconds(self) -> float:
        return sum(compiled.seconds for compiled in self.done)


def compile_passes(device: torch.device | str = "cpu") -> PassCompiler:
    """Return the ``wrap`` argument of ``Decoder`` for compiled passes.

    Compiled code is cached on disk (in torch's cache folder), so a second process compiles in a fraction of
    the time.

    Raises:
        UsageError: the device is not the CPU, or there is no C++ compiler.
    """
    if torch.device(device).type != "cpu":
        raise UsageError(
            "compiled passes are for the CPU",
            got=str(device),
            remedy="leave --compile out, or add --device cpu",
        )
    if (problem := compiler_problem()) is not None:
        raise UsageError(
            "passes cannot be compiled without a C++ compiler",
            got=problem,
            expected="g++ or clang++, on PATH or named by CXX",
            remedy="install one (Debian, Ubuntu: apt-get install g++), or leave --compile out",
        )
    return PassCompiler()


def compiler_problem() -> str | None:
    """Return why nothing can be compiled here, or None."""
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler as error:
        return " ".join(str(error).split()) or "none found"
    return None


class CompiledPass:
    """A function (see :meth:`PassCompiler.__call__`) with a compilation for each set of shapes."""

    def __init__(self, name: str, function: Callable[..., Any], done: list[MadePass]) -> None:
        self.name, self._function, self._done = name, function, done
        self._views = tuple(parameter in VIEWS for parameter in inspect.signature(function).parameters)
        self._compiled: dict[tuple[object, ...], Callable[..., Any]] = {}

    def __call__(self, *args: Tensor | None) -> Any:
        # The compiled code has no guards, so this key covers everything that it was compiled for.
        key: tuple[object, ...] = (
            torch.get_num_threads(),
            *(
                None if arg is None else (arg.shape[:-1] if view else arg.shape, arg.dtype)
                for arg, view in zip(args, self._views)
            ),
        )
        with torch.inference_mode():
            run = self._compiled.get(key)
            if run is not None:
                return run(*args)
            return self._compile(key, args)

    def _compile(self, key: tuple[object, ...], args: Sequence[Tensor | None]) -> Any:
        shapes = " ".join(str(list(arg.shape)) for arg in args if arg is not None)
        for arg, view in zip(args, self._views):
            if view and arg is not None:
                torch._dynamo.mark_dynamic(arg, arg.dim() - 1)
        say(f"Compiling {self.name} {shapes} (up to a minute, once on this machine)")
        began = time.perf_counter()
        with _compiling():
            run, result = self._first_run(args)
        seconds = time.perf_counter() - began
        say(f"Compiled {self.name} in {seconds:.1f} s")
        self._done.append(MadePass(self.name, seconds))
        self._compiled[key] = run
        return result

    def _first_run(self, args: Sequence[Tensor | None]) -> tuple[Callable[..., Any], Any]:
        """Return a compiled function and its first result; compilation precedes all writes."""
        from torch._inductor import config

        for settings in (_SETTINGS | _OWN_PRODUCT, _SETTINGS):
            run = torch.compile(
                _own_code(self._function),
                backend=_inductor,
                fullgraph=True,
                options={"guard_filter_fn": torch.compiler.skip_all_guards_unsafe},
            )
            try:
                with config.patch(settings):
                    return run, run(*args)
            except RuntimeError as error:
                if settings is _SETTINGS or _NO_OWN_PRODUCT not in str(error):
                    raise
        raise AssertionError("the last settings return or raise")


def _own_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give the function a separate code object, by which torch stores compilations, even without guards."""

    def entry(*args: Tensor | None) -> Any:
        return function(*args)

    code = entry.__code__.replace(co_name=f"{entry.__name__}_{id(entry)}")
    return types.FunctionType(code, entry.__globals__, entry.__name__, None, entry.__closure__)


@contextmanager
def _compiling() -> Iterator[None]:
    """Set up a compilation, restore the settings afterwards, and raise failures with a remedy."""
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        # Weights packed for MKL cannot be cached on disk: every process would compile from scratch.
        stack.callback(setattr, torch._C, "has_mkl", torch._C.has_mkl)
        torch._C.has_mkl = False
        try:
            yield
        except RuntimeError as error:  # from tracing, Inductor or the C++ compiler
            raise VocabForgeError(
                "a pass could not be compiled",
                got=next((line for line in str(error).splitlines() if line.strip()), type(error).__name__),
                remedy="leave --compile out; if the C++ compiler failed, check that it works and that Python's "
                "headers are installed (Debian, Ubuntu: python3-dev)",
            ) from error


def _inductor(graph: fx.GraphModule, inputs: Sequence[Any], **_: Any) -> Callable[..., Any]:
    """Run Inductor with a disk cache that is keyed by the weights' values.

    By default, the key covers only their shapes, and one model could get another model's packed weights.
    """
    from torch._inductor.compile_fx import compile_fx

    with torch.compiler.config.patch(cache_key_tag=_digest(graph)):  # type: ignore[attr-defined]
        return cast("Callable[..., Any]", compile_fx(graph, list(inputs)))


def _digest(graph: fx.GraphModule) -> str:
    digest = hashlib.sha256()
    for name, tensor in [*graph.named_parameters(), *graph.named_buffers()]:
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
