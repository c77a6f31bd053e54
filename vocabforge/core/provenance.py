"""What made an artefact: the revision of the source tree and the versions of what it ran on."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from .. import __version__


def git_revision() -> str | None:
    """Revision of the source tree that VocabForge runs from, or None for an installed package."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    try:
        done = subprocess.run(
            ["git", "-C", str(root), "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def package_versions() -> dict[str, str]:
    """Versions of VocabForge, Python and the packages that results depend on."""
    found = {"vocabforge": __version__, "python": sys.version.split()[0]}
    for name in ("torch", "transformers", "tokenizers", "fastokens", "accelerate"):
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found
