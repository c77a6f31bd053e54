"""Decoders from specs; the target, each drafter and each draft head are loaded once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ...core.console import say
from ...core.errors import UsageError, VocabForgeError
from ...core.files import read_json
from ...core.registry import check_known
from ...models.drafters.io import CONFIG, trained_for
from ...models.heads.io import check_owner, owner_of
from ...models.heads.registry import HeadBase, base_of, base_of_model
from ...vocab.subset.subset import load_subset
from ..engine import Decoder
from ..interface import Wrap
from ..proposers.draft_model import head_base
from ..proposers.registry import FITTING, FOREIGN, Proposer, ProposerParts, make_proposer
from ..request import Generator
from ..spec import DRAFT_MODEL, DraftVocabulary, MethodGrid, MethodSpec, option_needs
from ..verify.registry import chosen_verifier
from .foreign import ForeignWays, Way, restricted
from .grid import DrafterFacts, check_grid, check_spec, draft_several, expand, fitting
from .heads import BuiltHead, draft_vocabulary, missing_ids, spec_head
from .models import Models, is_draft_model
from .recipe import PLAIN, DecodingRecipe

_KINDS = {"eagle": "eagle1", "medusa": "medusa", "mtp": "mtp"}  # layout -> kind, if it is not EAGLE-3


@dataclass(frozen=True)
class Method:
    """One way of decoding.

    ``head`` describes its draft head if that is a separate artefact, ``vocabulary`` the tokens that the head
    scores; ``verifier`` is set if one was named; ``lossless`` if the outputs have the target's distribution.
    ``beside`` builds the decoder of the same method for a number of requests side by side.
    """

    name: str
    generator: Generator
    description: str
    head: str | None = None
    vocabulary: DraftVocabulary | None = None
    verifier: str | None = None
    lossless: bool = True
    beside: Callable[[int], Decoder] | None = None


def recipe_methods(
    recipe: DecodingRecipe,
    only: Sequence[str] = (),
    *,
    device: str | None = None,
    wrap: Wrap | None = None,
    sampled: bool = False,
    models: Models | None = None,
) -> list[Method]:
    """Build plain decoding, then the methods of a recipe in its order.

    Args:
        only: names of the methods to build; empty: all. Plain decoding is always included.
        wrap: speeds up passes, see ``accelerate/``.
        sampled: the temperature is above 0; it decides between proposers if none is named.
        models: of this recipe's target, tokenizer and dtype, if they are loaded already.

    Raises:
        VocabForgeError: a method is unknown, settings do not fit together, or anything is missing or damaged.
    """
    for name in only:
        check_known(name, (PLAIN, *recipe.methods), "method", source="--method")
    wanted = {name: spec for name, spec in recipe.methods.items() if not only or name in only}
    for name, spec in wanted.items():  # before anything is loaded
        with _named(name):
            check_spec(spec, None if spec.drafter is None else kind_of(spec.drafter), sampled=sampled)
    models = models or recipe_models(recipe, device=device)
    return build_methods(models, wanted, wrap=wrap, sampled=sampled)


def recipe_models(
    recipe: DecodingRecipe, *, device: str | None = None, device_map: str | None = None
) -> Models:
    """Load the target of a recipe."""
    return Models(
        recipe.target,
        recipe.tokenizer,
        device=device,
        dtype=recipe.dtype,
        backend=recipe.target_backend,
        device_map=device_map,
    )


def build_methods(
    models: Models, specs: Mapping[str, MethodSpec], *, wrap: Wrap | None = None, sampled: bool = False
) -> list[Method]:
    """Build plain decoding, then one method per spec; see :func:`build_method`."""

    def beside(rows: int, spec: MethodSpec, name: str) -> Decoder:
        decoder = build_method(models, spec, name, rows=rows, wrap=wrap, sampled=sampled).generator
        assert isinstance(decoder, Decoder)
        return decoder

    return [
        replace(
            build_method(models, spec, name, wrap=wrap, sampled=sampled),
            beside=partial(beside, spec=spec, name=name),
        )
        for name, spec in {PLAIN: MethodSpec(), **specs}.items()
    ]


def build_method(
    models: Models,
    spec: MethodSpec,
    name: str,
    *,
    rows: int = 1,
    context: int | None = None,
    wrap: Wrap | None = None,
    sampled: bool = False,
) -> Method:
    """Build a method that decodes ``rows`` requests in parallel; see :func:`recipe_methods`.

    Errors name the method. ``context``: maximum positions of a request; None: the target's.
    """
    if not spec.drafts:
        plain = Decoder(models.model, context=context, rows=rows, wrap=wrap)
        return Method(name, plain, "one token a target forward")
    with _named(name):
        check_spec(spec, None if spec.drafter is None else kind_of(spec.drafter), sampled=sampled)
        trained = spec.drafter is not None and not is_draft_model(spec.drafter)
        device, chains = models.model.device.type, models.model.config.recurrent
        most = models.drafter(spec.drafter)[0].max_steps if trained and spec.drafter is not None else None
        spec = spec.on(device, chains=chains, sampled=sampled, trained=trained, most_levels=most)
        made, built, way = build_proposer(models, spec, name, sampled=sampled)
        control = spec.control or "fixed"
        decoder = Decoder(
            models.model, made, context=context, rows=rows, control=control, verifier=spec.verifier, wrap=wrap
        )
    plan = made.plan
    parts = [f"{made.label}, {plan.nodes} nodes on {plan.levels} levels"]
    if way is not None:
        if (tokens := getattr(made, "draft_tokens", None)) is not None:
            parts.append(f"drafted as up to {tokens} draft tokens a cycle")
        parts += [] if way.reason is None else [f"chosen because {way.reason}"]
        parts.append(way.facts)
    elif built is not None:
        parts.append(built.text)
    elif made.head is not None:
        parts.append(f"draft vocabulary of {made.head.size:,} tokens")
    if (window := getattr(getattr(made, "backend", None), "window", None)) is not None:
        parts.append(f"a window of {window:,} positions")
    if made.samples:
        parts.append("drawn drafts")
    if control != "fixed":
        parts.append(f"{control} control")
    lossless = spec.verifier is None or chosen_verifier(spec.verifier, sampled=sampled).lossless
    if spec.verifier is not None:
        parts.append(f"verifier {spec.verifier}{'' if lossless else ' (not lossless)'}")
    scoring = made.head if built is None else built.head
    rows = models.model.config.vocab_size
    return Method(
        name,
        decoder,
        ", ".join(parts),
        head=built.text if built is not None and built.extra else None,
        vocabulary=None if scoring is None else draft_vocabulary(scoring, plan.levels, rows),
        verifier=spec.verifier,
        lossless=lossless,
    )


def build_proposer(
    models: Models, spec: MethodSpec, name: str, *, sampled: bool = False
) -> tuple[Proposer, BuiltHead | None, Way | None]:
    """Build the proposer of a checked spec; also return its draft head and, for two vocabularies, the way."""
    proposer, drafter, built, way = _parts(models, spec, name, sampled)
    head = None if built is None else built.head
    bridge = None if way is None else way.bridge
    return make_proposer(proposer, ProposerParts(models.model, drafter, head, spec, bridge)), built, way


def _parts(
    models: Models, spec: MethodSpec, name: str, sampled: bool
) -> tuple[str, Any, BuiltHead | None, Way | None]:
    """Return the proposer's name, the drafter, the draft head and, for two vocabularies, the way."""
    path = spec.drafter
    if path is None:
        assert spec.proposer is not None
        return spec.proposer, None, _head(models, spec, lambda: base_of_model(models.model)), None
    if not is_draft_model(path):
        drafter, artifact = models.drafter(path)
        (proposer,) = fitting(drafter.kind, [spec.proposer] if spec.proposer else [], path)
        return proposer, drafter, _head(models, spec, lambda: base_of(drafter), trained_for(artifact)), None
    small = models.language_model(path)
    ways = _ways(
        models,
        spec,
        sampled,
        proposers=[spec.proposer] if spec.proposer else [],
        overlaps=[spec.overlap] if spec.overlap else [],
    )
    way = ways.of(path, small.config.vocab_size)
    ways.check_used()
    (proposer,) = way.names
    if proposer not in FOREIGN:
        return proposer, small, _head(models, spec, lambda: head_base(models.model, small)), None
    if way.reason is not None:
        say(f"{name}: {proposer}, chosen because {way.reason}.")
    if spec.dynamic is not None or (spec.vocab is not None and proposer != "tli"):
        raise UsageError(
            f"{proposer} cannot draft so",
            got="--vocab" + ("" if spec.dynamic is None else " and --dynamic"),
            expected="--vocab with --proposer tli; no --dynamic if the vocabularies differ",
        )
    if spec.vocab is not None:
        assert way.bridge is not None
        subset = load_subset(spec.vocab, models.tokenizer.fingerprint)
        way = replace(way, bridge=restricted(way.bridge, subset, spec.vocab))
    return proposer, small, None, way


