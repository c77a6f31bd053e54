"""Recipes of decoding methods: the output of ``tune`` and the input of ``eval --recipe``."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import yaml
from pydantic import field_validator

from ...core.config import ModelPath, StrictModel, TokenizerPath, parse_config, read_yaml
from ...core.errors import ConfigError, UsageError
from ...core.files import atomic_write
from ...core.values import Backend
from ..spec import MethodSpec

PLAIN = "plain"  # method that is part of every run: decoding without drafts


class DecodingRecipe(StrictModel):
    """Several methods for one target, by name; plain decoding always runs in addition.

    Without a tokenizer, the target's is used. Relative paths are resolved from the working directory, as in
    training recipes.
    """

    target: ModelPath
    tokenizer: TokenizerPath | None = None
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    target_backend: Backend = "auto"
    methods: dict[str, MethodSpec]

    @field_validator("methods")
    @classmethod
    def _names(cls, methods: dict[str, MethodSpec]) -> dict[str, MethodSpec]:
        if not methods:
            raise ValueError("there is no method to compare with plain decoding")
        for name in methods:
            if not name.strip() or not name.isprintable():
                raise ValueError(f"{name!r} cannot be the name of a method")
            if name == PLAIN:
                raise ValueError(f"{PLAIN} is the name of decoding without drafts, which always runs")
            if not methods[name].drafts:
                raise ValueError(f"{name} names neither a drafter nor a proposer")
            if (problem := methods[name].contradiction()) is not None:
                raise ValueError(f"{name}: {problem}")
        return methods


def read_recipe(path: Path, target: Path | None = None) -> DecodingRecipe:
    """Read a recipe from its YAML, strictly; ``target`` replaces its target.

    Raises:
        ConfigError: the file is missing or not YAML, a key is unknown or missing, or values contradict each
            other.
    """
    body = read_yaml(path)
    if target is not None:
        body = {**body, "target": str(target)}
    try:
        return parse_config(DecodingRecipe, body, source=path)
    except UsageError as error:
        raise ConfigError(
            error.message,
            got=error.got,
            expected=error.expected,
            source=path,
            remedy="correct the recipe; docs/formats.md names its keys",
        ) from error


def write_recipe(path: Path, recipe: DecodingRecipe) -> None:
    """Write a recipe as YAML for :func:`read_recipe`; defaults are left out."""
    fields = MethodSpec.model_fields
    used = {name for method in recipe.methods.values() for name in method.model_dump(exclude_defaults=True)}
    lines = [f"# {name}: {field.description}" for name, field in fields.items() if name in used]
    body = recipe.model_dump(mode="json", exclude_defaults=True)
    body = {"target": body.pop("target"), "dtype": recipe.dtype, **body}
    lines.append(yaml.safe_dump(body, sort_keys=False, allow_unicode=True, width=1000))
    atomic_write(path, "\n".join(lines))
