"""Benchmarks of the ops that compute logits of some rows of the LM head, and of the top-k over them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from vocabforge.ops.cluster_logits import cluster_logits, cluster_logits_reference, tiles_bound
from vocabforge.ops.distinct_rows import distinct_rows, distinct_rows_reference
from vocabforge.ops.draft_topk import draft_topk, draft_topk_reference
from vocabforge.ops.indexed_logits import indexed_logits, indexed_logits_reference
from vocabforge.ops.union_logits import union_logits, union_logits_reference

from .types import (
    Inputs,
    ModelShape,
    OpCase,
    case_of_op,
    distinct_ids,
    generator,
    integers,
    normal,
    shared_ids,
    uniform,
)


def _states(shape: ModelShape, random: torch.Generator, dtype: torch.dtype) -> dict[str, Tensor]:
    return {
        "hidden": normal((shape.rows, shape.hidden), random, dtype),
        "weight": normal((shape.vocab, shape.hidden), random, dtype, shape.hidden**-0.5),
    }


def indexed_cases(shape: ModelShape) -> list[OpCase]:
    """Return cases with shared and separate shortlists per hidden state, as in SpecVocab."""
    kinds = ("own",) if shape.rows == 1 else ("shared", "own")
    return [_indexed(shape, k, kind) for k in shape.shortlists for kind in kinds]


def _indexed(shape: ModelShape, k: int, kind: str) -> OpCase:
    rows, vocab, d = shape.rows, shape.vocab, shape.hidden

    def make(random: torch.Generator, dtype: torch.dtype) -> Inputs:
        ids = (shared_ids if kind == "shared" else distinct_ids)(vocab, (rows, k), random)
        return {**_states(shape, random, dtype), "ids": ids.int()}

    def floor(inputs: Inputs) -> float:
        """Count each distinct row once, and hidden states, ids and logits once."""
        listed = int(inputs["ids"].unique().numel())
        return 2.0 * d * (listed + rows) + 8.0 * rows * k

    def gather(inputs: Inputs) -> Tensor:
        """Gather (N, k, d), then compute a batched product, as indexing in torch does."""
        gathered = inputs["weight"][inputs["ids"]]
        return torch.bmm(gathered, inputs["hidden"][:, :, None])[:, :, 0].float()

    return case_of_op(
        indexed_logits,
        indexed_logits_reference,
        name=f"N={rows} V={vocab} k={k} {kind}",
        make=make,
        floor_bytes=floor,
        floor_flops=2.0 * rows * k * d,
        plain=gather,
        goal=k == 2048,
    )


def union_cases(shape: ModelShape) -> list[OpCase]:
    """Return cases for shortlist, context, router and static vocabularies, and one with half the count."""
    sizes = sorted({*shape.shortlists, shape.context_tokens, shape.router_tokens, shape.static})
    return [_union(shape, columns, columns) for columns in sizes] + [_union(shape, sizes[-1], sizes[-1] // 2)]


def _union(shape: ModelShape, columns: int, used: int) -> OpCase:
    rows, vocab, d = shape.rows, shape.vocab, shape.hidden

    def make(random: torch.Generator, dtype: torch.dtype) -> Inputs:
        count = None if used == columns else torch.tensor([used], dtype=torch.int32, device=random.device)
        listed = torch.randperm(vocab, generator=random, device=random.device)[:columns].int()
        return {**_states(shape, random, dtype), "rows": listed, "count": count}

    return case_of_op(
        union_logits,
        union_logits_reference,
        name=f"N={rows} V={vocab} C={columns}" + ("" if used == columns else f" count={used}"),
        make=make,
        floor_bytes=2.0 * d * (used + rows) + 4.0 * (columns + rows * columns),
        floor_flops=2.0 * rows * used * d,
        plain=lambda inputs: F.linear(inputs["hidden"], inputs["weight"][inputs["rows"]]).float(),
    )


def cluster_cases(shape: ModelShape) -> list[OpCase]:
    """Return the case of clusters that all rows open. Sizes are uneven and fixed: 0.5 to 1.5 times the mean."""
    rows, hidden, clusters = shape.rows, shape.hidden, shape.clusters
    shares = torch.rand(clusters, generator=generator(torch.device("cpu"), 7)) + 0.5
    ends = (shares.cumsum(0) / shares.sum() * shape.vocab).round().long()
    ends[-1] = shape.vocab
    sizes = ends.diff(prepend=torch.zeros(1, dtype=torch.int64))
    budget = max(1, shape.router_tokens * clusters // shape.vocab)
    most_tiles = tiles_bound(sizes.tolist(), budget)
    columns = min(shape.vocab, most_tiles * 64)

    def make(random: torch.Generator, dtype: torch.dtype) -> Inputs:
        offsets = F.pad(ends, (1, 0)).to(torch.int32).to(random.device)
        opened = torch.zeros((rows, clusters), dtype=torch.bool, device=random.device)
        opened[:, uniform((clusters,), random).argsort()[:budget]] = True
        return {**_states(shape, random, dtype), "offsets": offsets, "opened": opened}

    def floor(inputs: Inputs) -> float:
        listed = int(inputs["offsets"].diff()[inputs["opened"].any(0)].sum())
        return 2.0 * hidden * (listed + rows) + 4.0 * (listed * rows + listed) + rows * clusters

    def gathered(inputs: Inputs) -> Tensor:
        """Gather as many rows from the head, then compute their logits."""
        listed = torch.arange(columns, device=inputs["weight"].device)
        return F.linear(inputs["hidden"], inputs["weight"][listed]).float()

    case = case_of_op(
        cluster_logits,
        cluster_logits_reference,
        {"most_tiles": most_tiles},
        name=f"N={rows} V={shape.vocab} M={clusters}",
        make=make,
        floor_bytes=floor,
        floor_flops=2.0 * rows * shape.router_tokens * hidden,
        plain=gathered,
    )
    return [case]


def distinct_cases(shape: ModelShape) -> list[OpCase]:
    """Return cases of the distinct ids of separate shortlists."""
    return [_distinct(shape, k) for k in shape.shortlists]


def _distinct(shape: ModelShape, k: int) -> OpCase:
    rows, vocab = shape.rows, shape.vocab
    return case_of_op(
        distinct_rows,
        distinct_rows_reference,
        {"size": vocab},
        name=f"N={rows} V={vocab} k={k}",
        make=lambda random, dtype: {"ids": distinct_ids(vocab, (rows, k), random).int()},
        dtypes=(torch.bfloat16,),
        floor_bytes=4.0 * (2 * rows * k + min(rows * k, vocab)),
    )


def topk_cases(shape: ModelShape) -> list[OpCase]:
    """Return cases over the full vocabulary, a static subset with its map, and a ranker's candidates."""
    fixed = [_topk(shape, "whole vocabulary", shape.vocab), _topk(shape, "static", shape.static)]
    return fixed + [_topk(shape, "candidates", size) for size in shape.shortlists]


