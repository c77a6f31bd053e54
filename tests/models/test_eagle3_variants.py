"""EAGLE-3 drafters in the forms of other tools, against a forward pass written down from those tools' definition."""

from __future__ import annotations

import dataclasses
import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.decode.drafting import chain_logits, commit_rows, make_drafter, sizes_for
from tests.train.ttt_reference import Document, capture, documents, pack, rotate
from vocabforge.core.errors import ConfigError
from vocabforge.models.drafters.eagle3 import Eagle3Config
from vocabforge.models.drafters.registry import new_drafter
from vocabforge.models.target.hf import HFTarget
from vocabforge.train.ttt import unroll

SWITCHES = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output", "qk_norm")
STEPS = 4
Flags = dict[str, bool]


def combinations() -> list[Flags]:
    every = [dict(zip(SWITCHES, on)) for on in itertools.product([False, True], repeat=len(SWITCHES))]
    return [flags for flags in every if not (flags["norm_before_fc"] and flags["fc_norm"])]


def named(flags: Flags) -> str:
    return " ".join(name for name, on in flags.items() if on) or "published"


def variant(folder: Path, target: HFTarget, flags: Flags, head: str = "target") -> Any:
    """A random drafter with these switches; norms' weights are far from one."""
    base = make_drafter("eagle3", folder, target, head)
    sizes = dataclasses.replace(base.config, **flags)
    torch.manual_seed(5)
    drafter: Any = new_drafter("eagle3", sizes, target.embedding, target.head_weight, base.target_ids)
    values = dict(base.named_parameters())
    with torch.no_grad():
        for name, parameter in drafter.named_parameters():
            parameter.copy_(values[name]) if name in values else parameter.uniform_(0.4, 1.8)
    return drafter.eval()


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


class Served:
    """A drafter as a server runs it, from its tensors and sizes alone."""

    def __init__(self, drafter: Any, flags: Flags) -> None:
        self.w = {name: p.detach() for name, p in drafter.named_parameters()}
        self.c, self.flags = drafter.config, flags
        self.embedding, self.head = drafter.embedding, drafter.head_weight.detach()
        self.keys: list[Tensor] = []  # (kv, D) a row
        self.values: list[Tensor] = []

    def combine(self, features: Tensor) -> Tensor:
        """(n_aux * H,) -> (H,)."""
        eps, count = self.c.rms_norm_eps, len(self.c.aux_layers)
        if self.flags["norm_before_fc"]:
            features = norm(features, self.w["input_norm.weight"], eps)
        if self.flags["fc_norm"]:
            parts = features.chunk(count)
            features = torch.cat(
                [norm(part, self.w[f"fc_norm.{i}.weight"], eps) for i, part in enumerate(parts)]
            )
        return self.w["fc.weight"] @ features

    def step(self, token: int, hidden: Tensor, position: int) -> tuple[Tensor, Tensor]:
        """One row: logits, and the hidden state that the next draft step is fed; its key is remembered."""
        w, c, layer = self.w, self.c, "midlayer."
        eps = c.rms_norm_eps
        embedded = norm(self.embedding[token], w[layer + "input_layernorm.weight"], eps)
        if self.flags["norm_before_residual"]:
            hidden = norm(hidden, w[layer + "hidden_norm.weight"], eps)
            residual = hidden
        else:
            residual = hidden
            hidden = norm(hidden, w[layer + "hidden_norm.weight"], eps)
        stacked = torch.cat([w[f"{layer}self_attn.{name}_proj.weight"] for name in "qkv"])
        q, k, v = (stacked @ torch.cat([embedded, hidden])).split(
            [c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim, c.num_kv_heads * c.head_dim]
        )
        q, k, v = (x.view(-1, c.head_dim) for x in (q, k, v))
        if self.flags["qk_norm"]:
            q = norm(q, w[layer + "self_attn.q_norm.weight"], eps)
            k = norm(k, w[layer + "self_attn.k_norm.weight"], eps)
        self.keys.append(rotate(k, position))
        self.values.append(v)
        hidden = w[layer + "self_attn.o_proj.weight"] @ self.attend(rotate(q, position))
        residual = hidden + residual
        hidden = norm(residual, w[layer + "post_attention_layernorm.weight"], eps)
        gate, up = w[layer + "mlp.gate_proj.weight"] @ hidden, w[layer + "mlp.up_proj.weight"] @ hidden
        hidden = w[layer + "mlp.down_proj.weight"] @ (F.silu(gate) * up)
        raw = hidden + residual
        normed = norm(raw, w["norm.weight"], eps)
        return self.head @ normed, normed if self.flags["norm_output"] else raw

    def attend(self, q: Tensor) -> Tensor:
        """(heads, D) over all remembered rows -> (heads * D,)."""
        share = self.c.num_heads // self.c.num_kv_heads
        keys = torch.stack(self.keys).repeat_interleave(share, 1)  # (S, heads, D)
        values = torch.stack(self.values).repeat_interleave(share, 1)
        weights = (torch.einsum("hd,shd->hs", q, keys) / math.sqrt(self.c.head_dim)).softmax(-1)
        return torch.einsum("hs,shd->hd", weights, values).flatten()


