"""The demo's steps: what each reads and makes, and when one may be skipped.

A step is skipped only if its record says that it finished with the same command and the same inputs (by
content) and what it made is still what it was. The record keeps hashes, never dates.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import __version__
from ..core.artifact import MANIFEST, open_artifact
from ..core.errors import ArtifactError, DataError, VocabForgeError
from ..core.files import atomic_write_json, read_json, sha256_file
from ..core.progress import say

_GRACE_S = 20.0
_STDERR = 2


@dataclass(frozen=True)
class Step:
    """One step of the demo.

    Attributes:
        name: key of its record.
        inputs: files and folders that it reads.
        outputs: files and folders that it makes.
        facts: whatever else decides the result (settings of a step that is no command).
        command: arguments of the process, the interpreter included.
        shown: the command as a user would type it.
        again: arguments added when the step made something before that must be replaced.
        run: for a step that is no command: makes the outputs; its argument says whether to replace them.
    """

    name: str
    inputs: tuple[Path, ...]
    outputs: tuple[Path, ...]
    facts: Any = None
    command: tuple[str, ...] = ()
    shown: str = ""
    again: tuple[str, ...] = ()
    run: Callable[[bool], None] | None = None

    def key(self) -> str:
        """Hash of everything that decides the outputs."""
        body = [__version__, self.name, self.facts, self.shown, [content_hash(path) for path in self.inputs]]
        return hashlib.sha256(json.dumps(body, sort_keys=True, default=str).encode()).hexdigest()


def content_hash(path: Path) -> str:
    """Hash of what a file, an artefact (verified) or another folder holds.

    Raises:
        ArtifactError: an artefact that is damaged.
        DataError: nothing there.
    """
    if path.is_file():
        return sha256_file(path)
    if (path / MANIFEST).is_file():
        return open_artifact(path).content_hash
    if not path.is_dir():
        raise DataError("an input of the demo is missing", expected=path)
    digest = hashlib.sha256()
    for file in sorted(p for p in path.rglob("*") if p.is_file()):
        digest.update(f"{file.relative_to(path).as_posix()}\0{sha256_file(file)}\n".encode())
    return digest.hexdigest()


class Record:
    """What was begun and finished in an output folder: ``demo.json``, replaced atomically."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._steps: dict[str, dict[str, Any]] = {}
        with contextlib.suppress(DataError):  # missing or damaged: then nothing is known to be finished
            steps = read_json(path, "demo's record").get("steps", {})
            self._steps = {name: dict(entry) for name, entry in steps.items()}

    def is_current(self, step: Step, key: str) -> bool:
        """Whether the step finished with this key and its outputs are as it left them."""
        entry = self._steps.get(step.name, {})
        if entry.get("key") != key or "outputs" not in entry:
            return False
        try:
            return [content_hash(path) for path in step.outputs] == entry["outputs"]
        except (ArtifactError, DataError):
            return False

    def is_unfinished(self, step: Step, key: str) -> bool:
        """Whether the step was begun with this key and never finished."""
        entry = self._steps.get(step.name)
        return entry is not None and entry.get("key") == key and "outputs" not in entry

    def is_known(self, step: Step) -> bool:
        """Whether the demo itself has begun this step here before."""
        return step.name in self._steps

    def begin(self, step: Step, key: str) -> None:
        self._steps[step.name] = {"key": key}
        self._write()

    def finish(self, step: Step) -> None:
        self._steps[step.name]["outputs"] = [content_hash(path) for path in step.outputs]
        self._write()

    def _write(self) -> None:
        atomic_write_json(self.path, {"steps": self._steps})


def perform(step: Step, record: Record, *, quiet: bool = False) -> bool:
    """Run a step unless what it would make is there.

    Args:
        quiet: send what commands print on stdout to stderr.

    Returns:
        whether it ran.

    Raises:
        VocabForgeError: the step failed.
    """
    key = step.key()
    if record.is_current(step, key):
        say(f"{step.name}: up to date")
        return False
    # What a begun step left may be replaced; a resumable one goes on if nothing changed.
    replace = record.is_known(step) and (
        not record.is_unfinished(step, key) or any(path.exists() for path in step.outputs)
    )
    record.begin(step, key)
    if step.run is not None:
        say(f"\n{step.shown}")
        step.run(replace)
    else:
        extra = step.again if replace else ()
        say(f"\n$ {step.shown}{''.join(f' {word}' for word in extra)}")
        call([*step.command, *extra], step.name, quiet=quiet)
    record.finish(step)
    return True


def call(command: Sequence[str], name: str, *, quiet: bool = False) -> None:
    """Run a process in the foreground; Ctrl-C lets it put things in order first.

    Raises:
        VocabForgeError: it failed; it has said why itself.
        KeyboardInterrupt: the user stopped it.
    """
    process = subprocess.Popen(list(command), stdout=_STDERR if quiet else None)
    try:
        code = process.wait()
    except KeyboardInterrupt:
        # The terminal sent the signal to the child too: wait for its own tidy end.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
        raise
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()
    if code in (130, -signal.SIGINT):
        raise KeyboardInterrupt
    if code:
        raise VocabForgeError(
            f"the demo stopped at the step {name}",
            got=f"exit code {code}",
            source=shlex.join(command),
            remedy="see the message above; the same `vocabforge demo` goes on from here",
        )


def ours(*words: object) -> tuple[tuple[str, ...], str]:
    """Process arguments and shown form of a ``vocabforge`` command."""
    given = tuple(str(word) for word in words)
    return (sys.executable, "-m", "vocabforge", *given), shlex.join(("vocabforge", *given))


def launched(*words: object) -> tuple[tuple[str, ...], str]:
    """The same under ``accelerate launch``: one process on the CPU, every default said aloud."""
    given = tuple(str(word) for word in words)
    # Options left out make accelerate warn, each in a paragraph of its own.
    options = (
        "--cpu --num_processes 1 --num_machines 1 --mixed_precision no --dynamo_backend no "
        f"--num_cpu_threads_per_process {usable_cores()}"
    ).split()
    command = (sys.executable, "-m", "accelerate.commands.launch", *options, "-m", "vocabforge", *given)
    return command, shlex.join(("accelerate", "launch", *options, "-m", "vocabforge", *given))


def usable_cores() -> int:
    """CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
