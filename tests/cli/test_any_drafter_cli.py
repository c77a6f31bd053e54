"""Drafters with another vocabulary through ``compare-vocab``, ``generate`` and ``eval``, as a user runs them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.cli.cli_support import assert_user_error, invoke, succeeds
from tests.worlds import BOS, EOS, merging_tokenizer, tiny_target, write_questions
from vocabforge.core.artifact import open_artifact
from vocabforge.corpus.tokenizer.tokenizer import load_tokenizer
from vocabforge.vocab.overlap.bridge import make_bridge
from vocabforge.vocab.overlap.overlap import load_overlap

WORDS = ("ab", "cd", "ef", "abcd", "gh", "abc", "de")
FOREIGN = ("tli", "slem", "slrs")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``t`` target, ``d`` a drafter of letters, ``q.jsonl`` questions."""
    place = tmp_path_factory.mktemp("any-drafter")
    for name, words, seed in (("t", WORDS, 1), ("d", (), 2)):
        size = merging_tokenizer(place / name, "abcdefgh", words)
        tiny_target(place / name, vocab_size=size, seed=seed, num_hidden_layers=2)
    write_questions(place / "q.jsonl", *(["abcdefgh"[n:] + "a"] for n in range(3)))
    return place


def generated(place: Path, *words: object, code: int = 0) -> dict[str, Any]:
    line = ["generate", "--target", place / "t", "--prompt", "abcdefgh", "--max-new-tokens", 20]
    done = invoke(*line, "--device", "cpu", *words, "--json")
    assert done.exit_code == code, done.output
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


def test_slrs_takes_its_options_and_tells_its_cost(place: Path) -> None:
    words = ["--drafter", place / "d", "--proposer", "slrs", "--temperature", 1, "--seed", 3]
    facts = generated(place, *words, "--look-ahead", 2, "--single-token")
    counts = facts["counts"]
    assert counts["psi"] > 0
    assert counts["drafted"] > 0
    assert counts["contexts_per_psi"] == pytest.approx(counts["psi_contexts"] / counts["psi"])
    assert max(facts["accept_lengths"]) <= 2, "one drafted token a cycle, and the target's own"


def test_eval_compares_all_three_with_plain_decoding(place: Path, tmp_path: Path) -> None:
    succeeds("compare-vocab", place / "t", place / "d", "--output", tmp_path / "o")
    words = [word for name in FOREIGN for word in ("--proposer", name)]
    line = ["eval", "--target", place / "t", "--drafter", place / "d", "--overlap", tmp_path / "o", *words]
    line += ["--benchmark", place / "q.jsonl", "--warmup", 0, "--max-new-tokens", 12, "--device", "cpu"]
    succeeds(*line, "--output", tmp_path / "out")
    results = json.loads((tmp_path / "out" / "results.json").read_text("utf-8"))
    methods = {method["name"]: method for method in results["methods"]}
    assert list(methods) == ["plain", *(f"d:{name}" for name in FOREIGN)]
    for name in FOREIGN:
        outputs = methods[f"d:{name}"]["summary"]["outputs"]
        assert outputs["identical"] == outputs["compared"] == 3
    roles = {f"{role} d:{name}" for role in ("drafter", "overlap") for name in FOREIGN}
    assert set(open_artifact(tmp_path / "out").manifest["parents"]) == {"target", *roles}


def test_eval_reports_what_was_counted(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "d", tmp_path / "d", ignore=shutil.ignore_patterns("tokenizer*"))
    line = ["eval", "--target", place / "t", "--drafter", tmp_path / "d", "--drafter-tokenizer", place / "d"]
    line += ["--temperature", 1, "--device", "cpu"]
    line += ["--benchmark", place / "q.jsonl", "--warmup", 0, "--max-new-tokens", 12]
    done = succeeds(*line, "--output", tmp_path / "out")
    results = json.loads((tmp_path / "out" / "results.json").read_text("utf-8"))
    plain, drafted = results["methods"]
    assert plain["summary"]["counts"] == {}
    assert f"drafter_tokenizer {place / 'd'}" in results["run_facts"]["recipe of d"]
    assert "SLRS" in drafted["description"]
    figures = drafted["summary"]["counts"]
    rows = [
        json.loads(row) for row in (tmp_path / "out" / drafted["details"][0]).read_text("utf-8").splitlines()
    ]
    for name in ("psi", "psi_contexts", "draft_contexts", "drafted"):
        assert figures[name] == sum(turn[name] for row in rows for turn in row["choices"][0]["counts"])
    assert figures["contexts_per_psi"] == pytest.approx(figures["psi_contexts"] / figures["psi"])
    phrase = f"{figures['contexts_per_psi']:.2f} contexts per psi"
    assert f"d: {figures['drafted']:,} tokens of the drafter drawn" in done.stdout
    assert phrase in done.stdout
    assert phrase in (tmp_path / "out" / "report.html").read_text("utf-8")


