"""Cycles of random weights: sizes and bytes of real models, times of tiny ones."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
import torch
from bench.cases.heads import head_cost
from bench.cases.types import LLAMA3_8B, QWEN3_8B, ModelShape
from bench.cycle import Pair, head_settings, lean_config

from vocabforge.models.drafters.eagle3 import Eagle3Config, Eagle3Drafter
from vocabforge.models.drafters.eagle_layers import MidLayer, RMSNorm
from vocabforge.models.lean.model import LeanModel


def on_paper(shape: ModelShape) -> Pair:
    """The real sizes, without memory for them."""
    config = lean_config(shape)
    target = LeanModel(config, dtype=torch.bfloat16, device="meta")
    sizes = Eagle3Config(
        4096, shape.intermediate, 32, 8, 128, shape.vocab, None, 64, aux_layers=(2, 16, 29), rope=config.rope
    )
    with torch.device("meta"):
        layer, norm = MidLayer(sizes), RMSNorm(4096, 1e-5)
        fc = torch.nn.Linear(3 * 4096, 4096, bias=False)
    parts = {"midlayer": layer.bfloat16(), "norm": norm.bfloat16(), "fc": fc.bfloat16()}
    return Pair(shape, target, cast("Eagle3Drafter", SimpleNamespace(**parts)))


# Parameters of the published checkpoints, without the input embedding, of which a step reads a row.
@pytest.mark.parametrize(
    ("shape", "parameters"),
    [(LLAMA3_8B, 8_030_261_248 - 128_256 * 4096), (QWEN3_8B, 8_190_735_360 - 151_936 * 4096)],
)
def test_plain_decoding_reads_the_model_and_its_cache(shape: ModelShape, parameters: int) -> None:
    cached = 2 * shape.layers * 8 * 128 * shape.prefix
    if shape.qk_norm:  # held once a head
        parameters += shape.layers * (32 + 8 - 2) * 128
    assert on_paper(shape).plain_bytes() == 2 * (parameters + cached)


def test_a_cycle_reads_the_target_once_and_the_drafter_every_level() -> None:
    pair = on_paper(LLAMA3_8B)
    settings = {one.kind: one for one in head_settings(LLAMA3_8B)}
    layer = 2 * 4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14_336
    cached = 2 * 8 * 128 * LLAMA3_8B.prefix
    extra = pair.cycle_bytes(settings["full"]) - pair.plain_bytes()
    extra -= 2 * 3 * 4096 * 4096  # fc
    extra -= 6 * (2 * 128_256 * 4096)  # heads
    norms = extra - 6 * 2 * (layer + cached)
    assert 0 < norms < 6 * 2 * 5 * 4096
    assert head_cost(LLAMA3_8B, settings["ranker"])[0] == 2 * (256 * (128_256 + 4096) + 2048 * 4096)
