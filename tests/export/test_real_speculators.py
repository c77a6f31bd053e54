"""The speculators library on our folders: it loads them, and computes the logits that are computed here.

Needs the library beside the toolkit: `pip install --no-deps speculators==0.9.0 hs-connectors==0.9.0 loguru
pydantic-settings openai aiohttp sniffio`.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.export.readers_support import Tiny, changed, eagle3, write
from vocabforge.doctor.served_drafter import ProbedText
from vocabforge.export.servers.forward import Past
from vocabforge.export.servers.registry import open_folder, reader_of
from vocabforge.layouts.registry import load_drafter
from vocabforge.models.kv_cache import CacheView, causal_mask

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("speculators") is None,
    reason="speculators is not installed (make test-speculators)",
)
STEPS = 4


def their_model(path: Path) -> Any:
    from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig

    config = Eagle3SpeculatorConfig.from_pretrained(path)
    config.transformer_layer_config._attn_implementation = "eager"
    model = Eagle3DraftModel.from_pretrained(path, config=config)
    stored, state = load_file(path / "model.safetensors"), model.state_dict()
    for name, tensor in stored.items():
        assert torch.equal(state[name].to(tensor.dtype), tensor), name
    assert set(state) - set(stored) <= {"verifier_norm.weight", "verifier_lm_head.weight"}
    model.load_verifier_weights()
    assert all(bool(parameter.isfinite().all()) for parameter in model.parameters())
    return model.float().eval()


@torch.no_grad()
def their_logits(model: Any, features: Tensor, ids: Tensor) -> list[Tensor]:
    """Its training forward: logits (T, R) of every step; step k feeds row t the token t + k."""
    rows: list[Tensor] = []
    hook = model.lm_head.register_forward_hook(lambda _, __, output: rows.append(output[0].clone()))
    forward = getattr(type(model).forward, "_torchdynamo_orig_callable", type(model).forward)
    forward(model, features[None], ids[None], torch.zeros(1, len(ids), dtype=torch.long), ttt_steps=STEPS)
    hook.remove()
    return rows


@torch.no_grad()
def our_logits(drafter: Any, features: Tensor, ids: Tensor, row: int) -> list[Tensor]:
    """The same of one row, (R,) a step, as decoding runs it: a prefill up to the row, then its own states."""
    cache = drafter.new_cache(1, row + STEPS)
    every, slots = torch.arange(row + STEPS), torch.arange(row + 1)
    states, fed, found = drafter.fuse(features[: row + 1])[None], ids[: row + 1], []
    for step in range(STEPS):
        cached = CacheView(cache, slots, causal_mask(slots, every))
        states = drafter.extend(fed[None], states, slots[None], cached)[0][:, -1:]
        found.append(drafter.logits(states)[0, 0])
        fed, slots = ids[row + step + 1 : row + step + 2], torch.tensor([row + step + 1])
    return found


@torch.no_grad()
def reader_logits(tiny: Tiny, path: Path, features: Tensor, ids: Tensor, row: int) -> list[Tensor]:
    served = reader_of("vllm").read(open_folder(path), tiny.side)
    model = served.drafter
    assert model is not None, served.problems
    past, states, fed = Past(), model.fuse(features[: row + 1]), ids[: row + 1]
    positions, found = torch.arange(row + 1), []
    for step in range(STEPS):
        logits, states = model.step(fed, states, positions, past)
        found.append(logits[-1])
        states, fed = states[-1:], ids[row + step + 1 : row + step + 2]
        positions = torch.tensor([row + step + 1])
    return found


def text_of(tiny: Tiny) -> ProbedText:
    return tiny.texts()[0]


@pytest.mark.parametrize(
    ("flags", "dtype"),
    [
        ({}, torch.float32),
        ({}, torch.bfloat16),
        ({"rows": None}, torch.float32),
        ({"norm_before_residual": True, "norm_output": True}, torch.float32),
        ({"fc_norm": True, "layers": (0, 3, 4, 7)}, torch.float32),
        ({"norm_before_fc": True, "qk_norm": True}, torch.float32),
    ],
)
def test_it_computes_what_is_computed_here(tiny, tmp_path, flags, dtype):
    path = write(tiny, eagle3(tiny, **flags), "speculators-eagle3", tmp_path / "x", dtype)
    drafter: Any = load_drafter(path, tiny.shared, tiny.path)[0]
    model = their_model(path)
    if model.d2t is not None:
        assert torch.equal(torch.arange(len(model.d2t)) + model.d2t, drafter.target_ids)
    assert [layer - 1 for layer in model.target_layer_ids] == list(drafter.config.aux_layers)
    text = text_of(tiny)
    features, ids = text.features(drafter.config.aux_layers)[:-1], text.ids[1:]
    theirs = their_logits(model, features, ids)
    assert len(theirs) == STEPS
    close = (
        2e-4 if dtype == torch.float32 and "rows" not in flags else 2e-2
    )  # it rounds the shared head as well
    for row in (0, 5, len(ids) - STEPS):
        ours, read = our_logits(drafter, features, ids, row), reader_logits(tiny, path, features, ids, row)
        for step in range(STEPS):
            torch.testing.assert_close(ours[step], theirs[step][row], atol=close, rtol=close)
            torch.testing.assert_close(read[step], theirs[step][row], atol=close, rtol=close)


def test_a_fault_shows(tiny: Tiny, tmp_path: Path) -> None:
    """The comparison can fail: another residual, as an absent switch would give it."""
    good = write(tiny, eagle3(tiny), "speculators-eagle3", tmp_path / "x")
    bad = changed(good, tmp_path / "bad", config=lambda body: body.update(norm_before_residual=True))
    text = text_of(tiny)
    features, ids = text.features((1, 3, 4))[:-1], text.ids[1:]
    right, wrong = (their_logits(their_model(path), features, ids)[0] for path in (good, bad))
    assert float((right - wrong).abs().max()) > 0.1
