"""Predictions and what ``eval`` measures, on prompts that nothing was tuned on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ...core.artifact import MANIFEST
from ...core.hub import model_name
from ...decode.build.methods import recipe_methods
from ...decode.build.recipe import PLAIN, DecodingRecipe, recipe_dict
from ...decode.proposers.interface import Wrap
from ...evaluate.results.schema import Results, read_results
from ...evaluate.run.evaluation import Evaluation, OutputOptions, Provenance, evaluate_methods
from ...evaluate.run.settings import RunSettings
from ...models.device import synchroniser
from ..outcome import CheckedPrediction, TuneCheck
from .acceptance import digest
from .predict import Prediction
from .search import Entry, ranked
from .session import Joined, TuneSession


def check_predictions(joined: Joined, entries: Sequence[Entry], count: int, wrap: Wrap | None) -> TuneCheck:
    """Evaluate some configurations as ``eval --recipe`` does and compare tokens a second.

    Those that the search stopped early are decoded on all tuning prompts first. The evaluation is in ``check-...`` in
    the run's folder; an existing one is not repeated.

    Args:
        count: configurations; see :func:`choose`.
    """
    loaded = joined.loaded
    chosen = choose(entries, count)
    predicted: dict[str, Prediction] = {}
    for entry in chosen:
        rows = joined.measure(entry.candidate, len(loaded.source))
        predicted[entry.name] = joined.predict(entry.candidate, rows)[1]
    recipe = DecodingRecipe(
        target=loaded.settings.target,
        tokenizer=loaded.settings.tokenizer,
        dtype=loaded.settings.dtype,
        methods={entry.name: entry.candidate.recipe(loaded.settings.drafter) for entry in chosen},
    )
    checking = loaded.halves.checking
    asked = [checking.sha256, checking.max_new_tokens, loaded.halves.form, loaded.hashes, loaded.environment]
    folder = loaded.output / f"check-{digest([recipe_dict(recipe), asked])[:12]}"
    if not (folder / MANIFEST).is_file():
        _evaluate(folder, loaded, recipe, wrap)
    return compare(predicted | {PLAIN: joined.plain()[1]}, read_results(folder), folder.name)


def choose(entries: Sequence[Entry], count: int) -> list[Entry]:
    """Configurations at even steps of predicted rank, from the best to the worst of those that were decoded."""
    order = ranked(entries, 1)
    most = min(count, len(order))
    return [order[step * (len(order) - 1) // max(most - 1, 1)] for step in range(most)]


def compare(predicted: Mapping[str, Prediction], results: Results, evaluation: str) -> TuneCheck:
    """Errors and ranks.

    Args:
        predicted: by name, plain decoding among them.
        results: of the evaluation of the same names.
        evaluation: name of its folder.
    """
    measured = {one.name: one.summary.overall.tokens_per_s for one in results.methods}
    order = sorted(predicted.keys() - {PLAIN}, key=lambda name: -predicted[name].value)
    found = sorted(order, key=lambda name: -(measured[name].value or 0.0))

    def row(name: str) -> CheckedPrediction:
        ours, speed = predicted[name], measured[name]
        return CheckedPrediction(
            name=name,
            predicted=ours.tokens_per_s,
            measured=speed,
            error=ours.value / speed.value - 1 if speed.value else 0.0,
            predicted_rank=0 if name == PLAIN else order.index(name) + 1,
            measured_rank=0 if name == PLAIN else found.index(name) + 1,
        )

    rows = [row(name) for name in [*order, PLAIN]]
    errors = [abs(one.error) for one in rows[:-1]]
    return TuneCheck(
        questions=results.benchmark.questions,
        rows=rows,
        mean_error=sum(errors) / max(len(errors), 1),
        evaluation=evaluation,
    )


def _evaluate(folder: Path, loaded: TuneSession, recipe: DecodingRecipe, wrap: Wrap | None) -> None:
    device, tokenizer = str(loaded.models.model.device), loaded.models.tokenizer
    methods = recipe_methods(recipe, device=device, wrap=wrap, models=loaded.models)
    provenance = Provenance(
        target=model_name(loaded.settings.target),
        environment=loaded.environment,
        fingerprint=loaded.hashes["target"],
        tokenizer=tokenizer.fingerprint,
        parents=loaded.input_hashes,
        facts={f"drafting of {one.name}": one.description for one in methods[1:]} | recipe_dict(recipe),
    )
    settings = RunSettings(loaded.settings.max_new_tokens, prompt_format=loaded.halves.form)
    evaluation = Evaluation(loaded.halves.checking, methods, tokenizer, settings, provenance)
    evaluate_methods(folder, evaluation, OutputOptions(synchronise=synchroniser(device)))