def _ways(models: Models, spec: MethodSpec, sampled: bool, **more: Any) -> ForeignWays:
    size = models.model.config.vocab_size
    return ForeignWays(models.tokenizer, size, spec, sampled=sampled, bridges=models.bridges, **more)


def _head(
    models: Models, spec: MethodSpec, base: Callable[[], HeadBase], fingerprint: str | None = None
) -> BuiltHead | None:
    """Return the draft head of a spec. Equal requests share one, because it copies rows of the LM head."""
    if spec.vocab is None and spec.head is None:
        return None
    asked = {name: value for name, value in spec.given().items() if option_needs(name).heads}
    steps = spec.draft_steps if spec.budget else None  # a schedule of budgets depends on the draft steps
    key = spec.drafter, spec.vocab, spec.head, spec.dynamic, steps, *asked.items()
    if key not in models.built:
        trained = None
        if spec.head is not None and spec.drafter is not None:
            trained = models.trained_head(spec.head)
            check_owner(trained.artifact, models.owner(spec.drafter), drafter=spec.drafter)
        if spec.drafter is None or is_draft_model(spec.drafter):
            fingerprint = models.tokenizer.fingerprint
        models.built[key] = spec_head(base(), spec, trained, fingerprint)
    return models.built[key]


def grid_specs(models: Models, grid: MethodGrid, *, sampled: bool = False) -> dict[str, MethodSpec]:
    """Return the methods of a command line; this loads drafters and heads to determine what fits."""
    check_grid(grid, [kind_of(path) for _, path in grid.drafters], sampled=sampled)
    grid = grid.on(models.model.device.type)
    trained = [path for _, path in grid.drafters if not is_draft_model(path)]
    ways = None
    if len(trained) < len(grid.drafters):
        ways = _ways(
            models,
            grid.common,
            sampled,
            proposers=grid.proposers,
            overlaps=grid.overlaps,
            several=len(grid.drafters) > 1,
            alone=not draft_several(grid),
        )
    heads = {label: models.trained_head(path) for label, path in grid.heads}
    owners = {label: owner_of(head.artifact).drafter for label, head in heads.items()}
    for label, head in heads.items():
        if not any(models.owner(path).drafter == owners[label] for path in trained):
            check_owner(head.artifact, models.owner(trained[0]), drafter=trained[0])
    facts = {}
    for label, path in grid.drafters:
        if ways is not None and path not in trained:
            way = ways.of(path, models.language_model(path).config.vocab_size)
            facts[path] = DrafterFacts(way.names, overlap=way.overlap, tokenizer=way.tokenizer)
            continue
        drafter, artifact = models.drafter(path)
        core_only = []
        for vocab, folder in grid.vocabs if grid.dynamic else ():
            missing = missing_ids(base_of(drafter), load_subset(folder, trained_for(artifact)))
            if len(missing):
                core_only.append(vocab)
                say(f"{vocab} is only a hot core, without the {len(missing):,} ids that {label}'s head lacks")
        own = models.owner(path).drafter if heads else ""
        facts[path] = DrafterFacts(
            fitting(drafter.kind, grid.proposers, path),
            drafter.kind,
            [name for name, owner in owners.items() if owner == own],
            core_only,
        )
    if ways is not None:
        ways.check_used()
    specs, notes = expand(grid, facts, {label: head.kind for label, head in heads.items()})
    for note in notes:
        say(note)
    return specs


@contextmanager
def _named(method: str) -> Iterator[None]:
    try:
        yield
    except VocabForgeError as error:
        source = f"method {method}" if error.source is None else f"method {method}: {error.source}"
        raise type(error)(
            error.message, got=error.got, expected=error.expected, source=source, remedy=error.remedy
        ) from error


def kind_of(path: Path) -> str:
    """Return the kind of a drafter before it is loaded; an unreadable folder counts as EAGLE-3."""
    if is_draft_model(path):
        return DRAFT_MODEL
    with suppress(VocabForgeError):
        if (path / CONFIG).is_file():
            body = read_json(path / CONFIG, finite=False)
            return body["kind"] if isinstance(body, dict) and body.get("kind") in FITTING else "eagle3"
        from ...layouts.fields import read_config
        from ...layouts.registry import folder_layout

        if (named := read_config(path).get("speculators_model_type")) in FITTING:
            return str(named)
        layout = folder_layout(path)
        return _KINDS.get(layout.NAME, "eagle3") if layout is not None else "eagle3"
    return "eagle3"
