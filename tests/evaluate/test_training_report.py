"""The report of a training run: a real tiny run, read back, drawn, and asked for again while it runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.cli.cli_support import facts_of
from tests.docs.doc_formats import keys, keys_by_kind, written
from tests.train.run_support import make_place, settings
from vocabforge.cli.app import build_app
from vocabforge.cli.training.report_training import report_training
from vocabforge.core.errors import DataError
from vocabforge.core.journal import read_jsonl_log
from vocabforge.corpus.tokenizer.tokenizer import load_tokenizer
from vocabforge.train.config import TrainConfig
from vocabforge.train.loop import train
from vocabforge.train.monitoring import report
from vocabforge.train.monitoring.live import live_acceptance
from vocabforge.train.monitoring.report import (
    columns,
    read_run,
    render_training,
    report_tables,
    thinned,
    write_report,
)
from vocabforge.train.setup import build_trainer


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of twelve steps with two draft heads and the real decoder, as the command makes it."""
    place = make_place(tmp_path_factory.mktemp("report"))
    values = settings(
        place,
        "run",
        heads={"ranker": {"rank": 8, "shortlist": 40}, "low_rank": {"rank": 8}},
        run={"trackers": [], "eval_rows": 2, "live": {"prompts": 2, "max_new_tokens": 12}},
    )
    config = TrainConfig(**values)
    trainer = build_trainer(config)
    trainer.live = live_acceptance(
        trainer.target,
        trainer.data.prompts,
        load_tokenizer(config.target),
        config.run.live,
        chain_steps=config.ttt.steps,
    )
    train(trainer)
    return config.output


def test_series_are_those_of_the_log(run: Path) -> None:
    rows = read_jsonl_log(run / "metrics.jsonl")
    results = read_run(run)
    for kind in ("train", "heldout", "live"):
        wanted = [row for row in rows if row["kind"] == kind]
        assert wanted, kind
        assert results[kind]["step"] == [row["step"] for row in wanted]
    assert results["train"]["loss"] == [row["loss"] for row in rows if row["kind"] == "train"]
    assert results["heldout"]["accuracy"] == [row["accuracy"] for row in rows if row["kind"] == "heldout"]
    assert results["heads"]["heads"].keys() == {"full", "ranker", "low-rank"}
    assert (results["state"], results["step"], results["steps"]) == ("finished", 12, 12)
    for step in range(3):
        shares = (results["heldout"][name][-1][step] for name in ("accuracy", "drafter_wrong"))
        assert sum(shares) == pytest.approx(1.0), "the draft vocabulary is whole"


def test_the_formats_name_every_key(run: Path) -> None:
    rows = read_jsonl_log(run / "metrics.jsonl")
    assert written(rows) == keys_by_kind("Rows of train-drafter")
    results = read_run(run)
    assert set(results) == keys("Report of a training run")
    report = results["heads"]["heads"]["ranker"]
    assert set(report["overall"]) | set(report["steps"][0]) == keys("Report of draft heads")


def test_the_plot_and_the_tables_show_the_figures(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, results = write_report(run)
    assert path.read_bytes().startswith(b"\x89PNG")
    body = json.loads((run / "report.json").read_text())
    assert body == results
    panels = {}
    monkeypatch.setattr(
        report, "render_png", lambda title, drawn: panels.update({one.title: one for one in drawn})
    )
    render_training(results)
    assert panels["Accepted length"].traces[0].y == body["live"]["accepted_length"]
    assert panels["Learning rate"].traces[0].y == body["train"]["lr"]
    accuracy = panels["Held-out accuracy"].traces
    assert [trace.y[-1] for trace in accuracy] == body["heldout"]["accuracy"][-1]
    assert all(panel.known() for panel in panels.values())
    steps, heads = report_tables(results)
    assert [row[1] for row in steps.rows] == [f"{100 * trace.y[-1]:.1f}%" for trace in accuracy]
    assert [row[0] for row in heads.rows] == ["full", "ranker", "low-rank"]


def test_the_command_also_while_the_run_goes_on(run: Path, tmp_path: Path) -> None:
    going = tmp_path / "going"
    going.mkdir()
    shutil.copy(run / "config.json", going)
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    place = next(at for at, line in enumerate(lines) if '"heldout"' in line)
    rows = [json.loads(line) for line in lines[:place]]
    # Not the seconds that its steps took.
    timeless = [json.dumps(row | {"time": 100.0}) + "\n" for row in rows]
    text = '{"kind": "start", "step": 0, "time": 100.0, "facts": {"device": "cpu"}}\n' + "".join(timeless)
    text += (
        '{"kind": "start", "step": 4, "time": 160.0}\n{"kind": "end", "step": 6, "time": 190.0}\n{"kind": "tr'
    )
    (going / "metrics.jsonl").write_text(text)
    app = build_app({"report-training": report_training}, ["report-training"])
    body = facts_of(CliRunner().invoke(app, ["report-training", str(going), "--json"]))
    assert (body["state"], body["step"], body["resumed_at"]) == ("unfinished", 6, [4])
    assert body["machine"]["device"] == "cpu"
    assert body["seconds"] == 30.0, "from the second start"
    printed = " ".join(CliRunner().invoke(app, ["report-training", str(going)]).stdout.split())
    assert "going: step 6 of 12, unfinished, 0 min 30 s, resumed at step 4, no evaluation yet" in printed
    assert "the first comes at step 6" in printed
    assert (going / "report.png").is_file()


def test_no_run_and_no_figures_are_said_plainly(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no training run here"):
        read_run(tmp_path)
    (tmp_path / "metrics.jsonl").write_text('{"kind": "start", "step": 0}\n')
    with pytest.raises(DataError, match="no figures yet"):
        read_run(tmp_path)


def test_long_series_are_thinned_to_means() -> None:
    series = columns([{"step": n, "loss": float(n), "lr": None} for n in range(1, 1001)])
    short = thinned(series, 100)
    assert short["step"] == list(range(10, 1001, 10))
    assert short["loss"][0] == pytest.approx(5.5)
    assert short["lr"] == [None] * 100
    assert thinned(series, 1000) is series
