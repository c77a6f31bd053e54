"""The training-time test from its definition: one document, one row and one step at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from vocabforge.models.drafters.eagle3 import Eagle3Drafter
from vocabforge.models.target.hf import HFTarget
from vocabforge.train.capture.online import CapturedBatch, OnlineCapture, RowBatch

STEPS, DECAY = 4, 0.7
REDUCED = torch.tensor([0, 2, 3, 5, 8, 11, 13, 17, 21, 30, 34, 45, 50, 55, 60])


@dataclass
class Document:
    ids: list[int]
    mask: list[int]


def documents(seed: int, lengths: list[int]) -> list[Document]:
    """Random tokens; the mask is on in runs, as the assistant's turns are."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for length in lengths:
        ids = torch.randint(0, 61, (length,), generator=generator).tolist()
        runs = (torch.rand(length, generator=generator) < 0.8).int().tolist()
        made.append(Document(ids, runs))
    return made


def pack(rows: list[list[Document]], length: int, lead: int = 0) -> RowBatch:
    """Rows of documents, ``lead`` padding slots before them and padding after."""
    ids, mask, numbers, positions = (torch.zeros(len(rows), length, dtype=torch.int64) for _ in range(4))
    for index, row in enumerate(rows):
        at = lead
        for number, document in enumerate(row, 1):
            span = slice(at, at + len(document.ids))
            ids[index, span] = torch.tensor(document.ids)
            mask[index, span] = torch.tensor(document.mask)
            numbers[index, span] = number
            positions[index, span] = torch.arange(len(document.ids))
            at += len(document.ids)
    return RowBatch(ids, mask.bool(), numbers, positions)


def capture(target: HFTarget, rows: RowBatch, *, facts: bool = False) -> CapturedBatch:
    return OnlineCapture(target, 0, facts=facts)(rows, list(range(len(rows.input_ids))))


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / (x.square().mean() + eps).sqrt() * weight


def rotate(x: Tensor, position: int, theta: float = 10_000.0) -> Tensor:
    """(heads, D) rotated to a position: pairs (i, i + D/2)."""
    half = x.shape[-1] // 2
    out = x.clone()
    for i in range(half):
        angle = position / theta ** (2 * i / x.shape[-1])
        a, b = x[:, i], x[:, i + half]
        out[:, i] = a * math.cos(angle) - b * math.sin(angle)
        out[:, i + half] = b * math.cos(angle) + a * math.sin(angle)
    return out


def project(drafter: Eagle3Drafter, token: int, g: Tensor, position: int) -> tuple[Tensor, Tensor, Tensor]:
    """q (heads, D), k and v (kv heads, D) of one row."""
    layer, c = drafter.midlayer, drafter.config
    x = torch.cat(
        [
            rms(drafter.embedding[token], layer.input_layernorm.weight, c.rms_norm_eps),
            rms(g, layer.hidden_norm.weight, c.rms_norm_eps),
        ]
    )
    attention = layer.self_attn
    q = (attention.q_proj.weight @ x).view(c.num_heads, c.head_dim)
    k = (attention.k_proj.weight @ x).view(c.num_kv_heads, c.head_dim)
    v = (attention.v_proj.weight @ x).view(c.num_kv_heads, c.head_dim)
    return rotate(q, position), rotate(k, position), v


def next_g(drafter: Eagle3Drafter, g: Tensor, q: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
    layer, c = drafter.midlayer, drafter.config
    heads = []
    for head in range(c.num_heads):
        group = head // (c.num_heads // c.num_kv_heads)
        scores = torch.stack([q[head] @ key[group] for key in keys]) / math.sqrt(c.head_dim)
        weights = scores.softmax(0)
        heads.append(sum(weight * value[group] for weight, value in zip(weights, values)))
    g = g + layer.self_attn.o_proj.weight @ torch.cat(heads)
    x = rms(g, layer.post_attention_layernorm.weight, c.rms_norm_eps)
    mlp = layer.mlp
    return g + mlp.down_proj.weight @ (F.silu(mlp.gate_proj.weight @ x) * (mlp.up_proj.weight @ x))


def reference_logits(
    drafter: Eagle3Drafter, target: HFTarget, document: Document
) -> dict[tuple[int, int], Tensor]:
    """Draft logits of every row t and step k whose fed token exists."""
    ids, length = document.ids, len(document.ids)
    alone = capture(target, pack([[document]], length))
    g0 = [drafter.fc.weight @ alone.features[0, t] for t in range(length)]
    step0 = [project(drafter, ids[t + 1], g0[t], t) for t in range(length - 1)]
    logits = {}
    for t in range(length - 1):
        g = g0[t]
        keys, values = [step0[s][1] for s in range(t + 1)], [step0[s][2] for s in range(t + 1)]
        for k in range(STEPS):
            if t + 1 + k >= length:
                break
            q, key, value = project(drafter, ids[t + 1 + k], g, t + k)
            if k > 0:
                keys, values = [*keys, key], [*values, value]
            g = next_g(drafter, g, q, keys, values)
            logits[t, k] = drafter.head_weight @ rms(g, drafter.norm.weight, drafter.config.rms_norm_eps)
    return logits


def teacher_logits(target: HFTarget, document: Document) -> Tensor:
    with torch.no_grad():
        return target.model(torch.tensor([document.ids])).logits[0]


def reference_rows(
    drafter: Eagle3Drafter, target: HFTarget, document: Document
) -> dict[tuple[int, int], tuple[Tensor | None, bool]]:
    """For every counted (row, step): its loss (None where it is masked) and whether the draft hits."""
    rows: dict[tuple[int, int], tuple[Tensor | None, bool]] = {}
    full = teacher_logits(target, document)
    names = drafter.target_ids.tolist()
    for (t, k), draft in reference_logits(drafter, target, document).items():
        if t + 2 + k >= len(document.ids) or not (document.mask[t + 1 + k] and document.mask[t + 2 + k]):
            continue
        best = int(full[t + 1 + k].argmax())
        p = full[t + 1 + k][names].softmax(0)
        q = draft.softmax(0)
        loss = -sum(p[j] * q[j].log() for j in range(len(names)))
        rows[t, k] = (loss if best in names else None, names[int(draft.argmax())] == best)
    return rows
