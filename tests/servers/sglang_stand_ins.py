"""Plain PyTorch in place of SGLang's compiled kernels for CPUs, and a stub of torchvision.

The package index has no build of ``sgl_kernel`` for CPUs. Each function here stands in for the kernel of its name,
written from what that computes. Scheduler, cache, attention backend, draft worker and models, which call them, are
SGLang's own. To be installed before SGLang is imported.
"""

from __future__ import annotations

import ctypes
import sys
import types
from typing import Any

import torch
from torch.nn.functional import rms_norm, scaled_dot_product_attention
from transformers.utils import is_torchvision_available


def decode_attention_cpu(
    q, key_buffer, value_buffer, k_scale, v_scale, o, k, v, loc, _, table, pool, seq_lens, scaling, *rest
) -> None:
    """Attention of one query a sequence over its cache, after its own key and value are stored."""
    _plain(*rest)
    key_buffer[loc] = k.view(-1, *key_buffer.shape[1:])
    value_buffer[loc] = v.view(-1, *value_buffer.shape[1:])
    for row, (sequence, length) in enumerate(zip(pool.tolist(), seq_lens.tolist())):
        slots = table[sequence, :length].long()
        o[row] = _attend(q[row : row + 1], key_buffer[slots], value_buffer[slots], scaling, None)[0]


def extend_attention_cpu(
    q, k, v, o, key_buffer, value_buffer, k_scale, v_scale, table, pool, seq_lens, extend_lens, starts, _, scaling,
    *rest,
) -> None:  # fmt: skip
    """Attention of a sequence's new tokens over its cached prefix and over each other: causal, or by a tree's mask."""
    *rest, tree_mask, causal = rest
    _plain(*rest)
    assert causal
    k, v = k.view(-1, *key_buffer.shape[1:]), v.view(-1, *value_buffer.shape[1:])
    lengths = zip(pool.tolist(), seq_lens.tolist(), extend_lens.tolist(), starts.tolist())
    for row, (sequence, length, new, start) in enumerate(lengths):
        prefix, own = table[sequence, : length - new].long(), slice(start, start + new)
        among = torch.ones(new, new, dtype=torch.bool).tril()
        if tree_mask is not None:
            among = tree_mask.view(-1, new, new)[row].bool()
        mask = torch.cat([torch.ones(new, length - new, dtype=torch.bool), among], dim=1)
        keys, values = torch.cat([key_buffer[prefix], k[own]]), torch.cat([value_buffer[prefix], v[own]])
        o[own] = _attend(q[own], keys, values, scaling, mask)


def _attend(q, k, v, scaling, mask):
    q, k, v = (one.transpose(0, 1).unsqueeze(0) for one in (q, k, v))
    out = scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scaling, enable_gqa=True)
    return out.squeeze(0).transpose(0, 1)


def _plain(cap, cross, window, encoder_lens, sinks) -> None:
    """What is left out: soft caps, cross attention, sliding windows, attention sinks."""
    assert not any((cap, cross, window)), (cap, cross, window)
    assert encoder_lens is sinks is None


def build_draft_decode_metadata_cpu(table, pool, seq_lens, topk, steps, width):
    """Cache slots that each branch reads: its sequence's prefix, then the branch's own ``steps`` slots."""
    rows = torch.zeros(len(pool) * topk, width, dtype=table.dtype)
    for at, (sequence, length) in enumerate(zip(pool.tolist(), seq_lens.tolist())):
        own = table[sequence, length : length + topk * steps].view(topk, steps)
        rows[at * topk : (at + 1) * topk, :length] = table[sequence, :length]
        rows[at * topk : (at + 1) * topk, length : length + steps] = own
    return rows


