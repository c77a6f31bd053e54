"""Bad input to the commands: a clear message, the right exit code, nothing written."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.cli.cli_support import assert_user_error, edit_json, invoke, truncate
from tests.worlds import World, byte_tokenizer, make_target, make_vocab


def damaged(folder: Path, change) -> Path:
    """A copy of a folder, changed."""
    copy = folder.with_name(f"{folder.name}-damaged")
    shutil.copytree(folder, copy)
    change(copy)
    return copy


TARGETS = {
    "missing": (lambda w: w.target / "none", "no model here"),
    "a file": (lambda w: w.text, "no model here"),
    "an empty folder": (lambda w: w.text.parent, "no model here"),
    "config truncated": (
        lambda w: damaged(w.target, lambda d: truncate(d / "config.json")),
        "not valid JSON",
    ),
    "config a list": (lambda w: damaged(w.target, lambda d: (d / "config.json").write_text("[]")), "object"),
    "weights truncated": (
        lambda w: damaged(w.target, lambda d: truncate(d / "model.safetensors")),
        "truncated",
    ),
    "weights empty": (
        lambda w: damaged(w.target, lambda d: truncate(d / "model.safetensors", 0)),
        "truncated",
    ),
    "weights missing": (
        lambda w: damaged(w.target, lambda d: (d / "model.safetensors").unlink()),
        "no safetensors weights",
    ),
    "weights of another size": (
        lambda w: damaged(w.target, lambda d: edit_json(d / "config.json", hidden_size=64)),
        "wrong shape",
    ),
    "tokenizer truncated": (
        lambda w: damaged(w.target, lambda d: truncate(d / "tokenizer.json")),
        "the tokenizer is not valid JSON",
    ),
    "tokenizer missing": (
        lambda w: damaged(w.target, lambda d: (d / "tokenizer.json").unlink()),
        "no tokenizer.json",
    ),
}


@pytest.mark.parametrize("kind", TARGETS)
def test_generate_with_a_bad_target(world: World, kind: str) -> None:
    make, said = TARGETS[kind]
    result = invoke("generate", "--target", make(world), "--prompt", "hi")
    assert_user_error(result, 1, said)
    assert result.stdout == ""


def test_the_lean_decoder_may_be_asked_for_what_it_does_not_compute(world: World) -> None:
    other = damaged(world.target, lambda d: edit_json(d / "config.json", architectures=["MambaForCausalLM"]))
    result = invoke("generate", "--target", other, "--target-backend", "lean", "--prompt", "hi")
    assert_user_error(result, 1, "LlamaForCausalLM")


@pytest.mark.parametrize("command", ["generate", "train"])
def test_a_tokenizer_larger_than_the_target(world: World, tmp_path: Path, command: str) -> None:
    small = make_target(tmp_path / "small", vocab_size=200, eos_token_id=2, bos_token_id=1)
    if command == "train":
        result = train(world, tmp_path, target=str(small))
    else:
        result = invoke("generate", "--target", small, "--prompt", "hi")
    assert_user_error(result, 1, "the tokenizer does not match the target", "261", "200")


def other_tokenizer(folder: Path) -> Path:
    """As many ids as the world's tokenizer, one of another meaning."""
    file = byte_tokenizer(folder) / "tokenizer.json"
    file.write_text(file.read_text("utf-8").replace("<|system|>", "<|sistem|>"), "utf-8")
    return folder


@pytest.mark.parametrize("command", ["generate", "export", "train"])
def test_a_vocabulary_made_for_another_tokenizer(world: World, tmp_path: Path, command: str) -> None:
    vocab = make_vocab(tmp_path / "v", other_tokenizer(tmp_path / "tok"))
    if command == "train":
        result = train(world, tmp_path, drafter={"head": "own", "vocab": str(vocab)})
    elif command == "generate":
        result = generate(world, "--vocab", vocab)
    else:
        result = export(world, tmp_path, "--vocab", vocab)
    assert_user_error(result, 1, "different tokenizers", "select-vocab again")


@pytest.mark.parametrize("command", ["generate", "export"])
def test_a_drafter_for_another_target(world: World, tmp_path: Path, command: str) -> None:
    other = make_target(tmp_path / "other", seed=7)
    if command == "generate":
        result = invoke("generate", "--target", other, "--drafter", world.drafter, "--prompt", "hi")
    else:
        result = export(world, tmp_path, "--target", other)
    assert_user_error(result, 1, "trained for another target", "train a drafter for this one")


def generate(world: World, *more: object, drafter: Path | None = None, prompt: str = "hi"):
    return invoke(
        *("generate", "--target", world.target, "--drafter", drafter or world.drafter, "--prompt", prompt),
        *("--max-new-tokens", 4, *more),
    )


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--dtype", "int8"], 2, "float32, bfloat16, float16"),
        (["--device", "gpu"], 2, "no such device"),
        (["--device", "meta"], 2, "no such device"),
        (["--prompt-format", "vicuna"], 2, "auto, chat, raw"),
        (["--total-nodes", 3, "--depth", 5], 2, "7 to 511"),
        (["--topk", 300, "--total-nodes", 400], 2, "wider than the draft vocabulary"),
        (["--temperature", "nan"], 2, "temperature"),
        (["--temperature", "inf"], 2, "temperature"),
        (["--tokenizer", "/nowhere"], 1, "the tokenizer is missing"),
        (["--vocab", "/nowhere"], 1, "not a VocabForge artefact"),
        (["--drafter", "/nowhere"], 1, "no drafter here"),
    ],
)
def test_generate_with_bad_options(pristine: World, options: list[Any], code: int, said: str) -> None:
    assert_user_error(generate(pristine, *options), code, said)


