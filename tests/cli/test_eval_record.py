"""What `eval` records of its inputs: two runs that differ in one of them must not be taken for the same."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.decode.graph_support import traced
from vocabforge.cli.eval_record import facts_of, parents_of
from vocabforge.core.artifact import write_artifact
from vocabforge.decode.build_heads import HeadRequest
from vocabforge.decode.build_options import BuildOptions
from vocabforge.decode.proposers import DraftOptions

DRAFT = {
    "tree": "chain",
    "sample": True,
    "depth": 0,
    "topk": 3,
    "total_nodes": 9,
    "tree_file": Path("tree.json"),
    "layers": 2,
    "ngram": (1, 3),
    "look_ahead": 5,
    "single": True,
}
HEADS = {"shortlist": 7, "budget": "4", "rows": "own", "dynamic": ("context:8",), "fp8": True}


@pytest.fixture(autouse=True)
def tree_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("tree.json").write_text("[[0]]", "utf-8")
    return Path("tree.json")


def test_every_way_to_make_methods_is_recorded(tree_file: Path) -> None:
    assert set(DRAFT) == {field.name for field in fields(DraftOptions)}
    assert {*HEADS, "given"} == {field.name for field in fields(HeadRequest)}
    plain = BuildOptions()
    asked = [
        plain,
        *(replace(plain, draft=replace(plain.draft, **{name: value})) for name, value in DRAFT.items()),
        *(replace(plain, heads=HeadRequest(**{name: value})) for name, value in HEADS.items()),
        replace(plain, wrap=traced()),
        replace(plain, wrap=lambda name, function: function),
        replace(plain, drafter_tokenizer=Path("tokenizer")),
    ]
    found = [facts_of(options) for options in asked]
    assert len({tuple(facts.items()) for facts in found}) == len(asked)
    assert (
        found[0] == facts_of(replace(plain, heads=HeadRequest(given=("head",)))) == {"passes": "as they are"}
    )
    assert [facts["passes"] for facts in found[-3:-1]] == ["captured", "compiled"]
    assert found[3]["drafting options"] == "--depth 0"
    with_file = facts_of(replace(plain, draft=DraftOptions(tree_file=tree_file)))
    tree_file.write_text("[[1]]", "utf-8")
    assert facts_of(replace(plain, draft=DraftOptions(tree_file=tree_file))) != with_file


def test_every_drafter_has_a_hash_of_its_own(tmp_path: Path) -> None:
    """Two training runs keep their drafters in folders of the same name; a serving layout has no manifest."""
    target = tmp_path / "target"
    target.mkdir()
    save_file({"w": torch.zeros(2)}, target / "model.safetensors")
    (target / "config.json").write_text('{"model_type": "llama", "hidden_size": 2}', "utf-8")
    for run in ("one", "two"):
        with write_artifact(tmp_path / run / "drafter", "drafter", {"run": run}):
            pass
    served = tmp_path / "served"
    served.mkdir()
    save_file({"fc.weight": torch.zeros(3)}, served / "model.safetensors")
    drafters = [str(tmp_path / "one" / "drafter"), str(tmp_path / "two" / "drafter"), f"mine={served}"]
    hashes = parents_of(target, drafters, [], [])
    assert list(hashes) == ["target", "drafter one", "drafter two", "drafter mine"]
    assert len(set(hashes.values())) == 4
    save_file({"fc.weight": torch.ones(3)}, served / "model.safetensors")
    changed = parents_of(target, drafters, [], [])
    assert [name for name in hashes if changed[name] != hashes[name]] == ["drafter mine"]
