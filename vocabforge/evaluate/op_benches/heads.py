"""Draft heads as decoding pays them: ranker, selection, logits, softmax, top-k and map to target ids in one call.

Weights are random, of the sizes of the shape. Hidden rows of a draft step are either unlike (independent: each
row of a ranker names candidates of its own) or alike (siblings: they share most).
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from ...models.head_types import DraftState, HeadBase
from .heads_build import LOGIT, HeadSetting, build_setting, hybrid_core, text_tokens
from .heads_law import law_of
from .types import Inputs, OpCase, Shape, distinct_ids, generator, normal

_NOISE = 0.1  # of siblings, beside a common part of 1
_HYBRID_TAIL = 512
_STEP = 1
# Between two orders of summation, and of bf16 logits up to about 4 standard deviations.
_TOLERANCE = 0.1


def settings(shape: Shape) -> list[HeadSetting]:
    """The heads of the table at one shape."""
    several = shape.rows > 1
    found = [
        HeadSetting("full", "full"),
        HeadSetting("full", "full, torch's top-k", ops=False),
        HeadSetting("static", f"static {shape.static:,}"),
        HeadSetting("static", f"static {shape.static:,}, torch's top-k", ops=False),
        HeadSetting("low-rank", f"low rank d/{shape.hidden // shape.ranks[0]}", rank=shape.ranks[0]),
    ]
    for rank in shape.ranks:
        for shortlist in shape.shortlists:
            for alike in (True, False) if several else (True,):
                label = f"ranker d/{shape.hidden // rank}, k = {shortlist:,}"
                label += (", rows alike" if alike else ", rows unlike") if several else ""
                found.append(HeadSetting("ranker", label, True, rank, shortlist, alike))
    middle = shape.shortlists[len(shape.shortlists) // 2]
    for rank in shape.ranks:
        label = f"ranker d/{shape.hidden // rank} in fp8, k = {middle:,}"
        found.append(HeadSetting("ranker", label, True, rank, middle, fp8=True))
    rank = shape.ranks[-1]
    tail = min(_HYBRID_TAIL, min(shape.shortlists))
    return [
        *found,
        HeadSetting("router", f"router, about {shape.router_tokens:,}", True),
        HeadSetting("context", f"context {shape.context_tokens:,}", True),
        HeadSetting("hybrid", f"hybrid {hybrid_core(shape):,} + {tail}", True, rank, tail),
    ]


def cases(shape: Shape) -> list[OpCase]:
    """One case a head; ``sizes`` tells the setting."""
    return [case_of(shape, setting) for setting in settings(shape)]


def case_of(shape: Shape, setting: HeadSetting) -> OpCase:
    """The case of one head."""
    floor = partial(floor_bytes, shape=shape, setting=setting)
    name = f"{setting.label} V={shape.vocab} N={shape.rows}"
    return OpCase(
        name=name,
        op=f"head {setting.kind}",
        sizes={
            "V": shape.vocab,
            "N": shape.rows,
            "d": shape.hidden,
            "r": setting.rank,
            "k": setting.shortlist,
            "dynamic": int(setting.dynamic),
            "alike": int(setting.alike),
            "fp8": int(setting.fp8),
            "ops": int(setting.ops),
        },
        make=partial(_make, shape, setting),
        vary=partial(_vary, shape, setting),
        run=lambda inputs, backend: inputs["head"].topk(inputs["hidden"], shape.topk, inputs["state"]),
        reference=partial(_reference, setting, shape.topk),
        floor_bytes=floor,
        floor_flops=2.0 * shape.rows * _macs(shape, setting),
        check=_check,
    )


def requests_of(rows: int) -> int:
    """Requests that N rows belong to: up to ten rows are one draft step of one."""
    return max(1, rows // 10)


def _make(shape: Shape, setting: HeadSetting, device: torch.device, dtype: torch.dtype, seed: int) -> Inputs:
    random = generator(device, seed)
    size = (shape.vocab, shape.hidden)
    weight = normal(size, random, dtype, LOGIT / shape.hidden**0.5)
    base = HeadBase(nn.Parameter(weight, False), torch.arange(shape.vocab, device=device), weight)
    return _with_head(shape, setting, base, seed)


def _vary(shape: Shape, setting: HeadSetting, inputs: Inputs, seed: int) -> Inputs:
    """Another head over the same big matrix: it touches other rows, and has weights of its own."""
    return _with_head(shape, setting, inputs["base"], seed)


def _with_head(shape: Shape, setting: HeadSetting, base: HeadBase, seed: int) -> Inputs:
    random = generator(base.weight.device, seed + 1)
    dtype, rows = base.weight.dtype, shape.rows
    hidden, previous = (_rows(shape, random, dtype, setting.alike) for _ in range(2))
    tokens = torch.randint(shape.vocab, (1,), generator=random, device=hidden.device).expand(rows).clone()
    requests = requests_of(rows)
    context = distinct_ids(shape.vocab, (requests, text_tokens(shape)), random)
    state = DraftState(_STEP, tokens, previous, requests, context)
    head, module, used = build_setting(shape, setting, base, random)
    own = {f"part {n}": one for n, one in enumerate(module.parameters())} if module is not None else {}
    return {
        "head": head,
        "hidden": hidden,
        "state": state,
        "base": base,
        "module": module,
        "used": used,
        "fp8": setting.fp8,
        "weight": base.weight,
        **own,
    }


def _rows(shape: Shape, random: torch.Generator, dtype: torch.dtype, alike: bool) -> Tensor:
    """(N, d) hidden states of about unit scale."""
    if not alike:
        return normal((shape.rows, shape.hidden), random, dtype)
    common = normal((requests_of(shape.rows), shape.hidden), random, dtype)
    common = common.repeat_interleave(shape.rows // len(common), 0)
    noise = normal((len(common), shape.hidden), random, dtype, _NOISE)
    return common + noise


def _macs(shape: Shape, setting: HeadSetting) -> int:
    """Multiply-adds of a row that cannot be avoided."""
    scorer = setting.rank * (shape.vocab + shape.hidden)
    width = max(1, shape.hidden // 4)
    return {
        "full": shape.vocab * shape.hidden,
        "static": shape.static * shape.hidden,
        "low-rank": scorer,
        "ranker": scorer + setting.shortlist * shape.hidden,
        "router": width * (2 * shape.hidden + shape.clusters) + shape.router_tokens * shape.hidden,
        "context": shape.context_tokens * shape.hidden,
        "hybrid": scorer + (hybrid_core(shape) + setting.shortlist) * shape.hidden,
    }[setting.kind]


def floor_bytes(inputs: Inputs, shape: Shape, setting: HeadSetting) -> float:
    """Every weight row that the step needs, once: scorers and MLPs whole, rows of the LM head that any row lists."""
    item = inputs["weight"].element_size()
    module = inputs["module"]
    own = 0.0 if module is None else float(sum(p.numel() * p.element_size() for p in module.parameters()))
    if setting.fp8:  # one byte a weight of W_vocab, and four a row
        own += shape.vocab * (setting.rank * (1.0 - item) + 4.0)
    rows = 0
    if setting.kind not in ("low-rank", "static"):  # those read their own parts only
        listed = law_of(setting.kind, inputs, shape.topk)[1]
        rows = shape.vocab if listed is None else int(listed.any(0).sum())
    return float(own + rows * shape.hidden * item + shape.rows * shape.hidden * item)


def _reference(setting: HeadSetting, topk: int, inputs: Inputs) -> tuple[Tensor, ...]:
    """(N, V) fp32 log-probabilities, -inf outside of a row's shortlist."""
    logits, listed = law_of(setting.kind, inputs, topk)
    if listed is not None:
        logits = logits.masked_fill(~listed, float("-inf"))
    return (logits.log_softmax(-1),)


def _check(inputs: Inputs, got: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> str | None:
    """Each answer has the probability that the reference gives it, and none is missed."""
    (logprobs, ids), (law,) = got, expected
    k = ids.shape[1]
    if int((ids < 0).sum() + (ids >= law.shape[1]).sum()):
        return "ids outside of the vocabulary"
    if bool((ids.sort(1).values.diff(dim=1) == 0).any()):
        return "an id stands twice in a row"
    for what, theirs in (("of the ids", law.gather(1, ids)), ("of the best", law.topk(k, 1).values)):
        error = float((logprobs.double() - theirs.double()).abs().max())
        if not error <= _TOLERANCE:
            return f"log-probabilities {what} differ by {error:.3f}"
    return None
