"""Draft heads on disk: strict loading, and what they belong to."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.models.head_cases import CLUSTERS, HIDDEN, make_module
from tests.worlds import tiny_drafter, tiny_target
from vocabforge.core.artifact import open_artifact, write_artifact
from vocabforge.core.errors import ArtifactError, DataError, MismatchError
from vocabforge.models.drafters.io import save_drafter
from vocabforge.models.heads.io import HeadOwner, check_owner, drafter_digest, load_head, owner_of, save_head
from vocabforge.models.target.hf import HFTarget

OWNER = HeadOwner("d" * 64, "t" * 64, "k" * 64)


def rewrite(source: Path, path: Path, change_tensors=None, change_sizes=None) -> Path:
    """A copy of a head artefact with other tensors or sizes, its manifest whole."""
    artifact = open_artifact(source)
    tensors, body = load_file(source / "head.safetensors"), json.loads((source / "head.json").read_text())
    if change_tensors is not None:
        change_tensors(tensors)
    if change_sizes is not None:
        change_sizes(body)
    with write_artifact(path, "draft-head", artifact.meta) as folder:
        save_file(tensors, folder / "head.safetensors")
        (folder / "head.json").write_text(json.dumps(body))
    return path


@pytest.fixture
def router(tmp_path: Path) -> Path:
    module = make_module("router")
    save_head(tmp_path / "head", "router", module, OWNER, {"budgets": [4, 2]}, parents={"clusters": "c" * 64})
    return tmp_path / "head"


def test_facts_and_dtype(router: Path) -> None:
    loaded = load_head(router, dtype=torch.bfloat16)
    assert (loaded.kind, loaded.artifact.meta["budgets"]) == ("router", [4, 2])
    assert loaded.module.out.weight.dtype == torch.bfloat16
    assert loaded.module.assignment.dtype == torch.int64
    assert not any(p.requires_grad for p in loaded.module.parameters())
    assert loaded.module.head_sizes == make_module("router").head_sizes
    assert (loaded.module.clusters, loaded.module.hidden_size) == (CLUSTERS, HIDDEN)
    assert owner_of(loaded.artifact) == OWNER
    assert loaded.artifact.manifest["parents"] == {"clusters": "c" * 64}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.pop("out.bias"), "missing out.bias"),
        (lambda t: t.update(extra=torch.zeros(2)), "unexpected extra"),
        (lambda t: t.update({"out.bias": torch.zeros(3)}), "has shape"),
        (lambda t: t["assignment"].fill_(CLUSTERS), f"clusters {CLUSTERS} to {CLUSTERS}"),
        (lambda t: t["assignment"].fill_(-1), "clusters -1"),
    ],
)
def test_other_tensors_are_refused(router: Path, tmp_path: Path, change, words: str) -> None:
    with pytest.raises(ArtifactError, match=words):
        load_head(rewrite(router, tmp_path / "bad", change))


@pytest.mark.parametrize(
    "change",
    [
        lambda body: body.pop("sizes"),
        lambda body: body["sizes"].pop("width"),
        lambda body: body["sizes"].update(clusters=-1),
        lambda body: body["sizes"].update(hidden_size=None),
        lambda body: body["sizes"].update(more=1),
        lambda body: body["sizes"].update(vocab_size=10**12),  # nothing of a claimed size is allocated
        lambda body: body["sizes"].update(width=10**12),
        lambda body: body["sizes"].update(depth=10**12),
        lambda body: body.update(kind="ranker"),
        lambda body: body.update(kind="mystery"),
    ],
)
def test_other_sizes_are_refused(router: Path, tmp_path: Path, change) -> None:
    with pytest.raises(ArtifactError):
        load_head(rewrite(router, tmp_path / "bad", change_sizes=change))


@pytest.mark.parametrize(
    ("field", "word"), [("drafter", "drafter"), ("target", "target"), ("tokenizer", "token")]
)
def test_another_owner_is_refused(router: Path, field: str, word: str) -> None:
    artifact = load_head(router).artifact
    check_owner(artifact, OWNER, drafter="here")
    with pytest.raises(MismatchError, match=f"belongs to another {word}") as caught:
        check_owner(artifact, dataclasses.replace(OWNER, **{field: "x" * 64}), drafter="here")
    assert caught.value.remedy


def test_a_head_that_names_no_owner_is_refused(tmp_path: Path) -> None:
    with write_artifact(tmp_path / "head", "draft-head", {"head": "router"}):
        pass
    with pytest.raises(ArtifactError, match="belongs to"):
        owner_of(open_artifact(tmp_path / "head"))


def test_a_drafter_is_known_by_its_weights_not_by_the_facts_beside_them(tmp_path: Path) -> None:
    drafter = tiny_drafter(HFTarget.load(tiny_target(tmp_path / "t")))
    save_drafter(tmp_path / "a", drafter, {"steps": 1})
    save_drafter(tmp_path / "b", drafter, {"steps": 2})
    digest = drafter_digest(tmp_path / "a")
    assert digest == drafter_digest(tmp_path / "b")
    assert digest == hashlib.sha256((tmp_path / "a" / "drafter.safetensors").read_bytes()).hexdigest()
    with torch.no_grad():
        next(drafter.parameters()).add_(1e-3)
    save_drafter(tmp_path / "c", drafter, {"steps": 1})
    assert drafter_digest(tmp_path / "c") != digest
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "model.safetensors").write_bytes(b"weights")
    assert drafter_digest(tmp_path / "foreign") == hashlib.sha256(b"weights").hexdigest()
    with pytest.raises(DataError, match="no drafter here"):
        drafter_digest(tmp_path)
