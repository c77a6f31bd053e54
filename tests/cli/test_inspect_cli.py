"""The command inspect over every kind of artefact."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from tests.cli.cli_support import assert_user_error, invoke, truncate
from tests.cli.every_kind import kinds_of_the_package, make_counts
from tests.worlds import make_vocab
from vocabforge.cli.inspect import VIEWS
from vocabforge.core.artifact import write_artifact
from vocabforge.core.registry import load_attribute


@pytest.fixture(scope="module")
def made(every_kind):
    return every_kind


def facts(*words: object) -> dict:
    done = invoke("inspect", *words, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


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
    assert content["domains"]["letters"] == {"tokens": 6, "documents": 1, "bytes": 6}
    ends = [row for row in content["special"] if row["purpose"].startswith("end")]
    assert [(row["id"], row["text"], row["count"]) for row in ends] == [(257, "<|end|>", 2)]
    ids = {row["id"] for row in facts(made / "counts")["content"]["top"]}
    assert len(ids) == 6  # no more than occur


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
    np.testing.assert_allclose(clusters["mean_cosine_to_the_centroid"], (5 + 1 + 62.5) / 261, rtol=1e-6)
    overlap = facts(made / "overlap", "--top", 1)["content"]
    assert overlap["pairs"] == 256
    assert len(overlap["first_pairs"]) == 1


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
    other = invoke("inspect", made / "counts", "--tokenizer", made / "other")
    assert_user_error(other, 1, "different tokenizers")
    assert_user_error(
        invoke("inspect", made / "counts", "--tokenizer", tmp_path / "x"), 1, "tokenizer is missing"
    )
    assert_user_error(invoke("inspect", made / "counts", "--top", 0), 2, "--top")
    with write_artifact(tmp_path / "new", "novelty", {}):
        pass
    assert_user_error(invoke("inspect", tmp_path / "new"), 1, "cannot read artefacts of this kind", "novelty")
    make_counts(tmp_path / "damaged", made / "tokenizer")
    truncate(tmp_path / "damaged" / "counts.safetensors")
    assert_user_error(invoke("inspect", tmp_path / "damaged"), 1, "differs in size from its manifest")


@pytest.mark.parametrize(
    "kind",
    ["draft-head", "drafter", "export-sglang-eagle3", "target", "checkpoint", "evaluation", "coverage"],
)
def test_a_whole_artefact_without_its_parts_is_a_clear_error(tmp_path, kind):
    with write_artifact(tmp_path / kind, kind, {}):
        pass
    assert_user_error(invoke("inspect", tmp_path / kind), 1, "holds no")
