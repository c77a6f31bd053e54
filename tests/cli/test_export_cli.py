"""``vocabforge export``: every format from the command line, its model card, figures from an evaluation, the import."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import Result
from safetensors.torch import load_file

from tests.cli.cli_support import assert_user_error, invoke, ok, succeeds
from tests.decode import drafting
from tests.decode.build_support import check_drafts_alike
from tests.export.test_eagle_layout import eagle1
from tests.worlds import ROWS, World, make_drafter, make_vocab, write_questions
from vocabforge.core.artifact import MANIFEST, open_artifact
from vocabforge.layouts.registry import FORMATS
from vocabforge.models.drafters.io import save_drafter
from vocabforge.models.heads.served import KEY
from vocabforge.models.target.head import load_target_tensors
from vocabforge.models.target.hf import HFTarget
from vocabforge.vocab.subset.subset import load_subset, save_subset

SIZE = 64  # of the draft vocabulary


@pytest.fixture(scope="module")
def made(pristine: World, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Drafters of the world's target by kind: EAGLE-1, two Medusa heads and DFlash."""
    target, meta = HFTarget.load(pristine.target), dict(open_artifact(pristine.drafter).meta)
    drafters = {
        "eagle1": eagle1(load_target_tensors(pristine.target), vocab_size=ROWS),
        "medusa": drafting.make_drafter("medusa", pristine.target, target, medusa_heads=2),
        "dflash": drafting.make_drafter("dflash", pristine.target, target),
    }
    folder = tmp_path_factory.mktemp("made")
    for kind, drafter in drafters.items():
        save_drafter(folder / kind, drafter, meta, config={"target": str(pristine.target)})
    return {kind: folder / kind for kind in drafters}


@pytest.fixture(scope="module")
def small(made: dict[str, Path]) -> Path:
    """The EAGLE-1 drafter."""
    return made["eagle1"]


