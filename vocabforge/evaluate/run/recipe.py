"""The evaluation of a decoding recipe's methods, and the record of its inputs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from ...core.artifact import MANIFEST, open_artifact
from ...core.files import sha256_file
from ...core.hub import model_name
from ...decode.accelerate.graphs import GraphCapture
from ...decode.build.methods import kind_of, recipe_methods
from ...decode.build.models import Models
from ...decode.build.recipe import DecodingRecipe
from ...decode.interface import Wrap
from ...decode.spec import DRAFT_MODEL, MethodSpec
from ...decode.threads import choose_threads
from ...layouts.eagle1 import token_map
from ...models.heads.io import drafter_digest
from ...models.target.fingerprint import target_fingerprint
from ..benchmarks import Benchmark
from ..evaluation import Evaluation, Provenance
from ..results.settings import RunSettings
from .environment import describe_environment

TARGET = "target"
# field of a spec -> role of the file it names; other paths are recorded by their own hashes or names
_ROLES = {"drafter": "drafter", "vocab": "vocabulary", "head": "draft head", "overlap": "overlap"}


def evaluation_of(
    recipe: DecodingRecipe,
    models: Models,
    benchmark: Benchmark,
    settings: RunSettings,
    *,
    only: Sequence[str] = (),
    wrap: Wrap | None = None,
) -> Evaluation:
    """Build the evaluation of plain decoding and a recipe's methods over a benchmark.

    Raises:
        UsageError: requests are to be decoded side by side by a target that decodes one at a time.
    """
    sampled = settings.temperature > 0
    models.model.new_cache(1, max(settings.concurrency))  # raise it before any question is asked
    made = recipe_methods(recipe, only, wrap=wrap, sampled=sampled, models=models)
    chosen = choose_threads([method.generator for method in made], wrap, sampled=sampled)
    tokenizer, names = models.tokenizer, [method.name for method in made[1:]]
    # Covers everything between a conversation and its token ids.
    asking = json.dumps([tokenizer.fingerprint, tokenizer.chat_template, sorted(tokenizer.eos_ids)])
    parents = parents_of(recipe, names)
    provenance = Provenance(
        target=model_name(recipe.target),
        environment=describe_environment(device=str(models.model.device), dtype=recipe.dtype),
        fingerprint=parents[TARGET],
        tokenizer=hashlib.sha256(asking.encode()).hexdigest(),
        parents=parents,
        facts={f"drafting of {method.name}": method.description for method in made[1:]}
        | {f"draft head of {method.name}": method.head for method in made if method.head is not None}
        | {"passes": passes_of(wrap)}
        | ({"threads": "chosen while decoding"} if chosen else {})
        | {f"recipe of {name}": settings_of(recipe.methods[name]) for name in names},
    )
    return Evaluation(benchmark, made, tokenizer, settings, provenance)


def parents_of(recipe: DecodingRecipe, methods: Sequence[str]) -> dict[str, str]:
    """Return hashes of the methods' inputs: the target's, then by role and method (``drafter NAME``)."""
    hashes = {TARGET: target_fingerprint(recipe.target)}
    known: dict[Path, str] = {}
    for name in methods:
        for field, role in _ROLES.items():
            path = getattr(recipe.methods[name], field)
            if path is not None:
                if path not in known:
                    known[path] = digest_of(path)
                hashes[f"{role} {name}"] = known[path]
    return hashes


def digest_of(path: Path) -> str:
    """Return the hash of an artefact, of a model, or of the weights and draft tokens in a serving layout."""
    if (path / MANIFEST).is_file():
        return open_artifact(path, verify=False).content_hash
    kind = kind_of(path)
    whole = kind in (DRAFT_MODEL, "mtp")  # too large to hash all files
    digest = target_fingerprint(path) if whole else drafter_digest(path)
    listed = None if kind == DRAFT_MODEL else token_map(path)
    return digest if listed is None else hashlib.sha256((digest + sha256_file(listed)).encode()).hexdigest()


def settings_of(spec: MethodSpec) -> str:
    """Describe a method's settings that its hashes do not cover: two runs may differ only in these."""
    given = spec.model_dump(mode="json", exclude_defaults=True, exclude={*_ROLES, "tree_file"})
    settings = [f"{key} {value}" for key, value in given.items()]
    if spec.tree_file is not None:
        settings.append(f"tree file hash {sha256_file(spec.tree_file)[:16]}")
    return ", ".join(settings) or "defaults"


def passes_of(wrap: Wrap | None) -> str:
    """Describe how passes were run."""
    return "as they are" if wrap is None else "captured" if isinstance(wrap, GraphCapture) else "compiled"
