"""Auxiliary layers in the numbering of each reader."""

from __future__ import annotations

from typing import Any

import pytest

from tests.export.readers_support import sglang_captures, vllm_captures
from vocabforge.core.errors import DataError, MismatchError
from vocabforge.layouts.layer_ids import (
    LAYER_IDS,
    as_inputs,
    as_outputs,
    check_expressible,
    default_layers,
    read_layers,
    speculators_layers,
)


def body(inner: list[int] | None = None, top: list[int] | None = None) -> dict[str, Any]:
    found: dict[str, Any] = {"eagle_config": {"use_aux_hidden_state": True}}
    if inner is not None:
        found["eagle_config"][LAYER_IDS] = inner
    if top is not None:
        found[LAYER_IDS] = top
    return found


@pytest.mark.parametrize("layers", [(1, 15, 28), (0, 1), (2, 3, 9, 30), (30,), (1, 16, 29)])
def test_both_lists_mean_the_same_layers_to_every_reader(layers: tuple[int, ...]) -> None:
    written = body(as_outputs(layers), as_inputs(layers))
    assert sglang_captures(written, 32) == vllm_captures(written, 32) == layers
    reading = read_layers(written, 32)
    assert (reading.layers, reading.other) == (layers, None)
    assert speculators_layers({LAYER_IDS: as_inputs(layers)}, 32) == layers


def test_sglang_reads_outputs_and_only_inside_eagle_config() -> None:
    assert sglang_captures(body([2, 16, 29]), 32) == (2, 16, 29)
    assert sglang_captures(body(top=[9, 10, 11]), 32) == (1, 15, 28), "the default"
    assert sglang_captures({"eagle_config": None}, 32) == sglang_captures({}, 32) == (1, 15, 28)
    assert sglang_captures(body([1, 15, 31]), 32) == (1, 15), "the last output is no layer's input"


def test_vllm_reads_inputs_at_the_top_first() -> None:
    assert vllm_captures(body([1, 15, 28], [2, 16, 29]), 32) == (1, 15, 28)
    assert vllm_captures(body([1, 15, 28]), 32) == (0, 14, 27), "the list inside, as inputs too"
    assert vllm_captures(body(top=[0, 32]), 32) == (-1, 31), "the embedding, the last output"
    assert vllm_captures({}, 32) == vllm_captures(body(top=[]), 32) == (1, 15, 28)
    assert vllm_captures(body(top=[9, 3, 3]), 32) == (2, 8), "ascending, each once"


@pytest.mark.parametrize(
    ("given", "layers", "other"),
    [
        (body(), (1, 15, 28), None),
        (body([1, 15, 28]), (1, 15, 28), None),  # the default as outputs
        (body([2, 16, 29]), (1, 15, 28), None),  # and as inputs
        (body(top=[2, 16, 29]), (1, 15, 28), None),
        (body(top=[1, 15, 28]), (1, 15, 28), None),
        (body([24, 28, 32]), (23, 27, 31), None),  # there is no output 32
        (body([0, 15, 28]), (0, 15, 28), None),  # input 0 would be the embedding
        (body([3, 10, 20]), (3, 10, 20), (2, 9, 19)),
        (body(top=[3, 10, 20]), (2, 9, 19), (3, 10, 20)),
        (body([3, 10, 20], [3, 10, 20]), (3, 10, 20), (2, 9, 19)),
        (body([3, 10, 20], [7, 8, 9]), (3, 10, 20), (6, 7, 8)),
        (body([2, 16, 29], [2, 16, 29]), (1, 15, 28), (2, 16, 29)),
    ],
)
def test_a_folder_of_unknown_origin(given, layers, other):
    reading = read_layers(given, 32)
    assert (reading.layers, reading.other) == (layers, other)
    assert reading.rule


@pytest.mark.parametrize("listed", ["1,2,3", [1.0, 2], [True], {"a": 1}, ["1"]])
def test_what_is_no_list_of_layers_is_refused(listed: Any) -> None:
    with pytest.raises(DataError, match="not a list of layer numbers"):
        read_layers(body(listed), 32)


def test_layers_out_of_order_or_out_of_reach_cannot_be_expressed() -> None:
    check_expressible((0, 1, 30), 30, layout="it", remedy="")
    for layers in ((1, 1, 2), (2, 1), (1, 31)):
        with pytest.raises(MismatchError, match="cannot express these auxiliary layers"):
            check_expressible(layers, 30, layout="it", remedy="")


def test_the_default_is_the_targets_own_rule_from_eight_layers_on() -> None:
    from vocabforge.models.target.hf import default_aux_layers

    assert all(default_layers(count) == default_aux_layers(count) for count in range(8, 100))
