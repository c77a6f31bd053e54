"""llama.cpp's plain decoding of the same weights, as a GGUF file, where llama-cpp-python is installed."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from ...core.errors import MismatchError
from ...export.layouts.gguf.target import write_target
from ...models.target.load import DTYPES
from .settings import DecodingBenchConfig
from .sides import Done

PACKAGES = {"llama_cpp": "llama-cpp-python", "gguf": "gguf"}


class LlamaCppRun:
    """Greedy decoding by llama.cpp.

    Args:
        file: GGUF file of the target.
        positions: of its context.
        threads: of prompts and of single tokens.
    """

    compile_s = 0.0
    settings: dict[str, Any] = {}  # noqa: RUF012 (none, as of transformers' plain decoding)

    def __init__(self, file: Path, positions: int, threads: int) -> None:
        from llama_cpp import Llama

        self._model = Llama(
            str(file), n_ctx=positions, n_threads=threads, n_threads_batch=threads, verbose=False
        )

    def generate(self, prompt: Sequence[int], new: int) -> Done:
        """Continue a prompt by ``new`` tokens; nothing is kept of an earlier one."""
        self._model.reset()
        tokens = list(islice(self._model.generate(list(prompt), temp=0.0), new))
        return Done(tokens, new)


class LlamaCppSide:
    """The target for llama.cpp, written to a temporary folder.

    Attributes:
        missing: why there is none, or None.
        version: of llama-cpp-python.
    """

    def __init__(self, config: DecodingBenchConfig) -> None:
        self.missing: str | None = None
        self.version: str | None = None
        absent = [name for module, name in PACKAGES.items() if importlib.util.find_spec(module) is None]
        if absent or config.temperature > 0:
            self.missing = (
                f"{' and '.join(absent)} not installed" if absent else "it is compared greedily only"
            )
            return
        import llama_cpp

        self.version = str(llama_cpp.__version__)
        self._folder = tempfile.TemporaryDirectory()
        self._file = Path(self._folder.name) / "target.gguf"
        try:
            write_target(self._file, config.target, config.target.name, DTYPES[config.dtype])
            self.run(8, 1)
        except MismatchError as error:
            self.missing = f"{error.message} ({error.got})"
        except ValueError as error:  # it refuses the file, a tokenizer without merges for one
            self.missing = str(error)

    def run(self, positions: int, threads: int) -> LlamaCppRun:
        """A decoder with this many threads."""
        return LlamaCppRun(self._file, positions, threads)
