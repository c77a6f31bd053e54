"""Commands and calls in separate processes that start in milliseconds: a server that has loaded torch forks them."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tests.worlds import free_port

# What training and evaluation load; the server has no threads and no model.
LOADED = ["torch._dynamo", "transformers.models.llama.modeling_llama", "accelerate.commands.launch"]
LOADED += ["vocabforge.cli.app", "vocabforge.train.setup"]


def command(*words: str) -> None:
    """``vocabforge`` with these words."""
    sys.argv = ["vocabforge", *words]
    from vocabforge.cli import main

    main()


def _run(
    function: Callable[..., None], given: Sequence[Any], environment: Mapping[str, str], said: str
) -> None:
    os.environ.clear()
    os.environ.update(environment)
    descriptor = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for number in (1, 2):
        os.dup2(descriptor, number)
    function(*given)


def ranks(number: int = 2) -> list[dict[str, str]]:
    """What a launcher tells each of its processes."""
    given = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    given |= {"WORLD_SIZE": str(number), "LOCAL_WORLD_SIZE": str(number)}
    return [{**given, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(number)]


def start(function: Callable[..., None], *given: Any, said: Path, **environment: str) -> BaseProcess:
    """A call of a module's function; what it prints goes to the end of ``said``."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(LOADED)
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **environment}
    process = context.Process(target=_run, args=(function, given, variables, str(said)))
    process.start()
    return process


def end(processes: Sequence[BaseProcess], timeout: float = 400) -> list[int | None]:
    """Wait for them; their exit codes. What hangs is killed and has -9."""
    limit = time.monotonic() + timeout
    for process in processes:
        process.join(max(0.0, limit - time.monotonic()))
    for process in processes:
        process.kill()
        process.join()
    return [process.exitcode for process in processes]
