"""The command inspect over every kind of artefact."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.capture.capture_support import make_cache, make_job, splits
from tests.cli.cli_support import assert_user_error, invoke, make_drafter, make_target, make_vocab, truncate
from tests.corpus.tokenizer_factory import byte_tokenizer
from tests.evaluate.eval_fakes import ROWS, FakeGenerator, FakeMethod, make_benchmark, make_tokenizer
from tests.export.test_eagle_layout import eagle1
from tests.support import ROOT, tiny_drafter
from tests.vocab.family_tokenizers import byte_level, write_tokenizer
from vocabforge.cli.inspection import VIEWS
from vocabforge.cli.table_inputs import load_part
from vocabforge.core.artifact import open_artifact, write_artifact
from vocabforge.core.extension import load_attribute
from vocabforge.corpus.prepared import write_prepared
from vocabforge.corpus.prepared_key import HeldoutOptions, PrepareOptions
from vocabforge.corpus.regenerate import regenerate
from vocabforge.corpus.regenerate_rows import Answer, Generation
from vocabforge.corpus.regenerate_work import Run, Work
from vocabforge.corpus.sources import Document, SourceOptions
from vocabforge.corpus.tokenizer import load_tokenizer
from vocabforge.evaluate.coverage_results import measure_coverage
from vocabforge.evaluate.environment import describe_environment
from vocabforge.evaluate.evaluation import Evaluation, Provenance, evaluate_methods
from vocabforge.evaluate.settings import RunSettings
from vocabforge.export.formats import FORMATS, layout_of
from vocabforge.models.drafter_io import load_target_tensors, save_drafter
from vocabforge.models.head_io import HeadOwner, save_head
from vocabforge.models.low_rank import LowRankScorer
from vocabforge.models.target import HFTarget
from vocabforge.train.checkpoint import RunState, save_checkpoint
from vocabforge.vocab.clusters import Clusters, save_clusters
from vocabforge.vocab.overlap import compare, prepare, save_overlap
from vocabforge.vocab.overlap_corpus import compare_on_corpus
from vocabforge.vocab.special import SpecialTokens
from vocabforge.vocab.subset import load_subset
from vocabforge.vocab.table import FrequencyTable, Tally, save_counts

EXPORTS = [name for name in FORMATS if name != "native"]


def make_counts(path: Path, tokenizer: Path) -> None:
    """Two domains over the byte tokenizer: ``ab`` and spaces often, a byte of no text once."""
    loaded = load_tokenizer(tokenizer)
    parts = {}
    for name, text in (("letters", "aaaabb"), ("spaces", "    \n")):
        parts[name] = Tally(np.bincount(loaded.encode(text), minlength=loaded.vocab_size), 1, len(text))
    parts["spaces"].counts[loaded.backend.token_to_id("Ģ")] = 1  # byte 0x80
    parts["spaces"].counts[257] = 2  # <|end|>
    whole = parts["letters"] + parts["spaces"]
    table = FrequencyTable(
        whole.counts, 2, whole.bytes, "corpus", loaded.fingerprint, {}, SpecialTokens.of(loaded), parts
    )
    save_counts(table, path)


def make_clusters(path: Path, tokenizer: Path) -> None:
    loaded = load_tokenizer(tokenizer)
    size = loaded.vocab_size
    offsets = np.array([0, 10, 11, size])
    clusters = Clusters(
        permutation=np.arange(size),
        offsets=offsets,
        assignment=np.repeat(np.arange(3), np.diff(offsets)).astype(np.int32),
        centroids=np.eye(3, 4, dtype=np.float32),
        cosine=np.array([0.5, 1.0, 0.25], dtype=np.float32),
        zero_cluster=None,
        fingerprint=loaded.fingerprint,
        head={
            "digest": "ab",
            "rows": size,
            "padded": 0,
            "width": 4,
            "dtype": "F32",
            "name": "h",
            "tied": False,
        },
        origin={"seed": 3, "backend": "numpy", "objective": 0.5},
    )
    save_clusters(clusters, path)


def make_evaluation(path: Path) -> None:
    methods = [FakeMethod("plain", FakeGenerator()), FakeMethod("eagle3", FakeGenerator((3, 1, 2)))]
    environment = describe_environment(device="cpu", dtype="float32")
    provenance = Provenance(
        target="tiny",
        environment=environment,
        parents={"target": "ab" * 32},
        command=["vocabforge"],
    )
    tokenizer = make_tokenizer(path.parent / "words")
    settings = RunSettings(32, warmup=1)
    evaluate_methods(path, Evaluation(make_benchmark(ROWS), methods, tokenizer, settings, provenance))


def make_coverage(path: Path, folder: Path) -> None:
    counted = load_part("counts", folder / "counts")
    results = measure_coverage(counted, [], {"small": load_subset(folder / "subset")})
    meta = {"fingerprint": results["fingerprint"]}
    with write_artifact(path, "coverage", meta) as inside:
        (inside / "coverage.json").write_text(json.dumps({**results, "facts": {"measured": "now"}}), "utf-8")


def make_prepared(path: Path, tokenizer: Path) -> None:
    rows = [{"prompt": "why", "response": "because " * size} for size in (1, 2, 3, 20)]
    file = path.parent / "chats.jsonl"
    file.write_text("\n".join(map(json.dumps, [*rows, {"prompt": 3, "response": "x"}])), "utf-8")
    options = PrepareOptions(64, heldout=HeldoutOptions(documents=1))
    write_prepared(path, load_tokenizer(tokenizer), [file], [], options)


def make_responses(path: Path) -> None:
    """Two questions, answered by nobody in particular."""
    turns = [[{"role": "user", "content": "[bold]who?"}], [{"role": "user", "content": "what? " * 30}]]
    file = path.parent / "questions.jsonl"
    file.write_text("".join(json.dumps({"messages": one}) + "\n" for one in turns), "utf-8")

    def echo(work: Work, run: Run) -> None:
        for conversation in work.conversations():
            request = work.walk(conversation).request()
            message = {"role": "assistant", "content": "[i]" + str(request.messages[0]["content"])}
            run.keep(request, Answer(message, "stop", request.seed, completion_tokens=4))

    generation = Generation(backend={"kind": "server"}, model="tiny")
    regenerate(Work([file], SourceOptions(), generation), echo, path)


def make_every_kind(folder: Path) -> None:
    """One artefact of every kind, by its name, and the tokenizer ``tokenizer`` of most."""
    tokenizer = byte_tokenizer(folder / "tokenizer")
    make_counts(folder / "counts", tokenizer)
    make_vocab(folder / "subset", tokenizer)
    make_clusters(folder / "clusters", tokenizer)
    sides = (
        prepare(load_tokenizer(write_tokenizer(folder / "other", byte_level()))),
        prepare(load_tokenizer(tokenizer)),
    )
    corpus = compare_on_corpus(*sides, [Document("the dog e\u0301", None, Path("a"), 1)])
    save_overlap(
        compare(*sides, corpus=corpus), folder / "overlap", config={"a": "x", "b": "y", "input": ["z"]}
    )
    make_coverage(folder / "coverage", folder)
    model = make_target(folder / "model")
    make_drafter(folder / "drafter", model, own_head=32, target_ids=torch.arange(32))
    scorer = LowRankScorer(32, 264, 4)
    owner = HeadOwner("d" * 64, "t" * 64, "k" * 64)
    save_head(folder / "draft-head", "ranker", scorer, owner, {"shortlist": 20, "heldout": {"rows": 5}})
    meta = dict(open_artifact(folder / "drafter").meta)
    save_drafter(folder / "small", eagle1(load_target_tensors(model), vocab_size=264), meta)
    for name in EXPORTS:
        drafter = "small" if name in ("eagle", "fr-spec") else "drafter"
        arguments = ["--target", model, "--format", name, "--output", folder / f"export-{name}"]
        vocab = ["--vocab", folder / "subset"] if name == "fr-spec" else []
        exported = invoke("export", "--drafter", folder / drafter, *arguments, *vocab)
        assert exported.exit_code == 0, exported.output
    with write_artifact(folder / "target", "target", {"vocab_size": 264, "heldout_loss": 1.5}) as inside:
        for file in ("config.json", "model.safetensors"):
            (inside / file).write_bytes((model / file).read_bytes())
    drafter = tiny_drafter(HFTarget.load(model))
    weights = {name: p.detach().contiguous() for name, p in drafter.named_parameters()}
    state = RunState(weights, {}, {})
    save_checkpoint(folder / "run", 7, state, {"seed": 5, "optim": {"lr": 0.25}}, keep=1)
    (folder / "run" / "step-00000007").rename(folder / "checkpoint")
    make_evaluation(folder / "evaluation")
    for part in ("data", "answers", "replay", "report"):
        with write_artifact(folder / f"study-{part}", f"study-{part}", {"questions": 3}) as inside:
            (inside / "rows.jsonl").write_text("{}\n", "utf-8")
    make_prepared(folder / "prepared-data", tokenizer)
    make_responses(folder / "responses")
    job = make_job(folder / "capture", HFTarget.load(model), splits())
    make_cache(job, HFTarget.load(model))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inspect")
    make_every_kind(folder)
    return folder


def facts(*words: object) -> dict:
    done = invoke("inspect", *words, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def kinds_of_the_package() -> set[str]:
    """A kind is a constant named KIND or ..._KIND, a literal given to write_artifact, or a layout's."""
    found = {layout_of(name).KIND for name in FORMATS}
    for file in (ROOT / "vocabforge").rglob("*.py"):
        text = file.read_text("utf-8")
        found |= set(re.findall(r'^(?:[A-Z_]*_)?KIND\b[^=\n]*= "([^"]+)"', text, re.MULTILINE))
        found |= set(re.findall(r'write_artifact\(\s*[^,]+,\s*"([^"]+)"', text))
    return found


