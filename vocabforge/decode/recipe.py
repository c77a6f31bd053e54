"""Ways of decoding written down: what ``tune`` recommends and ``eval --recipe`` runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, field_validator, model_validator

from ..core.config import Positive, StrictModel, parse_config, read_yaml
from ..core.errors import ConfigError
from ..core.files import atomic_write

_HEAD_SETTINGS = ("shortlist", "budget")
PLAIN = "plain"  # the method that every run has: decoding without drafts


class MethodRecipe(StrictModel):
    """One way of decoding; what is left out takes the defaults of ``eval``'s options of the same names.

    Attributes:
        drafter: trained drafter or draft model; None for proposers without one.
        proposer: row of the proposer table.
        vocab: subset artefact that the draft head is restricted to.
        head: trained draft head; ``shortlist``, ``budget``, ``rows`` and ``fp8`` say how it is used.
        dynamic: what is scored beside ``vocab``: ``context[:SIZE]`` or ``ranker[:SIZE]``.
        tree, depth, topk, total_nodes, tree_file: shape of what is drafted.
        draft_sampling: draw drafts instead of taking the best.
        exit_layers, ngram, look_ahead, single_token: of one proposer each, as on the command line.
        overlap, drafter_tokenizer: of a draft model with another vocabulary.
        verifier: row of the verifiers' table, for temperatures above 0.
    """

    drafter: Path | None = None
    proposer: str | None = None
    vocab: Path | None = None
    head: Path | None = None
    shortlist: Positive | None = None
    budget: str | None = None
    rows: Literal["own", "shared"] | None = None
    fp8: bool | None = None
    dynamic: str | None = None
    tree: Literal["dynamic", "chain", "static"] | None = None
    depth: Annotated[int, Field(ge=0)] | None = None
    topk: Positive | None = None
    total_nodes: Annotated[int, Field(ge=2)] | None = None
    tree_file: Path | None = None
    draft_sampling: bool = False
    exit_layers: Positive | None = None
    ngram: str | None = None
    look_ahead: Annotated[int, Field(ge=0)] | None = None
    single_token: bool = False
    overlap: Path | None = None
    drafter_tokenizer: Path | None = None
    control: Literal["fixed", "adaptive"] = "fixed"
    verifier: str | None = None

    @field_validator("budget", "ngram", mode="before")
    @classmethod
    def _as_text(cls, value: Any) -> Any:
        """A plain number is written without quotes."""
        return str(value) if isinstance(value, int) and not isinstance(value, bool) else value

    @model_validator(mode="after")
    def _goes_together(self) -> MethodRecipe:
        if self.drafter is None and self.proposer is None:
            raise ValueError("it names neither a drafter nor a proposer")
        hybrid = self.dynamic is not None and self.dynamic.partition(":")[0] == "ranker"
        if self.vocab is not None and self.head is not None and not hybrid:
            raise ValueError("vocab and head are two ways of drafting; dynamic: ranker joins them")
        if self.dynamic is not None and self.vocab is None:
            raise ValueError("dynamic adds tokens to a draft vocabulary: give vocab")
        for name in ("rows", "fp8", *_HEAD_SETTINGS):
            if getattr(self, name) not in (None, False) and self.head is None:
                raise ValueError(f"{name} says how a trained draft head is used: give head")
        return self


class DecodingRecipe(StrictModel):
    """Several ways over one target.

    Relative paths are taken from the folder where the command runs, as in training recipes.

    Attributes:
        target: Hugging Face folder.
        tokenizer: folder; None is the target's.
        dtype: of target and drafters.
        methods: by name; plain decoding always runs beside them.
    """

    target: Path
    tokenizer: Path | None = None
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    methods: dict[str, MethodRecipe]

    @field_validator("methods")
    @classmethod
    def _names(cls, methods: dict[str, MethodRecipe]) -> dict[str, MethodRecipe]:
        """They name files, rows and columns."""
        if not methods:
            raise ValueError("there is no method to compare with plain decoding")
        for name in methods:
            if not name.strip() or not name.isprintable():
                raise ValueError(f"{name!r} cannot be the name of a method")
            if name == PLAIN:
                raise ValueError(f"{PLAIN} is the name of decoding without drafts, which always runs")
        return methods


def read_recipe(path: Path) -> DecodingRecipe:
    """A recipe from its YAML, strictly.

    Raises:
        ConfigError: no such file, no YAML, a key that is unknown or missing, values that do not go together.
    """
    body = read_yaml(path)
    try:
        return parse_config(DecodingRecipe, body, source=path)
    except ConfigError as error:
        raise ConfigError(
            error.message,
            got=error.got,
            expected=error.expected,
            source=error.source,
            remedy="mend the recipe; docs/formats.md names its keys",
        ) from error


def write_recipe(path: Path, recipe: DecodingRecipe) -> None:
    """Write a recipe as YAML that :func:`read_recipe` gives back; what is at its default is left out.

    Raises:
        VocabForgeError: the disk is full or refuses to be written to.
    """
    body = recipe_dict(recipe)
    atomic_write(path, yaml.safe_dump(body, sort_keys=False, allow_unicode=True, width=1000))


def recipe_dict(recipe: DecodingRecipe) -> dict[str, Any]:
    """The recipe in plain values, as in its YAML."""
    body = recipe.model_dump(mode="json", exclude_defaults=True)
    return {"target": body.pop("target"), "dtype": recipe.dtype, **body}
