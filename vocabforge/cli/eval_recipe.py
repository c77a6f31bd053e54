"""``vocabforge eval --recipe``: the methods of a file instead of those of the command line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .decode_options import DraftingOptions
from .head_options import HeadOptions
from .option_groups import option_names

if TYPE_CHECKING:
    from ..decode.recipe import DecodingRecipe

RecipeOption = Annotated[
    Path | None,
    typer.Option(
        "--recipe",
        metavar="FILE",
        help="Evaluate the methods of this YAML, as `tune` writes it: target, drafters, heads and trees are its own.",
    ),
]

# What a recipe says itself, by the parameter's name.
_ITS_OWN = (
    *("target", "tokenizer", "dtype", "drafter", "proposer", "vocab"),
    *option_names(HeadOptions),
    *option_names(DraftingOptions),
)


def recipe_beside(context: typer.Context, path: Path) -> DecodingRecipe:
    """The recipe, where the command line does not say the same things again.

    Raises:
        UsageError: an option beside it that the recipe decides.
        ConfigError: the recipe cannot be read.
    """
    from ..core.errors import UsageError
    from ..decode.recipe import read_recipe

    sources = {name: context.get_parameter_source(name) for name in _ITS_OWN}
    given = [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
    if given:
        raise UsageError(
            "a recipe says how everything is drafted",
            got=" and ".join("--" + name.replace("_", "-") for name in given) + f" beside --recipe {path}",
            expected="one of them",
            remedy="change the recipe, or leave --recipe out",
        )
    return read_recipe(path)


def recipe_parents(recipe: DecodingRecipe, methods: Sequence[str]) -> dict[str, str]:
    """Hashes of what the methods are made from, by role and method; see ``eval_record.parents_of``."""
    from ..models.fingerprint import target_fingerprint
    from .eval_record import TARGET, digest_of

    hashes = {TARGET: target_fingerprint(recipe.target)}
    known: dict[Path, str] = {}
    for name in methods:
        one = recipe.methods[name]
        roles = {
            "drafter": one.drafter,
            "vocabulary": one.vocab,
            "draft head": one.head,
            "overlap": one.overlap,
        }
        for role, path in roles.items():
            if path is not None:
                if path not in known:
                    known[path] = digest_of(path)
                hashes[f"{role} {name}"] = known[path]
    return hashes


def recipe_facts(recipe: DecodingRecipe, methods: Sequence[str]) -> dict[str, str]:
    """What the recipe settles of each method, beside what its hashes say."""
    from ..core.files import sha256_file

    facts = {}
    for name in methods:
        one = recipe.methods[name]
        paths = {"drafter", "vocab", "head", "overlap", "tree_file", "drafter_tokenizer"}
        given = one.model_dump(mode="json", exclude_defaults=True, exclude=paths)
        settings = [f"{key} {value}" for key, value in given.items()]
        if one.tree_file is not None:
            settings.append(f"tree file hash {sha256_file(one.tree_file)[:16]}")
        if one.drafter_tokenizer is not None:
            settings.append(f"drafter tokenizer {one.drafter_tokenizer}")
        facts[f"recipe of {name}"] = ", ".join(settings) or "defaults"
    return facts
