"""Mistakes and bad input: one clear error, the right exit code, said before the work, nothing written."""

from __future__ import annotations

import gzip
import json
import lzma
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result
from safetensors.torch import load_file, save_file

from tests.cli.cli_support import assert_user_error, edit_json, invoke, succeeds, truncate
from tests.worlds import World, make_target, make_vocab, other_tokenizer


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
        "has shape",
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
        "data": {"train": [str(world.text)], "text_unit": "paragraph", "sequence_length": 64},
        "optim": {"steps": 1, "batch_size": 2},
        "run": {"live": {"prompts": 0}},
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
def test_train_with_a_bad_recipe(pristine, tmp_path, overrides, code, said):
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
    assert_user_error(
        invoke("eval", *target, *drafter, "--method", "x", *common), 2, "no method of this name"
    )
    (tmp_path / "q.jsonl").write_text("not json\n")
    assert_user_error(invoke("eval", *target, *drafter, *common), 1, "q.jsonl")
    assert not (tmp_path / "out").exists()


def test_a_device_map_suits_the_transformers_backend_alone(world: World) -> None:
    words = ("generate", "--target", world.target, "--prompt", "hi", "--device-map")
    assert_user_error(invoke(*words, "auto", "--target-backend", "lean"), 2, "one device")
    succeeds(*words, '{"": "cpu"}', "--device", "cpu")


LINES = b"".join(b'{"text": "line %d of a text"}\n' % n for n in range(400))
QUESTION = {"question_id": 1, "category": "", "turns": ["hi"]}


def count(world: World, tmp_path: Path, name: str, data: bytes, *more: object) -> Result:
    (tmp_path / name).write_bytes(data)
    words = ("--tokenizer", world.target, "--input", tmp_path / name, "--output", tmp_path / "out")
    return invoke("count-freq", *words, *more)


@pytest.mark.parametrize("name", ["a.jsonl", "a.txt", "a.json"])
@pytest.mark.parametrize(("pack", "suffix"), [(gzip.compress, ".gz"), (lzma.compress, ".xz")])
def test_compressed_content_under_a_plain_name(pristine, tmp_path, name, pack, suffix):
    result = count(pristine, tmp_path, name, pack(LINES))
    assert_user_error(result, 1, "compressed", f"rename it to {name}{suffix}")
    renamed = (tmp_path / name).rename(tmp_path / f"{name}{suffix}")
    again = ("--tokenizer", pristine.target, "--input", renamed, "--output", tmp_path / "out")
    assert invoke("count-freq", *again).exit_code == 0


def test_compressed_questions_under_a_plain_name(pristine: World, tmp_path: Path) -> None:
    (tmp_path / "q.jsonl").write_bytes(gzip.compress(json.dumps(QUESTION).encode()))
    words = ("--target", pristine.target, "--proposer", "n-gram", "--benchmark", tmp_path / "q.jsonl")
    assert_user_error(invoke("eval", *words, "--output", tmp_path / "out"), 1, "rename it to q.jsonl.gz")


