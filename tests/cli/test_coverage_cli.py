"""The command coverage as a user runs it."""

from __future__ import annotations

import json

import pytest

from tests.cli.cli_support import assert_user_error, invoke, ok, succeeds
from tests.vocab.table_factory import byte_table
from tests.worlds import make_target, other_tokenizer
from vocabforge.core.artifact import open_artifact

TEXT = "a quick brown fox jumps over the lazy dog. "


@pytest.fixture(scope="module")
def shelf(tmp_path_factory):
    """Tables and draft vocabularies."""
    folder = tmp_path_factory.mktemp("shelf")
    make_target(folder / "m", max_position_embeddings=64)
    byte_table(folder / "c", "", folder / "m", prose=TEXT * 3, code="def f(x): return x + 1\n" * 2)
    byte_table(folder / "h", "the quick <dog>", folder / "m")
    byte_table(folder / "x", "abc", other_tokenizer(folder / "u"))
    succeeds("select-vocab", "--counts", folder / "c", "--size", 16, "--output", folder / "v")
    line = ["--schedule", "decay", "--k-max", 20, "--k-min", 8, "--output", folder / "s"]
    succeeds("select-vocab", "--counts", folder / "c", *line)
    return folder


def run(shelf, line):
    return invoke("coverage", *[word.replace("@", f"{shelf}/") for word in line.split()])


def test_everything(shelf, tmp_path):
    line = f"--counts @c --heldout test=@h --vocab @v --vocab steps=@s --output {tmp_path}/out"
    done = ok(run(shelf, line))
    for words in ("prose", "code", "test", "steps", "Good-Turing"):
        assert words in " ".join(done.stdout.split()), words
    artifact = open_artifact(tmp_path / "out", "coverage")
    assert set(artifact.manifest["parents"]) == {"counts", "heldout test", "vocabulary v", "vocabulary steps"}
    assert set(artifact.manifest["files"]) == {"coverage.json", "coverage.png"}
    results = json.loads((tmp_path / "out" / "coverage.json").read_text("utf-8"))
    assert [text["name"] for text in results["texts"]] == ["all counted", "prose", "code", "test"]
    assert "coverage.png" in done.stdout


def test_held_out_text_that_was_counted_is_said(shelf, tmp_path):
    done = ok(run(shelf, f"--counts @c --heldout again=@c --size 8 --size 4 --output {tmp_path}/out --json"))
    assert "was counted too" in " ".join(done.stderr.split())
    results = json.loads(done.stdout)
    assert results["sizes"] == [4, 8]
    assert [text["name"] for text in results["texts"]][3:] == ["again", "again: prose", "again: code"]


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("--counts @c --heldout @x", 1, "different tokenizers"),
        ("--counts @x --vocab @v", 1, "different tokenizers"),
        ("--counts @c --size 262", 2, "a size is outside the vocabulary"),
        ("--counts @c --vocab @v --vocab v=@s", 2, "one name"),
        ("--counts @c --heldout h=@h --heldout h=@h", 2, "one name"),
        ("--counts @nowhere", 1, "not a VocabForge artefact"),
        ("--counts @v", 1, "another kind"),
    ],
)
def test_mistakes(shelf, tmp_path, line, code, words):
    assert_user_error(run(shelf, f"{line} --output {tmp_path}/out"), code, words)
    assert not (tmp_path / "out").exists()
