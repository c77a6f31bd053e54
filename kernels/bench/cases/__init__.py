"""Benchmarks of the ops under ``kernels/``: functions ``cases(shape) -> list[OpCase]``, several in a module."""

from __future__ import annotations

from vocabforge.core.registry import resolve

from .types import ModelShape, OpCase

_HERE = "bench.cases"

# name of the op -> "module:attr" of its cases.
OP_BENCHES: dict[str, str] = {
    "indexed_logits": f"{_HERE}.logits:indexed_cases",
    "union_logits": f"{_HERE}.logits:union_cases",
    "distinct_rows": f"{_HERE}.logits:distinct_cases",
    "ranker_select": f"{_HERE}.ranker:select_cases",
    "draft_topk": f"{_HERE}.logits:topk_cases",
    "cluster_logits": f"{_HERE}.logits:cluster_cases",
    "add_rms_norm": f"{_HERE}.layer:norm_cases",
    "rope_store": f"{_HERE}.layer:rope_cases",
    "silu_mul": f"{_HERE}.layer:silu_cases",
    "tree_attention": f"{_HERE}.tree:attention_cases",
    "tree_expand": f"{_HERE}.tree:expand_cases",
    "tree_select": f"{_HERE}.tree:select_cases",
    "tree_verify": f"{_HERE}.tree:verify_cases",
    "tree_verify_point": f"{_HERE}.tree:verify_point_cases",
    "target_choice": f"{_HERE}.sampling:choice_cases",
    "target_sample": f"{_HERE}.sampling:sample_cases",
    "compact_kv": f"{_HERE}.tree:compact_cases",
}


def op_cases(op: str, shape: ModelShape) -> list[OpCase]:
    """Return the cases of an op at a shape.

    Raises:
        UsageError: the op does not exist.
    """
    found: list[OpCase] = resolve(OP_BENCHES, op, "op benchmark")(shape)
    return found