def test_generate_with_bad_prompts(pristine: World) -> None:
    assert_user_error(generate(pristine, prompt="long " * 100), 2, "does not fit the context", "255")
    assert_user_error(generate(pristine, "--prompt-format", "raw", prompt=""), 1, "no tokens")


def export(world: World, tmp_path: Path, *more: object, name: str = "native", output: Path | None = None):
    place = output or tmp_path / "out"
    return invoke("export", "--drafter", world.drafter, "--format", name, "--output", place, *more)


def test_export_never_replaces_what_is_not_ours(world: World, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("keep")
    assert_user_error(export(world, tmp_path, "--overwrite", output=mine), 2, "not an artefact")
    assert_user_error(export(world, tmp_path, "--overwrite", output=world.text), 2, "not an artefact")
    assert_user_error(export(world, tmp_path, output=world.vocab), 2, "--overwrite")
    assert_user_error(export(world, tmp_path, output=world.text / "x"), 2, "not a folder")
    assert (mine / "thesis.txt").read_text() == "keep"


def test_export_without_a_known_target(world: World, tmp_path: Path) -> None:
    moved = world.target.rename(tmp_path / "moved")
    edit_json(world.drafter / "manifest.json", config={"target": str(world.target)}, record_hash=None)
    assert_user_error(export(world, tmp_path), 2, str(world.target), "give --target")
    edit_json(world.drafter / "manifest.json", config="text", record_hash=None)
    assert_user_error(export(world, tmp_path), 2, "give --target")
    assert export(world, tmp_path, "--target", moved).exit_code == 0
    missing = invoke("export", "--drafter", tmp_path / "no", "--format", "native", "--output", tmp_path / "o")
    assert_user_error(missing, 1, "no drafter here", "no such folder")


def train(world: World, tmp_path: Path, *overrides: str, **sections: Any):
    config = {
        "target": str(world.target),
        "output": str(tmp_path / "run"),
        "data": {
            "train": [str(world.text)],
            "text_unit": "paragraph",
            "heldout_documents": 2,
            "sequence_length": 64,
        },
        "optim": {"steps": 1, "batch_size": 2},
        **sections,
    }
    (tmp_path / "recipe.yaml").write_text(json.dumps(config), "utf-8")
    return invoke("train-drafter", "--config", tmp_path / "recipe.yaml", *overrides)


@pytest.mark.parametrize(
    ("overrides", "code", "said"),
    [
        (["optim.stepz=3"], 2, "did you mean 'steps'?"),
        (["run.sed=3"], 2, "did you mean 'seed'?"),
        (["run.seed=-1"], 2, "run.seed"),
        (["steps"], 2, "key.sub=value"),
        (["optim.steps=many"], 2, "optim.steps"),
        (["optim.lr=.inf"], 2, "optim.lr"),
        (["drafter.aux_layers=[]"], 2, "drafter.aux_layers"),
        (["drafter.aux_layers=[1,2,99]"], 1, "no such layers"),
        (["drafter.aux_layers=[1,2,99]", "--plan"], 1, "no such layers"),
        (["drafter.vocab=x"], 2, "needs drafter.head: own"),
        (["run.device=gpu"], 2, "no such device"),
        (["data.sequence_length=4096"], 2, "longer than the target's context"),
        (["data.train=[/nowhere.txt]"], 1, "the input is missing"),
        (["data.heldout_documents=500"], 2, "too few documents"),
    ],
)
def test_train_with_a_bad_recipe(
    pristine: World, tmp_path: Path, overrides: list[str], code: int, said: str
) -> None:
    assert_user_error(train(pristine, tmp_path, *overrides), code, said)
    assert not (tmp_path / "run").exists()


def test_train_with_an_output_that_cannot_be_made(pristine: World, tmp_path: Path) -> None:
    for output in (pristine.text, pristine.text / "deep" / "run"):
        result = train(pristine, tmp_path, output=str(output))
        assert_user_error(result, 2, "cannot be written to")
        assert "packed rows" not in result.output, "said before the work, not after it"


def test_eval_with_bad_input(pristine: World, tmp_path: Path) -> None:
    (tmp_path / "q.jsonl").write_text('{"question_id": 1, "category": "a", "turns": ["hi"]}\n')
    common = ("--benchmark", tmp_path / "q.jsonl", "--output", tmp_path / "out")
    drafter, target = ("--drafter", pristine.drafter), ("--target", pristine.target)
    assert_user_error(invoke("eval", "--target", tmp_path, *drafter, *common), 1, "tokenizer.json")
    assert_user_error(invoke("eval", *target, "--drafter", tmp_path, *common), 1, "no drafter here")
    assert_user_error(invoke("eval", *target, *drafter, *drafter, *common), 2, "LABEL=DIR")
    assert_user_error(invoke("eval", *target, *drafter, "--method", "x", *common), 2, "no such method")
    (tmp_path / "q.jsonl").write_text("not json\n")
    assert_user_error(invoke("eval", *target, *drafter, *common), 1, "q.jsonl")
    assert not (tmp_path / "out").exists()


def test_a_device_map_suits_the_transformers_backend_alone(world: World) -> None:
    result = invoke(
        "generate",
        "--target",
        world.target,
        "--device-map",
        "auto",
        "--target-backend",
        "lean",
        "--prompt",
        "hi",
    )
    assert_user_error(result, 2, "one device")
    result = invoke(
        "generate",
        "--target",
        world.target,
        "--device-map",
        '{"": "cpu"}',
        "--prompt",
        "hi",
        "--device",
        "cpu",
    )
    assert result.exit_code == 0
