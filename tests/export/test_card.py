"""Model cards: what a reader who has only the folder is told, and how each server is started."""

from __future__ import annotations

import dataclasses
import itertools
import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tests.export.test_eagle_layout import eagle1, subset
from tests.worlds import tiny_drafter, tiny_target
from vocabforge.export.card import model_card, readers
from vocabforge.layouts.interface import Export
from vocabforge.layouts.registry import FORMATS
from vocabforge.models.drafters.revocab import prune_head
from vocabforge.models.target.head import TargetTensors
from vocabforge.models.target.hf import HFTarget
from vocabforge.models.target.load import read_target_config

META = {
    "tokenizer_fingerprint": "0123456789abcdef0123",
    "steps": 3000,
    "heldout": {"accuracy": [0.7, 0.6]},
    "best": {"name": "accepted_length", "value": 3.456, "step": 2500},
}
RECIPE = {
    "data": {"train": ["/secret/place/chats.jsonl"], "sequence_length": 2048},
    "optim": {"lr": 1e-4, "batch_size": 8},
    "ttt": {"steps": 7},
    "drafter": {"init": None},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_target(tmp_path_factory.mktemp("some") / "tiny-61")


@pytest.fixture(scope="module")
def export(folder: Path, shared: TargetTensors) -> Export:
    drafter = prune_head(tiny_drafter(HFTarget.load(folder, aux_layers=(1, 2))), subset(), source="s")
    target = read_target_config(folder)
    return Export(drafter, target, shared, str(folder), torch.bfloat16, meta=META, config=RECIPE)


def changed(export: Export, layout: str = "sglang-eagle3", **fields: Any) -> str:
    return model_card("served", layout, dataclasses.replace(export, **fields))


def blocks(card: str) -> list[str]:
    """Commands, each on one line."""
    return [part.strip().replace("\\\n", " ") for part in card.split("```")[1::2]]


def front_matter(card: str) -> dict[str, Any]:
    assert card.startswith("---\n")
    return yaml.safe_load(card.split("---\n")[1])


def test_it_tells_what_the_drafter_is_and_how_it_was_trained(export: Export) -> None:
    card = changed(export, meta=META | {"coverage": 0.9876})
    for words in (
        "# served",
        "An EAGLE-3 drafter",
        "| draft vocabulary | 6 of 61 tokens, 98.76% of the tokens counted for it |",
        "| layout | `sglang-eagle3`, bfloat16 |",
        "| reads | outputs of target layers 1, 2 (0-based) |",
        "fingerprint `0123456789abcdef`",
        "| data | `chats.jsonl` |",
        "| steps | 3,000 |",
        "| learning rate | 0.0001 |",
        "| unrolled draft steps | 7 |",
        "| held-out accuracy by draft step | 0.700, 0.600 |",
    ):
        assert words in card, words
    assert "started from" not in card
    assert "/secret" not in card
    assert str(Path(export.target_name).parent) not in card, "places of this machine"


def test_its_licence_is_left_to_the_publisher(export: Export) -> None:
    card = changed(export)
    head = front_matter(card)
    assert "license" not in head
    assert "# license:" in card
    assert head["pipeline_tag"] == "text-generation"
    assert {"speculative-decoding", "eagle3", "sglang", "vllm"} <= set(head["tags"])


def test_licences_of_target_and_data_are_said(export: Export, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("---\nlicense: other\nlicense_name: gemma\n---\n# A target\n")
    sources = ["ultrachat", "openhermes", "hub:org/texts@main", "/secret/place/chats.jsonl"]
    card = changed(export, target_path=tmp_path, config={"data": {"train": sources}})
    assert front_matter(card)["datasets"] == [
        "HuggingFaceH4/ultrachat_200k",
        "teknium/OpenHermes-2.5",
        "org/texts",
    ]
    assert "| data | `ultrachat`, `openhermes`, `org/texts`, `chats.jsonl` |" in card
    for line in (
        "- target `tiny-61`: gemma",
        "- data `HuggingFaceH4/ultrachat_200k`: mit",
        "- data `teknium/OpenHermes-2.5`: see its card",
        "- data `org/texts`: see its card",
    ):
        assert line in card.splitlines()
    assert "license" not in front_matter(card)
    # Prepared data name what they were made of.
    (tmp_path / "manifest.json").write_text(json.dumps({"config": {"train": ["gsm8k"]}}))
    prepared = changed(export, config={"data": {"train": [], "prepared": str(tmp_path)}})
    assert "- data `openai/gsm8k`: mit" in prepared
    for unreadable in ("---\nlicense: [\n---\n", "no front matter", "---\n- a list\n---\n"):
        (tmp_path / "README.md").write_text(unreadable)
        assert "- target" not in changed(export, target_path=tmp_path)


def test_a_target_on_the_hub_is_its_base_model(export: Export) -> None:
    assert "base_model" not in front_matter(changed(export))
    assert "`tiny-61`" in changed(export)
    for fields in (
        {"target_name": "org/model-8B"},
        {"target": {**export.target, "_name_or_path": "org/model-8B"}},
    ):
        card = changed(export, **fields)
        assert front_matter(card)["base_model"] == "org/model-8B"
        assert "--model-path org/model-8B" in card


def test_commands_for_eagle3(export: Export) -> None:
    ours, sglang, vllm = blocks(changed(export, speculative_tokens=3))
    assert shlex.split(ours)[:2] == ["vocabforge", "generate"]
    words = shlex.split(sglang)
    asked = dict(itertools.pairwise(words))
    assert asked["--speculative-algorithm"] == "EAGLE3"
    assert asked["--speculative-draft-model-path"] == "served"
    assert asked["--speculative-num-steps"] == "3"
    assert asked["--speculative-num-draft-tokens"] == "4"  # the last verified token among them
    assert "--speculative-token-map" not in asked
    words = shlex.split(vllm)
    config = json.loads(words[words.index("--speculative-config") + 1])
    assert config == {"method": "eagle3", "model": "served", "num_speculative_tokens": 3}


def test_commands_for_eagle1(export: Export, shared: TargetTensors) -> None:
    whole = eagle1(shared)
    _, sglang = blocks(changed(export, drafter=whole, layout="eagle"))
    assert "--speculative-algorithm EAGLE " in sglang
    assert "token-map" not in sglang
    _, vllm = blocks(changed(export, drafter=whole, layout="eagle", server="vllm"))
    assert '"method": "eagle"' in vllm
    cut = prune_head(whole, subset(), source="s")
    _, mapped = blocks(changed(export, drafter=cut, layout="fr-spec"))
    assert "--speculative-token-map served/freq_6.pt" in mapped
    assert "all 61 tokens, by the target's LM head" in changed(export, drafter=whole, layout="eagle")


def test_every_format_has_readers_and_commands(export: Export) -> None:
    for name in FORMATS:
        card = changed(export, layout=name)
        assert len(blocks(card)) >= 1
        assert (name == "native") == (not readers(name, export))
    _, vllm, alone = blocks(changed(export, layout="speculators-eagle3"))
    assert "--speculative-config" in vllm
    assert alone == "vllm serve served"
    # A module is served in the target's checkpoint, which a copy of the shards completes.
    _, copied, sglang, vllm = blocks(changed(export, layout="mtp"))
    assert copied.endswith("served-checkpoint && cp served/*.safetensors served-checkpoint/")
    assert "NEXTN" in sglang
    assert '"method": "mtp"' in vllm
    assert "model" not in json.loads(vllm.split("--speculative-config ")[1].strip("'"))
    whole = dataclasses.replace(export, with_target=True)
    _, sglang, vllm = blocks(changed(whole, layout="mtp"))
    assert vllm.startswith("vllm serve served ")
