"""The command inspect over every kind of artefact."""

from __future__ import annotations

import json
import re

import pytest

from tests.cli.cli_support import assert_user_error, invoke, succeeds, truncate
from tests.cli.every_kind import kinds_of_the_package, make_counts
from vocabforge.core.artifact import write_artifact


def facts(*words: object) -> dict:
    done = succeeds("inspect", *words, "--json")
    return json.loads(done.stdout)


@pytest.mark.parametrize("kind", sorted(kinds_of_the_package()))
def test_every_kind_is_shown_within_80_columns_and_as_json(every_kind, kind, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    shown = succeeds("inspect", every_kind / kind, "--top", 3)
    assert max(map(len, shown.stdout.splitlines())) <= 80
    assert re.search(rf"^kind +{kind}", shown.stdout, re.MULTILINE)
    assert "every hash as recorded" in shown.stdout
    manifest = json.loads((every_kind / kind / "manifest.json").read_text("utf-8"))
    assert manifest["content_hash"] in shown.stdout
    found = facts(every_kind / kind)
    assert (found["kind"], found["verified"]) == (kind, True)
    assert found["content_hash"] == manifest["content_hash"]
    assert found["files"] == {name: entry["bytes"] for name, entry in manifest["files"].items()}
    assert found["content"]


def test_vocabularies_with_texts(every_kind):
    named = ["--tokenizer", every_kind / "tokenizer", "--top", 2]
    content = facts(every_kind / "counts", *named)["content"]
    assert [(row["text"], row["count"]) for row in content["top"]] == [("a", 4), ("␣", 4)]
    assert {row["text"] for row in content["rare"]} == {"\\x80", "\\n"}
    assert content["tokens"] == 14
    assert content["domains"]["letters"] == {"tokens": 6, "documents": 1, "bytes": 6}
    ends = [row for row in content["special"] if row["purpose"].startswith("end")]
    assert [(row["id"], row["text"], row["count"]) for row in ends] == [(257, "<|end|>", 2)]
    assert len(facts(every_kind / "counts")["content"]["top"]) == 6  # no more than occur
    subset = facts(every_kind / "subset", *named)["content"]
    assert (subset["size"], subset["vocab_size"]) == (64, 261)
    assert [row["rank"] for row in subset["first"] + subset["last"]] == [1, 2, 63, 64]
    assert (subset["last"][-1]["id"], subset["last"][-1]["text"]) == (257, "<|end|>")
    clusters = facts(every_kind / "clusters")["content"]
    assert (clusters["clusters"], clusters["sizes"]["min"], clusters["sizes"]["max"]) == (3, 1, 250)
    assert facts(every_kind / "overlap")["content"]["pairs"] == 256


def test_weights_are_shown_by_shape(every_kind):
    native, served = (facts(every_kind / kind)["content"] for kind in ("drafter", "export-sglang-eagle3"))
    assert native["parameters"] == served["parameters"] > 0
    assert native["tensors"]["lm_head.weight"] == {"dtype": "F32", "shape": [32, 32]}
    assert native["target_fingerprint"] == served["target_fingerprint"]
    assert facts(every_kind / "target")["content"]["heldout_loss"] == 1.5
    head = facts(every_kind / "draft-head")["content"]
    assert (head["head"], head["parameters"], head["shortlist"]) == ("ranker", 4 * (32 + 264), 20)
    assert (head["config"]["sizes"]["hidden_size"], head["config"]["sizes"]["rank"]) == (32, 4)
    checkpoint = facts(every_kind / "checkpoint")["content"]
    assert (checkpoint["step"], checkpoint["identity"]["optim"]) == (7, {"lr": 0.25})


def test_the_command_is_shown_as_typed(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["/env/bin/vocabforge", "select-vocab", "--counts", "my counts"])
    with write_artifact(tmp_path / "new", "novelty", {"size": 3}):
        pass
    found = facts(tmp_path / "new")
    assert found["command"] == "vocabforge select-vocab --counts 'my counts'"
    assert found["content"]["size"] == 3  # a kind of another package


def test_mistakes_are_told(every_kind, tmp_path):
    counts = every_kind / "counts"
    mistakes = [
        ((tmp_path / "nowhere",), 1, ("not a VocabForge artefact", "no such folder")),
        ((counts, "--tokenizer", every_kind / "other"), 1, ("different tokenizers",)),
        ((counts, "--tokenizer", tmp_path / "x"), 1, ("tokenizer is missing",)),
        ((counts, "--top", 0), 2, ("--top",)),
    ]
    for words, code, told in mistakes:
        assert_user_error(invoke("inspect", *words), code, *told)
    make_counts(tmp_path / "damaged", every_kind / "tokenizer")
    truncate(tmp_path / "damaged" / "counts.safetensors")
    assert_user_error(invoke("inspect", tmp_path / "damaged"), 1, "differs in size from its manifest")
    with write_artifact(tmp_path / "empty", "evaluation", {}):
        pass
    assert_user_error(invoke("inspect", tmp_path / "empty"), 1, "holds no")
