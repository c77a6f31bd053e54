"""Benchmarks of the ops under ``kernels/``: one module per op, each with ``cases(shape) -> list[OpCase]``."""

from __future__ import annotations

from vocabforge.core.registry import resolve

from .types import ModelShape, OpCase

_HERE = "bench.cases"

# name of the op -> "module:attr" of its ``cases``.
OP_BENCHES: dict[str, str] = {
    "indexed_logits": f"{_HERE}.indexed_logits:cases",
    "union_logits": f"{_HERE}.union_logits:cases",
    "distinct_rows": f"{_HERE}.distinct_rows:cases",
    "ranker_select": f"{_HERE}.ranker_select:cases",
    "ranker_topk": f"{_HERE}.ranker_topk:cases",
    "draft_topk": f"{_HERE}.draft_topk:cases",
    "cluster_logits": f"{_HERE}.cluster_logits:cases",
    "add_rms_norm": f"{_HERE}.add_rms_norm:cases",
    "rope_store": f"{_HERE}.rope_store:cases",
    "fused_linear": f"{_HERE}.fused_linear:linear_cases",
    "fused_qkv": f"{_HERE}.fused_linear:qkv_cases",
    "silu_mul": f"{_HERE}.silu_mul:cases",
    "tree_attention": f"{_HERE}.tree_attention:cases",
    "tree_expand": f"{_HERE}.tree_expand:cases",
    "tree_select": f"{_HERE}.tree_select:cases",
    "tree_verify": f"{_HERE}.tree_verify:cases",
    "tree_verify_point": f"{_HERE}.tree_verify_point:cases",
    "target_choice": f"{_HERE}.target_choice:cases",
    "target_sample": f"{_HERE}.target_sample:cases",
    "compact_kv": f"{_HERE}.compact_kv:cases",
}


def op_cases(op: str, shape: ModelShape) -> list[OpCase]:
    """Return the cases of an op at a shape.

    Raises:
        UsageError: the op does not exist.
    """
    found: list[OpCase] = resolve(OP_BENCHES, op, "op benchmark")(shape)
    return found
