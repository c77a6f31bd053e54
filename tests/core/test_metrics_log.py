"""The log of figures across a resume: rows that will be written again are taken back."""

from __future__ import annotations

from pathlib import Path

from vocabforge.core.journal import MetricsLog, read_jsonl_log


def test_a_resumed_run_repeats_no_row(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path, keep_until=0)
    assert log.removed == frozenset()
    for step in range(1, 8):
        log.write(kind="train", step=step, loss=step)
    log.write(kind="heldout", step=6, loss=0)
    with open(path, "a", encoding="utf-8") as handle:
        handle.write('{"kind": "train", "step": 8, "lo')  # killed here; the newest checkpoint is of step 5
    log = MetricsLog(path, keep_until=5)
    assert log.removed == {("train", 6), ("train", 7), ("heldout", 6)}
    for step in range(6, 9):
        log.write(kind="train", step=step, loss=-step)
    rows = read_jsonl_log(path)
    assert [row["step"] for row in rows] == list(range(1, 9))
    assert [row["loss"] for row in rows] == [1, 2, 3, 4, 5, -6, -7, -8]
    assert MetricsLog(path).removed == frozenset()
    assert read_jsonl_log(path) == rows, "without a step nothing is taken back"
    assert not list(tmp_path.glob(".*")), "a temporary file is left"


def test_other_rows_stay_and_only_rank_0_takes_back(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "metrics.jsonl"
    text = '{"note": 1}\n{"kind": "start", "step": 0}\n{"kind": "train", "step": 3}\n'
    path.write_text(text)
    monkeypatch.setenv("RANK", "1")
    assert MetricsLog(path, keep_until=0).removed == frozenset()
    assert path.read_text() == text
    monkeypatch.setenv("RANK", "0")
    assert MetricsLog(path, keep_until=0).removed == {("train", 3)}
    assert path.read_text() == '{"note": 1}\n{"kind": "start", "step": 0}\n'


def test_a_listener_is_given_every_row_as_written(tmp_path: Path) -> None:
    heard = []
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.listener = heard.append
    log.write(kind="train", step=1, loss=float("inf"))
    assert heard == [{"kind": "train", "step": 1, "loss": None}]