def build_tree_kernel_efficient_cpu(
    parents, selected, seq_lens, mask, positions, index, child, sibling, topk, depth, size, mode
) -> None:
    """The tree of the draft tokens that were kept: who sees whom, positions, first child and next sibling.

    Candidates are numbered level by level, ``topk`` to a parent; ``parents`` names the candidate of each block.
    """
    mask, positions = mask.view(-1, size, size), positions.view(-1, size)
    for row, chosen in enumerate(selected.tolist()):
        node = {candidate: at for at, candidate in enumerate(chosen, 1)}
        sees = torch.eye(size, dtype=torch.bool)
        over = [0 if one < topk else node[int(parents[row, one // topk])] for one in chosen]
        for at, parent in enumerate(over, 1):
            sees[at] |= sees[parent]
        for at, parent in reversed(list(enumerate(over, 1))):
            sibling[row, at], child[row, parent] = child[row, parent].clone(), at
        mask[row] = sees
        positions[row] = seq_lens[row] + sees.sum(1) - 1
        index[row] = torch.arange(size) + row * size


def verify_tree_greedy_cpu(
    *, predicts, accept_index, accept_token_num, candidates, retrive_index, retrive_next_token, retrive_next_sibling,
    target_predict,
) -> None:  # fmt: skip
    """Walk down the tree as long as a child is what the target predicts there."""
    for row in range(len(candidates)):
        path = [0]
        while True:
            wanted = target_predict[row, path[-1]]
            predicts[retrive_index[row, path[-1]]] = wanted.to(predicts.dtype)
            at = int(retrive_next_token[row, path[-1]])
            while at != -1 and candidates[row, at] != wanted:
                at = int(retrive_next_sibling[row, at])
            if at == -1 or len(path) == accept_index.shape[1]:
                break
            path.append(at)
        accept_index[row, : len(path)] = retrive_index[row, path].to(accept_index.dtype)
        accept_token_num[row] = len(path) - 1


def fill_bonus_tokens_cpu(accepted, lengths, bonus, width) -> None:
    """The last token that each sequence accepted."""
    last = torch.arange(len(lengths)) * width + lengths - 1
    bonus.copy_(accepted.flatten()[last])


def fill_accept_out_cache_loc_cpu(accept_index, slots, kept) -> None:
    """Cache slots of the accepted tokens, moved to the front."""
    chosen = accept_index.flatten()
    chosen = chosen[chosen >= 0].long()
    kept[: len(chosen)] = slots[chosen]


def assign_draft_cache_locs_contiguous_cpu(pool, table, seq_lens, slots, width, topk, columns) -> None:
    """Cache slots behind each sequence, ``columns`` for each branch."""
    assign_extend_cache_locs_cpu(pool, table, seq_lens, seq_lens + topk * columns, slots, width)


def assign_extend_cache_locs_cpu(pool, table, starts, ends, slots, width) -> None:
    """Cache slots of positions ``starts`` to ``ends`` of each sequence, one sequence after the other."""
    rows = [table[row, start:end] for row, start, end in zip(pool.tolist(), starts.tolist(), ends.tolist())]
    found = torch.cat(rows)
    slots[: len(found)] = found


def assign_req_to_token_pool_cpu(pool, table, starts, ends, slots, width) -> None:
    """The inverse: store the slots of new positions in each sequence's row."""
    done = 0
    for row, start, end in zip(pool.tolist(), starts.tolist(), ends.tolist()):
        table[row, start:end] = slots[done : done + end - start]
        done += end - start


def copy_all_layer_kv_cache_cpu(addresses, strides, to, of) -> None:
    """Move rows of every layer's cache (bytes at ``address + slot * stride``): accepted tokens of a tree."""
    for address, stride in zip(addresses.tolist(), strides.tolist()):
        rows = [ctypes.string_at(address + slot * stride, stride) for slot in of.tolist()]
        for slot, row in zip(to.tolist(), rows):
            ctypes.memmove(address + slot * stride, row, stride)


def fused_qk_gemma_rmsnorm_with_gate_cpu(q_and_gate, k, q_weight, k_weight, eps, size, heads):
    """Queries and their gates of each head apart, queries and keys normed, as Qwen3.5 does."""
    q, gate = q_and_gate.view(-1, heads, 2 * size).chunk(2, dim=-1)
    normed = [
        rms_norm(one, (size,), 1 + weight, eps)
        for one, weight in ((q, q_weight), (k.view(len(q), -1, size), k_weight))
    ]
    return *normed, gate.contiguous()


def fused_sigmoid_mul_cpu(x, gate) -> None:
    x.mul_(gate.view_as(x).sigmoid())


# Looked up when models are imported, and not run: multi-layer EAGLE, Qwen3.5 without gates or with linear attention.
NOT_RUN = (
    "rotate_input_ids_cpu",
    "fused_qk_gemma_rmsnorm_cpu",
    "fused_qkvzba_split_reshape_cat_contiguous_cpu",
    "fused_gdn_gating_cpu",
    "fused_sigmoid_gating_delta_rule_update_cpu",
)


class _Absent(types.ModuleType):
    """A module from which anything can be imported."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return sys.modules.get(f"{self.__name__}.{name}", _Absent(name))


def install() -> None:
    """Put the stand-ins where SGLang looks for them."""
    kernels = types.ModuleType("sgl_kernel")
    found = {name: value for name, value in globals().items() if name.endswith("_cpu")}
    for name, value in {**dict.fromkeys(NOT_RUN), **found}.items():
        setattr(kernels, name, value)
        setattr(torch.ops.sgl_kernel, name, value)
    sys.modules["sgl_kernel"] = kernels
    sys.modules["sgl_kernel.mamba"] = _Absent("sgl_kernel.mamba")
    # SGLang imports it for models of images; the package index has its CUDA build alone, which does not load. Asked
    # before the stub is there, transformers remembers that it has none.
    is_torchvision_available()
    for name in ("torchvision", "torchvision.transforms", "torchvision.transforms.functional"):
        sys.modules[name] = _Absent(name)
