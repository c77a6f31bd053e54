"""The size of a draft vocabulary chosen by an evaluation's record: the estimates, and ``select-vocab --size auto``."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cli.cli_support import assert_user_error, facts_of, invoke
from tests.evaluate.eval_fakes import FakeGenerator, FakeMethod, evaluate_fakes, make_tokenizer
from tests.vocab.table_factory import make_table
from vocabforge.core.artifact import open_artifact
from vocabforge.corpus.tokenizer.special_tokens import SpecialTokens
from vocabforge.decode.spec import DraftVocabulary
from vocabforge.evaluate.acceptance.draft_size import DraftRecord, estimate_sizes
from vocabforge.vocab.counts.table import load_counts, save_counts
from vocabforge.vocab.subset.coverage import rank_all
from vocabforge.vocab.subset.subset import load_subset


@st.composite
def cases(draw):
    counts = np.array(draw(st.lists(st.integers(0, 9), min_size=4, max_size=40).filter(any)), dtype=np.int64)
    ids = st.integers(0, len(counts) - 1)
    cycles = draw(st.lists(st.lists(ids, max_size=4), min_size=1, max_size=12).filter(any))
    seconds = st.floats(0.01, 10)
    return counts, draw(st.sets(ids, min_size=1, max_size=2)), cycles, draw(seconds), draw(seconds)


@given(cases())
def test_estimates_are_those_of_walking_every_verification(case):
    counts, forced, cycles, head_s, other_s = case
    ranked, total = rank_all(counts, forced), len(counts)
    record = DraftRecord("full", total, cycles, head_s, other_s)
    found = estimate_sizes(record, ranked, counts, len(forced), total)

    speeds = {}
    for row in found["sizes"]:
        inside = set(ranked[: row["size"]].tolist())
        committed = 0
        for cycle in cycles:
            committed += 1
            for token in cycle:
                if token not in inside:
                    break
                committed += 1
        assert row["accepted_length"] == pytest.approx(committed / len(cycles))
        speeds[row["size"]] = committed / (other_s + head_s * row["size"] / total)
        assert row["tokens_per_s"] == pytest.approx(speeds[row["size"]])
    assert {len(forced), total} <= speeds.keys()
    assert speeds[found["size"]] == pytest.approx(max(speeds.values()))
    low, high = found["near"]
    assert low <= found["size"] <= high
    assert min(speeds[low], speeds[high]) >= 0.989 * max(speeds.values())


class Timed(FakeGenerator):
    """Counts the first token to the prompt, as the decoder does; a head takes three fifths of a cycle's time."""

    def generate(self, *given, **more):
        made = super().generate(*given, **more)
        made.accept_lengths[0] -= 1
        if not made.accept_lengths[0]:
            made.accept_lengths.pop(0)
        made.timings = {"prefill": 5.0, "head": 0.3, "verify": 0.2}
        return made


def evaluate(path: Path, *methods: FakeMethod) -> Path:
    evaluate_fakes(path, [FakeMethod("plain", FakeGenerator()), *methods])
    return path


@pytest.fixture
def counts(tmp_path: Path) -> Path:
    """Counts of 45 words, the later the rarer, the last eight without any."""
    tokenizer = make_tokenizer(tmp_path / "words")
    table = make_table(
        [max(0, 37 - place) for place in range(tokenizer.vocab_size)],
        fingerprint=tokenizer.fingerprint,
        special=SpecialTokens.of(tokenizer),
    )
    save_counts(table, tmp_path / "counts")
    return tmp_path / "counts"


def test_the_size_comes_from_the_evaluation(tmp_path: Path, counts: Path) -> None:
    half = FakeMethod("half", Timed((3,)), vocabulary=DraftVocabulary("static", 22, 45))
    full = FakeMethod("full", Timed((3,)), vocabulary=DraftVocabulary("full", 45, 45))
    evaluation = evaluate(tmp_path / "eval", half, full)
    ask = ("select-vocab", "--counts", counts, "--size", "auto", "--evaluation", evaluation)
    found = facts_of(invoke(*ask, "--output", tmp_path / "s", "--json"))
    auto, (made,) = found["auto"], found["subsets"]
    assert (auto["method"], made["asked"]) == ("full", f"size {auto['size']}")
    assert made["size"] == auto["size"] == len(load_subset(tmp_path / "s"))
    assert (
        auto["size"]
        == max((row for row in auto["sizes"] if row["size"] <= 37), key=lambda row: row["tokens_per_s"])[
            "size"
        ]
    )
    manifest = json.loads((tmp_path / "s" / "manifest.json").read_text("utf-8"))
    assert manifest["parents"]["evaluation"] == open_artifact(evaluation).content_hash
    # Six turns of eight tokens, the first from the prompt: verifications of 2, 3 and 2 tokens.
    assert (auto["verifications"], auto["accepted_drafts"]) == (18, 24)
    rows = (evaluation / "details" / "full.jsonl").read_text("utf-8").splitlines()
    turns = [ids for row in rows for ids in json.loads(row)["choices"][0]["token_ids"]]
    ranked = rank_all(load_counts(counts).counts, made["forced"]).tolist()
    for row in auto["sizes"]:
        inside = ranked[: row["size"]]
        accepted = sum(
            next((place for place, token in enumerate(drafts) if token not in inside), len(drafts))
            for ids in turns
            for drafts in (ids[1:2], ids[3:5], ids[6:7])
        )
        assert row["accepted_length"] == pytest.approx(1 + accepted / 18)
    whole = auto["sizes"][-1]
    assert (whole["size"], whole["accepted_length"]) == (45, pytest.approx(1 + 24 / 18))
    assert whole["cycle_ms"] == pytest.approx(1e3 * 6 * 0.5 / 18)
    assert whole["head_ms"] == pytest.approx(1e3 * 6 * 0.3 / 18)

    shown = invoke(*ask, "--output", tmp_path / "s", "--overwrite")
    assert f"Chosen: {auto['size']}." in shown.stdout
    both = invoke(*ask, "--size", "30", "--output", tmp_path / "m", "--json")
    sizes = [(one["size"], one["asked"]) for one in json.loads(both.stdout)["subsets"]]
    assert sizes == [(auto["size"], f"size {auto['size']}"), (30, "size 30")]


def test_what_cannot_be_estimated_is_refused(tmp_path: Path, counts: Path) -> None:
    output = ("--output", tmp_path / "s")
    ask = ("select-vocab", "--counts", counts, *output)
    assert_user_error(invoke(*ask, "--size", "auto"), 2, "--size auto without --evaluation")
    assert_user_error(invoke(*ask, "--size", "8", "--evaluation", counts), 2, "without --size auto")
    assert_user_error(invoke(*ask, "--size", "auto", "--evaluation", counts), 1, "evaluation")
    whole = DraftVocabulary("full", 45, 45)
    for name, method, words in (
        (
            "captured",
            FakeMethod("full", FakeGenerator((2,)), vocabulary=whole),
            "no accepted drafts of a static",
        ),
        (
            "other",
            FakeMethod("full", Timed((2,)), vocabulary=DraftVocabulary("full", 40, 40)),
            "another target",
        ),
        ("idle", FakeMethod("full", Timed((1,)), vocabulary=whole), "no accepted drafts of a static"),
    ):
        evaluation = evaluate(tmp_path / name, method)
        assert_user_error(invoke(*ask, "--size", "auto", "--evaluation", evaluation), 1, words)
    assert not (tmp_path / "s").exists()
