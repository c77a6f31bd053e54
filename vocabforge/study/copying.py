"""A start for EAGLE-3 drafters that copies from the prompt.

What is rare in an answer mostly stands in its prompt. A drafter's one layer can take it from there: the entry at
position s holds the target's states of token x_s beside the embedding of the token behind it, x_{s+1}. A query with the
embedding of x_{t+1} that finds the s with x_s = x_{t+1} drafts x_{s+1}. From random weights this takes more text to be
learnt than small runs have, so that one of the query heads, with its key head, starts as that:

* some coordinates of g take what the lowest auxiliary layer tells of its own token, P e(x_s), by ridge regression;
* keys read these coordinates, the query P e(x_{t+1}), both in rotary pairs that hardly turn within ``reach`` positions;
* value and output matrices take D directions of the embedding to those of the LM head's rows of the same tokens.

Everything is trained from there. The method is this project's; for induction see ``study.induction``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

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


@dataclass(frozen=True)
class _Tokens:
    """Embeddings (n, H) of some tokens as the layer reads them, their mean (H,), and a soft whitening (H, H)."""

    read: Tensor
    mean: Tensor
    whiten: Tensor

    @classmethod
    def of(cls, embeddings: Tensor) -> _Tokens:
        read = _normed(embeddings.float())
        mean = read.mean(0)
        apart = read - mean
        values, vectors = torch.linalg.eigh(apart.T @ apart / len(read))
        whiten = vectors @ torch.diag((values + _SOFT * values.mean()).clamp(min=_EPS).rsqrt()) @ vectors.T
        return cls(read, mean, whiten)

    def directions(self, rows: Tensor) -> Tensor:
        """(m, H) rows scaled so that what they read of a token has a deviation of 1, and nothing of the mean."""
        along = self.mean / self.mean.norm().clamp(min=_EPS)
        rows = rows - (rows @ along)[:, None] * along
        found = (self.read - self.mean) @ rows.T
        return rows / found.pow(2).mean(0).sqrt().clamp(min=_EPS)[:, None]


@torch.no_grad()
def start_copying(drafter: Eagle3Drafter, batch: CapturedBatch, reach: int) -> None:
    """Let one head of a drafter that ``start_from_target`` has set start as copying.

    Args:
        batch: some captured rows.
        reach: positions back that are looked up.

    Raises:
        UsageError: too few rotary pairs are slow enough, or the sizes have no room.
    """
    sizes = drafter.config
    half = sizes.head_dim // 2
    slow = (drafter.cos[1, :half].float().acos() < 1 / reach).nonzero()[:, 0]
    width = min(2 * len(slow), sizes.hidden_size // 4)
    if width < _FEWEST:
        raise UsageError(
            "the drafter has no room for a head that copies",
            got=f"{len(slow)} of {half} rotary pairs turn by less than a radian within {reach} positions, hidden size "
            f"{sizes.hidden_size}",
            expected=f"{_FEWEST} coordinates to know a token by",
            remedy="set drafters.copying: false, or choose shorter rows",
        )
    real = batch.document != 0
    ids = batch.input_ids[real]
    some = _some_tokens(ids, len(drafter.embedding))
    tokens = _Tokens.of(drafter.embedding[some])
    random = torch.randn(width, sizes.hidden_size, generator=torch.Generator().manual_seed(0))
    known = tokens.directions(random.to(tokens.whiten) @ tokens.whiten)  # P, (r, H)
    _tell(drafter, batch.features[real], _normed(drafter.embedding[ids].float()) @ known.T)
    _look_up(drafter, known, torch.cat([slow, slow + half])[:width])
    _raise(drafter, tokens, drafter.target_head[some].float())


def _some_tokens(ids: Tensor, count: int) -> Tensor:
    """The tokens of a text and as many others: what is copied is mostly rare."""
    found = ids.unique()
    others = torch.randperm(count, generator=torch.Generator().manual_seed(0))[: max(len(found), _OTHERS)]
    return torch.cat([found, others.to(found.device)]).unique()


def _normed(rows: Tensor) -> Tensor:
    """RMSNorm with a weight of 1, as a fresh drafter's.

    Its divisor is clamped where ``F.rms_norm`` adds: rows of zeros, as padded vocabularies have them, stay zeros, and
    no other row is changed by it.
    """
    return rows * rows.pow(2).mean(-1, keepdim=True).clamp(min=_EPS).rsqrt()


def _tell(drafter: Eagle3Drafter, features: Tensor, wanted: Tensor) -> None:
    """The first r rows of ``fc`` tell ``wanted`` (N, r) from the lowest auxiliary layer's states."""
    size, width = drafter.config.hidden_size, wanted.shape[1]
    states = features[:, :size].float()
    gram = states.T @ states
    gram += _RIDGE * gram.diagonal().mean() * torch.eye(size, device=gram.device)
    weight = drafter.fc.weight
    weight[:width] = 0.0
    weight[:width, :size] = torch.linalg.solve(gram, states.T @ wanted).T.to(weight.dtype)


def _look_up(drafter: Eagle3Drafter, known: Tensor, places: Tensor) -> None:
    """Query and key of the first head: highest where the coordinates of g tell the token that is read."""
    attention, (width, size) = drafter.midlayer.self_attn, known.shape
    head = attention.head_dim
    scale = math.sqrt(_MATCH * math.sqrt(head) / width)
    query, key = attention.q_proj.weight[:head], attention.k_proj.weight[:head]  # (D, 2H): embedding, g
    query.zero_()
    key.zero_()
    query[places, :size] = (scale * known).to(query.dtype)
    key[places, size + torch.arange(width, device=places.device)] = scale


def _raise(drafter: Eagle3Drafter, tokens: _Tokens, rows: Tensor) -> None:
    """Value and output of the first head: a token's embedding to what raises its logit.

    Args:
        rows: (n, H) of the target's LM head, of the same tokens.
    """
    attention, size = drafter.midlayer.self_attn, drafter.config.hidden_size
    head = attention.head_dim
    raising = drafter.norm.weight.float() * rows  # gradient of each token's logit by g, but for its norm
    apart = raising - raising.mean(0)
    read = (tokens.read - tokens.mean) @ tokens.whiten
    left, _, right = torch.linalg.svd(apart.T @ read)
    count = min(head, size)
    into = tokens.directions(right[:count] @ tokens.whiten)  # (D, H)
    out = left[:, :count]  # (H, D)
    gain = ((tokens.read @ into.T @ out.T) * apart).sum(-1).mean().clamp(min=_EPS)
    value, output = attention.v_proj.weight[:head], attention.o_proj.weight[:, :head]
    value.zero_()
    output.zero_()
    value[:count, :size] = into.to(value.dtype)
    output[:, :count] = (_RAISED / gain * out).to(output.dtype)
