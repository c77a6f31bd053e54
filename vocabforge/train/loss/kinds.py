"""Kinds of loss for draft rows: values and gradients.

q is the softmax of the draft logits over the R draft tokens. p is the target's distribution over all V
tokens, restricted to these R; it sums to P <= 1. alpha = sum_v min(p, q) is the acceptance probability in
sampling. y is the data's next token::

    kl           -sum_v p/P log q                  soft cross-entropy; rows whose target argmax is a draft
    token ce           -log q_y                          rows whose y is a draft token
    reverse-kl   sum_v q (log q - log p)
    tv           1 - alpha
    nla          -log max(alpha, 1e-5)
    lk           l KL + (1 - l) (1 - alpha)        KL = sum_v p (log p - log q), l = exp(-3 alpha) without
    gradient

``nla`` and ``lk`` are the LK losses. All rows count except in ``kl`` and ``ce``. Each kind has two forms: its
value as a function of :class:`RowSums`, which autograd can differentiate, and its explicit gradient with
respect to the draft logits as :class:`Slope`. For the formulas see docs/methods.md, Losses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

ETA = 3.0  # rate at which the LK hybrid changes from KL to 1 - alpha
LEAST_ALPHA = 1e-5

Mixture = tuple[tuple[str, float], ...]
KL: Mixture = (("kl", 1.0),)


class TeacherLogs(NamedTuple):
    """Target distribution at C positions.

    Attributes:
        log_p: (C, R) log p(v) of the draft tokens, normalised over all V.
        mass: (C,) P.
        entropy: (C,) -sum p log p over the draft tokens.
    """

    log_p: Tensor
    mass: Tensor
    entropy: Tensor


class RowSums(NamedTuple):
    """Sums over the draft tokens, (N,) each.

    Attributes:
        mass, entropy: see :class:`TeacherLogs`.
        known, labelled: bool, whether the target's argmax and the data's next token are draft tokens.
        alpha: sum min(p, q).
        below: sum of q over the tokens with q <= p.
        ratio: sum q (log q - log p).
        cross: -sum p log q.
        label: log q_y; arbitrary if not ``labelled``.
    """

    mass: Tensor
    entropy: Tensor
    known: Tensor
    labelled: Tensor
    alpha: Tensor
    below: Tensor
    ratio: Tensor
    cross: Tensor
    label: Tensor


class Slope(NamedTuple):
    """Factors (N,) of a gradient with respect to the draft logits; 0.0 omits a term.

    ``q q_v + below q_v [q_v <= p_v] + ratio q_v (log q_v - log p_v) + p p_v + label [v = y]``
    """

    q: Tensor | float = 0.0
    below: Tensor | float = 0.0
    ratio: Tensor | float = 0.0
    p: Tensor | float = 0.0
    label: Tensor | float = 0.0


class LossKind(NamedTuple):
    """Value (N,) and slope of a loss of N rows."""

    value: Callable[[RowSums], Tensor]
    slope: Callable[[RowSums], Slope]


def soft_cross_entropy(x: RowSums) -> Tensor:
    """Compute the cross-entropy of q and p, renormalised over the draft tokens.

    It is 0 if the target's argmax is not a draft token.
    """
    return torch.where(x.known, x.cross / x.mass, 0.0)


def _kl_slope(x: RowSums) -> Slope:
    return Slope(q=x.known.to(x.mass.dtype), p=torch.where(x.known, -1 / x.mass, 0.0))


def _ce_slope(x: RowSums) -> Slope:
    labelled = x.labelled.to(x.mass.dtype)
    return Slope(q=labelled, label=-labelled)


def _nla_slope(x: RowSums) -> Slope:
    inverse = torch.where(x.alpha >= LEAST_ALPHA, 1 / x.alpha, 0.0)
    return Slope(q=x.below * inverse, below=-inverse)


def _lk(x: RowSums) -> Tensor:
    share = (-ETA * x.alpha.detach()).exp()
    return share * (x.cross - x.entropy) + (1 - share) * (1 - x.alpha)


def _lk_slope(x: RowSums) -> Slope:
    share = (-ETA * x.alpha).exp()
    return Slope(q=share * x.mass + (1 - share) * x.below, below=share - 1, p=-share)


LOSSES: Mapping[str, LossKind] = {
    "kl": LossKind(soft_cross_entropy, _kl_slope),
    "ce": LossKind(lambda x: torch.where(x.labelled, -x.label, 0.0), _ce_slope),
    "reverse-kl": LossKind(lambda x: x.ratio, lambda x: Slope(q=-x.ratio, ratio=1.0)),
    "tv": LossKind(lambda x: 1 - x.alpha, lambda x: Slope(q=x.below, below=-1.0)),
    "nla": LossKind(lambda x: -x.alpha.clamp(min=LEAST_ALPHA).log(), _nla_slope),
    "lk": LossKind(_lk, _lk_slope),
}


def teacher_logs(z: Tensor, target_ids: Tensor | None, log_sum: Tensor | None = None) -> TeacherLogs:
    """Compute teacher terms from logits z (C, V), or (C, R) with ``log_sum`` (C,) over all V tokens."""
    some = z if target_ids is None or log_sum is not None else z[:, target_ids]
    log_p = some - (z.logsumexp(-1) if log_sum is None else log_sum)[:, None]
    p = log_p.exp()
    mass = p.sum(-1).clamp(min=torch.finfo(p.dtype).tiny)  # used as a divisor
    return TeacherLogs(log_p, mass, torch.special.entr(p).sum(-1))


def row_sums(log_q: Tensor, teacher: TeacherLogs, column: Tensor, label: Tensor) -> RowSums:
    """Compute the sums of N draft rows.

    Args:
        log_q: (N, R).
        teacher: teacher of each row.
        column, label: (N,) columns of the target's argmax and of y, -1 for none.
    """
    log_p = teacher.log_p
    q, p, less = log_q.exp(), log_p.exp(), log_q <= log_p
    return RowSums(
        mass=teacher.mass,
        entropy=teacher.entropy,
        known=column >= 0,
        labelled=label >= 0,
        alpha=torch.where(less, q, p).sum(-1),
        below=torch.where(less, q, 0.0).sum(-1),
        ratio=(q * (log_q - log_p)).sum(-1),
        cross=-(p * log_q).sum(-1),
        label=log_q.gather(-1, label.clamp(min=0)[:, None])[:, 0],
    )


def value_of(mixture: Mixture, sums: RowSums) -> Tensor:
    """Compute the loss (N,) of each row, the weighted sum of its kinds."""
    return torch.stack([weight * LOSSES[name].value(sums) for name, weight in mixture]).sum(0)


def slope_of(mixture: Mixture, sums: RowSums) -> Slope:
    """Compute the slope of :func:`value_of`."""
    total = Slope()
    for name, weight in mixture:
        slope = LOSSES[name].slope(sums)
        total = Slope(
            *(a if isinstance(b, float) and b == 0.0 else a + weight * b for a, b in zip(total, slope))
        )
    return total


def gradient_of(slope: Slope, log_q: Tensor, log_p: Tensor, label: Tensor) -> Tensor:
    """Compute the gradient (N, R) with respect to the draft logits; ``label`` (N,) as in :func:`row_sums`."""
    q, below, ratio, p, here = (f[:, None] if isinstance(f, Tensor) else f for f in slope)
    if isinstance(below, Tensor) or below:
        q = q + below * (log_q <= log_p)
    if isinstance(ratio, Tensor) or ratio:
        q = q + ratio * (log_q - log_p)
    made = log_q.exp() * q
    if isinstance(p, Tensor):
        made = made + p * log_p.exp()
    if isinstance(here, Tensor):
        made = made.scatter_add(1, label.clamp(min=0)[:, None], here)
    return made
