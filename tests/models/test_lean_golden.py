"""Published small models, generated from elsewhere in float64, reproduced token for token."""

from __future__ import annotations

import json
import lzma
import shutil
from pathlib import Path

import pytest
import torch

from tests.models.lean_support import greedy
from tests.models.llama2c import convert
from tests.worlds import DATA, needs_data
from vocabforge.models.lean.model import LeanModel, load_target

MODELS = DATA / "models"
NAMES = ("stories260K", "llama2xs-279K", "bitllama-3M", "babyllama-tok105")


def unpack(name: str, folder: Path) -> Path:
    """A model of the development data as a folder that ``load_target`` reads."""
    source, target = MODELS / name, folder / name
    if name == "babyllama-tok105":
        convert(source / "model5000.bin", source / "config.json", target)
        return target
    target.mkdir()
    shutil.copyfile(source / "config.json", target / "config.json")
    packed, plain = source / "model.safetensors.xz", source / "model.safetensors"
    weights = lzma.decompress(packed.read_bytes()) if packed.is_file() else plain.read_bytes()
    (target / "model.safetensors").write_bytes(weights)
    return target


def rows() -> dict[str, list[dict]]:
    lines = (MODELS / "golden_generations.jsonl").read_text("utf-8").splitlines()
    table: dict[str, list[dict]] = {}
    for row in map(json.loads, lines):
        table.setdefault(row["model"], []).append(row)
    return table


def _check(model: LeanModel, row: dict) -> None:
    new, logits = greedy(model, row["prompt_ids"], len(row["greedy_new_ids"]))
    assert new == row["greedy_new_ids"]
    best = logits[-1].topk(5)
    assert best.indices.tolist() == [token for token, _ in row["last_position_top5"]]
    expected = torch.tensor([logit for _, logit in row["last_position_top5"]])
    torch.testing.assert_close(best.values, expected, rtol=0, atol=1e-3)
    following = torch.tensor(row["prompt_ids"][1:])
    surprise = -logits[:-1].log_softmax(-1).gather(1, following[:, None])[:, 0]
    torch.testing.assert_close(surprise, torch.tensor(row["nll_per_prompt_token"]), rtol=0, atol=1e-3)


@needs_data
@pytest.mark.shared
@pytest.mark.parametrize("name", NAMES)
def test_golden_generations_are_reproduced(name: str, tmp_path: Path) -> None:
    model = load_target(unpack(name, tmp_path))
    golden = rows()[name]
    assert [len(row["greedy_new_ids"]) for row in golden] == [48, 48, 48]
    for row in golden:
        _check(model, row)
