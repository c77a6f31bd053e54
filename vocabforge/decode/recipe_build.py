"""From a recipe to methods: one target, each drafter and each draft head loaded once."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from ..core.errors import UsageError, VocabForgeError
from .build import Make, Method, MethodMaker, kind_of, plain_method
from .build_heads import HeadRequest
from .build_models import Models
from .build_options import BuildOptions, check_options, parse_ngram
from .draft import Wrap
from .policies import tree_settings
from .proposers import ALONE, DraftOptions
from .recipe import PLAIN, DecodingRecipe, MethodRecipe


def recipe_methods(
    recipe: DecodingRecipe,
    only: Sequence[str] = (),
    *,
    device: str | None = None,
    wrap: Wrap | None = None,
    sampled: bool = False,
    models: Models | None = None,
) -> list[Method]:
    """Plain decoding, then the methods of a recipe in its order.

    Args:
        only: names of methods; the others are not built. Empty: all. Plain decoding is always there.
        wrap: makes passes faster, see ``compiled.py`` and ``graphs.py``.
        sampled: the temperature is above 0; it decides between proposers where none is named.
        models: of this recipe's target, tokenizer and dtype, where they are loaded already.

    Raises:
        UsageError: no such method, or settings that mean nothing together.
        VocabForgeError: anything missing, damaged, or not belonging together.
    """
    _check_names(recipe, only)
    wanted = {name: one for name, one in recipe.methods.items() if not only or name in only}
    options = {name: method_options(recipe, one, device, wrap, sampled) for name, one in wanted.items()}
    for name, one in wanted.items():  # told before anything is loaded
        with _named(name):
            _check(one, options[name])
    if models is None:
        models = Models(recipe.target, recipe.tokenizer, device=device, dtype=recipe.dtype)
    found = [plain_method(models, BuildOptions(wrap=wrap))]
    for name, one in wanted.items():
        with _named(name):
            found.append(replace(_make(models, one, options[name]), name=name))
    return found


def method_options(
    recipe: DecodingRecipe, method: MethodRecipe, device: str | None, wrap: Wrap | None, sampled: bool
) -> BuildOptions:
    """What ``eval``'s command line would be for one method of a recipe.

    Raises:
        UsageError: sizes of n-grams that cannot be read.
    """
    heads = HeadRequest(
        () if method.head is None else (str(method.head),),
        method.shortlist,
        method.budget,
        method.rows,
        () if method.dynamic is None else (method.dynamic,),
        method.fp8 or None,
    )
    return BuildOptions(
        tokenizer=recipe.tokenizer,
        device=device,
        dtype=recipe.dtype,
        proposers=() if method.proposer is None else (method.proposer,),
        draft=DraftOptions(
            tree=method.tree,
            sample=method.draft_sampling,
            depth=method.depth,
            topk=method.topk,
            total_nodes=method.total_nodes,
            tree_file=method.tree_file,
            layers=method.exit_layers,
            ngram=parse_ngram(method.ngram),
            look_ahead=method.look_ahead,
            single=method.single_token,
        ),
        heads=heads,
        control=method.control,
        wrap=wrap,
        sampled=sampled,
        overlaps=() if method.overlap is None else (method.overlap,),
        drafter_tokenizer=method.drafter_tokenizer,
        verifier=method.verifier,
    )


def _check(method: MethodRecipe, options: BuildOptions) -> None:
    check_options(options, [] if method.drafter is None else [kind_of(method.drafter)])
    if method.drafter is not None and method.proposer in ALONE:
        raise UsageError(
            "this proposer drafts without a drafter",
            got=f"proposer {method.proposer} and drafter {method.drafter}",
            expected="one of them",
        )
    if method.vocab is not None and method.proposer == "n-gram":
        raise UsageError(
            "vocab restricts a draft head",
            got="proposer n-gram, which has none",
            expected="a drafter, or proposer early-exit",
            remedy="leave vocab out",
        )
    if options.draft.tree in (None, "dynamic"):
        tree_settings(options.draft.depth, options.draft.topk, options.draft.total_nodes)


def _make(models: Models, method: MethodRecipe, options: BuildOptions) -> Method:
    """The method that was asked for last in its command line: the one with all that it names."""
    maker = MethodMaker(models, options, drafters=0 if method.drafter is None else 1)
    vocabs = [] if method.vocab is None else [(method.vocab.name, method.vocab)]
    if method.drafter is None:
        assert method.proposer is not None
        makes: Iterator[Make] = maker.alone(method.proposer, vocabs)
    else:
        heads = maker.heads([method.drafter]).get(method.drafter, ())
        makes = maker.drafter_methods(method.drafter.name, method.drafter, vocabs, heads)
    last = deque(makes, maxlen=1).pop()
    maker.ways.check_used()
    return last()


def _check_names(recipe: DecodingRecipe, only: Sequence[str]) -> None:
    unknown = [name for name in only if name not in (PLAIN, *recipe.methods)]
    if unknown:
        raise UsageError(
            "there is no such method in the recipe",
            got=", ".join(unknown),
            expected=", ".join(recipe.methods),
        )


@contextmanager
def _named(method: str) -> Iterator[None]:
    """What is wrong with a method says which."""
    try:
        yield
    except VocabForgeError as error:
        source = f"method {method}" if error.source is None else f"method {method}: {error.source}"
        raise type(error)(
            error.message, got=error.got, expected=error.expected, source=source, remedy=error.remedy
        ) from error
