"""What a plan says about servers equals what export and the servers' readers say of the trained drafter."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.worlds import tiny_target
from vocabforge.export.forms import served_forms
from vocabforge.models.drafters.registry import drafter_sizes
from vocabforge.models.target.load import read_target_config


@pytest.mark.parametrize(
    ("kind", "wishes", "expected"),
    [
        (
            "eagle3",
            {},
            {
                "sglang-eagle3": "for sglang and vllm",
                "speculators-eagle3": "for vllm and speculators",
                "gguf": "for llama.cpp",
            },
        ),
        (
            "eagle3",
            {"qk_norm": True, "draft_vocab_size": 30},
            {"sglang-eagle3": "no: .*qk_norm", "speculators-eagle3": "for vllm", "gguf": "no: .*qk_norm"},
        ),
        (
            "eagle3",
            {"sliding_window": 128},
            {"gguf": "no: .*a sliding window", "sglang-eagle3": ".*--speculative-draft-window-size 128"},
        ),
        ("eagle3", {"aux_layers": (1,)}, {"sglang-eagle3": "no: .*one auxiliary layer"}),
        ("eagle1", {}, {"eagle": "for sglang"}),
        ("medusa", {}, {"medusa": "for vllm"}),
        ("medusa", {"draft_vocab_size": 30}, {"medusa": "no: .*no place for a draft vocabulary"}),
        ("dflash", {"aux_layers": (1, 3), "mask_token_id": 50}, {"block": "for .*vllm"}),
        ("mtp", {}, {"mtp": "no: a layer of no family"}),
    ],
)
def test_a_form_is_told_before_training(kind, wishes, expected, tmp_path):
    target = tiny_target(tmp_path, num_hidden_layers=8)
    sizes = drafter_sizes(kind, read_target_config(target), **wishes)
    told = served_forms({"kind": kind, **sizes.to_dict()}, None, target)
    assert bool(told) == bool(expected)
    for layout, text in expected.items():
        assert re.match(text, told[layout]), told


def test_a_draft_vocabulary_of_an_eagle1_drafter_is_served_as_a_list(tmp_path: Path) -> None:
    target = tiny_target(tmp_path, num_hidden_layers=8)
    sizes = drafter_sizes("eagle1", read_target_config(target))
    told = served_forms({"kind": "eagle1", **sizes.to_dict()}, tmp_path / "vocab", target)
    assert told["eagle"].startswith("no: ")
    assert "sglang" in told["fr-spec"]
