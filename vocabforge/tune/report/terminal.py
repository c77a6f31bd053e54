"""Tables that ``vocabforge tune`` ends with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...core.console import Name, simple_table
from ...decode.build.recipe import PLAIN
from ...evaluate.results.schema import Figure
from .outcome import Check, Recommendation, TuneResults

if TYPE_CHECKING:
    from rich.table import Table

_SHOWN = 12


def ways_table(results: TuneResults, batch: int) -> Table:
    """The best ways of one batch size, plain decoding last."""
    several = len(results.recommendations) > 1
    title = "Tokens a second, predicted" + (f", {batch} side by side" if several else "")
    table = simple_table(title + (f" for the machine of {results.what_if}" if results.what_if else ""))
    table.add_column("way", min_width=18)
    for name in ("tokens/s", "interval", "speed-up", "accepted", "ms", "prompts"):
        table.add_column(name, justify="right")
    rows = [(row, found) for row in results.candidates if (found := row.at(batch)) is not None]
    rows.sort(key=lambda pair: -(pair[1].tokens_per_s.value or 0.0))
    for row, found in rows[:_SHOWN]:
        table.add_row(
            Name(row.name),
            number(found.tokens_per_s.value, 1),
            interval(found.tokens_per_s, 1),
            number(found.speedup, 2),
            number(None if row.accepted is None else row.accepted.value, 2),
            number(found.cycle.value * 1e3, 2),
            str(row.prompts),
        )
    plain = next(row for row in results.plain if row.batch == batch)
    table.add_row(
        PLAIN,
        number(plain.tokens_per_s.value, 1),
        interval(plain.tokens_per_s, 1),
        "1.00",
        "1.00",
        number(plain.cycle.value * 1e3, 2),
        str(results.prompts["measured"]),
    )
    more = f"; {len(rows) - _SHOWN} more in the report" if len(rows) > _SHOWN else ""
    table.caption = f"accepted: tokens a cycle; ms: a cycle{more}"
    return table


def others_table(one: Recommendation) -> Table:
    """What the others lack."""
    table = simple_table(f"Beside {one.method}")
    table.add_column("way")
    for name in ("tokens/s", "tokens a cycle", "cycle", "told apart"):
        table.add_column(name, justify="right")
    for other in one.runner_ups:
        shares = (other.tokens_per_s, other.accepted, other.cycle)
        table.add_row(Name(other.name), *(f"{share:+.1%}" for share in shares), "yes" if other.sure else "no")
    return table


def check_table(check: Check) -> Table:
    """Predictions beside what eval measured."""
    table = simple_table(f"Predicted and measured by eval, {check.questions} other questions")
    table.add_column("way")
    for name in ("predicted", "measured", "error", "rank"):
        table.add_column(name, justify="right")
    for row in [*check.rows, check.plain]:
        table.add_row(
            Name(row.name),
            number(row.predicted.value, 1),
            number(row.measured.value, 1),
            f"{row.error:+.1%}",
            f"{row.predicted_rank} / {row.measured_rank}" if row.predicted_rank else "",
        )
    order = ", in the same order" if check.same_order else ", in another order"
    top = f"the measured ones{order}" if check.same_top else "not the measured ones"
    table.caption = (
        f"off by {check.mean_error:.1%} on average, {check.worst_error:.1%} at worst; speed-ups over plain decoding by "
        f"{check.speedup_error:.1%}; the predicted top three are {top}"
    )
    return table


def headline(results: TuneResults, one: Recommendation) -> str:
    """The recommendation in a sentence."""
    several = len(results.recommendations) > 1
    where = f" with {one.batch} side by side" if several else ""
    if one.method == PLAIN:
        return f"Recommended{where}: plain decoding. {' '.join(one.why)}"
    figure = one.tokens_per_s
    return (
        f"Recommended{where}: {one.method}, {number(figure.value, 1)} [{interval(figure, 1)}] tokens/s predicted, "
        f"{number(one.speedup, 2)} times plain decoding. {' '.join(one.why)}"
    )


def number(value: float | None, digits: int) -> str:
    """A value for people; None is a dash."""
    return "–" if value is None else f"{value:,.{digits}f}"


def interval(figure: Figure, digits: int) -> str:
    """``1.79–1.90``; without an interval a dash."""
    if figure.low is None or figure.high is None:
        return "–"
    return f"{figure.low:,.{digits}f}–{figure.high:,.{digits}f}"
