"""``vocabforge revocab``: from a drafter and a draft vocabulary to a drafter, and what is told on the way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file

from tests.cli.cli_support import ROWS, World, assert_user_error, invoke, make_drafter, make_vocab
from tests.support import tiny_target
from vocabforge.cli.revocab_heal import HealRequest, heal_config
from vocabforge.core.artifact import open_artifact
from vocabforge.core.errors import ConfigError
from vocabforge.corpus.tokenizer import load_tokenizer
from vocabforge.export.formats import load_drafter
from vocabforge.models.drafter_io import load_target_tensors
from vocabforge.vocab.subset import VocabSubset, save_subset


def questions(folder: Path, count: int = 4) -> Path:
    """A question file in Spec-Bench's format."""
    rows = [
        {"question_id": number, "category": "c", "turns": [f"story {number}: once upon a time"]}
        for number in range(count)
    ]
    path = folder / "questions.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), "utf-8")
    return path


def run(world: World, *arguments: object, drafter: Path | None = None) -> Any:
    line = ("--drafter", drafter or world.drafter, "--target", world.target)
    return invoke("revocab", *line, *arguments)


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "drafter.safetensors")


@pytest.fixture(scope="module")
def own(pristine: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A drafter with rows of its own for 40 tokens, the end token 257 among them, stored in bf16."""
    from vocabforge.models.drafter_io import save_drafter

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
    """Small to large to small again: the same bits, in the dtype that they were stored in."""
    large = run(world, "--vocab", world.vocab, "--output", tmp_path / "large", "--json", drafter=own)
    assert large.exit_code == 0, large.output
    body = json.loads(large.stdout)
    assert body["dtype"] == "bfloat16"
    assert (body["head"]["kept"], body["head"]["added"], body["head"]["dropped"]) == (33, 31, 7)
    loaded = load_tokenizer(world.target)
    ids = tensors(own)["target_ids"].numpy()
    save_subset(
        VocabSubset.from_ranked(ids, vocab_size=loaded.vocab_size, fingerprint=loaded.fingerprint),
        tmp_path / "first",
    )
    full = run(world, "--vocab", "full", "--output", tmp_path / "full", drafter=own)
    assert full.exit_code == 0, full.output
    wide = tensors(tmp_path / "full")
    target = load_target_tensors(world.target).head
    assert wide["lm_head.weight"].shape == (ROWS, 32)
    assert torch.equal(wide["lm_head.weight"][ids], tensors(own)["lm_head.weight"])
    assert torch.equal(wide["lm_head.weight"][1], target[1].bfloat16())
    back = run(
        world,
        *("--vocab", tmp_path / "first", "--output", tmp_path / "back"),
        drafter=tmp_path / "full",
    )
    assert back.exit_code == 0, back.output
    before, after = tensors(own), tensors(tmp_path / "back")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_the_record_goes_into_the_manifest(world: World, own: Path, tmp_path: Path) -> None:
    made = run(
        world,
        *("--vocab", world.vocab, "--output", tmp_path / "new", "--json"),
        *("--prompts", questions(tmp_path), "--max-new-tokens", 12),
        drafter=own,
    )
    assert made.exit_code == 0, made.output
    body = json.loads(made.stdout)
    artifact = open_artifact(tmp_path / "new", "drafter")
    kept = artifact.meta["revocab"]
    assert kept["head"] == body["head"]
    assert kept["accepted"]["versions"].keys() == {"before", "after"}
    assert {one["identical"] for one in kept["accepted"]["versions"].values()} == {4}
    assert kept["coverage"]["answers"]["tokens"] == 48
    assert kept["drift"]["rows"] == 40
    assert kept["eos"]["kept"] == [257]
    parents = artifact.manifest["parents"]
    assert parents["drafter"] == open_artifact(own).content_hash
    assert parents["vocab"] == open_artifact(world.vocab).content_hash
    assert "heldout" not in artifact.meta
    assert artifact.manifest["config"]["target"] == str(world.target), "export finds the target"


def test_the_table_and_a_lost_end_token(world: World, own: Path, tmp_path: Path) -> None:
    without = make_vocab(tmp_path / "without", world.target, eos=False)
    made = run(
        world,
        *("--vocab", without, "--output", tmp_path / "new"),
        drafter=own,
    )
    assert made.exit_code == 0, made.output
    said = " ".join(made.output.split())
    assert "Warning: the end tokens 257" in said
    assert "before 40" in said
    assert "after 64" in said
    assert "32 rows kept, 8 dropped, 32 added" in said
    assert f"Wrote {tmp_path / 'new'} (native, 64 draft tokens, bfloat16)" in said


@pytest.mark.parametrize("missing", ["rows", "states"])
def test_a_correction_that_does_not_help_is_not_kept(
    world: World, own: Path, tmp_path: Path, missing: str
) -> None:
    made = run(
        world,
        *("--vocab", world.vocab, "--output", tmp_path / "new", "--json", "--missing", missing),
        *("--prompts", questions(tmp_path), "--max-new-tokens", 8),
        drafter=own,
    )
    assert made.exit_code == 0, made.output
    body = json.loads(made.stdout)
    assert body["missing"]["wanted"] == missing
    prompts = 2 if missing == "states" else 4
    assert body["accepted"]["prompts"] == prompts
    if body["missing"]["fit"]["form"] == "none":
        assert body["missing"]["used"] == "target"
        return
    fitted = body["accepted"]["versions"]["fitted"]
    after = body["accepted"]["versions"]["after"]
    assert fitted["identical"] == prompts
    if body["missing"]["used"] == missing:
        assert fitted["accepted_length"] > after["accepted_length"]
    else:
        assert body["missing"]["used"] == "target"
        ids = tensors(tmp_path / "new")["target_ids"]
        added = ~torch.isin(ids, tensors(own)["target_ids"])
        target = load_target_tensors(world.target).head
        assert torch.equal(tensors(tmp_path / "new")["lm_head.weight"][added], target[ids[added]].bfloat16())


def test_a_folder_made_elsewhere_without_a_manifest(world: World, own: Path, tmp_path: Path) -> None:
    served = invoke(
        "export",
        *("--drafter", own, "--target", world.target, "--format", "sglang-eagle3", "--dtype", "bfloat16"),
        *("--output", tmp_path / "served"),
    )
    assert served.exit_code == 0, served.output
    (tmp_path / "served" / "manifest.json").unlink()
    made = run(
        world,
        *("--vocab", world.vocab, "--output", tmp_path / "new", "--format", "sglang-eagle3"),
        drafter=tmp_path / "served",
    )
    assert made.exit_code == 0, made.output
    found = load_file(tmp_path / "new" / "model.safetensors")
    ids = torch.arange(64) + found["d2t"]
    kept = torch.isin(ids, tensors(own)["target_ids"])
    mine = tensors(own)["lm_head.weight"][torch.isin(tensors(own)["target_ids"], ids)]
    assert torch.equal(found["lm_head.weight"][kept], mine)
    artifact = open_artifact(tmp_path / "new", "export-sglang-eagle3")
    assert artifact.meta["tokenizer_fingerprint"] == load_tokenizer(world.target).fingerprint
    assert artifact.manifest["parents"].keys() == {"layout", "vocab"}


def test_mistakes_are_told_before_anything_is_written(world: World, tmp_path: Path) -> None:
    other = tmp_path / "other"
    save_subset(VocabSubset.from_ranked(np.arange(9), vocab_size=261, fingerprint="another"), other)
    line = ("--output", tmp_path / "new")
    cases: list[tuple[tuple[object, ...], int, str]] = [
        (("--vocab", other), 1, "different tokenizers"),
        (("--vocab", tmp_path / "nowhere"), 2, "no draft vocabulary here"),
        (("--vocab", "full", "--format", "onnx"), 2, "no export format"),
        (("--vocab", "full", "--dtype", "int4"), 2, "no dtype of this name"),
        (("--vocab", "full", "--prompts", tmp_path / "none.jsonl"), 2, "no such file"),
        (("--vocab", "full", "--missing", "states"), 2, "states are read on prompts"),
        (("--vocab", "full", "--data", world.text), 2, "--heal STEPS"),
        (("--vocab", "full", "optim.lr=1"), 2, "--heal STEPS"),
        (("--vocab", "full", "--heal", 3), 2, "something to learn from"),
        (("--vocab", "full", "--heal", 3, "--data", world.text, "optim.steep=1"), 2, "did you mean 'steps'"),
    ]
    for arguments, code, words in cases:
        assert_user_error(run(world, *arguments, *line), code, words)
        assert not (tmp_path / "new").exists()


def test_a_layout_that_cannot_hold_it_is_told_before_anything_is_decoded(
    world: World, own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vocabforge.cli.revocab_run._meter", lambda *_: pytest.fail("too late"))
    made = run(
        world,
        *("--vocab", world.vocab, "--output", tmp_path / "new", "--format", "fr-spec"),
        *("--prompts", questions(tmp_path)),
        drafter=own,
    )
    assert_user_error(made, 1, "d2t")
    assert [path.name for path in tmp_path.iterdir() if "new" in path.name] == []


def test_healing_takes_over_how_the_drafter_was_trained(tmp_path: Path) -> None:
    request = HealRequest(30, (tmp_path / "texts.jsonl",), ("optim.lr=0.5", "run.log_every=7"), tmp_path)
    target = tiny_target(tmp_path / "t")
    recorded = {
        "data": {"train": ["gone.txt"], "separator": "###", "sequence_length": 64, "of_old": 1},
        "ttt": {"steps": 3, "warmup_fraction": 0.4},
        "optim": {"lr": 0.002, "batch_size": 2, "steps": 3000},
    }
    values, config = heal_config(request, "eagle3", target, target, recorded)
    assert (config.data.separator, config.data.sequence_length) == ("###", 64)
    assert [path.name for path in config.data.train] == ["texts.jsonl"]
    assert (config.ttt.steps, config.ttt.warmup_fraction) == (3, 0.0)
    assert (config.optim.steps, config.optim.batch_size, config.optim.lr) == (30, 2, 0.5)
    assert config.run.log_every == 7
    assert yaml.safe_load(yaml.safe_dump(values)) == values, "a recipe that train-drafter reads"
    gentler = heal_config(HealRequest(30, request.data, (), tmp_path), "eagle3", target, target, recorded)[1]
    assert gentler.optim.lr == pytest.approx(0.0002)
    defaults = heal_config(HealRequest(30, request.data, (), tmp_path), "medusa", target, target, None)[1]
    assert (defaults.optim.lr, defaults.optim.batch_size) == (1e-4, 8)
    assert defaults.data.sequence_length == 256, "no more than the target has positions"
    with pytest.raises(ConfigError, match="unknown key"):
        heal_config(HealRequest(1, request.data, ("optim.step=1",), tmp_path), "eagle3", target, target, None)


def test_healing_trains_the_new_head_and_measures_it(world: World, own: Path, tmp_path: Path) -> None:
    made = run(
        world,
        *("--vocab", world.vocab, "--output", tmp_path / "new", "--json"),
        *("--prompts", questions(tmp_path), "--max-new-tokens", 8),
        *("--heal", 2, "--data", world.text),
        *("data.sequence_length=64", "data.heldout_documents=4", "data.text_unit=paragraph"),
        *("optim.batch_size=1", "optim.lr=1e-3", "ttt.steps=2", "run.live.prompts=0", "run.eval_rows=2"),
        drafter=own,
    )
    assert made.exit_code == 0, made.output
    body = json.loads(made.stdout[made.stdout.index("{") :])
    assert list(body["accepted"]["versions"]) == ["before", "after", "healed"]
    folder = tmp_path / "new-heal"
    assert (folder / "recipe.yaml").is_file()
    start, healed, written = (
        tensors(place) for place in (folder / "start", folder / "drafter", tmp_path / "new")
    )
    assert torch.equal(start["target_ids"], written["target_ids"])
    assert not torch.equal(start["lm_head.weight"], healed["lm_head.weight"])
    assert torch.equal(written["lm_head.weight"], healed["lm_head.weight"].bfloat16())
    assert open_artifact(tmp_path / "new").meta["revocab"]["healing"]["steps"] == 2
    recipe = folder / "recipe.yaml"
    assert f"# Heals {own} over {world.vocab}" in recipe.read_text("utf-8")
    recipe.write_text("# Heals another one\n", "utf-8")
    again = run(
        world,
        *("--vocab", "full", "--output", tmp_path / "more", "--heal-output", folder),
        *("--heal", 2, "--data", world.text),
        drafter=own,
    )
    assert_user_error(again, 2, "holds another run", "--heal-output")


def test_what_is_read_is_not_replaced(world: World) -> None:
    for option, folder in (("--drafter", world.drafter), ("--vocab", world.vocab)):
        made = run(world, "--vocab", world.vocab, "--output", folder, "--overwrite")
        assert_user_error(made, 2, "would replace what it is made from", f"and {option}")
    assert [open_artifact(one).kind for one in (world.drafter, world.vocab)] == ["drafter", "subset"]


def test_a_healing_run_is_not_mixed_with_something_else(world: World, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "notes.txt").write_text("mine", "utf-8")
    made = run(
        world,
        *("--vocab", "full", "--output", tmp_path / "new", "--heal-output", mine),
        *("--heal", 2, "--data", world.text),
    )
    assert_user_error(made, 2, "holds something else", "--heal-output")
    assert [path.name for path in mine.iterdir()] == ["notes.txt"]
