"""The command cluster-vocab as a user runs it."""

from __future__ import annotations

import json

import pytest
from safetensors.torch import load_file, save_file

from tests.cli.cli_support import assert_user_error, invoke, ok
from vocabforge.corpus.tokenizer.tokenizer import load_tokenizer
from vocabforge.models.target.head import open_head
from vocabforge.vocab.clusters.clusters import load_clusters

COMMON = ("--clusters", 8)


def run(world, *options, output="c"):
    return invoke(
        "cluster-vocab", "--target", world.target, "--output", world.target.parent / output, *options
    )


def test_what_is_written_and_reported(world):
    done = ok(run(world, *COMMON, "--json"))
    facts = json.loads(done.stdout)
    clusters = load_clusters(world.target.parent / "c")
    assert (len(clusters), clusters.vocab_size) == (8, 261)
    assert facts["head"] == dict(clusters.head)
    assert clusters.fingerprint == load_tokenizer(world.target).fingerprint
    assert (facts["head"]["rows"], facts["head"]["padded"]) == (264, 3)
    assert "3 padded rows" in done.stderr
    clusters.check_head(open_head(world.target).digest(261), world.target)
    assert facts["figures"]["mean_cosine"] == pytest.approx(facts["origin"]["objective"], abs=1e-5)


def test_the_tables(world):
    done = ok(run(world, *COMMON))
    for words in ("8 clusters of 261 ids", "balance"):
        assert words in done.stdout
    two = run(world, "--clusters", 2, output="two")
    assert "Warning: the largest cluster holds" in two.stdout


def test_the_number_of_clusters(world):
    ok(run(world))
    assert len(load_clusters(world.target.parent / "c")) == 2, "V / 128"
    again = run(world, *COMMON, "--overwrite")
    assert again.exit_code == 0
    assert len(load_clusters(world.target.parent / "c")) == 8


def weights(world, change):
    file = world.target / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, metadata={"format": "pt"})


def test_a_damaged_row_is_named(world):
    weights(world, lambda t: t["lm_head.weight"].__setitem__((17, 3), float("nan")))
    assert_user_error(run(world, *COMMON), 1, "NaN", "row 17")
    assert not (world.target.parent / "c").exists()


def test_a_head_with_too_few_rows(world):
    weights(world, lambda t: t.__setitem__("lm_head.weight", t["lm_head.weight"][:260].clone()))
    assert_user_error(run(world, *COMMON), 1, "does not match the target", "260", "261")


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (("--clusters", 1), 2, "2 to 130"),
        (("--clusters", 131), 2, "2 to 130"),
        (("--iterations", 0), 2, "--iterations"),
        (("--tokenizer", "nowhere"), 1, "tokenizer"),
    ],
)
def test_mistakes(world, options, code, words):
    assert_user_error(run(world, *options), code, words)
    assert not (world.target.parent / "c").exists()
