"""Options of the commands that draft with a trained draft head."""

from __future__ import annotations

from dataclasses import dataclass
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


_DYNAMIC_METAVAR = "context[:SIZE]|ranker[:SIZE]"
_DYNAMIC_HELP = (
    "Beside the tokens of --vocab also draft with those of the text so far (`context`), or with the best of a "
    "ranker given with --head (`ranker`); SIZE tokens at most [default: context: 2,999 less the "
    "vocabulary's, at least 256; ranker: 512]."
)


@dataclass(frozen=True, kw_only=True)
class HeadUseOptions:
    """How much of the vocabulary a draft head scores."""

    shortlist: Annotated[
        int | None,
        typer.Option("--shortlist", min=1, help="Candidates of a ranker [default: what it was saved with]."),
    ] = None
    budget: Annotated[
        str | None,
        typer.Option(
            "--budget",
            metavar="K|LAW:MAX:MIN",
            help="Clusters that a router opens: K at every draft step, or a schedule such as decay:32:8; "
            "no more than its clusters [default: what it was saved with].",
        ),
    ] = None
    head_rows: Annotated[
        Rows | None,
        typer.Option(
            "--head-rows",
            help="Shortlist of a draft step's rows: their own, or one shared union [default: own for a ranker, "
            "shared for a router].",
        ),
    ] = None
    ranker_fp8: Annotated[
        bool | None,
        typer.Option(
            "--ranker-fp8/--no-ranker-fp8",
            help="Read a ranker's scorer in 8 bits a weight: half the bytes of bf16, slightly other candidates "
            "[default: no].",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class HeadOptions:
    """Draft heads to draft with."""

    head: Annotated[
        list[str] | None,
        typer.Option(
            "--head",
            help="Draft head (ranker, low-rank, router), as DIR or LABEL=DIR: also draft with it. Repeatable.",
        ),
    ] = None
    use: HeadUseOptions
    dynamic: Annotated[
        list[str] | None,
        typer.Option("--dynamic", metavar=_DYNAMIC_METAVAR, help=_DYNAMIC_HELP + " Repeatable."),
    ] = None

    def request(self) -> HeadRequest:
        """The options as :func:`~vocabforge.decode.build.build_methods` takes them."""
        from ..decode.build_heads import HeadRequest

        return HeadRequest(
            given=tuple(self.head or ()),
            shortlist=self.use.shortlist,
            budget=self.use.budget,
            rows=None if self.use.head_rows is None else self.use.head_rows.value,
            dynamic=tuple(self.dynamic or ()),
            fp8=self.use.ranker_fp8 or None,
        )


@dataclass(frozen=True, kw_only=True)
class OneHeadOptions:
    """The draft head of a run that drafts in one way."""

    head: Annotated[
        Path | None, typer.Option("--head", help="Draft head (ranker, low-rank, router) to draft with.")
    ] = None
    use: HeadUseOptions
    dynamic: Annotated[
        str | None, typer.Option("--dynamic", metavar=_DYNAMIC_METAVAR, help=_DYNAMIC_HELP)
    ] = None

    def as_many(self) -> HeadOptions:
        """The same for a run that drafts in several ways."""
        return HeadOptions(
            head=[str(self.head)] if self.head else None,
            use=self.use,
            dynamic=[self.dynamic] if self.dynamic else None,
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
