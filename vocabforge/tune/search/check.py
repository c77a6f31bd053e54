"""Predictions beside what ``eval`` measures, on prompts that nothing was tuned on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ...core.artifact import MANIFEST
from ...decode.build.methods import Method, recipe_methods
from ...decode.build.recipe import PLAIN, DecodingRecipe, recipe_dict
from ...decode.proposers.interface import Wrap
from ...evaluate.results.schema import MethodResults, Results, read_results
from ...evaluate.run.evaluation import Evaluation, OutputOptions, Provenance, evaluate_methods
from ...evaluate.run.settings import RunSettings
from ...models.device import synchroniser
from ..report.outcome import CheckedPrediction, TuneCheck
from .acceptance import digest
from .predict import Prediction
from .search import Entry, finalists, ranked
from .session import Joined, TuneSession

TOP = 3


def check_predictions(joined: Joined, entries: Sequence[Entry], count: int, wrap: Wrap | None) -> TuneCheck:
    """Evaluate some configurations as ``eval --recipe`` does and compare tokens a second.

    Those that the search stopped early are decoded on all tuning prompts first, so that all predictions rest on the
    same ones. The evaluation is in ``check-...`` in the run's folder; an existing one is not repeated.

    Args:
        count: configurations; see :func:`choose`.
    """
    loaded = joined.loaded
    everything = len(loaded.source)
    predicted: dict[str, Prediction] = {}
    chosen = choose(entries, count)
    for entry in chosen:
        rows = joined.measure(entry.candidate, everything)
        predicted[entry.name] = joined.predict(entry.candidate, rows)[1]
    drafter = loaded.settings.drafter
    recipe = DecodingRecipe(
        target=loaded.settings.target,
        tokenizer=loaded.settings.tokenizer,
        dtype=loaded.settings.dtype,
        methods={entry.name: entry.candidate.recipe(drafter) for entry in chosen},
    )
    device = str(loaded.models.model.device)
    methods = recipe_methods(recipe, device=device, wrap=wrap, models=loaded.models)
    folder = loaded.output / f"check-{digest([recipe_dict(recipe), _questions(loaded)])[:12]}"
    if not (folder / MANIFEST).is_file():
        _evaluate(folder, loaded, recipe, methods, device)
    return compare(predicted | {PLAIN: joined.plain()[1]}, read_results(folder), folder.name)


def choose(entries: Sequence[Entry], count: int) -> list[Entry]:
    """Configurations all over the space: the best, the worst, and others at even steps of predicted tokens a second.

    No measurement can rank ways whose speeds are alike; even steps ask for what can be told apart. If fewer were
    decoded (the budget ran out), others from all over the space fill the gaps.
    """
    order = ranked(entries, 1)
    if len(order) <= count:
        left = [entry for entry in entries if not entry.by_batch]
        wanted = min(count - len(order), len(left))
        return order + [left[place * len(left) // wanted] for place in range(wanted)]
    best, worst = finalists(entries, 1)[0].value(1), order[-1].value(1)
    # What few prompts put above the best of all prompts is more luck than speed.
    sober = [entry for entry in order if entry.value(1) <= best]
    rest, found = sober if len(sober) >= count else order, []
    for step in range(count):
        value = best + (worst - best) * step / max(count - 1, 1)
        found.append(rest.pop(min(range(len(rest)), key=lambda at: abs(rest[at].value(1) - value))))
    return sorted(found, key=lambda entry: -entry.value(1))


def compare(predicted: Mapping[str, Prediction], results: Results, evaluation: str) -> TuneCheck:
    """Errors and ranks.

    Args:
        predicted: by name, plain decoding among them.
        results: of the evaluation of the same names.
        evaluation: name of its folder.
    """
    measured = {one.name: one for one in results.methods}
    order = sorted(predicted.keys() - {PLAIN}, key=lambda name: -predicted[name].value)
    found = sorted(order, key=lambda name: -_speed(measured[name]))

    def row(name: str, place: int, rank: int) -> CheckedPrediction:
        ours, figures = predicted[name], measured[name].summary.overall
        speed, value = figures.tokens_per_s, _speed(measured[name])
        low, high = ours.tokens_per_s.low or ours.value, ours.tokens_per_s.high or ours.value
        return CheckedPrediction(
            name=name,
            predicted=ours.tokens_per_s,
            measured=speed,
            error=ours.value / value - 1 if value else 0.0,
            inside=(speed.low or value) <= high and low <= (speed.high or value),
            predicted_rank=place,
            measured_rank=rank,
            predicted_accepted=ours.accepted,
            measured_accepted=figures.accepted_length,
        )

    rows = [row(name, order.index(name) + 1, found.index(name) + 1) for name in order]
    errors = [abs(one.error) for one in rows]
    base = row(PLAIN, 0, 0)
    speedups = [abs((1 + one.error) / (1 + base.error) - 1) for one in rows]
    top, measured_top = order[:TOP], found[:TOP]
    return TuneCheck(
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


def _speed(measured: MethodResults) -> float:
    return measured.summary.overall.tokens_per_s.value or 0.0


def _questions(loaded: TuneSession) -> list[object]:
    checking = loaded.halves.checking
    return [checking.sha256, checking.max_new_tokens, loaded.halves.form, loaded.hashes, loaded.environment]


def _evaluate(
    folder: Path, loaded: TuneSession, recipe: DecodingRecipe, methods: Sequence[Method], device: str
) -> None:
    tokenizer = loaded.models.tokenizer
    provenance = Provenance(
        target=loaded.settings.target.resolve().name,
        environment=loaded.environment,
        fingerprint=loaded.hashes["target"],
        tokenizer=tokenizer.fingerprint,
        parents=loaded.input_hashes,
        facts={f"drafting of {one.name}": one.description for one in methods[1:]} | recipe_dict(recipe),
    )
    settings = RunSettings(loaded.settings.max_new_tokens, prompt_format=loaded.halves.form)
    evaluation = Evaluation(loaded.halves.checking, methods, tokenizer, settings, provenance)
    evaluate_methods(folder, evaluation, OutputOptions(synchronise=synchroniser(device)))