@pytest.fixture(scope="module")
def evaluated(pristine: World, small: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An evaluation of both drafters, each also over the draft vocabulary."""
    place = tmp_path_factory.mktemp("evaluated")
    write_questions(place / "q.jsonl", *([f"Question {n}?"] for n in range(3)))
    succeeds(
        "eval",
        *("--target", pristine.target, "--drafter", f"three={pristine.drafter}", "--drafter", f"one={small}"),
        *("--vocab", f"cut={pristine.vocab}", "--benchmark", place / "q.jsonl", "--output", place / "out"),
        *("--max-new-tokens", 8, "--warmup", 0, "--prompt-format", "raw", "--device", "cpu"),
        *("--depth", 1, "--topk", 2, "--total-nodes", 5),
    )
    return place / "out"


def export(*words: object) -> Result:
    return invoke("export", *words)


def exported(*words: object) -> Result:
    return ok(export(*words))


def test_a_draft_head_goes_with_the_drafter(pristine: World, tmp_path: Path) -> None:
    """The folder has the drafter's own head, and beside it a draft head over the vocabulary."""
    words = ("--drafter", pristine.drafter, "--vocab", pristine.vocab, "--dynamic", "context:7")
    exported(*words, "--format", "vllm", "--output", tmp_path / "out")
    body = json.loads((tmp_path / "out" / "config.json").read_text("utf-8"))
    assert body[KEY]["kind"] == "context"
    assert body[KEY]["options"] == {"context": 7}
    check_drafts_alike(pristine.target, pristine.drafter, tmp_path / "out")


def test_a_draft_head_is_asked_for_where_it_can_go(pristine: World, tmp_path: Path) -> None:
    words = ("--drafter", pristine.drafter, "--output", tmp_path / "out", "--format")
    assert_user_error(export(*words, "vllm"), 2, "--head DIR", "sglang-eagle3")
    assert_user_error(
        export(*words, "sglang-eagle3", "--shortlist", 5), 2, "--shortlist", "--format vllm --head DIR"
    )


# vllm has tests of its own; gguf needs a tokenizer that llama.cpp knows (test_gguf_target.py), mtp a target with a
# module (tests/pipeline/test_mtp_run.py).
@pytest.mark.parametrize("name", [name for name in FORMATS if name not in ("vllm", "gguf", "mtp")])
def test_every_format_decodes_as_before(name, pristine, made, tmp_path):
    others = {"eagle": "eagle1", "fr-spec": "eagle1", "medusa": "medusa"}
    others |= {"speculators-block": "dflash", "block": "dflash"}
    drafter = made[others[name]] if name in others else pristine.drafter
    vocab = ["--vocab", pristine.vocab] if name not in ("eagle", "medusa") else []
    result = exported("--drafter", drafter, "--format", name, "--output", tmp_path / "out", *vocab, "--json")
    facts = json.loads(result.stdout)
    facts.pop("revocab", None)
    assert facts == {
        "output": str(tmp_path / "out"),
        "format": name,
        "draft_vocab_size": SIZE if vocab else None,
        "dtype": "float32",
    }
    artifact = open_artifact(tmp_path / "out")
    assert artifact.meta["format"] == name
    assert artifact.manifest["parents"].keys() == ({"drafter", "vocab"} if vocab else {"drafter"})
    assert f"`{name}`, float32" in (tmp_path / "out" / "README.md").read_text("utf-8")
    check_drafts_alike(pristine.target, drafter, tmp_path / "out", vocab[1:])


def test_own_lm_heads_and_several_layers_from_the_command_line(pristine: World, tmp_path: Path) -> None:
    """Both decode as before behind their layouts, the doctor takes them, and what needs one LM head is refused."""
    target = HFTarget.load(pristine.target)
    meta = dict(open_artifact(pristine.drafter).meta)
    layouts = {drafting.OWN_HEADS: "medusa", "eagle3.1 of two layers": "speculators-eagle3"}
    for case, layout in layouts.items():
        path, out = tmp_path / layout, tmp_path / f"{layout}-out"
        drafter = drafting.make_drafter(case, pristine.target, target, "own")
        save_drafter(path, drafter, meta, config={"target": str(pristine.target)})
        exported("--drafter", path, "--format", layout, "--output", out)
        check_drafts_alike(pristine.target, path, out)
        for folder in (path, out):
            succeeds("doctor", "--target", pristine.target, "--drafter", folder)
    words = ("--drafter", tmp_path / "medusa", "--vocab", pristine.vocab, "--output", tmp_path / "no")
    assert_user_error(export(*words, "--format", "native"), 2, "an LM head for each of its heads")
    deep = tmp_path / "speculators-eagle3"
    refused = export("--drafter", deep, "--format", "sglang-eagle3", "--output", tmp_path / "no")
    assert_user_error(refused, 1, "2 decoder layers", "speculators-eagle3")


def test_the_servers_of_eagle(small: Path, pristine: World, tmp_path: Path) -> None:
    base = ["--drafter", small, "--format", "eagle"]
    exported(*base, "--server", "sglang", "--output", tmp_path / "s")
    assert "fc.bias" in load_file(tmp_path / "s" / "model.safetensors")
    assert open_artifact(tmp_path / "s").meta["server"] == "sglang"
    biased = export(*base, "--server", "vllm", "--output", tmp_path / "v")
    assert_user_error(biased, 1, "without a bias in fc", "--server sglang")
    assert not (tmp_path / "v").exists()


def test_the_rank_order_goes_through(small: Path, pristine: World, tmp_path: Path) -> None:
    first = exported(
        "--drafter", small, "--format", "fr-spec", "--vocab", pristine.vocab, "--output", tmp_path / "a"
    )
    ranked = torch.load(tmp_path / "a" / f"freq_{SIZE}.pt", weights_only=True)
    assert ranked[-1] == 257
    assert "rank is not known" not in first.output
    again = ["--drafter", tmp_path / "a", "--format", "fr-spec", "--target", pristine.target]
    exported(*again, "--output", tmp_path / "b")
    assert torch.load(tmp_path / "b" / f"freq_{SIZE}.pt", weights_only=True) == ranked
    export(
        *("--drafter", tmp_path / "a", "--format", "native", "--target", pristine.target),
        *("--output", tmp_path / "n"),
    )
    lost = export(
        *("--drafter", tmp_path / "n", "--format", "fr-spec", "--target", pristine.target),
        *("--output", tmp_path / "c"),
    )
    assert "rank is not known" in lost.output
    assert torch.load(tmp_path / "c" / f"freq_{SIZE}.pt", weights_only=True) == sorted(ranked)


def test_an_export_knows_its_target_and_keeps_what_was_recorded(pristine: World, tmp_path: Path) -> None:
    counted = replace(load_subset(pristine.vocab), coverage=0.75)
    save_subset(counted, tmp_path / "counted")
    base = ["--drafter", pristine.drafter, "--format", "speculators-eagle3", "--vocab", tmp_path / "counted"]
    exported(*base, "--output", tmp_path / "a")
    exported("--drafter", tmp_path / "a", "--format", "native", "--output", tmp_path / "b")
    for name in ("a", "b"):
        assert "64 of 264 tokens, 75.00% of the tokens counted" in (tmp_path / name / "README.md").read_text(
            "utf-8"
        )
        assert open_artifact(tmp_path / name).meta["coverage"] == 0.75
    uncounted = make_vocab(tmp_path / "uncounted", pristine.target, size=32)
    exported(
        "--drafter", tmp_path / "b", "--format", "native", "--vocab", uncounted, "--output", tmp_path / "c"
    )
    assert "coverage" not in open_artifact(tmp_path / "c").meta, "that of another draft vocabulary"
    (tmp_path / "a" / MANIFEST).unlink()
    exported(
        *("--drafter", tmp_path / "a", "--format", "native", "--target", pristine.target),
        *("--output", tmp_path / "d"),
    )
    meta = open_artifact(tmp_path / "d").meta
    assert meta["target_fingerprint"] == open_artifact(pristine.drafter).meta["target_fingerprint"]
    assert meta["target_name"] == pristine.target.name


def test_figures_of_the_drafter_go_into_its_card(pristine: World, evaluated: Path, tmp_path: Path) -> None:
    results = json.loads((evaluated / "results.json").read_text("utf-8"))
    words = ("--drafter", pristine.drafter, "--format", "sglang-eagle3", "--eval", evaluated)
    exported(*words, "--output", tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text("utf-8")
    table = card.partition("## Measured on q")[2].partition("\n## ")[0]
    (line,) = (line for line in table.splitlines() if line.startswith("| three |"))
    method = next(one for one in results["methods"] if one["name"] == "three")
    overall = method["summary"]["overall"]
    assert f"| {overall['accepted_length']['value']:.2f}" in line
    assert f"| {overall['speedup']['value']:.2f}×" in line
    assert "| 3 of 3 |" in line
    assert f"{ROWS} full" in line
    assert "| three+cut |" in table
    assert "| one" not in table, "another drafter's"
    assert "3 questions, greedy, " in table
    assert f"float32, {results['created'][:10]}, VocabForge" in table


def test_an_evaluation_of_something_else_is_refused(pristine: World, evaluated: Path, tmp_path: Path) -> None:
    other = make_drafter(tmp_path / "other", pristine.target, seed=5)
    base = ["--format", "sglang-eagle3", "--output", tmp_path / "out"]
    result = export("--drafter", other, *base, "--eval", evaluated)
    assert_user_error(result, 1, "did not measure this drafter", "drafter three", "drafter one")
    copy = shutil.copytree(evaluated, tmp_path / "copy")
    results = json.loads((copy / "results.json").read_text("utf-8"))
    results["target"]["fingerprint"] = "0" * 64
    (copy / "results.json").write_text(json.dumps(results), "utf-8")
    result = export("--drafter", pristine.drafter, *base, "--eval", copy)
    assert_user_error(result, 1, "another target")
    result = export("--drafter", pristine.drafter, *base, "--eval", tmp_path / "nowhere")
    assert_user_error(result, 1, "results file")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--format", "eagle"), ("holds EAGLE-1/2 drafters only", "sglang-eagle3")),
        (("--format", "fr-spec"), ("holds EAGLE-1/2 drafters only", "d2t inside")),
        (("--format", "native", "--server", "vllm"), ("not written for one server", "leave --server out")),
        (("--format", "fr-spec", "--server", "vllm"), ("--server sglang", "whole vocabulary only")),
        (("--format", "eagle", "--server", "tgi"), ("sglang or vllm",)),
        (
            ("--format", "native", "--head", "h"),
            ("no draft head", "--format vllm --head DIR", "--vocab SUBSET"),
        ),
        (("--format", "vllm", "--head", "h", "--vocab", "v"), ("two ways of drafting", "--dynamic context")),
        (("--format", "eagle3"), ("sglang-eagle3",)),
    ],
)
def test_mistakes_are_told(more, words, pristine, tmp_path):
    result = export("--drafter", pristine.drafter, *more, "--output", tmp_path / "out")
    assert result.exit_code in (1, 2)
    assert_user_error(result, result.exit_code, *words)
    assert not (tmp_path / "out").exists()


def test_a_vocabulary_of_another_tokenizer_is_refused_without_a_manifest(pristine, tmp_path):
    line = ("export", "--format", "sglang-eagle3", "--target", pristine.target)
    succeeds(*line, "--drafter", pristine.drafter, "--output", tmp_path / "theirs")
    (tmp_path / "theirs" / MANIFEST).unlink()
    ours = load_subset(pristine.vocab)
    save_subset(replace(ours, fingerprint="0" * 64), tmp_path / "foreign")
    line = (*line, "--drafter", tmp_path / "theirs", "--output", tmp_path / "cut")
    assert_user_error(invoke(*line, "--vocab", tmp_path / "foreign"), 1, "different tokenizers")
    assert not (tmp_path / "cut").exists()
    assert invoke(*line, "--vocab", pristine.vocab).exit_code == 0
