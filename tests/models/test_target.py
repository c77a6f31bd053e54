"""The target as training sees it: capture, refusals, fingerprints."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.folders import edit_folder
from tests.models.architectures import ARCHITECTURES, make_architecture
from vocabforge.core.errors import DataError, MismatchError
from vocabforge.models.target.hf import HFTarget, check_tokenizer_fits, default_aux_layers


def row(documents: list[list[int]], length: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Documents packed by hand: ids, positions and document numbers (1, T)."""
    ids, positions, numbers = [], [], []
    for number, document in enumerate(documents, 1):
        ids += document
        positions += range(len(document))
        numbers += [number] * len(document)
    pad = [0] * (length - len(ids))
    return tuple(torch.tensor([values + pad]) for values in (ids, positions, numbers))


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_packed_capture_equals_each_document_alone(folder: Path, attention: str) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation=attention)
    target = HFTarget(model, aux_layers=(0, 2, 3))
    generator = torch.Generator().manual_seed(5)
    documents = [torch.randint(0, 61, (n,), generator=generator).tolist() for n in (7, 12, 1, 5)]
    packed = target.capture(*row(documents, 32))
    assert packed.features.shape == (1, 32, 3 * 32)
    assert packed.hidden.shape == (1, 32, 32)
    start = 0
    for document in documents:
        with torch.no_grad():
            alone = model(torch.tensor([document]), output_hidden_states=True)
        where = slice(start, start + len(document))
        features = torch.cat(
            [alone.hidden_states[layer + 1] for layer in (0, 2, 3)], -1
        )  # [0] is the embedding
        torch.testing.assert_close(packed.features[:, where], features, rtol=0, atol=5e-4)
        torch.testing.assert_close(packed.hidden[:, where], alone.hidden_states[-1], rtol=0, atol=5e-4)
        torch.testing.assert_close(target.logits(packed.hidden[:, where]), alone.logits, rtol=0, atol=3e-3)
        start += len(document)
    assert bool(packed.hidden.isfinite().all()), "padding must not be NaN"


def test_features_come_in_the_order_asked_for_and_hooks_are_removed(folder: Path) -> None:
    one, two = HFTarget.load(folder, aux_layers=(1, 3)), HFTarget.load(folder, aux_layers=(3, 1))
    packed = row([[3, 4, 5]], 4)
    before = [len(layer._forward_hooks) for layer in one.model.model.layers]
    first, second = one.capture(*packed).features, two.capture(*packed).features
    assert torch.equal(first, second.roll(32, -1))
    assert not torch.equal(first, second)
    assert [len(layer._forward_hooks) for layer in one.model.model.layers] == before


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        (32, (1, 15, 28)),
        (36, (1, 17, 32)),
        (8, (1, 3, 4)),
        (6, (1, 3, 4)),
        (5, (1, 2, 3)),
        (4, (0, 1, 2)),
        (3, (0, 1)),
        (1, (0,)),
    ],
)
def test_default_aux_layers(layers: int, expected: tuple[int, ...]) -> None:
    assert default_aux_layers(layers) == expected


def test_auxiliary_layers_that_do_not_exist_are_refused(folder: Path) -> None:
    with pytest.raises(MismatchError, match="no such layers") as error:
        HFTarget.load(folder, aux_layers=(1, 2, 5))
    assert "0 to 4" in str(error.value)


def test_the_target_is_frozen(folder: Path) -> None:
    target = HFTarget.load(folder)
    assert not any(p.requires_grad for p in target.model.parameters())
    assert not target.model.training
    assert (target.num_layers, target.vocab_size, target.hidden_size) == (5, 61, 32)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture_gives_states_of_packed_rows(name: str) -> None:
    """Its logits, softcap and scale included, are the model's own of each document, windows or not."""
    model = make_architecture(name)
    target = HFTarget(model)
    torch.manual_seed(1)
    ids = torch.randint(2, 90, (1, 30))
    document = torch.tensor([[1] * 19 + [2] * 11])
    position = torch.tensor([[*range(19), *range(11)]])
    states = target.capture(ids, position, document)
    assert states.features.shape == (1, 30, len(target.aux_layers) * target.hidden_size)
    with torch.no_grad():
        alone = [model(input_ids=part).logits for part in ids.split([19, 11], 1)]
    expected = torch.cat(alone, 1)
    assert (target.logits(states.hidden) - expected).abs().max() < 1e-4 * expected.std()


def test_a_scale_that_no_setting_names_is_refused(folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder)
    forward = model.forward

    def scaled(*args: Any, **kwargs: Any) -> Any:
        output = forward(*args, **kwargs)
        output.logits = output.logits * 1.01
        return output

    model.forward = scaled
    with pytest.raises(DataError, match="changes its logits"):
        HFTarget(model)


def test_unloadable_folders_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no model here"):
        HFTarget.load(tmp_path)
    shutil.copytree(folder, tmp_path / "cut")
    edit_folder(tmp_path / "cut", lambda weights: weights.pop("model.layers.3.mlp.up_proj.weight"))
    with pytest.raises(DataError, match="lacks weights") as error:
        HFTarget.load(tmp_path / "cut")
    assert "up_proj" in str(error.value)
    (tmp_path / "cut" / "model.safetensors").write_bytes(b"nonsense")
    with pytest.raises(DataError, match="weight file cannot be read"):
        HFTarget.load(tmp_path / "cut")


def test_tokenizers_may_be_smaller_but_not_larger_than_the_head() -> None:
    check_tokenizer_fits(60, 64, tokenizer="t", target="m")
    with pytest.raises(MismatchError, match="does not match the target"):
        check_tokenizer_fits(65, 64, tokenizer="t", target="m")
