"""How far a trained LM head has moved from the target's, and what that says of rows it does not have.

A drafter's own head starts at the target's rows and drifts while it is trained. Rows that are added later come from
the target's head and have not drifted. What all rows did together can be fitted on those that the drafter has, and
applied to the others: ``d_i ~ t_i + t_i B + c`` with a ridge that draws B to 0 (:func:`fit_rows`).

States say more than rows. A drafter's head reads h where the target's reads f; where ``f ~ M h``, the row ``t_i M``
gives the target's logit. Own rows have their own level, since a softmax over them knows none: c is chosen so that
``c h`` lifts the target's log-partition over the drafter's tokens to the drafter's (:func:`fit_states`). No gradient
is needed: both are least squares.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from ..core.errors import UsageError

RIDGES = (0.01, 0.1, 1.0, 10.0)
"""Ridges tried, in mean eigenvalues of the rows' covariance."""
STATE_RIDGE = 0.01
"""Ridge of the fit on states, in mean eigenvalues of their covariance."""
FOLDS = 5
"""One row in so many is held out to choose the form."""
FEWEST_ROWS = 4 * FOLDS

_CHUNK = 1024


@dataclass(frozen=True)
class Spread:
    """Of a figure over rows."""

    lowest: float
    median: float
    highest: float


@dataclass(frozen=True)
class Drift:
    """A drafter's own rows against the target's rows of the same tokens.

    Attributes:
        rows: compared. untouched: of them, equal bit for bit.
        cosine: of the two rows. scale: length of the drafter's row over the target's.
        offset: length of the mean difference, over the mean length of the target's rows: what all rows share.
    """

    rows: int
    untouched: int
    cosine: Spread
    scale: Spread
    offset: float

    def to_json(self) -> dict[str, Any]:
        """By field, for a report."""
        return asdict(self)


@torch.no_grad()
def drift_of(own: Tensor, target: Tensor) -> Drift:
    """The drift of (R, H) rows from the target's (R, H) rows, both in any floating dtype."""
    cosines, scales, lengths = [], [], []
    untouched, total = 0, torch.zeros(own.shape[1], dtype=torch.float64, device=own.device)
    for mine, theirs in _chunks(own, target):
        untouched += int((mine == theirs).all(dim=-1).sum())
        mine, theirs = mine.double(), theirs.double()
        length = theirs.norm(dim=-1)
        cosines.append(F.cosine_similarity(mine, theirs, dim=-1))
        scales.append(mine.norm(dim=-1) / length.clamp(min=1e-30))
        lengths.append(length)
        total += (mine - theirs).sum(dim=0)
    mean_length = torch.cat(lengths).mean().clamp(min=1e-30)
    offset = float((total / len(own)).norm() / mean_length)
    return Drift(len(own), untouched, _spread(torch.cat(cosines)), _spread(torch.cat(scales)), offset)


def _spread(values: Tensor) -> Spread:
    return Spread(float(values.min()), float(values.median()), float(values.max()))


def _chunks(*rows: Tensor) -> Iterator[tuple[Tensor, ...]]:
    for start in range(0, len(rows[0]), _CHUNK):
        yield tuple(tensor[start : start + _CHUNK] for tensor in rows)


@dataclass(frozen=True, eq=False)
class RowFit:
    """Target rows made more like a drafter's own.

    Attributes:
        form: ``none`` (nothing predicted held-out rows better than the target's rows themselves), ``offset`` (c
            alone) or ``linear`` (B and c), fitted on rows; ``states`` (B and c), fitted on states.
        offset: (H,) c, or None. matrix: (H, H) B, or None.
        ridge: of B, in mean eigenvalues; None without B.
        left: squared distance to held-out rows, over that of the target's rows: 1 explains nothing, 0 everything. Of
            ``states``: the share of the target's held-out states' variance that M does not explain.
        rows: rows or states that were fitted.
    """

    form: Literal["none", "offset", "linear", "states"]
    offset: Tensor | None
    matrix: Tensor | None
    ridge: float | None
    left: float
    rows: int

    def apply(self, rows: Tensor) -> Tensor:
        """(M, H) target rows -> (M, H) corrected, in their dtype."""
        corrected = rows.double()
        if self.matrix is not None:
            corrected = corrected + corrected @ self.matrix
        if self.offset is not None:
            corrected = corrected + self.offset
        return corrected.to(rows.dtype)

    def to_json(self) -> dict[str, Any]:
        """Without its matrices, for a report."""
        return {"form": self.form, "ridge": self.ridge, "left": self.left, "rows": self.rows}


