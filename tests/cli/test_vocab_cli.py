"""The commands count-freq, merge-freq and select-vocab as a user runs them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from tests.cli.cli_support import assert_user_error, facts_of, invoke, ok
from tests.vocab.table_factory import byte_table
from tests.vocab.test_token_maps import Bomb
from tests.worlds import byte_tokenizer, make_target, other_tokenizer
from vocabforge.core.artifact import open_artifact
from vocabforge.corpus.tokenizer.tokenizer import load_tokenizer
from vocabforge.vocab.counts.table import load_counts
from vocabforge.vocab.subset.subset import load_subset


@pytest.fixture
def run(tmp_path):
    """Runs a command line; ``@`` stands for a folder with a tokenizer, tables ``a``, ``b``, ``d``, ``x`` and a text."""
    (tmp_path / "a.txt").write_text("hello world")
    byte_tokenizer(tmp_path / "t")
    byte_table(tmp_path / "a", "aaaaabbbcc", tmp_path / "t")
    byte_table(tmp_path / "b", "zzyy", tmp_path / "t")
    byte_table(tmp_path / "d", "", tmp_path / "t", code="((((()))", prose="the end")
    byte_table(tmp_path / "x", "abc", other_tokenizer(tmp_path / "u"))

    def call(line: str):
        return invoke(*[word.replace("@", f"{tmp_path}/") for word in line.split()])

    return call


def test_count_then_select(run, tmp_path):
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "b.jsonl").write_text('{"text": "ha"}\nnonsense\n')
    done = run("count-freq --tokenizer @t --input @a.txt @more --output @counts --json")
    facts = facts_of(done)
    assert (facts["documents"], facts["tokens"], facts["files"]) == (2, 13, 2)
    assert "b.jsonl:2" in done.stderr
    assert load_counts(tmp_path / "counts").tokens == 13

    (facts,) = facts_of(run("select-vocab --counts @counts --size 8 --output @one --json"))["subsets"]
    subset = load_subset(tmp_path / "one")
    assert (facts["size"], facts["coverage"], facts["forced"]) == (8, subset.coverage, list(subset.forced))
    assert 257 in subset.forced

    done = ok(run("select-vocab --counts @counts --size 6 --size 8 --size 6 --output @many"))
    assert "coverage" in done.stdout
    assert sorted(path.name for path in (tmp_path / "many").iterdir()) == ["r6", "r8"]
    assert len(load_subset(tmp_path / "many" / "r6")) == 6


def test_fill_forces_and_overwrite(run, tmp_path):
    assert run("count-freq --tokenizer @t --input @a.txt --output @c").exit_code == 0
    options = "--size 260 --fill lowest-id --force-tools --force 256 --output @s"
    assert run(f"select-vocab --counts @c {options}").exit_code == 0
    subset = load_subset(tmp_path / "s")
    assert (len(subset), len(subset.forced), subset.filled) == (260, 3, 249)
    ok(run("select-vocab --counts @c --size 8 --output @s --overwrite"))
    assert len(load_subset(tmp_path / "s")) == 8


def test_coverage_instead_of_a_size(run, tmp_path):
    facts = facts_of(run("select-vocab --counts @a --coverage 0.8 --output @s --json"))
    (one,) = facts["subsets"]
    forced = len(one["forced"])
    assert (one["size"], one["coverage"], one["asked"]) == (forced + 2, 0.8, "coverage 0.8")
    subset = load_subset(tmp_path / "s")
    assert subset.ranked[:forced].tolist() == one["forced"]

    line = f"select-vocab --counts @a --coverage 0.8 --coverage 1 --size {forced + 2} --output @m --json"
    facts = facts_of(run(line))
    assert [(one["size"], one["asked"]) for one in facts["subsets"]] == [
        (forced + 2, f"size {forced + 2}, coverage 0.8"),
        (forced + 3, "coverage 1"),
    ]
    assert load_subset(tmp_path / "m" / f"r{forced + 3}").coverage == 1.0


def test_schedule(run, tmp_path):
    done = ok(run("select-vocab --counts @a --schedule decay --k-max 5 --k-min 4 --steps 4 --output @s"))
    assert "5, 5, 4, 4" in done.stdout
    subset = load_subset(tmp_path / "s")
    assert subset.schedule == (5, 5, 4, 4)
    assert set(subset.forced) <= set(subset.ranked[:4].tolist())


def test_mixtures_and_domains(run, tmp_path):
    facts = facts_of(run("select-vocab --counts @d --coverage 0.5 --output @s --json"))
    forced = len(facts["subsets"][0]["forced"])
    facts_of(run(f"select-vocab --counts @d --domain code --size {forced + 2} --output @c --json"))
    assert bytes_of(tmp_path, load_subset(tmp_path / "c").ranked)[forced:] == ["(", ")"]
    line = f"select-vocab --counts @d --domain code=0.01 --domain prose=0.99 --size {forced + 1} --output @p --json"
    facts_of(run(line))
    assert bytes_of(tmp_path, load_subset(tmp_path / "p").ranked)[forced:] == ["e"]


def bytes_of(folder, ids):
    tokenizer = load_tokenizer(folder / "t")
    return [tokenizer.backend.id_to_token(int(token)) for token in ids]


def test_exports_and_import(run, tmp_path):
    line = "select-vocab --counts @a --size 5 --tokenizer @t --output @s --json"
    facts = facts_of(run(line + " --export fr-spec --export d2t --export counts-text"))
    files = set(facts["subsets"][0]["files"])
    assert files == {"subset.safetensors", "freq_5.pt", "d2t.safetensors", "counts.txt"}
    subset = load_subset(tmp_path / "s")
    assert torch.load(tmp_path / "s" / "freq_5.pt", weights_only=True) == subset.ranked.tolist()

    facts_of(run("select-vocab --from-list @s/freq_5.pt --tokenizer @t --output @i --json"))
    assert load_subset(tmp_path / "i").digest() == subset.digest()


def test_padded_rows_are_reported(run, tmp_path):
    make_target(tmp_path / "m")
    done = ok(run("select-vocab --counts @a --size 5 --target @m --export d2t --output @s"))
    assert "3 padded rows: the target's head has 264 rows" in done.stdout
    assert load_file(tmp_path / "s" / "d2t.safetensors")["t2d"].shape == (264,)
    facts = facts_of(run("select-vocab --counts @a --size 5 --target @m --output @q --json"))
    assert (facts["target_rows"], facts["padded_rows"]) == (264, 3)


def test_merge_freq(run, tmp_path):
    facts = facts_of(run("merge-freq @a letters=@b --domains --output @m --json"))
    assert (facts["tokens"], facts["mode"]) == (14, "corpus")
    assert facts["domains"] == {"a": 10, "letters": 4}
    merged, a, b = (load_counts(tmp_path / name) for name in "mab")
    np.testing.assert_array_equal(merged.counts, a.counts + b.counts)
    assert len(open_artifact(tmp_path / "m").manifest["parents"]) == 2

    facts = facts_of(run("merge-freq --weight @a=3 --weight @b=1 --output @w --json"))
    assert (facts["mode"], [part["weight"] for part in facts["parts"]]) == ("mixture", [0.75, 0.25])
    mixed = load_counts(tmp_path / "w").counts
    expected = 0.75 * a.counts / 10 + 0.25 * b.counts / 4
    assert (mixed / mixed.sum()).tolist() == pytest.approx(expected.tolist())
    facts_of(run("merge-freq --weight two=@b=1 --weight one=@a=3 --output @v --json"))
    np.testing.assert_array_equal(load_counts(tmp_path / "v").counts, mixed)
    assert run("merge-freq @a @b --output @m").exit_code == 2
    done = ok(run("merge-freq @a @b --output @m --overwrite"))
    assert "71.4%" in done.stdout


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("count-freq --tokenizer @t", 2, "no input was given"),
        ("count-freq --tokenizer @nowhere --input @a.txt", 1, "tokenizer is missing"),
        ("count-freq --tokenizer @t --input @b.txt", 1, "input is missing"),
        ("count-freq --tokenizer @t --input @empty.txt", 1, "nothing to count"),
        ("count-freq --tokenizer @t --input @bad.jsonl --strict", 1, "bad.jsonl:2"),
        ("count-freq --tokenizer @t --input @a.txt --mode other", 2, "other"),
        ("count-freq --tokenizer @t --input @a.txt --text-unit line --separator x", 2, "exclude"),
        ("select-vocab --counts @nowhere --size 8", 1, "not a VocabForge artefact"),
        ("select-vocab --counts @a --size x", 2, "--size"),
        ("merge-freq @a @x", 1, "different tokenizers"),
        ("merge-freq --weight @a=1 --weight @x=1", 1, "different tokenizers"),
        ("merge-freq @a one=@a", 1, "counted twice"),
        ("merge-freq @a @a", 2, "two tables have one name"),
        ("merge-freq @a @b --weight a=1", 2, "give the tables once"),
        ("merge-freq --weight @a", 2, "a table has no weight"),
        ("merge-freq --weight @a=much", 2, "the weight is not a number"),
        ("merge-freq --weight @a=0", 2, "not positive"),
        ("merge-freq @a @nowhere", 1, "not a VocabForge artefact"),
        ("merge-freq --domains", 2, "give the tables once"),
        ("merge-freq --weight @a=1 --domains", 2, "a mixture has no domains"),
        ("select-vocab --counts @a --counts @b --size 5", 2, "merge-freq --weight"),
        ("select-vocab --counts @a --size 262", 2, "outside the vocabulary"),
        ("select-vocab --counts @a --coverage 0", 2, "not a share of the tokens"),
        ("select-vocab --counts @a --coverage 1.2", 2, "not a share of the tokens"),
        ("select-vocab --counts @a", 2, "--coverage SHARE"),
        ("select-vocab --size 5", 2, "one source"),
        ("select-vocab --counts @a --from-list @l.pt --tokenizer @t", 2, "--counts and --from-list"),
        ("select-vocab --from-list @l.pt", 2, "needs the tokenizer"),
        ("select-vocab --from-list @l.pt --tokenizer @t --size 5", 2, "has its size already"),
        ("select-vocab --from-list @l.pt --tokenizer @t --force 5", 2, "nothing can be forced"),
        ("select-vocab --from-list @bomb.pt --tokenizer @t", 1, "could run code"),
        ("select-vocab --from-list @twice.pt --tokenizer @t", 1, "more than once"),
        ("select-vocab --from-list @far.pt --tokenizer @t", 1, "does not have"),
        ("select-vocab --from-list @l.pt --tokenizer @t --target @nowhere", 1, "target is missing"),
        ("select-vocab --counts @d --domain proze --size 5", 2, "did you mean prose?"),
        ("select-vocab --counts @a --domain prose --size 5", 2, "counted without domains"),
        ("select-vocab --counts @a --schedule decay --k-max 4 --k-min 6", 2, "not in order"),
        ("select-vocab --counts @a --schedule decay --k-max 5 --k-min 1", 2, "below the number of forced"),
        ("select-vocab --counts @a --schedule decai --k-max 5 --k-min 5", 2, "did you mean decay?"),
        ("select-vocab --counts @a --schedule decay --size 5", 2, "--schedule NAME --k-max N"),
        ("select-vocab --counts @a --schedule decay --k-max 5 --k-min 5 --size 5", 2, "makes one artefact"),
        ("select-vocab --counts @a --k-min 5 --size 5", 2, "--schedule NAME --k-max N"),
        ("select-vocab --counts @a --size 5 --export freq", 2, "fr-spec, d2t, counts-text"),
        ("select-vocab --counts @a --size 5 --tokenizer @u", 1, "different tokenizers"),
    ],
)
def test_mistakes(run, tmp_path, line, code, words):
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "bad.jsonl").write_text('{"text": "a"}\n{')
    torch.save([257, 1], tmp_path / "l.pt")
    torch.save([257, Bomb(tmp_path / "ran")], tmp_path / "bomb.pt")
    torch.save([257, 1, 1], tmp_path / "twice.pt")
    torch.save([257, 261], tmp_path / "far.pt")
    assert_user_error(run(f"{line} --output @out"), code, words)
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "ran").exists()