def test_every_kind_in_the_package_has_a_view():
    found = kinds_of_the_package()
    assert {"counts", "evaluation", "export-sglang-eagle3"} <= found
    assert found == set(VIEWS)
    for target in VIEWS.values():
        assert callable(load_attribute(target))


@pytest.mark.parametrize("kind", sorted(VIEWS))
def test_every_kind_is_shown_within_80_columns(made, kind, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    done = invoke("inspect", made / kind, "--top", 3)
    assert done.exit_code == 0, done.output
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert re.search(rf"^kind +{kind}", done.stdout, re.MULTILINE)
    assert "every hash as recorded" in done.stdout
    manifest = json.loads((made / kind / "manifest.json").read_text("utf-8"))
    assert manifest["content_hash"] in done.stdout


@pytest.mark.parametrize("kind", sorted(VIEWS))
def test_every_kind_as_json(made, kind):
    found = facts(made / kind)
    manifest = json.loads((made / kind / "manifest.json").read_text("utf-8"))
    assert (found["kind"], found["verified"]) == (kind, True)
    assert found["content_hash"] == manifest["content_hash"]
    assert found["files"] == {name: entry["bytes"] for name, entry in manifest["files"].items()}
    assert found["content"]


def test_counts_with_texts(made):
    content = facts(made / "counts", "--tokenizer", made / "tokenizer", "--top", 2)["content"]
    assert [(row["text"], row["count"]) for row in content["top"]] == [("a", 4), ("␣", 4)]
    assert {row["text"] for row in content["rare"]} == {"\\x80", "\\n"}
    assert content["tokens"] == 14
    assert content["spread"] == {"0": 255, "1": 2, "2 to 9": 4}
    assert content["ids_that_carry"]["50%"] == 2
    assert content["domains"]["letters"] == {"tokens": 6, "documents": 1, "bytes": 6}
    ends = [row for row in content["special"] if row["purpose"].startswith("end")]
    assert [(row["id"], row["text"], row["count"]) for row in ends] == [(257, "<|end|>", 2)]
    ids = {row["id"] for row in facts(made / "counts")["content"]["top"]}
    assert len(ids) == 6  # no more than occur


def test_without_a_tokenizer_ids_are_shown_and_the_way_to_texts(made):
    done = invoke("inspect", made / "counts")
    assert "give --tokenizer PATH" in done.stdout
    assert facts(made / "counts")["tokenizer"] is None


def test_the_tokenizer_is_found_by_the_record(made, tmp_path, monkeypatch):
    """A subset's command line names the counts, whose command line names the tokenizer."""
    monkeypatch.setattr("sys.argv", ["vocabforge", "count-freq", f"--tokenizer={made / 'tokenizer'}"])
    make_counts(tmp_path / "counts", made / "tokenizer")
    monkeypatch.setattr("sys.argv", ["vocabforge", "select-vocab", "--counts", str(tmp_path / "counts")])
    make_vocab(tmp_path / "subset", made / "tokenizer")
    found = facts(tmp_path / "subset", "--top", 40)
    assert found["tokenizer"] == str(made / "tokenizer" / "tokenizer.json")
    assert found["command"].startswith("vocabforge select-vocab --counts")
    assert {k: found["content"]["first"][-1][k] for k in ("id", "text")} == {"id": 257, "text": "<|end|>"}
    # One of another fingerprint is not used.
    monkeypatch.setattr("sys.argv", ["vocabforge", "count-freq", "--tokenizer", str(made / "other")])
    make_counts(tmp_path / "counts2", made / "tokenizer")
    assert facts(tmp_path / "counts2")["tokenizer"] is None


def test_subset_and_clusters_and_overlap(made):
    subset = facts(made / "subset", "--tokenizer", made / "tokenizer", "--top", 2)["content"]
    assert (subset["size"], subset["vocabulary"]) == (64, 261)
    assert [row["rank"] for row in subset["first"] + subset["last"]] == [1, 2, 63, 64]
    clusters = facts(made / "clusters", "--tokenizer", made / "tokenizer", "--top", 2)["content"]
    assert (clusters["clusters"], clusters["smallest"], clusters["largest"]) == (3, 1, 250)
    assert [row["cluster"] for row in clusters["largest_clusters"]] == [2, 0]
    assert clusters["largest_clusters"][1]["members"][0] == {"id": 0, "text": "!"}
    assert clusters["spread"] == {
        "1": 1,
        "2 to 3": 0,
        "4 to 7": 0,
        "8 to 15": 1,
        "16 to 31": 0,
        "32 to 63": 0,
        "64 to 127": 0,
        "128 to 255": 1,
    }
    np.testing.assert_allclose(clusters["mean_cosine_to_the_centroid"], (5 + 1 + 62.5) / 261, rtol=1e-6)
    overlap = facts(made / "overlap", "--top", 1)["content"]
    assert overlap["pairs"] == 256
    assert len(overlap["first_pairs"]) == 1


def test_responses(made):
    found = facts(made / "responses", "--top", 1)["content"]
    assert (found["rows_written"], found["answers"], found["completion_tokens"]) == (2, 2, 8)
    assert found["generation"]["model"] == "tiny"
    assert [row["messages"][-1]["content"] for row in found["first"]] == ["[i][bold]who?"]
    assert "[i][bold]who?" in invoke("inspect", made / "responses").stdout


def test_drafter_and_its_export_have_the_same_parameters(made):
    native, served = (facts(made / kind)["content"] for kind in ("drafter", "export-sglang-eagle3"))
    assert native["parameters"] == served["parameters"] > 0
    assert native["head"] == served["head"] == "its own, 32 rows"
    assert native["target_fingerprint"] == served["target_fingerprint"]
    assert facts(made / "target")["content"]["heldout_loss"] == 1.5
    head = facts(made / "draft-head")["content"]
    assert (head["head"], head["parameters"], head["shortlist"]) == ("ranker", 4 * (32 + 264), 20)
    assert head["sizes"] == {"hidden_size": 32, "vocab_size": 264, "rank": 4}
    checkpoint = facts(made / "checkpoint")["content"]
    assert (checkpoint["step"], checkpoint["identity"]["optim"]) == (7, {"lr": 0.25})


def test_mistakes_are_told(made, tmp_path):
    assert_user_error(
        invoke("inspect", tmp_path / "nowhere"), 1, "not a VocabForge artefact", "no such folder"
    )
    assert_user_error(invoke("inspect", made / "tokenizer"), 1, "no manifest.json")
    other = invoke("inspect", made / "counts", "--tokenizer", made / "other")
    assert_user_error(other, 1, "different tokenizers")
    assert_user_error(
        invoke("inspect", made / "counts", "--tokenizer", tmp_path / "x"), 1, "tokenizer is missing"
    )
    assert_user_error(invoke("inspect", made / "counts", "--top", 0), 2, "--top")
    with write_artifact(tmp_path / "new", "novelty", {}):
        pass
    assert_user_error(invoke("inspect", tmp_path / "new"), 1, "no artefact of this kind", "novelty")
    make_counts(tmp_path / "damaged", made / "tokenizer")
    truncate(tmp_path / "damaged" / "counts.safetensors")
    assert_user_error(invoke("inspect", tmp_path / "damaged"), 1, "another size than its manifest says")


@pytest.mark.parametrize(
    "kind",
    ["draft-head", "drafter", "export-sglang-eagle3", "target", "checkpoint", "evaluation", "coverage"],
)
def test_a_whole_artefact_without_its_parts_is_a_clear_error(tmp_path, kind):
    with write_artifact(tmp_path / kind, kind, {}):
        pass
    assert_user_error(invoke("inspect", tmp_path / kind), 1, "holds no")
