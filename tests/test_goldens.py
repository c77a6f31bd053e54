"""The code reads what the code of the tag ``layout-1`` wrote, and decodes the same tokens (goldens/README.md)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.numpy import load_file as load_arrays
from safetensors.torch import load_file

from tests.cli.cli_support import invoke, succeeds
from vocabforge.core.artifact import open_artifact
from vocabforge.corpus.prepared.artifact import load_prepared
from vocabforge.decode.build.recipe import read_recipe
from vocabforge.evaluate.results.schema import read_results
from vocabforge.layouts.registry import load_drafter
from vocabforge.models.heads.io import load_head
from vocabforge.models.target.head import load_target_tensors
from vocabforge.vocab.clusters.clusters import load_clusters
from vocabforge.vocab.counts.table import load_counts
from vocabforge.vocab.overlap.overlap import load_overlap
from vocabforge.vocab.subset.subset import load_subset

FILES = Path(__file__).parent / "goldens" / "files"
ARTEFACTS = sorted(str(file.parent.relative_to(FILES)) for file in FILES.rglob("manifest.json"))
TOKENS = json.loads((FILES / "tokens.json").read_text("utf-8"))
ASK = ["--benchmark", "questions.jsonl", "--device", "cpu", "--prompt-format", "raw", "--warmup", 0]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the goldens, and the folder to work in: their records name each other by relative paths."""
    copy = tmp_path / "files"
    shutil.copytree(FILES, copy)
    monkeypatch.chdir(copy)
    return copy


def continues_or_says_what_to_do(*words: object, done: str) -> None:
    """An interrupted run goes on, or is refused with its remedy, which then works."""
    result = invoke(*words)
    said = " ".join(result.output.split())
    if result.exit_code == 0:
        assert done in said, said
        return
    assert "Traceback" not in said
    assert isinstance(result.exception, SystemExit)
    assert "--fresh" in said, said
    succeeds(*words, "--fresh")


@pytest.mark.parametrize("name", ARTEFACTS)
def test_inspect_reads_every_artefact(name: str, files: Path) -> None:
    manifest = json.loads((files / name / "manifest.json").read_text("utf-8"))
    shown = json.loads(succeeds("inspect", name, "--json").stdout)
    assert (shown["kind"], shown["content_hash"]) == (manifest["kind"], manifest["content_hash"])
    assert shown["verified"]
    assert open_artifact(files / name).content_hash == manifest["content_hash"]
    succeeds("inspect", name)


def test_vocabularies_hold_what_was_written() -> None:
    for name in ("counts", "merged"):
        table, raw = load_counts(FILES / name), load_arrays(FILES / name / "counts.safetensors")
        assert np.array_equal(table.counts, raw["counts"])
        assert {f"domain/{key}" for key in table.domains} == set(raw) - {"counts"}
        assert all(np.array_equal(tally.counts, raw[f"domain/{key}"]) for key, tally in table.domains.items())
    assert (load_counts(FILES / "counts").tokens, load_counts(FILES / "counts").documents) == (2263, 2)
    for name in ("subset", "scheduled"):
        subset, raw = load_subset(FILES / name), load_arrays(FILES / name / "subset.safetensors")
        assert {tuple(subset.ids), tuple(subset.ranked)} == {tuple(array) for array in raw.values()}
        assert len(subset.ids) == 40
        assert 257 in subset.ids
    assert load_subset(FILES / "subset").schedule == ()
    assert load_subset(FILES / "scheduled").schedule == (40, 40, 20, 13, 12)
    clusters, raw = (
        load_clusters(FILES / "clusters"),
        load_arrays(FILES / "clusters" / "clusters.safetensors"),
    )
    for key in ("permutation", "offsets", "assignment", "centroids", "cosine"):
        assert np.array_equal(getattr(clusters, key), raw[key]), key
    raw = load_arrays(FILES / "overlap" / "overlap.safetensors")
    assert np.array_equal(load_overlap(FILES / "overlap").pairs, raw["pairs"])


def test_vocabulary_commands_give_the_same_again(files: Path) -> None:
    chosen = ("select-vocab", "--counts", "counts", "--target", "target", "--fill", "lowest-id")
    succeeds(*chosen, "--size", 40, "--output", "again")
    assert load_subset(Path("again")).ranked.tolist() == load_subset(Path("subset")).ranked.tolist()
    succeeds(*chosen, "--schedule", "decay", "--k-max", 40, "--k-min", 12, "--steps", 5, "--output", "steps")
    assert load_subset(Path("steps")).schedule == load_subset(Path("scheduled")).schedule
    succeeds(
        "select-vocab", "--from-list", "subset/freq_40.pt", "--tokenizer", "target", "--output", "listed"
    )
    assert load_subset(Path("listed")).ranked.tolist() == load_subset(Path("subset")).ranked.tolist()
    succeeds("count-freq", "--tokenizer", "target", "--input", "texts.jsonl", "--output", "more")
    succeeds("merge-freq", "counts", "more", "--output", "sum")
    assert np.array_equal(load_counts(Path("sum")).counts, load_counts(Path("merged")).counts)


