"""``vocabforge export --vocab``: another draft vocabulary for a drafter, and what is told on the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.cli.cli_support import assert_user_error, facts_of, invoke, ok, succeeds
from tests.worlds import ROWS, World, make_drafter, make_vocab
from vocabforge.core.artifact import open_artifact
from vocabforge.corpus.tokenizer.tokenizer import load_tokenizer
from vocabforge.layouts.registry import load_drafter
from vocabforge.models.target.head import load_target_tensors
from vocabforge.vocab.subset.subset import VocabSubset, save_subset


def run(world: World, *arguments: object, drafter: Path | None = None) -> Any:
    line = ("--drafter", drafter or world.drafter, "--target", world.target)
    form = () if "--format" in arguments else ("--format", "native", "--dtype", "bfloat16")
    return invoke("export", *line, *arguments, *form)


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "drafter.safetensors")


@pytest.fixture(scope="module")
def own(pristine: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A drafter with rows of its own for 40 tokens, the end token 257 among them, stored in bf16."""
    from vocabforge.models.drafters.io import save_drafter

    folder = tmp_path_factory.mktemp("own")
    ids = torch.tensor([*range(0, 78, 2), 257])
    made = make_drafter(folder / "random", pristine.target, own_head=len(ids), target_ids=ids)
    drafter, artifact = load_drafter(made, load_target_tensors(pristine.target), pristine.target)
    assert artifact is not None
    with torch.no_grad():
        drafter.head_weight.add_(torch.randn(drafter.head_weight.shape))
    save_drafter(
        folder / "drafter", drafter.to(torch.bfloat16), artifact.meta, config=artifact.manifest["config"]
    )
    return folder / "drafter"


def test_prune_extend_and_prune_again_through_files(world: World, own: Path, tmp_path: Path) -> None:
    """Small to large to small again: the same bits."""
    body = facts_of(
        run(world, "--vocab", world.vocab, "--output", tmp_path / "large", "--json", drafter=own)
    )["revocab"]
    assert (body["head"]["kept"], body["head"]["added"], body["head"]["dropped"]) == (33, 31, 7)
    loaded = load_tokenizer(world.target)
    ids = tensors(own)["target_ids"].numpy()
    save_subset(
        VocabSubset.from_ranked(ids, vocab_size=loaded.vocab_size, fingerprint=loaded.fingerprint),
        tmp_path / "first",
    )
    ok(run(world, "--vocab", "full", "--output", tmp_path / "full", drafter=own))
    wide = tensors(tmp_path / "full")
    target = load_target_tensors(world.target).head
    assert wide["lm_head.weight"].shape == (ROWS, 32)
    assert torch.equal(wide["lm_head.weight"][ids], tensors(own)["lm_head.weight"])
    assert torch.equal(wide["lm_head.weight"][1], target[1].bfloat16())
    ok(run(world, "--vocab", tmp_path / "first", "--output", tmp_path / "back", drafter=tmp_path / "full"))
    before, after = tensors(own), tensors(tmp_path / "back")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_the_record_goes_into_the_manifest(world: World, own: Path, tmp_path: Path) -> None:
    body = facts_of(run(world, "--vocab", world.vocab, "--output", tmp_path / "new", "--json", drafter=own))
    artifact = open_artifact(tmp_path / "new", "drafter")
    kept = artifact.meta["revocab"]
    assert kept == body["revocab"]
    assert kept["drift"]["cosine"] < 0.9
    assert kept["eos"]["kept"] == [257]
    parents = artifact.manifest["parents"]
    assert parents["drafter"] == open_artifact(own).content_hash
    assert parents["vocab"] == open_artifact(world.vocab).content_hash
    assert "heldout" not in artifact.meta
    assert artifact.manifest["config"]["target"] == str(world.target), "export finds the target"


def test_what_is_said_and_a_lost_end_token(world: World, own: Path, tmp_path: Path) -> None:
    without = make_vocab(tmp_path / "without", world.target, eos=False)
    made = ok(run(world, "--vocab", without, "--output", tmp_path / "new", drafter=own))
    said = " ".join(made.output.split())
    assert "no longer has the end tokens 257" in said
    assert "median cosine" in said
    assert "drafter.init=" in said
    assert "32 rows kept, 8 dropped, 32 added" in said
    assert "Training never scored the added rows" in said
    assert f"Wrote {tmp_path / 'new'} (native, 64 draft tokens, bfloat16)" in said


def test_a_folder_made_elsewhere_without_a_manifest(world: World, own: Path, tmp_path: Path) -> None:
    succeeds(
        "export",
        *("--drafter", own, "--target", world.target, "--format", "sglang-eagle3", "--dtype", "bfloat16"),
        *("--output", tmp_path / "served"),
    )
    (tmp_path / "served" / "manifest.json").unlink()
    words = ("--vocab", world.vocab, "--output", tmp_path / "new", "--format", "sglang-eagle3")
    words = (*words, "--dtype", "bfloat16")
    ok(run(world, *words, drafter=tmp_path / "served"))
    found = load_file(tmp_path / "new" / "model.safetensors")
    ids = torch.arange(64) + found["d2t"]
    kept = torch.isin(ids, tensors(own)["target_ids"])
    mine = tensors(own)["lm_head.weight"][torch.isin(tensors(own)["target_ids"], ids)]
    assert torch.equal(found["lm_head.weight"][kept], mine)
    artifact = open_artifact(tmp_path / "new", "export-sglang-eagle3")
    assert artifact.meta["tokenizer_fingerprint"] == load_tokenizer(world.target).fingerprint
    assert artifact.manifest["parents"].keys() == {"vocab"}


def test_mistakes_are_told_before_anything_is_written(world: World, tmp_path: Path) -> None:
    other = tmp_path / "other"
    save_subset(VocabSubset.from_ranked(np.arange(9), vocab_size=261, fingerprint="another"), other)
    line = ("--output", tmp_path / "new")
    cases: list[tuple[tuple[object, ...], int, str]] = [
        (("--vocab", other), 1, "different tokenizers"),
        (("--vocab", tmp_path / "nowhere"), 1, "not a VocabForge artefact"),
        (("--vocab", "full", "--format", "onnx"), 2, "no export format"),
    ]
    for arguments, code, words in cases:
        assert_user_error(run(world, *arguments, *line), code, words)
        assert not (tmp_path / "new").exists()


def test_what_is_read_is_not_replaced(world: World) -> None:
    for option, folder in (("--drafter", world.drafter), ("--vocab", world.vocab)):
        made = run(world, "--vocab", world.vocab, "--output", folder, "--overwrite")
        assert_user_error(made, 2, "would replace what it is made from", f"and {option}")
    assert [open_artifact(one).kind for one in (world.drafter, world.vocab)] == ["drafter", "subset"]
