"""The commands count-freq and select-vocab as a user runs them."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from tests.worlds import byte_tokenizer
from vocabforge.cli.app import build_app
from vocabforge.cli.vocab.count_freq import count_freq
from vocabforge.cli.vocab.coverage import coverage
from vocabforge.cli.vocab.merge_freq import merge_freq
from vocabforge.cli.vocab.select_vocab import select_vocab
from vocabforge.vocab.counts.table import load_counts
from vocabforge.vocab.subset.subset import load_subset


@pytest.fixture
def run(tmp_path):
    """Runs a command line; ``@`` stands for a folder that holds a tokenizer ``t`` and a text ``a.txt``."""
    byte_tokenizer(tmp_path / "t")
    (tmp_path / "a.txt").write_text("hello world")
    commands = {
        "count-freq": count_freq,
        "select-vocab": select_vocab,
        "merge-freq": merge_freq,
        "coverage": coverage,
    }
    app = build_app(commands, list(commands))

    def call(line: str):
        words = [word.replace("@", f"{tmp_path}/") for word in line.split()]
        return CliRunner().invoke(app, words)

    return call


def test_count_then_select(run, tmp_path):
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "b.jsonl").write_text('{"text": "ha"}\nnonsense\n')
    done = run("count-freq --tokenizer @t --input @a.txt @more --output @counts --json")
    assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout)
    assert (facts["documents"], facts["tokens"], facts["files"]) == (2, 13, 2)
    assert "b.jsonl:2" in done.stderr
    assert load_counts(tmp_path / "counts").tokens == 13

    done = run("select-vocab --counts @counts --size 8 --output @one --json")
    assert done.exit_code == 0, done.output
    (facts,) = json.loads(done.stdout)["subsets"]
    subset = load_subset(tmp_path / "one")
    assert (facts["size"], facts["coverage"], facts["forced"]) == (8, subset.coverage, list(subset.forced))
    assert 257 in subset.forced

    done = run("select-vocab --counts @counts --size 6 --size 8 --size 6 --output @many")
    assert done.exit_code == 0, done.output
    assert "coverage" in done.stdout
    assert sorted(path.name for path in (tmp_path / "many").iterdir()) == ["r6", "r8"]
    assert len(load_subset(tmp_path / "many" / "r6")) == 6


@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        ("count-freq --tokenizer @t --output @c", 2, "no input was given"),
        ("count-freq --tokenizer @nowhere --input @a.txt --output @c", 1, "tokenizer is missing"),
        ("count-freq --tokenizer @t --input @b.txt --output @c", 1, "input is missing"),
        ("count-freq --tokenizer @t --input @empty.txt --output @c", 1, "nothing to count"),
        ("count-freq --tokenizer @t --input @bad.jsonl --output @c --strict", 1, "bad.jsonl:2"),
        ("count-freq --tokenizer @t --input @a.txt --output @t", 2, "not an artefact"),
        ("count-freq --tokenizer @t --input @a.txt --output @c --mode other", 2, "other"),
        ("count-freq --tokenizer @t --input @a.txt --output @c --text-unit line --separator x", 2, "exclude"),
        ("select-vocab --counts @c --size 8 --output @s", 1, "not a VocabForge artefact"),
        ("select-vocab --counts @c --size x --output @s", 2, "--size"),
        ("select-vocab --counts @c --output @s", 2, "--size"),
    ],
)
def test_mistakes(run, tmp_path, line, code, message):
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "bad.jsonl").write_text('{"text": "a"}\n{')
    done = run(line)
    assert done.exit_code == code, done.output
    assert message in done.output.replace("\n", "")
    assert "Traceback" not in done.output
    assert not (tmp_path / "c").exists()


def test_fill_forces_and_overwrite(run, tmp_path):
    assert run("count-freq --tokenizer @t --input @a.txt --output @c").exit_code == 0
    options = "--size 260 --fill lowest-id --force-bytes --force-tools --force 256 --output @s"
    assert run(f"select-vocab --counts @c {options}").exit_code == 0
    subset = load_subset(tmp_path / "s")
    assert (len(subset), len(subset.forced), subset.filled) == (260, 259, 1)
    again = run("select-vocab --counts @c --size 8 --output @s --overwrite")
    assert again.exit_code == 0, again.output
    assert len(load_subset(tmp_path / "s")) == 8
