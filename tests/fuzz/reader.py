"""What a reader is, and a command of the program as one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cli.cli_support import invoke
from vocabforge.core.errors import VocabForgeError

Read = Callable[[Path, Path], Any]
"""Reads a spoilt copy; the second path is the folder of all good examples."""


@dataclass(frozen=True)
class Reader:
    """What reads something.

    Attributes:
        good: the example, under the folder of good ones.
        read: the reader.
        files: which of a folder's files are spoilt (patterns); empty for a file.
        sealed: an artefact: its manifest is mostly made to fit what was spoilt.
    """

    good: str
    read: Read
    files: tuple[str, ...] = ()
    sealed: bool = False


def command(*words: object) -> None:
    """A command of the program; what it says as an error to its user is raised as one.

    Raises:
        VocabForgeError: it ended with another code than 0 and said why.
    """
    done = invoke(str(words[0]), *words[1:])
    if done.exit_code == 0:
        return
    if isinstance(done.exception, SystemExit) and "Traceback" not in done.output and done.stderr.strip():
        raise VocabForgeError(done.output)
    raise done.exception or AssertionError(f"exit code {done.exit_code} and no word: {done.output!r}")
