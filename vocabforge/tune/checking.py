"""Predictions beside what ``eval`` measures, on prompts that nothing was tuned on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from ..core.artifact import MANIFEST
from ..decode.build import Method
from ..decode.draft import Wrap
from ..decode.recipe import DecodingRecipe, recipe_dict
from ..decode.recipe_build import recipe_methods
from ..evaluate.evaluation import Evaluation, Handling, Provenance, evaluate_methods
from ..evaluate.results import MethodResults, Results, read_results
from ..evaluate.settings import RunSettings
from .acceptance import digest
from .joining import Joined, Loaded
from .outcome import PLAIN, Check, CheckRow
from .predict import Prediction
from .search import Entry, finalists, ranked

TOP = 3


def check_predictions(
    output: Path, loaded: Loaded, joined: Joined, entries: Sequence[Entry], count: int, wrap: Wrap | None
) -> Check:
    """Evaluate some configurations as ``eval --recipe`` does and compare tokens a second.

    Those that the search stopped early are decoded on all tuning prompts first, so that all predictions rest on the
    same ones. The evaluation lies in ``check-...`` below ``output``; it is not repeated where it is there already.

    Args:
        count: configurations; see :func:`choose`.
    """
    everything = len(loaded.source)
    predicted: dict[str, Prediction] = {}
    chosen = choose(entries, count)
    if len(chosen) < count:  # most ways could not win and were not decoded
        chosen += spread_entries(entries, count - len(chosen))
    for entry in chosen:
        rows = joined.measure(entry.candidate, everything)
        predicted[entry.name] = joined.predict(entry.candidate, rows)[1]
    drafter = loaded.inputs.drafter
    recipe = DecodingRecipe(
        target=loaded.inputs.target,
        tokenizer=loaded.inputs.tokenizer,
        dtype=loaded.options.dtype,
        methods={entry.name: entry.candidate.recipe(drafter) for entry in chosen},
    )
    device = str(loaded.models.model.device)
    methods = recipe_methods(recipe, device=device, wrap=wrap, models=loaded.models)
    folder = output / f"check-{digest([recipe_dict(recipe), _questions(loaded)])[:12]}"
    results = _evaluate(folder, loaded, recipe, methods, device)
    return compare(predicted, joined.plain()[1], results, folder.name)


def choose(entries: Sequence[Entry], count: int) -> list[Entry]:
    """Configurations all over the space: the best, the worst, and others at even steps of predicted tokens a second.

    Ways whose speeds are alike cannot be ranked by any measurement; even steps ask for what can be told.
    """
    order = ranked(entries, 1)
    if len(order) <= count:
        return order
    best, worst = finalists(entries, 1)[0].value(1), order[-1].value(1)
    # What few prompts put above the best of all prompts is more luck than speed.
    sober = [entry for entry in order if entry.value(1) <= best]
    order = sober if len(sober) >= count else order
    rest, found = list(order), []
    for step in range(count):
        wanted = best + (worst - best) * step / max(count - 1, 1)
        nearest = min(rest, key=lambda entry: abs(entry.value(1) - wanted))
        rest.remove(nearest)
        found.append(nearest)
    return sorted(found, key=lambda entry: -entry.value(1))


def spread_entries(entries: Sequence[Entry], count: int) -> list[Entry]:
    """Ways that were not decoded, from all over the space."""
    left = [entry for entry in entries if not entry.by_batch]
    return [left[place * len(left) // count] for place in range(count)] if len(left) > count else left


def compare(
    predicted: Mapping[str, Prediction], plain: Prediction, results: Results, evaluation: str
) -> Check:
    """Errors and ranks.

    Args:
        predicted: by name; ``plain`` beside them.
        results: of the evaluation of the same names.
        evaluation: name of its folder.
    """
    measured = {one.name: one for one in results.methods}
    order = sorted(predicted, key=lambda name: -predicted[name].value)
    found = sorted(predicted, key=lambda name: -_speed(measured[name]))
    rows = [
        _row(name, predicted[name], measured[name], order.index(name) + 1, found.index(name) + 1)
        for name in order
    ]
    errors = [abs(row.error) for row in rows]
    base = _row(PLAIN, plain, measured[PLAIN], 0, 0)
    speedups = [abs((1 + row.error) / (1 + base.error) - 1) for row in rows]
    top, measured_top = order[:TOP], found[:TOP]
    return Check(
        questions=results.benchmark.questions,
        rows=rows,
        plain=base,
        mean_error=sum(errors) / len(errors),
        worst_error=max(errors),
        speedup_error=sum(speedups) / len(speedups),
        top=top,
        measured_top=measured_top,
        same_top=set(top) == set(measured_top),
        same_order=top == measured_top,
        evaluation=evaluation,
    )


def _row(name: str, predicted: Prediction, measured: MethodResults, place: int, found: int) -> CheckRow:
    figures = measured.summary.overall
    speed = figures.tokens_per_s
    ours = predicted.tokens_per_s
    low, high = ours.low or predicted.value, ours.high or predicted.value
    value = _speed(measured)
    return CheckRow(
        name=name,
        predicted=ours,
        measured=speed,
        error=predicted.value / value - 1 if value else 0.0,
        inside=(speed.low or value) <= high and low <= (speed.high or value),
        predicted_rank=place,
        measured_rank=found,
        predicted_accepted=predicted.accepted,
        measured_accepted=figures.accepted_length,
    )


def _speed(measured: MethodResults) -> float:
    return measured.summary.overall.tokens_per_s.value or 0.0


def _questions(loaded: Loaded) -> list[object]:
    """What decides the evaluation beside the recipe."""
    checking = loaded.halves.checking
    return [checking.sha256, checking.max_new_tokens, loaded.halves.form, loaded.hashes, loaded.environment]


def _evaluate(
    folder: Path, loaded: Loaded, recipe: DecodingRecipe, methods: Sequence[Method], device: str
) -> Results:
    if (folder / MANIFEST).is_file():
        return read_results(folder)
    tokenizer = loaded.models.tokenizer
    provenance = Provenance(
        target=loaded.inputs.target.resolve().name,
        environment=loaded.environment,
        fingerprint=loaded.hashes["target"],
        tokenizer=tokenizer.fingerprint,
        parents=loaded.input_hashes,
        facts={f"drafting of {one.name}": one.description for one in methods[1:]} | recipe_dict(recipe),
    )
    settings = RunSettings(loaded.options.new_tokens, prompt_format=loaded.halves.form)
    evaluation = Evaluation(loaded.halves.checking, methods, tokenizer, settings, provenance)
    return evaluate_methods(folder, evaluation, Handling(synchronise=_synchroniser(device)))


def _synchroniser(device: str) -> Callable[[], None]:
    if not device.startswith("cuda"):
        return lambda: None
    return lambda: torch.cuda.synchronize(device)