FOREIGN = {
    "utf-16": "a line of text\n".encode("utf-16-le") * 300,
    "utf-16 with a mark": ("a line of text\n" * 300).encode("utf-16"),
    "binary": bytes(torch.randint(1, 256, (1 << 16,), generator=torch.Generator().manual_seed(0)).tolist()),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_what_is_no_utf8_text_is_not_counted(pristine: World, tmp_path: Path, kind: str) -> None:
    result = count(pristine, tmp_path, "a.txt", FOREIGN[kind])
    assert_user_error(result, 1, "nothing to count", "not UTF-8 text", "a.txt")
    assert not (tmp_path / "out").exists()
    assert_user_error(count(pristine, tmp_path, "a.txt", FOREIGN[kind], "--strict"), 1, "not UTF-8 text")
    (tmp_path / "good.jsonl").write_bytes(LINES)
    result = count(pristine, tmp_path, "a.txt", FOREIGN[kind], tmp_path / "good.jsonl", "--json")
    facts = json.loads(result.stdout)
    assert (facts["documents"], sum(facts["skipped"].values())) == (400, 1)


OUTPUTS = {
    "count-freq": lambda w: ("--tokenizer", w.target, "--input", w.text),
    "prepare-data": lambda w: ("--target", w.target, "--input", w.text, "--length", 64),
    "export": lambda w: ("--drafter", w.drafter, "--format", "native"),
    "cluster-vocab": lambda w: ("--target", w.target),
    "regenerate": lambda w: ("--target", w.target, "--input", w.text),
    "eval": lambda w: ("--target", w.target, "--drafter", w.drafter, "--benchmark", "sample"),
    "tune": lambda w: ("--target", w.target, "--drafter", w.drafter, "--prompts", "sample"),
    "demo": lambda _: ("--size", "ci"),
}


@pytest.mark.parametrize("command", OUTPUTS)
@pytest.mark.parametrize("place", ["/proc/x", "through a file"])
def test_an_output_that_cannot_be_written(pristine: World, tmp_path: Path, command: str, place: str) -> None:
    output = pristine.text / "x" if place == "through a file" else place
    result = invoke(command, *OUTPUTS[command](pristine), "--output", output)
    assert_user_error(result, 2, "the output's folder cannot be written to", "choose another --output")


def test_sizes_are_written_alike_in_recipes(pristine: World, tmp_path: Path) -> None:
    result = train(pristine, tmp_path, "heads.ranker.shortlist=2k", "--plan")
    assert_user_error(result, 2, "larger than the vocabulary", "a shortlist of 2,048")
    result = train(pristine, tmp_path, "heads.ranker.shortlist=2kb", "--plan")
    assert_user_error(result, 2, "heads.ranker.shortlist", "write 16384 or 16k")


def test_a_size_where_a_folder_is_wanted(pristine: World, tmp_path: Path) -> None:
    words = ("--drafter", pristine.drafter, "--target", pristine.target, "--output", tmp_path / "out")
    assert_user_error(
        invoke("export", *words, "--format", "native", "--vocab", "32k"),
        1,
        "select-vocab --size 32k makes one",
    )


EMPTY = {
    "count-freq": (lambda w, e: ("--tokenizer", w.target, "--input", e), 1, "nothing to count"),
    "prepare-data": (lambda w, e: ("--target", w.target, "--length", 64, "--input", e), 1, "no token"),
    "regenerate": (lambda w, e: ("--target", w.target, "--input", e), 1, "no prompt to answer"),
    "eval": (lambda w, e: ("--target", w.target, "--drafter", w.drafter, "--benchmark", e), 1, "no question"),
    "tune": (lambda w, e: ("--target", w.target, "--drafter", w.drafter, "--prompts", e), 1, "no question"),
    "select-vocab": (lambda w, e: ("--from-list", e, "--tokenizer", w.target), 1, "cannot be read"),
}


@pytest.mark.parametrize("command", EMPTY)
def test_an_empty_file(pristine: World, tmp_path: Path, command: str) -> None:
    words, code, said = EMPTY[command]
    (tmp_path / "empty.jsonl").write_bytes(b"")
    result = invoke(command, *words(pristine, tmp_path / "empty.jsonl"), "--output", tmp_path / "out")
    assert_user_error(result, code, said, "empty.jsonl" if command != "regenerate" else "0 rows")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", ["train-drafter", "capture", "eval --recipe"])
def test_an_empty_recipe_and_one_with_tabs(tmp_path: Path, command: str) -> None:
    name, *option = command.split()
    more = ("--benchmark", "sample", "--output", tmp_path / "out") if option else ()
    for text, said in (("", "an empty file"), ("a:\n\tb: 1\n", "spaces, not tabs")):
        (tmp_path / "recipe.yaml").write_text(text)
        result = invoke(name, *(option or ["--config"]), tmp_path / "recipe.yaml", *more)
        assert_user_error(result, 2, said, "recipe.yaml")


def test_an_empty_category_is_none(pristine: World, tmp_path: Path) -> None:
    (tmp_path / "q.jsonl").write_text(json.dumps(QUESTION) + "\n")
    words = ("--target", pristine.target, "--proposer", "n-gram", "--benchmark", tmp_path / "q.jsonl")
    more = ("--max-new-tokens", 4, "--warmup", 0, "--output", tmp_path / "out")
    assert invoke("eval", *words, *more).exit_code == 0
    assert '"none"' in (tmp_path / "out" / "results.json").read_text("utf-8")


@pytest.mark.parametrize(
    ("documents", "given", "aside"), [(1000, (), 64), (30, (), 3), (5, (), 1), (30, (5,), 5)]
)
def test_documents_set_aside(pristine, tmp_path, documents, given, aside):
    (tmp_path / "a.txt").write_text("".join(f"line {n} of a text\n" for n in range(documents)))
    words = ("--target", pristine.target, "--input", tmp_path / "a.txt", "--text-unit", "line")
    more = [word for number in given for word in ("--heldout-documents", number)]
    result = invoke("prepare-data", *words, "--length", 64, "--output", tmp_path / "out", "--json", *more)
    figures = json.loads(result.stdout)["figures"]
    assert [figures[split]["documents"] for split in ("train", "heldout")] == [documents - aside, aside]


def test_training_says_how_many_documents_it_sets_aside(pristine: World, tmp_path: Path) -> None:
    result = train(pristine, tmp_path)
    assert result.exit_code == 0
    assert "held out (3 of 30 documents)" in result.output


def with_nan(folder: Path, file: str) -> Path:
    tensors = load_file(folder / file)
    name = next(name for name in sorted(tensors) if tensors[name].ndim == 2)
    tensors[name][:] = float("nan")
    save_file(tensors, folder / file, metadata={"format": "pt"})
    return folder


def test_weights_that_are_nan(world: World, tmp_path: Path) -> None:
    out = tmp_path / "exported"
    words = ("--drafter", world.drafter, "--target", world.target, "--format", "sglang-eagle3")
    assert invoke("export", *words, "--output", out).exit_code == 0
    (with_nan(out, "model.safetensors") / "manifest.json").unlink()
    result = invoke("generate", "--target", world.target, "--drafter", out, "--prompt", "hi")
    assert_user_error(result, 1, "the drafter's weights are not finite", "damaged")
    with_nan(world.target, "model.safetensors")
    (tmp_path / "a.jsonl").write_text('{"messages": [{"role": "user", "content": "hi"}]}\n')
    words = ("--target", world.target, "--input", tmp_path / "a.jsonl", "--max-tokens", 4)
    result = invoke("regenerate", *words, "--output", tmp_path / "out")
    assert_user_error(result, 1, "the target's logits hold no largest number", "NaN")


def test_regenerate_computes_in_fp32_on_a_cpu(world, tmp_path, monkeypatch):
    file = world.target / "model.safetensors"
    save_file({name: one.bfloat16() for name, one in load_file(file).items()}, file, {"format": "pt"})
    config = json.loads((world.target / "config.json").read_text()) | {"dtype": "bfloat16"}
    (world.target / "config.json").write_text(json.dumps(config))
    from vocabforge.decode.build import models

    found, before = [], models.load_decoding_target
    monkeypatch.setattr(
        models,
        "load_decoding_target",
        lambda *given, **named: found.append(before(*given, **named)) or found[-1],
    )
    (tmp_path / "a.jsonl").write_text('{"messages": [{"role": "user", "content": "hi"}]}\n')
    words = ("--target", world.target, "--input", tmp_path / "a.jsonl", "--max-tokens", 4)
    result = invoke("regenerate", *words, "--device", "cpu", "--output", tmp_path / "out")
    assert (result.exit_code, next(found[0].parameters()).dtype) == (0, torch.float32), result.output


def test_a_drafter_given_as_target(pristine: World) -> None:
    result = invoke("generate", "--target", pristine.drafter, "--prompt", "hi")
    assert_user_error(result, 1, "no model here", "give the target's folder")
