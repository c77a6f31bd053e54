"""File names for methods."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..core.errors import UsageError


def file_names(methods: Sequence[str]) -> dict[str, str]:
    """``{method: "<method>.jsonl"}``; characters that file systems dislike become ``-``.

    Raises:
        UsageError: two methods would share a file.
    """
    names: dict[str, str] = {}
    for method in methods:
        stem = re.sub(r"[^A-Za-z0-9._+-]+", "-", method).strip("-.") or "method"
        file = f"{stem}.jsonl"
        clash = next((other for other, taken in names.items() if taken.lower() == file.lower()), None)
        if clash is not None or method in names:
            raise UsageError(
                "two methods would have the same name",
                got=f"{clash or method} and {method}",
                expected="names that differ",
                source="--drafter, --vocab",
                remedy="give each a label of its own: --drafter LABEL=DIR",
            )
        names[method] = file
    return names


def run_files(kind: str, methods: Sequence[str], runs: int) -> dict[str, list[str]]:
    """Each method's files of all runs, relative to the evaluation's folder.

    Args:
        kind: ``answers``, ``details``, ...
        runs: one run lies at ``answers/METHOD.jsonl``; of several, run i at ``answers/run_i/METHOD.jsonl``.
    """
    folders = [kind] if runs == 1 else [f"{kind}/run_{number}" for number in range(1, runs + 1)]
    return {name: [f"{folder}/{file}" for folder in folders] for name, file in file_names(methods).items()}