def test_prepared_data_holds_what_was_written() -> None:
    prepared = load_prepared(FILES / "prepared")
    for split in ("train", "heldout"):
        raw = load_arrays(FILES / "prepared" / f"{split}.input_ids.safetensors")["input_ids"]
        rows = getattr(prepared, split)
        assert len(rows) == len(raw)
    assert prepared.artifact.meta["figures"]["train"]["tokens"] > 0


@pytest.mark.parametrize("source", ["data.prepared=prepared", "capture.cache=captured"])
def test_a_drafter_trains_from_prepared_data_and_from_captured_states(source: str, files: Path) -> None:
    recipe = yaml.safe_load(Path("eagle3.yaml").read_text("utf-8"))
    if "captured" in source:
        recipe["data"] |= {"train": ["few.jsonl"], "heldout_documents": 1}
    else:
        del recipe["data"]
    Path("recipe.yaml").write_text(yaml.safe_dump(recipe), "utf-8")
    succeeds("train-drafter", "--config", "recipe.yaml", source, "optim.steps=2", "output=trained")
    assert open_artifact(files / "trained" / "drafter").meta["steps"] == 2


@pytest.mark.parametrize("name", ["eagle1", "eagle3", "medusa", "reduced"])
def test_drafters_load_bit_for_bit(name: str) -> None:
    raw = load_file(FILES / "drafters" / name / "drafter.safetensors")
    drafter, _ = load_drafter(
        FILES / "drafters" / name, load_target_tensors(FILES / "target"), FILES / "target"
    )
    tensors = dict(drafter.named_parameters())
    ids = raw.pop("target_ids", None)
    assert set(tensors) == set(raw)
    assert all(torch.equal(tensors[key], raw[key]) for key in raw)
    assert ids is None or torch.equal(drafter.target_ids, ids)


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("native", "reduced"),
        ("sglang-eagle3", "reduced"),
        ("speculators-eagle3", "reduced"),
        ("eagle-sglang", "eagle1"),
        ("eagle-vllm", None),
        ("fr-spec", "eagle1"),
    ],
)
def test_exports_load_as_what_was_exported(name: str, source: str | None) -> None:
    target = load_target_tensors(FILES / "target")
    found, _ = load_drafter(FILES / "exports" / name, target, FILES / "target")
    if source is None:
        assert found.config.hidden_size == 24
        return
    wanted, _ = load_drafter(FILES / "drafters" / source, target, FILES / "target")
    tensors = dict(found.named_parameters())
    half = torch.bfloat16 if source == "eagle1" else torch.float32
    for key, tensor in wanted.named_parameters():
        assert torch.equal(tensors[key].float(), tensor.to(half).float()), key


@pytest.mark.parametrize("name", ["sglang-eagle3", "speculators-eagle3"])
def test_a_drafter_is_exported_to_the_same_bits(name: str, files: Path) -> None:
    words = ("--drafter", "drafters/reduced", "--target", "target", "--format", name)
    succeeds("export", *words, "--output", "again")
    was, found = (load_file(Path(folder) / "model.safetensors") for folder in (f"exports/{name}", "again"))
    assert set(found) == set(was)
    assert all(torch.equal(found[key], was[key]) for key in was)
    was, found = (
        json.loads(Path(at, "config.json").read_text("utf-8")) for at in (f"exports/{name}", "again")
    )
    for body in (was, found):
        body.get("speculators_config", {}).pop("verifier", None)  # the target's place
    assert {**found, **was} == found, "a key is missing or has another value"


def test_a_drafter_takes_another_vocabulary(files: Path) -> None:
    words = ("--drafter", "drafters/reduced", "--target", "target", "--vocab", "scheduled")
    succeeds("export", *words, "--format", "native", "--output", "revised")
    ids = load_subset(Path("scheduled")).ids.tolist()
    assert load_file("revised/drafter.safetensors")["target_ids"].tolist() == ids


@pytest.mark.parametrize("name", ["ranker", "low-rank", "router"])
def test_draft_heads_load_bit_for_bit(name: str) -> None:
    raw = load_file(FILES / "heads" / name / "head.safetensors")
    tensors = load_head(FILES / "heads" / name).module.state_dict()
    common = set(raw) & set(tensors)
    assert {key for key in raw if key.endswith(("weight", "bias"))} <= common
    assert all(torch.equal(tensors[key], raw[key]) for key in common)


