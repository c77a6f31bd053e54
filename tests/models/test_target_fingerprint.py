"""The fingerprint tells targets apart that compute differently, and only those."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.worlds import tiny_target
from vocabforge.models.target.fingerprint import target_fingerprint


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_target(tmp_path_factory.mktemp("target") / "t", vocab_size=64)


def changed(folder: Path, to: Path, **config: Any) -> Path:
    shutil.copytree(folder, to)
    body = json.loads((to / "config.json").read_text())
    (to / "config.json").write_text(json.dumps({**body, **config}))
    return to


@pytest.mark.parametrize(
    "config",
    [
        {"rope_parameters": {"rope_type": "default", "rope_theta": 17.0}},
        {"rms_norm_eps": 0.5},
        {"sliding_window": 8},
        {"hidden_act": "gelu"},
        {"final_logit_softcapping": 30.0},
    ],
)
def test_a_setting_of_the_forward_pass_changes_it(folder: Path, tmp_path: Path, config: Any) -> None:
    assert target_fingerprint(changed(folder, tmp_path / "c", **config)) != target_fingerprint(folder)


def test_bookkeeping_and_another_spelling_of_rope_do_not(folder: Path, tmp_path: Path) -> None:
    body = json.loads((folder / "config.json").read_text())
    theta = body["rope_parameters"]["rope_theta"]
    old = changed(folder, tmp_path / "old", rope_theta=theta, transformers_version="4.40.0", use_cache=False)
    spelt = json.loads((old / "config.json").read_text())
    del spelt["rope_parameters"]
    (old / "config.json").write_text(json.dumps(spelt))
    assert target_fingerprint(old) == target_fingerprint(folder)
