"""Folders that someone else made, with anything in any place: refused in words, without a blow-up of memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.export.readers_support import IDS, Tiny, changed, eagle1, eagle1_over, eagle3, write
from vocabforge.core.errors import VocabForgeError
from vocabforge.export.servers.registry import READERS, open_folder, read_as, reader_of
from vocabforge.layouts.registry import load_drafter


@pytest.fixture(scope="module")
def good(tiny: Tiny) -> dict[str, Path]:
    folder = tiny.path.parent
    drafter = eagle3(tiny)
    return {
        "sglang": write(tiny, drafter, "sglang-eagle3", folder / "sglang"),
        "speculators": write(tiny, drafter, "speculators-eagle3", folder / "speculators"),
        "eagle": write(tiny, eagle1(tiny.shared), "eagle", folder / "eagle"),
        "fr-spec": write(tiny, eagle1_over(tiny.shared, IDS), "fr-spec", folder / "fr-spec"),
    }


def examine(tiny: Tiny, path: Path) -> tuple[bool, list[Any]]:
    """Whether the folder loads, and how every server that knows it has it; other errors than ours go through."""
    try:
        load_drafter(path, tiny.shared, tiny.path)
        loads = True
    except VocabForgeError:
        loads = False
    try:
        folder = open_folder(path)
    except VocabForgeError:
        return loads, []
    names = [name for name in READERS if reader_of(name).matches(folder)]
    return loads, [read_as(name, folder, tiny.side) for name in names]


@pytest.mark.parametrize("name", ["num_key_value_heads", "intermediate_size", "num_attention_heads"])
def test_sizes_that_are_not_stored_are_refused_before_they_are_made(tiny, good, tmp_path, name):
    path = changed(good["sglang"], tmp_path / "wide", config=lambda body: body.update({name: 10**12}))
    loads, served = examine(tiny, path)
    assert not loads
    assert [one.server for one in served] == ["sglang", "vllm", "llamacpp"]
    assert all(one.failed or one.server == "llamacpp" for one in served)
    assert all(one.problems and one.drafter is None for one in served)  # of llama.cpp's converter: warnings


def test_many_target_states_are_no_hang(tiny: Tiny, good: dict[str, Path], tmp_path: Path) -> None:
    def edit(body: dict[str, Any]) -> None:
        body.update(num_aux_hidden_states=10**9, fc_norm=True)

    _, served = examine(tiny, changed(good["sglang"], tmp_path / "states", config=edit))
    assert {one.server for one in served if one.failed} == {"sglang", "vllm"}  # llama.cpp reads neither key


def test_an_embedding_of_another_shape_is_said(tiny: Tiny, good: dict[str, Path], tmp_path: Path) -> None:
    def wider(tensors: dict[str, Any]) -> None:
        tensors["embed_tokens.weight"] = torch.zeros(70, 32)

    path = changed(
        good["speculators"],
        tmp_path / "other",
        config=lambda body: body["transformer_layer_config"].update(vocab_size=70),
        tensors=wider,
    )
    loads, served = examine(tiny, path)
    assert not loads
    for one in served:
        told = " ".join(problem.message for problem in one.of("tensors"))
        assert "of shape [70, 32], not [61, 32]" in told


@pytest.mark.parametrize("ids", [[1.5, 2.5], [True, False], [], None, torch.arange(5)])
def test_a_token_map_is_a_plain_list_for_the_doctor_too(good, tmp_path, ids):
    path = changed(good["fr-spec"], tmp_path / "map")
    torch.save(ids, path / f"freq_{len(IDS)}.pt")
    with pytest.raises(VocabForgeError, match="no list of token ids"):
        open_folder(path)


def test_sglang_skips_fc_with_one_state(tiny: Tiny, good: dict[str, Path], tmp_path: Path) -> None:
    def one_layer(body: dict[str, Any]) -> None:
        body.update(num_aux_hidden_states=1, eagle_aux_hidden_state_layer_ids=[4])
        body["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [3]

    def narrow(tensors: dict[str, Any]) -> None:
        tensors["fc.weight"] = tensors["fc.weight"][:, :32]

    path = changed(good["sglang"], tmp_path / "one", config=one_layer, tensors=narrow)
    _, served = examine(tiny, path)
    found = {one.server: one for one in served}
    assert "skips fc" in found["sglang"].of("layers")[0].message
    assert found["vllm"].drafter is not None