@torch.no_grad()
def fit_rows(own: Tensor, target: Tensor) -> RowFit:
    """The correction that predicts held-out rows best, made of all rows then.

    Args:
        own: (R, H) rows of the drafter. target: (R, H) the target's rows of the same tokens.

    Raises:
        UsageError: too few rows to hold some out.
    """
    if len(own) < FEWEST_ROWS:
        raise UsageError(
            "the drafter's head has too few rows to fit a correction on",
            got=f"{len(own)} rows",
            expected=f"at least {FEWEST_ROWS}",
            remedy="use --missing target",
        )
    own, target = own.double(), target.double()
    held = torch.arange(len(own), device=own.device) % FOLDS == FOLDS - 1
    before = float((own[held] - target[held]).pow(2).sum())
    if before == 0.0:
        return RowFit("none", None, None, None, 1.0, len(own))
    best, left = None, 1.0
    for ridge in (None, *RIDGES):
        tried = _solve(own[~held], target[~held], ridge)
        error = float((own[held] - tried.apply(target[held])).pow(2).sum()) / before
        if error < left:
            best, left = tried, error
    if best is None:
        return RowFit("none", None, None, None, 1.0, len(own))
    made = _solve(own, target, best.ridge)
    return RowFit(made.form, made.offset, made.matrix, made.ridge, left, len(own))


def _solve(own: Tensor, target: Tensor, ridge: float | None) -> RowFit:
    """Least squares of own - target on centred target rows; ``ridge`` None fits the offset alone."""
    difference, mean = own - target, target.mean(dim=0)
    offset = difference.mean(dim=0)  # (H,)
    if ridge is None:
        return RowFit("offset", offset, None, None, 1.0, len(own))
    centred = target - mean
    gram = centred.T @ centred  # (H, H)
    gram.diagonal().add_(max(ridge * float(gram.diagonal().mean()), 1e-30))
    matrix = torch.linalg.solve(gram, centred.T @ (difference - offset))
    return RowFit("linear", offset - mean @ matrix, matrix, ridge, 1.0, len(own))


@torch.no_grad()
def fit_states(read: Tensor, hidden: Tensor, own: Tensor, target: Tensor) -> RowFit:
    """A correction from what the drafter's head reads beside what the target's head reads.

    Args:
        read: (N, H) states that the drafter's head reads. hidden: (N, H) the target's of the same tokens.
        own: (R, H) rows of the drafter. target: (R, H) the target's rows of the same tokens.

    Raises:
        UsageError: fewer states than a fit needs.
    """
    width = read.shape[1]
    if len(read) < 2 * width:
        raise UsageError(
            "there are too few states to fit a correction on",
            got=f"{len(read):,}",
            expected=f"at least {2 * width:,}, twice the hidden size",
            remedy="give more --prompts, raise --limit or --max-new-tokens, or use --missing target",
        )
    read, hidden = read.double(), hidden.double()
    held = torch.arange(len(read), device=read.device) % FOLDS == FOLDS - 1
    kept, aim = read[~held], hidden[~held]
    gram = kept.T @ kept  # (H, H)
    gram.diagonal().add_(max(STATE_RIDGE * float(gram.diagonal().mean()), 1e-30))
    matrix = torch.linalg.solve(gram, kept.T @ aim).T  # M: hidden ~ M read
    left = float(
        (hidden[held] - read[held] @ matrix.T).pow(2).sum() / hidden[held].pow(2).sum().clamp(min=1e-30)
    )
    level = kept.T @ _levels(kept, own.double(), target.double() @ matrix)
    offset = torch.linalg.solve(gram, level)
    shift = matrix - torch.eye(width, dtype=matrix.dtype, device=matrix.device)
    return RowFit("states", offset, shift, STATE_RIDGE, left, len(kept))


def _levels(read: Tensor, own: Tensor, others: Tensor) -> Tensor:
    """(N,) log-partition of states (N, H) over one (R, H) head, less that over another."""
    return torch.cat(
        [
            torch.logsumexp(part @ own.T, -1) - torch.logsumexp(part @ others.T, -1)
            for (part,) in _chunks(read)
        ]
    )
