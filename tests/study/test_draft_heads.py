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
from vocabforge.study.draft_heads import HeadBenchOptions, cells, check, summarise
from vocabforge.train.config import TrainConfig

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


BLOCKS = ["drafter.kind=dflash", "drafter.block_size=4"]


def compare(place: Path, *overrides: str, output: Path | None = None) -> Any:
    arguments = ["bench", "draft-heads", *overrides, "--config", str(place / "recipe.yaml"), "--seeds", "0"]
    arguments += ["--draft-vocab", f"40,{V}", "--shortlist", f"20,{V}", "--clusters", "8", "--budget", "2,8"]
    arguments += [
        "--prompts",
        "3",
        "--max-new-tokens",
        "12",
        "--output",
        str(output or place / "out"),
        "--json",
    ]
    return CliRunner().invoke(build_app({"bench": bench, "none": bench}, ["bench", "none"]), arguments)


@pytest.fixture(scope="module")
def result(place: Path) -> dict[str, Any]:
    made = compare(place)
    assert made.exit_code == 0, made.output
    return dict(json.loads(made.stdout))


def test_every_method_is_compared_and_lossless(result: dict[str, Any]) -> None:
    rows = {(row["method"], row["setting"]): row for row in result["table"]}
    methods = list(dict.fromkeys(method for method, _ in rows))
    assert methods == ["full head", "EAGLE-3 reduced", "FR-Spec", "ranker", "low-rank", "router"]
    assert len(rows) == 1 + 2 * 2 + 2 + 1 + 2
    for key, row in rows.items():
        assert row["identical"] == row["outputs"] == 3, key
        assert row["accepted_length"]["deviation"] is None  # one seed
        assert 1.0 <= row["accepted_length"]["mean"] <= 7.0, key  # tree depth 5: six drafts and the target's
    full = rows["full head", f"V = {V}"]
    assert full["share_of_full"]["mean"] == 1.0
    for key in (("FR-Spec", f"R = {V}"), ("ranker", f"k = {V}"), ("router", "8 of 8")):  # leave nothing out
        assert rows[key]["accepted_length"] == full["accepted_length"], key
        assert rows[key]["scored"] == full["scored"] == V, key


def test_over_a_block_drafter_chains_are_drafted_with_own_and_shared_shortlists(
    place: Path, tmp_path: Path
) -> None:
    made = compare(place, *BLOCKS, "drafter.num_layers=1", "ttt.anchors=16", output=tmp_path)
    assert made.exit_code == 0, made.output
    rows = {(row["method"], row["setting"]): row for row in json.loads(made.stdout)["table"]}
    methods = list(dict.fromkeys(method for method, _ in rows))
    dynamic = ["ranker", "ranker, one union", "context", "hybrid", "hybrid, one union", "low-rank", "router"]
    assert methods == ["full head", "reduced", "FR-Spec", *dynamic]
    for key, row in rows.items():
        assert row["identical"] == row["outputs"] == 3, key
        assert 1.0 <= row["accepted_length"]["mean"] <= 4.0, key  # three drafts and the target's
    full = rows["full head", f"V = {V}"]["accepted_length"]
    for name in ("ranker", "ranker, one union"):
        assert rows[name, f"k = {V}"]["accepted_length"] == full, name  # they leave nothing out
    assert rows["router", "8 of 8"]["accepted_length"] == full
    assert rows["ranker", "k = 20"]["scored"] == 20 < rows["ranker, one union", "k = 20"]["scored"] < 60
    assert rows["hybrid, one union", "core 40, tail 20"]["scored"] == 60  # the best of all rows, so many
    assert 0 < rows["router", "2 of 8"]["scored"] < V


def test_the_formats_name_every_key(result: dict[str, Any]) -> None:
    assert set(result) == keys(TITLE)
    assert set(result["table"][0]) == keys(TITLE, 1)
    assert set(result["seeds"]["0"][0]) == keys(TITLE, 2)


def test_a_finished_comparison_is_taken_over(place: Path, result: dict[str, Any]) -> None:
    weights = place / "out" / "seed-0" / "full" / "drafter" / "drafter.safetensors"
    before = weights.stat().st_mtime_ns
    again = compare(place)
    assert again.exit_code == 0, again.output
    assert json.loads(again.stdout) == result
    assert weights.stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("recipe", "changes", "word"),
    [
        ({"drafter": {"head": "target"}}, {}, "head target"),
        ({"heads": {"ranker": None}}, {}, "heads low_rank"),
        ({}, {"draft_vocabs": (V + 1,)}, "--draft-vocab"),
        ({}, {"shortlists": (5,)}, "--shortlist"),
        ({}, {"clusters": 8, "budgets": ("9",)}, "--budget"),
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
    assert word in caught.value.render()


def test_means_and_deviations_over_seeds() -> None:
    def one(length: float) -> dict[str, Any]:
        figures = {"method": "one", "setting": "x", "scored": 10.0, "accepted_length": length}
        return figures | {"identical": 2, "prompts": 2}

    full, other = summarise({0: [one(2.0), one(1.0)], 3: [one(4.0), one(3.0)]})
    assert full["share_of_full"] == {"mean": 1.0, "deviation": 0.0}
    assert cells(other) == (
        "one",
        "x",
        "10",
        "2.000 ± 1.414",
        "62.5% ± 17.7%",
    )  # of the same seed: 1/2 and 3/4
