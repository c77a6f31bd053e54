"""Methods as a command line asks for them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vocabforge.decode.build.methods import Method, build_methods, grid_specs
from vocabforge.decode.build.models import Models
from vocabforge.decode.spec import MethodGrid


def grid_methods(
    target: Path,
    drafters: Sequence[str] = (),
    vocabs: Sequence[str] = (),
    *,
    sampled: bool = False,
    dtype: str = "float32",
    device: str | None = None,
    **asked: Any,
) -> list[Method]:
    """Plain decoding and every method of a grid; ``asked``: further options of ``eval``."""
    models = Models(target, device=device, dtype=dtype)
    grid = MethodGrid(drafter=drafters, vocab=vocabs, **asked)
    return build_methods(models, grid_specs(models, grid, sampled=sampled), sampled=sampled)
