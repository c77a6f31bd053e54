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
RankerFp8Option = Annotated[
    bool | None,
    typer.Option(
        "--ranker-fp8/--no-ranker-fp8",
        help="Read a ranker's scorer in 8 bits a weight: half the bytes of bf16, slightly other candidates "
        "[default: no].",
    ),
]
_DYNAMIC_HELP = (
    "Beside the tokens of --vocab also draft with those of the text so far (`context`), or with the best of a "
    "ranker given with --head (`ranker`); SIZE tokens at most [default: context: 2,999 less the "
    "vocabulary's, at least 256; ranker: 512]."
)
DynamicOption = Annotated[
    list[str] | None,
    typer.Option("--dynamic", metavar="context[:SIZE]|ranker[:SIZE]", help=_DYNAMIC_HELP + " Repeatable."),
]
OneDynamicOption = Annotated[
    str | None, typer.Option("--dynamic", metavar="context[:SIZE]|ranker[:SIZE]", help=_DYNAMIC_HELP)
]


def head_request(
    given: Sequence[str] | None,
    shortlist: int | None,
    budget: str | None,
    rows: Rows | None,
    dynamic: Sequence[str] | None = None,
    fp8: bool | None = None,
) -> HeadRequest:
    """The options as :func:`~vocabforge.decode.build.build_methods` takes them."""
    from ..decode.build_heads import HeadRequest

    return HeadRequest(
        tuple(given or ()),
        shortlist,
        budget,
        None if rows is None else rows.value,
        tuple(dynamic or ()),
        fp8 or None,
    )


def check_one_way(vocab: Path | None, head: Path | None, dynamic: str | None) -> None:
    """Refuse a draft vocabulary and a trained head that one run cannot both draft with.

    Raises:
        UsageError: they are given together, and ``dynamic`` does not join them; or it has nothing to join.
    """
    from ..core.errors import UsageError
    from ..decode.build_vocab_heads import parse_dynamic

    source = None if dynamic is None else parse_dynamic(dynamic).source
    if dynamic is not None and vocab is None:
        raise UsageError("--dynamic adds tokens to a draft vocabulary", expected="--vocab DIR beside it")
    if vocab is not None and head is not None and source != "ranker":
        raise UsageError(
            "one run of generate drafts in one way",
            got="--vocab and --head" + ("" if dynamic is None else f" and --dynamic {dynamic}"),
            expected="one of them, or --dynamic ranker with both of them",
        )
