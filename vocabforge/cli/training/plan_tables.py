"""Output of ``--plan``: the facts of a plan, one line per group; ``--json`` adds the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...core.distributed import rank
from ..app import print_json, stdout_console


def print_plan(command: str, facts: Mapping[str, Any], *, as_json: bool) -> None:
    """Print one list, or all facts as JSON, from the first launched process only."""
    if rank() != 0:
        return
    if as_json:
        print_json(facts)
        return
    from ...core.console import FactList

    shown = {
        name.replace("_", " "): _text(name, value)
        for name, value in facts.items()
        if name != "config" and value not in (None, {}, [])
    }
    shown[""] = "--json prints the whole configuration and all figures"
    stdout_console().print(FactList(shown, f"What {command} would do (--plan: nothing is done)"))


def _text(name: str, value: Any) -> str:
    from ...core.console import value_text
    from ...train.capture.writer import gigabytes

    words = name.split("_")
    if isinstance(value, Mapping):
        sized = "bytes" in words
        return ", ".join(
            f"{key.replace('_', ' ')} {_text(f'{name}_{key}', part)}"
            for key, part in value.items()
            if key != "settings" and part != {} and (sized or part is not None)
        )
    if value is None:
        return "unknown"
    if "bytes" in words and not isinstance(value, bool):
        return gigabytes(value)
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:.3g}" if isinstance(value, float) or "flop" in words else value_text(value)
