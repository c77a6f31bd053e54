"""A start for EAGLE-3 drafters that copies from the prompt.

What is rare in an answer mostly stands in its prompt, and a drafter's one layer can take it from there: the entry at
position s holds the target's states of token x_s beside the embedding of x_{s+1}. A query with the embedding of x_{t+1}
that finds the s with x_s = x_{t+1} drafts x_{s+1}. Small runs do not learn this from random weights, so one query head,
with its key head, starts as it; everything is trained from there. The method is this project's:

* some coordinates of g take what the lowest auxiliary layer tells of its own token, P e(x_s), by ridge regression;
* keys read these coordinates, the query P e(x_{t+1}), both in rotary pairs that hardly turn within ``reach`` positions;
* value and output matrices take D directions of the embedding to those of the LM head's rows of the same tokens.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..capture.online import CapturedBatch
from ..core.errors import UsageError
from ..models.drafters.eagle3 import Eagle3Drafter

_MATCH = 20.0  # score of the position with the same token; others have it at random, near 0
_RAISED = 16.0  # nats that the token found gains
_SOFT = 1.0  # of the mean variance, added to every direction's before it is divided by it
_RIDGE = 1e-3  # likewise, of the regression
_OTHERS = 4096  # tokens of the whole vocabulary, beside those of the rows
_FEWEST = 4  # coordinates to know a token by
_EPS = 1e-6


@torch.no_grad()
def start_copying(drafter: Eagle3Drafter, batch: CapturedBatch, reach: int) -> None:
    """Let the first head of a drafter that ``start_from_target`` has set copy from ``reach`` positions back.

    Raises:
        UsageError: too few rotary pairs are slow enough, or the sizes have no room.
    """
    size, head = drafter.config.hidden_size, drafter.config.head_dim
    half, attention = head // 2, drafter.midlayer.self_attn
    slow = (drafter.cos[1, :half].float().acos() < 1 / reach).nonzero()[:, 0]
    width = min(2 * len(slow), size // 4)  # r
    if width < _FEWEST:
        raise UsageError(
            "the drafter has no room for a head that copies",
            got=f"{len(slow)} of {half} rotary pairs turn by less than a radian within {reach} positions, hidden size "
            f"{size}",
            expected=f"{_FEWEST} coordinates to know a token by",
            remedy="set drafters.copying: false, or choose shorter rows",
        )
    real = batch.document != 0
    ids, device = batch.input_ids[real], batch.input_ids.device
    others = torch.randperm(len(drafter.embedding), generator=torch.Generator().manual_seed(0))
    some = torch.cat([ids.unique(), others[: max(len(ids.unique()), _OTHERS)].to(device)]).unique()
    read = _normed(drafter.embedding[some].float())  # (n, H), as the layer reads them
    mean = read.mean(0)
    apart = read - mean
    values, vectors = torch.linalg.eigh(apart.T @ apart / len(read))
    scales = (values + _SOFT * values.mean()).clamp(min=_EPS).rsqrt()
    whiten = vectors @ torch.diag(scales) @ vectors.T  # (H, H), soft

    def directions(rows: Tensor) -> Tensor:
        """(m, H) rows scaled so that what they read of a token has a deviation of 1, and nothing of the mean."""
        along = mean / mean.norm().clamp(min=_EPS)
        rows = rows - (rows @ along)[:, None] * along
        return rows / (apart @ rows.T).pow(2).mean(0).sqrt().clamp(min=_EPS)[:, None]

    # fc: the first r rows tell P e(x_s) from the lowest auxiliary layer's states.
    random = torch.randn(width, size, generator=torch.Generator().manual_seed(0)).to(whiten)
    known = directions(random @ whiten)  # P, (r, H)
    states = batch.features[real][:, :size].float()
    gram = states.T @ states
    gram += _RIDGE * gram.diagonal().mean() * torch.eye(size, device=device)
    told = torch.linalg.solve(gram, states.T @ (_normed(drafter.embedding[ids].float()) @ known.T))
    drafter.fc.weight[:width] = 0.0
    drafter.fc.weight[:width, :size] = told.T.to(drafter.fc.weight.dtype)

    # Query and key: highest where these coordinates of g tell the token that is read.
    places = torch.cat([slow, slow + half])[:width]
    scale = math.sqrt(_MATCH * math.sqrt(head) / width)
    query, key = attention.q_proj.weight[:head].zero_(), attention.k_proj.weight[:head].zero_()  # (D, 2H)
    query[places, :size] = (scale * known).to(query.dtype)
    key[places, size + torch.arange(width, device=places.device)] = scale

    # Value and output: a token's embedding to what raises its logit, the gradient by g without its norm.
    raising = drafter.norm.weight.float() * drafter.target_head[some].float()
    raising -= raising.mean(0)
    left, _, right = torch.linalg.svd(raising.T @ (apart @ whiten))
    count = min(head, size)
    into, out = directions(right[:count] @ whiten), left[:, :count]  # (D, H), (H, D)
    gain = ((read @ into.T @ out.T) * raising).sum(-1).mean().clamp(min=_EPS)
    value, output = attention.v_proj.weight[:head].zero_(), attention.o_proj.weight[:, :head].zero_()
    value[:count, :size] = into.to(value.dtype)
    output[:, :count] = (_RAISED / gain * out).to(output.dtype)


def _normed(rows: Tensor) -> Tensor:
    """RMSNorm with a weight of 1, except that rows of zeros, as padded vocabularies have them, stay zeros."""
    return rows * rows.pow(2).mean(-1, keepdim=True).clamp(min=_EPS).rsqrt()
