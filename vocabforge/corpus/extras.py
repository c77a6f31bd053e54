"""Packages that only some kinds of input need."""

from __future__ import annotations

import importlib
from typing import Any

from ..core.errors import VocabForgeError


def import_extra(package: str, what: str, source: object) -> Any:
    """Import a package of the extra ``data``.

    Args:
        package: its name.
        what: what needs it, in a few words.
        source: the input that needs it.

    Raises:
        VocabForgeError: it is not installed, or broken.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise VocabForgeError(
            f"{what} needs the package {package}",
            got=error,
            source=source,
            remedy="pip install 'vocabforge[data]'",
        ) from error