@pytest.mark.parametrize("name", TOKENS)
def test_decoding_gives_the_same_tokens_and_accepted_lengths(name: str, files: Path) -> None:
    golden = TOKENS[name]
    words = ("--recipe", golden["recipe"], *golden["options"], "--max-new-tokens", 24)
    succeeds("eval", *ASK, *words, "--output", "out")
    found = {file.stem: _decoded(file) for file in Path("out/details").glob("*.jsonl")}
    assert set(found) == set(golden["methods"])
    for method, questions in golden["methods"].items():
        if "adaptive" in method:  # how much it drafts depends on measured times; what it writes does not
            assert _tokens(found[method]) == _tokens(questions)
        else:
            assert found[method] == _ended(questions, method), method


def _tokens(questions: dict[str, Any]) -> dict[str, list[list[int]]]:
    return {question: [ids for ids, _ in turns] for question, turns in questions.items()}


def _ended(questions: dict[str, Any], method: str) -> dict[str, Any]:
    """Questions of an earlier version, whose accepted lengths included tokens behind the end of the answer."""
    cut = {}
    for question, turns in questions.items():
        cut[question] = [[ids, list(lengths)] for ids, lengths in turns]
        for ids, lengths in cut[question] if method != "plain" else ():
            lengths[-1] -= sum(lengths) - (len(ids) - 1)
    return cut


def _decoded(file: Path) -> dict[str, Any]:
    rows = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    keys = ("token_ids", "accept_lengths")
    return {
        str(row["question_id"]): [*map(list, zip(*(row["choices"][0][key] for key in keys)))] for row in rows
    }


def test_results_are_read_and_reported(files: Path) -> None:
    raw = json.loads(Path("evaluation/results.json").read_text("utf-8"))
    results = read_results(Path("evaluation"))
    assert (
        [one.name for one in results.methods]
        == [one["name"] for one in raw["methods"]]
        == ["plain", "reduced"]
    )
    again = json.loads(results.model_dump_json())
    for method in raw["methods"]:
        summary = method["summary"]
        groups = summary["overall"], *summary["tasks"].values(), *summary["categories"].values()
        for key in ("quality", "runs", "accept_length_histogram", "finish"):
            del summary[key]  # read and ignored, as these are:
        for part, key in ((groups, "seconds_per_step"), (summary["depths"], "conditional")):
            for row in part:
                del row[key]
        summary["positions"] = []  # since version 4
    for key in ("methods", "questions", "categories", "benchmark"):
        assert again.get(key) == raw.get(key), key
    assert raw["settings"].items() <= again["settings"].items()
    assert "reduced" in succeeds("report", "evaluation").output
    card = ("export", "--drafter", "drafters/reduced", "--target", "target", "--format", "sglang-eagle3")
    succeeds(*card, "--eval", "evaluation", "--output", "served")


def test_what_tune_wrote_is_read(files: Path) -> None:
    assert list(read_recipe(Path("tuned/recipe.yaml")).methods) == ["full+chain2", "subset+chain2"]
    words = ("--recipe", "tuned/recipe.yaml", "--max-new-tokens", 4)
    succeeds("eval", *ASK, *words, "--limit", 1, "--output", "out")


def test_interrupted_counting(files: Path) -> None:
    words = ("--tokenizer", "target", "--domain", "a=part-a.txt", "--domain", "b=part-b.txt")
    succeeds("count-freq", *words, "--output", "counting")
    assert np.array_equal(load_counts(Path("counting")).counts, load_counts(Path("counts")).counts)
    assert not Path("counting.partial").exists()


def test_interrupted_regeneration(files: Path) -> None:
    words = ("--target", "target", "--input", "chats.jsonl", "--max-tokens", 8)
    local = ("--device", "cpu", "--empty", "keep", "--batch-size", 1, "--output", "regenerating")
    continues_or_says_what_to_do("regenerate", *words, *local, done="")
    was, found = (Path(name, "responses.jsonl").read_text("utf-8") for name in ("responses", "regenerating"))
    assert found == was


def test_interrupted_evaluation(files: Path) -> None:
    words = ("--target", "target", "--drafter", "drafters/reduced")
    limits = ("--tree", "dynamic", "--control", "fixed", "--max-new-tokens", 8, "--output", "evaluating")
    continues_or_says_what_to_do("eval", *ASK, *words, *limits, done="")
    for name in ("plain", "reduced"):
        found, was = (_decoded(Path(f"{run}/details/{name}.jsonl")) for run in ("evaluating", "evaluation"))
        # What the earlier version had done is taken over as it is.
        assert _ended(found, name) == _ended(was, name)


def test_interrupted_training(files: Path) -> None:
    words = ("train-drafter", "--config", "eagle3.yaml", "output=training", "optim.steps=6")
    continues_or_says_what_to_do(*words, done="Resuming at step 3")
    assert open_artifact(files / "training" / "drafter").meta["steps"] == 6
