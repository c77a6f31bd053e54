"""Provenance of artefacts: command line, source revision and package versions."""

from __future__ import annotations

import contextlib
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from .. import __version__


def command_line() -> list[str]:
    """Return this command as typed by a user, with secrets hidden, however the program was started."""
    return ["vocabforge", *map(hide_secrets, sys.argv[1:])]


_SECRET_OPTION = re.compile(r"--?(?:[\w-]+[-_])?(?:api[-_]?key|token|password|secret)", re.IGNORECASE)


def secrets_of(command: str) -> list[str]:
    """Return the values of options such as ``--api-key`` in a command, and the credentials in its URLs."""
    secrets = re.findall(r"://([^/\s@]+)@", command)
    try:
        words = shlex.split(command)
    except ValueError:
        words = command.split()
    secret = False
    for word in words:
        name, _, value = word.partition("=")
        if word.startswith("-"):
            secret = _SECRET_OPTION.fullmatch(name) is not None
            secrets += [value] if secret else []
        elif secret:
            secrets.append(word)
    return sorted({text for text in secrets if text}, key=len, reverse=True)


def hide_secrets(command: str) -> str:
    """Replace the secrets in a command by ``***``; see :func:`secrets_of`."""
    for secret in secrets_of(command):
        command = command.replace(secret, "***")
    return command


def program_output(command: Sequence[str], seconds: float = 20.0) -> str | None:
    """Return the stripped stdout of a program; None if it is missing, fails, times out or prints nothing."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=seconds, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


@cache
def git_revision() -> str | None:
    """Return the git revision of the source tree, or None for an installed package."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    return program_output(["git", "-C", str(root), "rev-parse", "HEAD"], seconds=5.0)


@cache
def package_versions() -> Mapping[str, str]:
    """Return the versions of VocabForge, Python and the packages that affect results (cached)."""
    versions = {"vocabforge": __version__, "python": sys.version.split()[0]}
    for name in ("torch", "transformers", "tokenizers", "fastokens", "kitoken", "accelerate"):
        with contextlib.suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions
