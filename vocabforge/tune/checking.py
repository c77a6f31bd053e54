"""Predictions beside what ``eval`` measures, on prompts that nothing was tuned on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ..core.artifact import MANIFEST
from ..decode.build import Method, recipe_methods
from ..decode.draft import Wrap
from ..decode.recipe import PLAIN, DecodingRecipe, recipe_dict
from ..evaluate.evaluation import Evaluation, Handling, Provenance, evaluate_methods
from ..evaluate.results import MethodResults, Results, read_results
from ..evaluate.settings import RunSettings
from ..models.device import synchroniser
from .acceptance import digest
from .joining import Joined, Loaded
from .measure import LatencyMeter, LatencyOptions
from .outcome import Check, CheckRow
from .predict import Prediction, predict, predict_plain
from .search import Entry, finalists, ranked
from .table import LATENCY, LatencyTable, read_latency, write_latency

TOP = 3
ROUNDS = 10  # of measuring latency between the answers of an evaluation


def check_predictions(
    output: Path, loaded: Loaded, joined: Joined, entries: Sequence[Entry], count: int, wrap: Wrap | None
) -> Check:
    """Evaluate some configurations as ``eval --recipe`` does and compare tokens a second.

    Those that the search stopped early are decoded on all tuning prompts first, so that all predictions rest on the
    same ones. The evaluation lies in ``check-...`` below ``output``; it is not repeated where it is there already.
    Between its answers latency is measured once more: how far predictions are off because the machine changed shows in
    the difference.

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
    table = folder.with_name(f"{folder.name}-{LATENCY}")
    if not (folder / MANIFEST).is_file():
        meter = _meter(loaded, chosen)
        answers = len(loaded.halves.checking.questions) * len(methods)
        _evaluate(folder, loaded, recipe, methods, (device, _between(meter, answers)))
        write_latency(table, meter.table())
    results = read_results(folder)
    beside = _beside(joined, chosen, read_latency(table)) if table.is_file() else {}
    return compare(predicted | {PLAIN: joined.plain()[1]}, beside, results, folder.name)


def _meter(loaded: Loaded, chosen: Sequence[Entry]) -> LatencyMeter:
    """Measures what the chosen ways take, the drafter's own head with them."""
    levels = max(entry.candidate.tree.levels for entry in chosen)
    choices = dict.fromkeys([loaded.choices[0], *(entry.candidate.head for entry in chosen)])
    heads = [loaded.proposing.head(choice, levels) for choice in choices]
    trees = list(dict.fromkeys(entry.candidate.tree for entry in chosen))
    return LatencyMeter(loaded.latency_inputs(heads, trees, (1,)), LatencyOptions())


def _between(meter: LatencyMeter, answers: int) -> Callable[[], None]:
    """Some steps of measuring before each answer, so many that all of them come to ``ROUNDS`` rounds."""
    steps = max(1, -(-ROUNDS * sum(map(len, meter.tasks)) // answers))

    def measure() -> None:
        for _ in range(steps):
            meter.step()

    return measure


def _beside(joined: Joined, chosen: Sequence[Entry], table: LatencyTable) -> dict[str, Prediction]:
    """The predictions with the seconds of another table, plain decoding's among them."""
    source = joined.loaded.source
    found = {PLAIN: predict_plain(source.plain(range(len(source))), table, batch=1)}
    for entry in chosen:
        head = joined.loaded.proposing.setting(entry.candidate)
        rows = joined.measure(entry.candidate, len(source))
        found[entry.name] = predict(rows, head, entry.candidate.tree, table, batch=1)
    return found


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
    predicted: Mapping[str, Prediction], beside: Mapping[str, Prediction], results: Results, evaluation: str
) -> Check:
    """Errors and ranks.

    Args:
        predicted: by name, plain decoding among them.
        beside: the same with seconds measured beside the evaluation; empty where there are none.
        results: of the evaluation of the same names.
        evaluation: name of its folder.
    """
    measured = {one.name: one for one in results.methods}
    order = sorted(predicted.keys() - {PLAIN}, key=lambda name: -predicted[name].value)
    found = sorted(order, key=lambda name: -_speed(measured[name]))

    def row(name: str, place: int, rank: int) -> CheckRow:
        return _row(predicted[name], beside.get(name), measured[name], (place, rank))

    rows = [row(name, order.index(name) + 1, found.index(name) + 1) for name in order]
    errors = [abs(one.error) for one in rows]
    nearer = [abs(one.beside_error) for one in rows if one.beside_error is not None]
    base = row(PLAIN, 0, 0)
    speedups = [abs((1 + one.error) / (1 + base.error) - 1) for one in rows]
    top, measured_top = order[:TOP], found[:TOP]
    return Check(
        questions=results.benchmark.questions,
        rows=rows,
        plain=base,
        mean_error=sum(errors) / len(errors),
        worst_error=max(errors),
        speedup_error=sum(speedups) / len(speedups),
        mean_beside=sum(nearer) / len(nearer) if nearer else None,
        worst_beside=max(nearer, default=None),
        top=top,
        measured_top=measured_top,
        same_top=set(top) == set(measured_top),
        same_order=top == measured_top,
        evaluation=evaluation,
    )


def _row(
    predicted: Prediction, beside: Prediction | None, measured: MethodResults, ranks: tuple[int, int]
) -> CheckRow:
    figures = measured.summary.overall
    speed = figures.tokens_per_s
    ours = predicted.tokens_per_s
    low, high = ours.low or predicted.value, ours.high or predicted.value
    value = _speed(measured)
    return CheckRow(
        name=measured.name,
        predicted=ours,
        measured=speed,
        error=predicted.value / value - 1 if value else 0.0,
        inside=(speed.low or value) <= high and low <= (speed.high or value),
        predicted_rank=ranks[0],
        measured_rank=ranks[1],
        predicted_accepted=predicted.accepted,
        measured_accepted=figures.accepted_length,
        beside=None if beside is None else beside.tokens_per_s,
        beside_error=None if beside is None or not value else beside.value / value - 1,
    )


def _speed(measured: MethodResults) -> float:
    return measured.summary.overall.tokens_per_s.value or 0.0


def _questions(loaded: Loaded) -> list[object]:
    """What decides the evaluation beside the recipe."""
    checking = loaded.halves.checking
    return [checking.sha256, checking.max_new_tokens, loaded.halves.form, loaded.hashes, loaded.environment]


def _evaluate(
    folder: Path,
    loaded: Loaded,
    recipe: DecodingRecipe,
    methods: Sequence[Method],
    how: tuple[str, Callable[[], None]],
) -> None:
    """``how``: the device, and what is done between answers."""
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
    device, between = how
    evaluate_methods(folder, evaluation, Handling(synchronise=synchroniser(device), between=between))