def test_options_are_refused_where_they_mean_nothing(place: Path, tmp_path: Path) -> None:
    base = ["generate", "--target", place / "t", "--prompt", "ab", "--device", "cpu"]
    drafted = [*base, "--drafter", place / "d"]
    assert_user_error(invoke(*base, "--proposer", "slem"), 2, "--proposer slem without --drafter")
    assert_user_error(invoke(*drafted, "--look-ahead", 0), 2, "name it: --proposer slrs")
    assert_user_error(invoke(*base, "--depth", 0), 2, "--depth, and nothing drafts")
    both = invoke(*drafted, "--proposer", "n-gram")
    assert_user_error(both, 2, "--proposer n-gram and --drafter")
    assert_user_error(
        invoke(*drafted, "--proposer", "slrs", "--tree", "dynamic"), 2, "--proposer slem or tli drafts trees"
    )
    assert_user_error(
        invoke(*drafted, "--proposer", "tli", "--single-token"), 2, "--single-token has no effect"
    )
    assert_user_error(invoke(*base, "--overlap", tmp_path), 2, "--overlap has no effect here")
    assert_user_error(invoke(*drafted, "--overlap", tmp_path), 1, "manifest")


def test_doctor_knows_a_draft_model(place: Path, tmp_path: Path) -> None:
    def rows_of(drafter: Path) -> dict[str, dict[str, Any]]:
        done = invoke("doctor", "--target", place / "t", "--drafter", drafter, "--json")
        rows = json.loads(done.stdout)["checks"]
        found = {row["check"]: row for row in rows if row["group"] == "drafter"}
        assert (done.exit_code == 1) == any(row["state"] == "failed" for row in rows)
        return found

    other = rows_of(place / "d")
    assert {row["state"] for row in other.values()} == {"ok"}
    assert "draft model" in other["kind"]["found"]
    assert "8 tokens common to target (15) and drafter (8)" in other["tokenizer"]["found"]
    assert f"'</s>' ({EOS})" in other["end tokens"]["found"]
    assert "slem, chosen because" in other["proposer"]["found"]
    assert "above temperature 0: slrs" in other["proposer"]["found"]
    assert "16 tokens as plain decoding" in other["drafting"]["found"]
    own = rows_of(place / "t")
    assert {row["state"] for row in own.values()} == {"ok"}
    assert own["proposer"]["found"].startswith("draft-model")
    shutil.copytree(place / "t", tmp_path / "bare", ignore=shutil.ignore_patterns("tokenizer*"))
    assert rows_of(tmp_path / "bare")["tokenizer"]["state"] == "warning"
    shutil.copytree(place / "d", tmp_path / "cut", ignore=shutil.ignore_patterns("tokenizer*"))
    weights = tmp_path / "cut" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    broken = rows_of(tmp_path / "cut")
    assert (broken["weight files"]["state"], broken["loads"]["state"]) == ("failed", "skipped")
    assert broken["tokenizer"]["state"] == "failed"
    assert "--drafter-tokenizer" in broken["tokenizer"]["remedy"]


def test_the_pair_of_end_tokens_can_be_named(place: Path, tmp_path: Path) -> None:
    line = ["compare-vocab", place / "t", place / "d", "--output", tmp_path / "o"]
    for named in ("</s>:<s>", f"{EOS}:{BOS}"):
        done = succeeds(*line, "--eos", named, "--json", "--overwrite")
        assert json.loads(done.stdout)["eos_pair"] == [EOS, BOS]
    saved = load_overlap(tmp_path / "o")
    assert saved.eos_pair == (EOS, BOS)
    sides = [load_tokenizer(place / name) for name in "td"]
    bridge = make_bridge(sides[0], sides[1], (17, 10), overlap=saved)
    assert bridge.eos == (EOS, BOS)
    assert bridge.ends(BOS)
    assert make_bridge(sides[0], sides[1], (17, 10)).eos == (EOS, EOS)
    for named, words in (
        ("</s>", "cannot be read"),
        ("</s>:abc", "not an end token"),
        (f"{EOS}:99", "not an end token"),
    ):
        assert_user_error(invoke(*line, "--eos", named, "--overwrite"), 2, words)
