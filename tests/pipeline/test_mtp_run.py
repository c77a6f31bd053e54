"""From a published checkpoint with an MTP module to one with a fine-tuned module, through the commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from tests.cli.cli_support import invoke
from tests.decode.drafting import knowing
from tests.models.mtp_targets import FAMILY_KEYS, make_target, module_prefix
from tests.train.run_support import make_place, write_config
from vocabforge.core.artifact import MANIFEST
from vocabforge.decode.build.methods import build_method, kind_of
from vocabforge.decode.build.models import Models
from vocabforge.decode.spec import MethodSpec
from vocabforge.evaluate.run.recipe import digest_of
from vocabforge.layouts.registry import load_drafter
from vocabforge.models.drafters.mtp import MtpConfig
from vocabforge.models.target.head import load_target_tensors

ROWS = 261
# One for each way of naming the module's tensors by default; the others are long.
FAMILIES = [
    family if family in ("deepseek_v3", "qwen3_5_text") else pytest.param(family, marks=pytest.mark.long)
    for family in FAMILY_KEYS
]


def place_of(folder: Path, family: str, **changes: Any) -> Path:
    """A tokenizer and texts around a target of the family."""
    make_place(folder, 24)
    (folder / "target" / "model.safetensors").unlink()
    make_target(folder / "target", family, vocab_size=ROWS, **changes)
    return folder


def run(*words: Any, code: int = 0) -> Any:
    result = invoke(*map(str, words))
    assert result.exit_code == code, result.output
    return result


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    return {name: one for file in folder.glob("model*.safetensors") for name, one in load_file(file).items()}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_target_drafts_for_itself_losslessly(family: str, tmp_path: Path) -> None:
    target = place_of(tmp_path, family) / "target"
    models = Models(target)
    assert kind_of(target) == "mtp"
    plain = build_method(models, MethodSpec(), "plain").generator
    prompt = [5, 17, 60, 9, 33, 8]
    expected = plain.generate(prompt, max_new_tokens=24, stop_ids=()).token_ids
    for more in ({"depth": 3}, {"depth": 0, "proposer": "mtp"}):
        method = build_method(models, MethodSpec(drafter=target, control="fixed", **more), "mtp")
        assert "MTP" in method.description
        assert method.lossless
        assert method.generator.generate(prompt, max_new_tokens=24, stop_ids=()).token_ids == expected
        knowing(method.generator.proposer, prompt + expected)
        found = method.generator.generate(prompt, max_new_tokens=24, stop_ids=())
        assert found.token_ids == expected
        assert max(found.accept_lengths) > 1, "the test needs accepted drafts"


@pytest.mark.parametrize("family", ["deepseek_v3", pytest.param("qwen3_5_text", marks=pytest.mark.long)])
def test_a_module_is_tuned_and_written_back(family: str, tmp_path: Path) -> None:
    place = place_of(tmp_path, family)
    target = place / "target"
    recipe = write_config(
        place,
        "run",
        drafter={"kind": "mtp", "init": str(target)},
        ttt={"steps": 3, "decay": 0.6},
        optim={"steps": 20, "lr": 3e-3},
        run={"live": {"prompts": 1, "max_new_tokens": 8}},
    )
    run("train-drafter", "--config", recipe)
    lines = [json.loads(line) for line in (place / "run" / "metrics.jsonl").read_text("utf-8").splitlines()]
    losses = [line["loss"] for line in lines if line["kind"] == "train"]
    assert len(losses) == 20
    assert sum(losses[-3:]) < sum(losses[:3]) - 0.3, losses
    drafter = place / "run" / "drafter"

    written = place / "written"
    run("export", "--drafter", drafter, "--format", "mtp", "--with-target", "--output", written)
    shards = place / "shards"
    run("export", "--drafter", drafter, "--format", "mtp", "--output", shards)
    assert {file.name for file in shards.iterdir()} == {
        MANIFEST,
        "README.md",
        "config.json",
        "model-00002-of-00002.safetensors",
    }
    assert (shards / "model-00002-of-00002.safetensors").read_bytes() == (
        written / "model-00002-of-00002.safetensors"
    ).read_bytes()
    for file in target.iterdir():
        if "00002" not in file.name:
            assert (written / file.name).read_bytes() == file.read_bytes(), file.name

    shared = load_target_tensors(target)
    tuned, _ = load_drafter(drafter, shared, target)
    for folder in (shards, written):
        again, _ = load_drafter(folder, shared, target)
        assert again.config == tuned.config
        for name, tensor in again.state_dict().items():
            assert torch.equal(tensor, tuned.state_dict()[name]), name
    before, after = tensors_of(target), tensors_of(written)
    assert list(before) == list(after)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert all(name.startswith(module_prefix(family)) for name in changed)
    assert len(changed) > 10
    assert not any(
        part in name for name in changed for part in ("embed_tokens", "shared_head.head", "correction")
    )

    ids = torch.arange(40, 60)[None]
    logits = [
        AutoModelForCausalLM.from_pretrained(one, dtype=torch.float32)(ids).logits
        for one in (target, written)
    ]
    assert torch.equal(*logits), "the target itself is as it was"
    models = Models(written)
    generated = build_method(models, MethodSpec(drafter=written, depth=2), "mtp").generator.generate(
        [5, 9, 7], max_new_tokens=12, stop_ids=()
    )
    assert (
        generated.token_ids
        == build_method(models, MethodSpec(), "plain")
        .generator.generate([5, 9, 7], max_new_tokens=12, stop_ids=())
        .token_ids
    )
    assert module_prefix(family) in run("inspect", shards).output


def test_a_draft_vocabulary_goes_beside_the_shards(tmp_path: Path) -> None:
    """As SGLang reads it; the module itself stays as published."""
    place = place_of(tmp_path, "qwen3_5_text")
    target, out = place / "target", place / "out"
    torch.save(list(range(3, 60, 2)), place / "ids.pt")
    run("select-vocab", "--from-list", place / "ids.pt", "--tokenizer", target, "--output", place / "vocab")
    given = ["--drafter", target, "--target", target, "--format", "mtp", "--output"]
    run("export", *given, out, "--vocab", place / "vocab", "--with-target")
    (listed,) = out.glob("freq_*.pt")
    chosen = sorted(torch.load(listed, weights_only=True))
    assert len(chosen) < 60
    assert f"--speculative-token-map out/{listed.name}" in (out / "README.md").read_text("utf-8")
    for file in target.glob("*.safetensors"):
        assert (out / file.name).read_bytes() == file.read_bytes()
    models = Models(target)
    limited = build_method(models, MethodSpec(drafter=out, depth=2), "mtp")
    assert limited.vocabulary.size == len(chosen)
    plain = build_method(models, MethodSpec(), "plain").generator
    asked = {"max_new_tokens": 12, "stop_ids": ()}
    assert (
        limited.generator.generate([5, 9, 7], **asked).token_ids
        == plain.generate([5, 9, 7], **asked).token_ids
    )
    words = ("--target", target, "--vocab", place / "vocab", "--format", "native", "--output", place / "cut")
    run("export", "--drafter", target, *words)
    words = ("--target", target, "--format", "mtp", "--output", place / "again")
    run("export", "--drafter", place / "cut", *words)
    assert sorted(torch.load(place / "again" / listed.name, weights_only=True)) == chosen


def test_what_the_layout_cannot_hold_is_refused(tmp_path: Path) -> None:
    place = place_of(tmp_path, "qwen3_5_text")
    recipe = write_config(place, "fresh", drafter={"kind": "mtp"}, optim={"steps": 1})
    run("train-drafter", "--config", recipe)
    out = ["--format", "mtp", "--output", str(place / "out")]
    assert (
        "layer of no family" in run("export", "--drafter", place / "fresh" / "drafter", *out, code=1).output
    )
    own = ["--drafter", place / "target", "--target", place / "target"]
    assert "--dtype float32" in run("export", *own, *out, "--dtype", "bfloat16", code=1).output
    assert not (place / "out").exists()
    run("export", *own, "--format", "native", "--output", place / "native")
    shared = load_target_tensors(place / "target")
    found, _ = load_drafter(place / "native", shared, place / "target")
    assert isinstance(found.config, MtpConfig)
    assert found.config.family == "qwen3_5_text"


def test_a_list_in_the_targets_folder_is_part_of_the_drafter_there_alone(tmp_path: Path) -> None:
    """It restricts the target's own module, which makes another drafter of it, and no other module's export."""
    place = place_of(tmp_path, "qwen3_5_text")
    target, whole, out = place / "target", place / "whole", place / "out"
    run("export", "--drafter", target, "--target", target, "--format", "native", "--output", whole)
    torch.save(list(range(40)), place / "ids.pt")
    run("select-vocab", "--from-list", place / "ids.pt", "--tokenizer", target, "--output", place / "vocab")
    digests = {digest_of(target)}
    for ids in (range(29), range(1, 30)):
        torch.save(list(ids), target / "freq_29.pt")
        digests.add(digest_of(target))
    assert len(digests) == 3
    given = ["--drafter", whole, "--target", target, "--format", "mtp", "--with-target", "--output"]
    run("export", *given, out)
    assert not any(out.glob("freq_*.pt"))
    run("export", *given, place / "cut", "--vocab", place / "vocab")
    assert len([*(place / "cut").glob("freq_*.pt")]) == 1
    questions = place / "questions.jsonl"
    questions.write_text(json.dumps({"question_id": 1, "category": "c", "turns": ["Hello"]}) + "\n", "utf-8")
    asked = ["--benchmark", questions, "--max-new-tokens", 4, "--warmup", 0, "--output", place / "measured"]
    run("eval", "--target", target, "--drafter", f"mtp={target}", *asked)
    given = ["--drafter", target, "--target", target, "--format", "mtp", "--eval", place / "measured"]
    run("export", *given, "--output", place / "served")
    assert "## Measured" in (place / "served" / "README.md").read_text("utf-8")
