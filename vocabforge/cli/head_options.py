"""Options of the commands that draft with a trained draft head."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ..decode.build_heads import HeadRequest


class Rows(str, Enum):
    """Whose shortlist a row of a draft step uses."""

    own = "own"
    shared = "shared"


HeadOption = Annotated[
    list[str] | None,
    typer.Option(
        "--head",
        help="Draft head (ranker, low-rank, router), as DIR or LABEL=DIR: also draft with it. Repeatable.",
    ),
]
OneHeadOption = Annotated[
    Path | None, typer.Option("--head", help="Draft head (ranker, low-rank, router) to draft with.")
]
ShortlistOption = Annotated[
    int | None,
    typer.Option("--shortlist", min=1, help="Candidates of a ranker [default: what it was saved with]."),
]
BudgetOption = Annotated[
    str | None,
    typer.Option(
        "--budget",
        metavar="K|LAW:MAX:MIN",
        help="Clusters that a router opens: K at every draft step, or a schedule such as decay:32:8; "
        "no more than its clusters [default: what it was saved with].",
    ),
]
HeadRowsOption = Annotated[
    Rows | None,
    typer.Option(
        "--head-rows",
        help="Shortlist of a draft step's rows: their own, or one shared union [default: own for a ranker, "
        "shared for a router].",
    ),
]


def head_request(
    given: Sequence[str] | None, shortlist: int | None, budget: str | None, rows: Rows | None
) -> HeadRequest:
    """The options as :func:`~vocabforge.decode.build.build_methods` takes them."""
    from ..decode.build_heads import HeadRequest

    return HeadRequest(tuple(given or ()), shortlist, budget, None if rows is None else rows.value)
