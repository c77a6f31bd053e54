"""The lean decoder computes what Hugging Face computes, for every family, whole, cached and in trees."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tests.folders import edit_folder
from tests.models.lean_support import (
    CASES,
    LINEAR,
    LLAMA3,
    SIZES,
    YARN,
    build,
    build_from_config,
    run_chunks,
    run_full,
    window_mask,
)
from vocabforge.models.kv_cache import TreeMask, causal_mask
from vocabforge.models.lean.config import LeanConfig
from vocabforge.models.lean.model import load_target, share_target
from vocabforge.models.target.hf import HFTarget

LENGTH = 24


def _ids(vocab: int, batch: int = 2, length: int = LENGTH) -> torch.Tensor:
    return torch.randint(0, vocab, (batch, length), generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("case", CASES)
def test_logits_and_layer_outputs_equal_hugging_face(case: str, tmp_path: Path) -> None:
    reference = build(case, tmp_path)
    lean = load_target(tmp_path)
    ids = _ids(lean.config.vocab_size)
    outputs: dict[int, torch.Tensor] = {}
    for index, layer in enumerate(reference.model.layers):
        layer.register_forward_hook(
            lambda _, __, out, i=index: outputs.__setitem__(i, out[0] if isinstance(out, tuple) else out)
        )
    with torch.no_grad():
        expected = reference(ids).logits
    assert expected.std() > 0.3, "a reference without contrast proves nothing"
    layers = tuple(range(lean.config.num_layers))
    asked = layers[::-1]
    logits, aux = run_full(lean, ids, asked)
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)
    torch.testing.assert_close(aux, torch.cat([outputs[i] for i in asked], -1), rtol=1e-5, atol=1e-4)

    slots = torch.randperm(LENGTH + 9, generator=torch.Generator().manual_seed(1))[:LENGTH]
    chunks = [5, 1, 7] + [1] * (LENGTH - 13)
    logits, aux = run_chunks(lean, ids, chunks, slots, (0,))
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)
    torch.testing.assert_close(aux, outputs[0], rtol=1e-5, atol=1e-4)


SHARED = [
    "llama-tied",
    "qwen3",
    "olmo3",
    "qwen3-moe",
    "mixtral",
    "gpt-oss",
    "gemma-3-tied",
    "glm-4",
    "granite",
]


@pytest.mark.parametrize("case", SHARED)
def test_a_loaded_targets_weights_are_shared(case: str, tmp_path: Path) -> None:
    model = build(case, tmp_path)
    ids = _ids(67)
    with torch.no_grad():
        expected = model(ids).logits
    lean = share_target(HFTarget(model, (0,), tmp_path))
    logits, _ = run_full(lean, ids)
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)
    with torch.no_grad():
        assert torch.equal(model(ids).logits, expected)
    where = {tensor.untyped_storage().data_ptr() for tensor in lean.parameters()}
    apart = {name for name, one in model.named_parameters() if one.untyped_storage().data_ptr() not in where}
    assert all(name.endswith(("q_norm.weight", "k_norm.weight")) for name in apart)


@pytest.mark.parametrize("rope", [LLAMA3, LINEAR, YARN], ids=["llama3", "linear", "yarn"])
@pytest.mark.parametrize("key", ["rope_type", "type"])
def test_both_spellings_of_rope_agree(rope: dict[str, object], key: str, tmp_path: Path) -> None:
    changes = {**SIZES, "rope_parameters": dict(rope)}
    build_from_config(AutoConfig.for_model("llama", **changes), tmp_path)
    new = LeanConfig.from_hf_config(tmp_path)
    expected, _ = run_full(load_target(tmp_path), _ids(67))

    def older(values: dict[str, object]) -> None:
        scaling = dict(values.pop("rope_parameters"))
        values["rope_theta"] = scaling.pop("rope_theta")
        scaling[key] = scaling.pop("rope_type")
        values["rope_scaling"] = scaling

    edit_folder(tmp_path, config=older)
    assert LeanConfig.from_hf_config(tmp_path) == new
    assert new.rope.kind == rope["rope_type"]
    reference = AutoModelForCausalLM.from_pretrained(tmp_path)
    with torch.no_grad():
        torch.testing.assert_close(reference(_ids(67)).logits, expected, rtol=0, atol=1e-4)


def test_gemma_3_is_read_as_the_hub_has_it(tmp_path: Path) -> None:
    changes = {**SIZES, "num_hidden_layers": 7, "head_dim": 8, "sliding_window": 4}
    build_from_config(AutoConfig.for_model("gemma3_text", **changes), tmp_path)

    def older(values: dict[str, object]) -> None:
        for key in ("rope_parameters", "layer_types", "_sliding_window_pattern"):
            values.pop(key)
        values["rope_theta"], values["rope_local_base_freq"] = 2_000.0, 300.0
        values["rope_scaling"] = {"rope_type": "linear", "factor": 8.0}
        values["sliding_window_pattern"] = 3

    edit_folder(tmp_path, config=older)
    lean = load_target(tmp_path)
    assert lean.config.sliding_layers == (True, True, False) * 2 + (True,)
    assert (lean.config.rope.kind, lean.config.rope.theta, lean.config.near_rope.theta) == (
        "linear",
        2e3,
        300.0,
    )
    reference = AutoModelForCausalLM.from_pretrained(tmp_path)
    logits, _ = run_full(lean, _ids(67))
    with torch.no_grad():
        torch.testing.assert_close(logits, reference(_ids(67)).logits, rtol=0, atol=1e-4)


TREE_PARENTS = [-1, 0, 0, 0, 1, 1, 2, 4, 4, 7, 5, 9]


@pytest.mark.parametrize(
    "case",
    [
        "llama",
        "mistral-window",
        "qwen2-window",
        "qwen3",
        "olmo2",
        "bitnet",
        "qwen3-random1",
        "qwen3-moe-window",
        "gpt-oss",
        "gemma-3",
        "glm-4",
        "smollm3-window",
        "granite",
        "olmo3",
    ],
)
def test_tree_nodes_see_their_path_only(case: str, tmp_path: Path) -> None:
    build(case, tmp_path)
    lean = load_target(tmp_path)
    prefix, count = 9, len(TREE_PARENTS)
    ids = _ids(lean.config.vocab_size, batch=1, length=prefix + count)
    paths: list[list[int]] = []
    for node, parent in enumerate(TREE_PARENTS):
        paths.append(([] if parent < 0 else paths[parent]) + [node])
    depth = torch.tensor([len(path) - 1 for path in paths])
    positions = prefix + depth
    key_positions = torch.cat((torch.arange(prefix), positions))
    ancestor = torch.zeros(count, prefix + count, dtype=torch.bool)
    ancestor[:, :prefix] = True
    for node, path in enumerate(paths):
        ancestor[node, [prefix + other for other in path]] = True
    within = window_mask(lean, positions, key_positions)
    within = None if within is None else ancestor & within

    with torch.inference_mode():
        cache, start = lean.new_cache(prefix + count), torch.arange(prefix)
        limited = window_mask(lean, start, start)
        lean(
            ids[:, :prefix],
            start[None],
            cache=cache,
            slots=start,
            mask=causal_mask(start, start),
            window_mask=limited,
        )
        slots = torch.arange(prefix, prefix + count)
        out = lean(
            ids[:, prefix:], positions[None], cache=cache, slots=slots, mask=ancestor, window_mask=within
        )
        tree = lean.logits(out.hidden)[0]
    for node, path in enumerate(paths):
        alone, _ = run_full(lean, torch.cat((ids[:, :prefix], ids[:, prefix:][:, path]), 1))
        torch.testing.assert_close(tree[node], alone[0, -1], rtol=0, atol=1e-4)


@pytest.mark.parametrize("case", [*SHARED, "llama-yarn", "mistral-window", "gemma-3", "smollm3-window"])
def test_lengths_and_bits_say_what_masks_say(case: str, tmp_path: Path) -> None:
    """As captured passes see it: the whole cache, and a length."""
    build(case, tmp_path)
    lean, steps = load_target(tmp_path), 3  # fewer than any window
    ids = _ids(67)
    expected, _ = run_full(lean, ids)
    cache = lean.new_cache(LENGTH + 5, batch=2)
    for start in range(0, LENGTH, steps):
        slots = torch.arange(start, start + steps).expand(2, -1)
        with torch.inference_mode():
            out = lean(
                ids[:, start : start + steps], slots, cache=cache, slots=slots, mask=TreeMask.chain(slots)
            )
            logits = lean.logits(out.hidden)
        torch.testing.assert_close(logits, expected[:, start : start + steps], rtol=0, atol=1e-4)


def test_a_row_that_sees_nothing_is_finite_and_harmless(tmp_path: Path) -> None:
    build("llama", tmp_path)
    lean = load_target(tmp_path)
    ids, positions = _ids(67, batch=1), torch.arange(LENGTH)
    expected, _ = run_full(lean, ids)
    mask = causal_mask(positions, positions)
    mask[5:, 5] = False  # nobody later sees the blind row's key
    mask[5] = False
    kept = mask.clone()
    kept[5, 5] = True
    logits = []
    for chosen in (mask, kept):
        with torch.inference_mode():
            cache = lean.new_cache(LENGTH)
            out = lean(ids, positions[None], cache=cache, slots=positions, mask=chosen)
            logits.append(lean.logits(out.hidden)[0])
    assert torch.isfinite(logits[0]).all()
    others = positions != 5
    torch.testing.assert_close(logits[0][others], logits[1][others], rtol=0, atol=1e-6)
    torch.testing.assert_close(logits[0][:5], expected[0, :5], rtol=0, atol=1e-5)


def test_a_long_view_of_a_windowed_model_needs_its_window_mask(tmp_path: Path) -> None:
    build("mistral-window", tmp_path)
    lean = load_target(tmp_path)
    ids, positions = _ids(67, batch=1), torch.arange(LENGTH)
    mask = causal_mask(positions, positions)
    with pytest.raises(ValueError, match="window"):
        lean(ids, positions[None], cache=lean.new_cache(LENGTH), slots=positions, mask=mask)
    short = positions[: lean.config.sliding_window]
    view = len(short)
    with torch.inference_mode():
        out = lean(
            ids[:, :view], short[None], cache=lean.new_cache(view), slots=short, mask=mask[:view, :view]
        )
    expected, _ = run_full(lean, ids)
    torch.testing.assert_close(lean.logits(out.hidden), expected[:, :view], rtol=0, atol=1e-5)


@pytest.mark.parametrize("first", [0, 1, 2, 3])
def test_max_window_layers_decides_where_no_layer_types_are_given(first: int, tmp_path: Path) -> None:
    build("qwen2-window", tmp_path)
    edit_folder(tmp_path, config=lambda values: values.pop("layer_types"), max_window_layers=first)
    reference = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager")
    lean = load_target(tmp_path)
    assert lean.config.sliding_layers == tuple(index >= first for index in range(3))
    logits, _ = run_full(lean, _ids(67))
    with torch.no_grad():
        torch.testing.assert_close(logits, reference(_ids(67)).logits, rtol=0, atol=1e-4)
