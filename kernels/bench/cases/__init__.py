"""Benchmarks of the ops under ``kernels/``: functions ``cases(shape) -> list[OpCase]``, several in a module."""

from __future__ import annotations

from collections.abc import Callable

from . import layer, logits, ranker, sampling, tree
from .types import ModelShape, OpCase

OP_BENCHES: dict[str, Callable[[ModelShape], list[OpCase]]] = {
    "indexed_logits": logits.indexed_cases,
    "union_logits": logits.union_cases,
    "distinct_rows": logits.distinct_cases,
    "ranker_select": ranker.select_cases,
    "draft_topk": logits.topk_cases,
    "cluster_logits": logits.cluster_cases,
    "add_rms_norm": layer.norm_cases,
    "rope_store": layer.rope_cases,
    "silu_mul": layer.silu_cases,
    "tree_attention": tree.attention_cases,
    "tree_expand": tree.expand_cases,
    "tree_select": tree.select_cases,
    "tree_verify": tree.verify_cases,
    "tree_verify_point": tree.verify_point_cases,
    "target_choice": sampling.choice_cases,
    "target_sample": sampling.sample_cases,
    "compact_kv": tree.compact_cases,
}
