"""``vocabforge export`` with a draft vocabulary, again from an export, and its mistakes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from tests.worlds import tiny_drafter, tiny_target
from vocabforge.cli.app import build_app
from vocabforge.cli.decode.generate import generate
from vocabforge.cli.ship.export import export
from vocabforge.core.artifact import open_artifact
from vocabforge.models.drafters.io import save_drafter
from vocabforge.models.target.fingerprint import target_fingerprint
from vocabforge.models.target.hf import HFTarget
from vocabforge.vocab.subset.subset import VocabSubset, save_subset

RANKED = np.array([41, 0, 9, 3, 17, 58], dtype=np.int64)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_target(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def target(folder: Path) -> HFTarget:
    return HFTarget.load(folder)


def subset(fingerprint: str = "tok") -> VocabSubset:
    return VocabSubset.from_ranked(RANKED, vocab_size=61, fingerprint=fingerprint)


@pytest.fixture
def place(target: HFTarget, folder: Path, tmp_path: Path) -> Path:
    """A native drafter ``d`` and draft vocabularies ``v`` (right) and ``w`` (of another tokenizer)."""
    meta = {
        "target_fingerprint": target_fingerprint(folder),
        "tokenizer_fingerprint": "tok",
        "target_name": "tiny",
    }
    save_drafter(tmp_path / "d", tiny_drafter(target), meta, config={"target": str(folder)})
    save_subset(subset(), tmp_path / "v")
    save_subset(subset(fingerprint="other"), tmp_path / "w")
    return tmp_path


def run(place: Path, line: str) -> Any:
    app = build_app({"export": export, "generate": generate}, ["export", "generate"])
    return CliRunner().invoke(app, [word.replace("@", f"{place}/") for word in line.split()])


def test_export_restricted_for_servers_in_bf16(place: Path, target: HFTarget) -> None:
    done = run(
        place, "export --drafter @d --format sglang-eagle3 --vocab @v --dtype bfloat16 --output @out --json"
    )
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["draft_vocab_size"] == 6
    artifact = open_artifact(place / "out", "export-sglang-eagle3")
    assert artifact.meta["tokenizer_fingerprint"] == "tok"
    assert artifact.manifest["parents"].keys() == {"drafter", "vocab"}
    tensors = load_file(place / "out" / "model.safetensors")
    assert tensors["lm_head.weight"].dtype == torch.bfloat16
    assert torch.equal(tensors["lm_head.weight"], target.head_weight[sorted(RANKED)].bfloat16())


def test_export_native_and_again_from_the_export(place: Path, folder: Path) -> None:
    done = run(place, "export --drafter @d --format native --vocab @v --output @n")
    assert done.exit_code == 0, done.output
    assert "6 draft tokens" in done.stderr
    done = run(place, f"export --drafter @n --format sglang-eagle3 --target {folder} --output @s")
    assert done.exit_code == 0, done.output
    first = load_file(place / "n" / "drafter.safetensors")
    second = load_file(place / "s" / "model.safetensors")
    ids = first.pop("target_ids")
    assert torch.equal(ids, torch.arange(6) + second.pop("d2t"))
    second.pop("t2d")
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--format sglang-eagle3 --vocab @w --output @x", "tokenizer"),
        ("--format nonsense --output @x", "no export format of this name"),
        ("--format native --dtype int8 --output @x", "no dtype of this name"),
        ("--format native --output @v", "exists already"),
        ("--format native --target @nowhere --output @x", "no model"),
    ],
)
def test_export_mistakes_are_told_and_write_nothing(place: Path, line: str, words: str) -> None:
    done = run(place, f"export --drafter @d {line}")
    assert done.exit_code in (1, 2), done.output
    assert words in done.output
    assert "Traceback" not in done.output
    assert not (place / "x").exists()


def test_export_without_a_known_target_asks_for_it(place: Path, target: HFTarget) -> None:
    save_drafter(place / "lost", tiny_drafter(target), {}, config={"target": str(place / "gone")})
    done = run(place, "export --drafter @lost --format native --output @x")
    assert done.exit_code == 2
    assert "give --target" in done.output
