"""``vocabforge bench draft-heads``: the whole comparison on a tiny target."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.docs.doc_formats import keys
from tests.train.run_support import make_place, write_config
from vocabforge.cli.app import build_app
from vocabforge.cli.bench import bench
from vocabforge.core.config import load_config
from vocabforge.core.errors import UsageError
from vocabforge.corpus.prepared.packing import TrainingSequence, pack
from vocabforge.corpus.tokenizer.tokenizer import load_tokenizer
from vocabforge.study.draft_heads import HeadBenchOptions, cells, check, markdown, summarise, training_prompts
from vocabforge.study.steps import run_step
from vocabforge.train.config import TrainConfig
from vocabforge.vocab.subset.subset import load_subset

pytestmark = pytest.mark.long

V = 261
TITLE = "Comparison of draft heads"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = make_place(tmp_path_factory.mktemp("bench-heads"))
    write_config(
        place,
        "recipe",
        drafter={"head": "own"},
        heads={"ranker": {"rank": 8, "shortlist": 40}, "low_rank": {"rank": 8}},
        optim={"steps": 6},
        run={"eval_every": 6, "checkpoint_every": 6, "eval_rows": 3},
    )
    return place


def compare(place: Path) -> Any:
    arguments = ["bench", "draft-heads", "--config", str(place / "recipe.yaml"), "--seeds", "0"]
    arguments += ["--draft-vocab", f"40,{V}", "--shortlist", f"20,{V}", "--clusters", "8", "--budget", "2,8"]
    arguments += ["--prompts", "3", "--max-new-tokens", "12", "--output", str(place / "out"), "--json"]
    return CliRunner().invoke(build_app({"bench": bench, "none": bench}, ["bench", "none"]), arguments)


@pytest.fixture(scope="module")
def result(place: Path) -> dict[str, Any]:
    made = compare(place)
    assert made.exit_code == 0, made.output
    return dict(json.loads(made.stdout))


def rows_of(result: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["method"], row["setting"]): row for row in result["table"]}


def test_every_method_is_compared_and_lossless(result: dict[str, Any]) -> None:
    rows = rows_of(result)
    methods = [method for method, _ in rows]
    assert list(dict.fromkeys(methods)) == [
        "full head",
        "EAGLE-3 reduced",
        "FR-Spec",
        "VocabTrim",
        "ranker, joint",
        "ranker, alone",
        "low-rank",
        "router",
    ]
    assert len(rows) == 1 + 3 * 2 + 2 * 2 + 1 + 2
    for key, row in rows.items():
        assert row["identical"] == row["outputs"] == 3, key
        assert row["accepted_length"]["deviation"] is None  # one seed
        assert 1.0 <= row["accepted_length"]["mean"] <= 7.0, key  # tree depth 5: six drafts and the target's


def test_the_formats_name_every_key(result: dict[str, Any]) -> None:
    assert set(result) == keys(TITLE)
    assert set(result["table"][0]) == keys(TITLE, 1)
    assert set(result["seeds"]["0"][0]) == keys(TITLE, 2)


def test_what_leaves_nothing_out_is_the_full_head(result: dict[str, Any]) -> None:
    rows = rows_of(result)
    full = rows["full head", f"V = {V}"]
    assert full["share_of_full"]["mean"] == 1.0
    assert full["scored"] == V
    for key in (
        ("FR-Spec", f"R = {V}"),
        ("VocabTrim", f"R = {V}"),
        ("ranker, joint", f"k = {V}"),
        ("ranker, alone", f"k = {V}"),
        ("router", "8 of 8"),
    ):
        assert rows[key]["accepted_length"] == full["accepted_length"], key
        assert rows[key]["scored"] == V, key


def test_the_vocabularies_are_of_their_counts(place: Path, result: dict[str, Any]) -> None:
    tokenizer = load_tokenizer(place / "target")
    from_text, from_target = (load_subset(place / "out" / "shared" / f"{name}-40") for name in ("fr", "trim"))
    assert len(from_text) == len(from_target) == 40
    assert from_text.ids.tolist() != from_target.ids.tolist()
    assert tokenizer.backend.token_to_id("e") in from_text.ids  # the texts' commonest letter
    assert {*tokenizer.eos_ids} <= {*from_text.ids.tolist()} & {*from_target.ids.tolist()}
    assert result["vocabularies"]["fr-40"]["coverage"] == from_text.coverage


def test_a_finished_comparison_is_taken_over(place: Path, result: dict[str, Any]) -> None:
    weights = place / "out" / "seed-0" / "full" / "drafter" / "drafter.safetensors"
    before = weights.stat().st_mtime_ns
    again = compare(place)
    assert again.exit_code == 0, again.output
    assert json.loads(again.stdout) == result
    assert weights.stat().st_mtime_ns == before
    assert (place / "out" / "table.md").read_text() == markdown(result["table"])


@pytest.mark.parametrize(
    ("recipe", "changes", "word"),
    [
        ({"drafter": {"head": "target"}}, {}, "drafter.head"),
        ({"heads": {"ranker": None}}, {}, "heads.ranker"),
        ({}, {"draft_vocabs": (V + 1,)}, "draft vocabulary"),
        ({}, {"shortlists": (5,)}, "shortlist"),
        ({}, {"seeds": (1, 1)}, "--seeds"),
        ({}, {"clusters": 8, "budgets": ("9",)}, "budget"),
    ],
)
def test_what_cannot_be_compared_is_refused_at_once(
    place: Path, recipe: dict[str, Any], changes: dict[str, Any], word: str
) -> None:
    config = load_config(TrainConfig, place / "recipe.yaml")
    update = {name: getattr(config, name).model_copy(update=keys) for name, keys in recipe.items()}
    options = HeadBenchOptions(**{"draft_vocabs": (40,), "shortlists": (20,), **changes})
    with pytest.raises(UsageError) as caught:
        check(config.model_copy(update=update), options)
    assert word in caught.value.message


def test_counts_leave_padding_out_and_prompts_end_before_the_answer() -> None:
    text = TrainingSequence([5, 6, 7, 8, 9], [1, 1, 1, 1, 1])
    chat = TrainingSequence([1, 2, 3, 4], [0, 0, 0, 1])
    short = TrainingSequence([5, 5], [1, 1])
    rows = pack([text, chat, short], 8, pad_id=0)
    assert sorted(training_prompts(rows, 5, 2)) == [[1, 2, 3], [5, 6]]
    assert len(training_prompts(rows, 1, 2)) == 1


def test_a_step_is_made_again_for_another_key_or_a_lost_artefact(tmp_path: Path) -> None:
    made: list[int] = []

    def make() -> dict[str, Any]:
        made.append(len(made))
        return {"value": made[-1]}

    def run(key: int, fits: bool = True) -> int:
        return int(run_step("one", tmp_path / "one.json", {"key": key}, make, lambda _: fits)["value"])

    assert [run(1), run(1), run(2), run(2), run(2, fits=False)] == [0, 0, 1, 1, 2]


def test_means_and_deviations_over_seeds() -> None:
    def one(method: str, length: float) -> dict[str, Any]:
        figures = {"method": method, "setting": "x", "scored": 10.0, "accepted_length": length}
        return figures | {"identical": 2, "prompts": 2}

    by_seed = {
        0: [one("full head", 2.0), one("other", 1.0)],
        3: [one("full head", 4.0), one("other", 3.0)],
    }
    full, other = summarise(by_seed)
    assert full["share_of_full"] == {"mean": 1.0, "deviation": 0.0, "by_seed": {0: 1.0, 3: 1.0}}
    assert other["accepted_length"]["mean"] == 2.0
    assert other["accepted_length"]["deviation"] == pytest.approx(2**0.5)
    assert other["share_of_full"]["mean"] == pytest.approx(0.625)  # of the same seed: 1/2 and 3/4
    assert cells(other) == ("other", "x", "10", "2.000 ± 1.414", "62.5% ± 17.7%")
    assert markdown([other]).splitlines()[2] == "| other | x | 10 | 2.000 ± 1.414 | 62.5% ± 17.7% |"