def _topk(shape: ModelShape, kind: str, columns: int) -> OpCase:
    rows, k, mapped, own = shape.rows, shape.topk, kind == "static", kind == "candidates"

    def make(random: torch.Generator, dtype: torch.dtype) -> Inputs:
        ids = distinct_ids(shape.vocab, (rows, columns), random).int() if own else None
        step = shape.vocab // columns
        part = torch.arange(columns, device=random.device) * step + integers(step, (columns,), random)
        logits = normal((rows, columns), random, dtype, 3.0)
        return {"logits": logits, "k": k, "ids": ids, "target_ids": part if mapped else None}

    def plain(inputs: Inputs) -> tuple[Tensor, Tensor]:
        """Compute the result in PyTorch, without a fixed order for ties."""
        values, chosen = inputs["logits"].float().log_softmax(-1).topk(k, dim=-1)
        if own:
            chosen = inputs["ids"].gather(-1, chosen).long()
        return values, inputs["target_ids"][chosen] if mapped else chosen

    # Each logit is read once; of the ids and the map only the needed entries are read.
    moved = rows * columns * (8.0 if own else 4.0) + rows * k * (20.0 if mapped else 12.0)
    return case_of_op(
        draft_topk,
        draft_topk_reference,
        name=f"N={rows} C={columns} {kind}",
        make=make,
        floor_bytes=moved,
        plain=plain,
        tolerance=1e-4,
        dtypes=(torch.float32, torch.bfloat16, torch.float16),
    )
