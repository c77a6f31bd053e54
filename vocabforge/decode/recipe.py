"""Ways of decoding written down: what ``tune`` recommends and ``eval --recipe`` runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from ..core.config import StrictModel

Size = Annotated[int, Field(gt=0)]


class MethodRecipe(StrictModel):
    """One way of decoding; what is left out takes the defaults of ``eval``'s options of the same names.

    Attributes:
        drafter: trained drafter or draft model; None for proposers without one.
        proposer: row of the proposer table.
        vocab: subset artefact that the draft head is restricted to.
        head: trained draft head; ``shortlist``, ``budget``, ``rows`` and ``fp8`` say how it is used.
        dynamic: what is scored beside ``vocab``: ``context[:SIZE]`` or ``ranker[:SIZE]``.
        tree, depth, topk, total_nodes: shape of what is drafted.
    """

    drafter: Path | None = None
    proposer: str | None = None
    vocab: Path | None = None
    head: Path | None = None
    shortlist: Size | None = None
    budget: str | None = None
    rows: Literal["own", "shared"] | None = None
    fp8: bool | None = None
    dynamic: str | None = None
    tree: Literal["dynamic", "chain", "static"] | None = None
    depth: Annotated[int, Field(ge=0)] | None = None
    topk: Size | None = None
    total_nodes: Annotated[int, Field(ge=2)] | None = None
    control: Literal["fixed", "adaptive"] = "fixed"


class DecodingRecipe(StrictModel):
    """Several ways over one target.

    Attributes:
        target: Hugging Face folder.
        tokenizer: folder; None is the target's.
        dtype: of target and drafters.
        methods: by name; plain decoding always runs beside them.
    """

    target: Path
    tokenizer: Path | None = None
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    methods: dict[str, MethodRecipe]
