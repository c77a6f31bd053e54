"""A chain drafted in one call: the compiled op against plain PyTorch, and against drafting token after token."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from vocabforge.core.errors import UsageError
from vocabforge.models.drafters.eagle3 import Eagle3Config, Eagle3Drafter
from vocabforge.models.kv_cache import CacheView, KVCache
from vocabforge.ops.draft_chain import draft_chain

pytestmark = pytest.mark.usefixtures("native_cpu")

VOCAB, HIDDEN, CAPACITY = 90, 48, 40
FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "whole vocabulary": {"draft_vocab_size": None},
    "normed residual": {"norm_before_residual": True},
    "normed output, norms of heads": {"norm_output": True, "qk_norm": True},
    "normed features": {"fc_norm": True},
}


def drafter_of(**form: Any) -> Eagle3Drafter:
    torch.manual_seed(0)
    sizes = {"draft_vocab_size": 30, **form}
    config = Eagle3Config(
        HIDDEN, 40, 6, 2, 16, VOCAB, aux_layers=(0, 1, 2), max_position_embeddings=CAPACITY, **sizes
    )
    rows = None if config.draft_vocab_size is None else torch.randperm(VOCAB)[:30].sort().values
    made = Eagle3Drafter(config, torch.randn(VOCAB, HIDDEN), torch.randn(VOCAB, HIDDEN), rows)
    for name, weight in made.named_parameters():
        torch.nn.init.normal_(weight, 1.0 if name.endswith("norm.weight") else 0.0, 0.3)
    return made.eval().requires_grad_(False)


def cache_of() -> KVCache:
    cache = KVCache(1, 1, 2, CAPACITY, 16, torch.float32, torch.device("cpu"))
    cache.k.fill_(torch.nan)  # what is behind the committed slots may be anything
    cache.v.fill_(torch.nan)
    random = torch.Generator().manual_seed(1)
    for one in (cache.k, cache.v):
        one[:, :, :, :7] = torch.randn(1, 1, 2, 7, 16, generator=random)
    return cache


def head_of(drafter: Eagle3Drafter) -> tuple[Tensor, Tensor | None]:
    whole = drafter.config.draft_vocab_size is None
    return drafter.head_weight, None if whole else drafter.target_ids


def step_by_step(
    drafter: Eagle3Drafter, features: Tensor, ids: Tensor, count: int, cache: KVCache
) -> list[int]:
    """The same drafts by the drafter's own steps."""
    start, tokens = 7, [int(ids[-1])]
    g = drafter.fuse(features)[None]
    ids = ids[None]
    while len(tokens) <= count:
        steps = torch.arange(start, start + ids.shape[1])[None]
        mask = torch.arange(int(steps[0, -1]) + 1) <= steps[0, :, None]
        g, read = drafter.extend(ids, g, steps, CacheView(cache, steps[0], mask))
        head, rows = head_of(drafter)
        best = (read[0, -1:] @ head.T).argmax(-1)
        ids = (best if rows is None else rows[best])[None]
        tokens.append(int(ids))
        start, g = start + steps.shape[1], g[:, -1:]
    return tokens


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("committed", [1, 3, 16])
@pytest.mark.parametrize("form", FORMS)
def test_a_chain_is_what_the_steps_draft(form: str, committed: int, count: int) -> None:
    drafter = drafter_of(**FORMS[form])
    random = torch.Generator().manual_seed(committed)
    features = torch.randn(committed, 3 * HIDDEN, generator=random)
    ids = torch.randint(VOCAB, (committed,), generator=random)
    head, rows = head_of(drafter)
    with torch.no_grad():
        one, other = cache_of(), cache_of()
        found, _ = drafter.chain(ids, features, 7, count, cache=one, head=head, head_ids=rows)
        assert found.tolist() == step_by_step(drafter, features, ids, count, other)
    used = 7 + committed + count - 1
    torch.testing.assert_close(one.k[..., :used, :], other.k[..., :used, :])
    torch.testing.assert_close(one.v[..., :used, :], other.v[..., :used, :])
    assert one.k[..., used:, :].isnan().all()


def arguments() -> dict[str, Any]:
    drafter, cache = drafter_of(), cache_of()
    head, rows = head_of(drafter)
    return {
        "features": torch.randn(2, 3 * HIDDEN, generator=torch.Generator().manual_seed(3)),
        "fc": drafter.fc.weight,
        "ids": torch.tensor([4, 5]),
        "start": 7,
        "count": 3,
        "embedding": drafter.embedding,
        "normed_output": False,
        "norm": drafter.norm.weight,
        "cos": drafter.cos,
        "sin": drafter.sin,
        "keys": cache.k,
        "values": cache.v,
        "head": head,
        "head_ids": rows,
        **drafter.midlayer.merged(),
    }


def test_the_compiled_op_is_the_reference() -> None:
    with torch.no_grad():
        (native, head_s), (plain, _) = (
            draft_chain(**arguments(), backend=backend) for backend in ("native", "reference")
        )
        assert native.tolist() == plain.tolist()
        assert native[0] == 5
        assert head_s.item() > 0


@pytest.mark.parametrize(
    "change",
    [
        {"start": CAPACITY - 3},
        {"ids": torch.tensor([4, VOCAB])},
        {"ids": torch.tensor([4])},
        {"count": 0},
        {"head_ids": torch.arange(29)},
        {"embedding": torch.randn(VOCAB, HIDDEN + 1)},
    ],
)
def test_wrong_arguments_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="compiled draft_chain does not take"), torch.no_grad():
        draft_chain(**(arguments() | change), backend="native")