def served_logits(drafter: Any, flags: Flags, document: Document, features: Tensor, row: int) -> list[Tensor]:
    """Draft logits after row ``row`` of a document: the rows up to it, then steps that are fed their own output."""
    server, ids = Served(drafter, flags), document.ids
    for t in range(row + 1):
        logits, g = server.step(ids[t + 1], server.combine(features[t]), t)
    found = [logits]
    for k in range(1, min(STEPS, len(ids) - 1 - row)):
        logits, g = server.step(ids[row + 1 + k], g, row + k)
        found.append(logits)
    return found


@pytest.mark.parametrize("flags", combinations(), ids=named)
@torch.inference_mode()
def test_training_and_decoding_compute_what_a_server_computes(flags, folder, target):
    drafter = variant(folder, target, flags)
    (document,) = documents(4, [9])
    batch = capture(target, pack([[document]], 9))
    steps = list(unroll(drafter, batch, STEPS))
    ids = torch.tensor(document.ids)
    for row in (0, 3, 5):
        expected = served_logits(drafter, flags, document, batch.features[0], row)
        decoded = chain_logits(
            drafter,
            lambda p, r=row: commit_rows(p, batch.features[0, : r + 1], ids[1 : r + 2]),
            document.ids[row + 2 :],
            len(expected),
            ids[row + 1 : row + 2],
        )
        for k, wanted in enumerate(expected):
            torch.testing.assert_close(drafter.logits(steps[k].g)[0, row], wanted, rtol=1e-4, atol=1e-3)
            torch.testing.assert_close(decoded[k], wanted, rtol=1e-4, atol=1e-3)
    assert len(expected) == 3, "the last row has three steps"


@pytest.mark.parametrize("switch", SWITCHES)
@torch.inference_mode()
def test_each_switch_changes_the_draft(switch: str, folder: Path, target: HFTarget) -> None:
    """So that the comparison above would notice one that is not obeyed."""
    (document,) = documents(4, [9])
    features = capture(target, pack([[document]], 9)).features[0]
    off = dict.fromkeys(SWITCHES, False)
    on = {**off, switch: True}
    plain = served_logits(variant(folder, target, off), off, document, features, 4)
    other = served_logits(variant(folder, target, on), on, document, features, 4)
    gaps = [float((a - b).abs().max()) for a, b in zip(plain, other)]
    assert gaps[0] > 0.05 or switch == "norm_output", "the first step's logits read the same norm either way"
    assert max(gaps) > 0.05


def test_sizes_without_switches_are_the_published_form(folder: Path) -> None:
    """Drafters written before the switches existed."""
    body = sizes_for("eagle3", folder).to_dict()
    for switch in SWITCHES:
        assert body.pop(switch) is False
    assert Eagle3Config.from_dict(body) == sizes_for("eagle3", folder)


def test_two_norms_before_fc_are_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="norm_before_fc and fc_norm exclude each other"):
        dataclasses.replace(sizes_for("eagle3", folder), norm_before_fc=True, fc_norm=True)
