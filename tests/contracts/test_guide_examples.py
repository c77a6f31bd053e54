"""The guides' examples work: their code is executed, and the contracts of the tables hold for what it adds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.contracts.guide_code import checks_of, fresh, install, read_guide, run
from tests.support import tiny_drafter, tiny_target
from vocabforge.models.drafter_io import save_drafter
from vocabforge.models.head_io import check_owner, load_head, owner_of
from vocabforge.models.heads import HEADS, base_of, build_head
from vocabforge.models.target import HFTarget


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_target(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def target(folder: Path) -> HFTarget:
    return HFTarget.load(folder)


@pytest.fixture
def int8_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The modules of the guide, and its row in the table."""
    guide = read_guide("add-a-draft-head")
    for name, value in guide.rows["HEADS"].items():
        monkeypatch.setitem(HEADS, name, value)
    return dict(install(guide, tmp_path, monkeypatch))


def test_the_draft_head_keeps_the_contract(
    int8_head: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contract = fresh("tests.contracts.test_head_contracts", monkeypatch)
    checks = list(checks_of(contract, "int8"))
    assert len(checks) > 25
    for number, check in enumerate(checks):
        run(check, tmp_path=tmp_path / str(number))


def test_the_draft_head_goes_from_a_drafter_to_the_disk_and_back(
    int8_head: dict[str, Any], folder: Path, target: HFTarget, tmp_path: Path
) -> None:
    """The guide's script, then what ``--head`` does: the owner is checked, and the drafts are nearly the head's own."""
    drafter = tiny_drafter(target)
    prints = {"target_fingerprint": "t" * 64, "tokenizer_fingerprint": "k" * 64}
    save_drafter(tmp_path / "drafter", drafter, prints)
    int8_head["int8_head"].make(folder, tmp_path / "drafter", tmp_path / "int8")
    loaded = load_head(tmp_path / "int8", dtype=torch.bfloat16)
    owner = owner_of(loaded.artifact)
    assert (owner.target, owner.tokenizer) == ("t" * 64, "k" * 64)
    check_owner(loaded.artifact, owner, drafter="drafter")
    base = base_of(drafter)
    head = build_head(loaded.kind, base, loaded.module)
    assert {head.rows.dtype, head.scale.dtype} == {torch.int8, torch.float32}
    restored = head.rows.float() * (head.scale / 127)[:, None]
    allowed = base.weight.abs().amax(-1, keepdim=True) * (0.5 / 127 + 2**-8)
    assert bool(((restored - base.weight).abs() <= allowed).all())
    hidden = torch.randn(50, base.weight.shape[1], generator=torch.Generator().manual_seed(0))
    own = build_head("full", base)
    agreed = (head.topk(hidden, 1)[1] == own.topk(hidden, 1)[1]).float().mean()
    assert 0.8 < float(agreed)
