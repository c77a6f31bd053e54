"""The time that is left of a capture: documents of different length, a slow first pass, shards that are saved."""

from __future__ import annotations

from pathlib import Path

from tests.capture.capture_support import make_job, packed
from tests.core.progress_support import Forecasts, fake_clock
from tests.worlds import tiny_target
from vocabforge.models.target.hf import HFTarget
from vocabforge.train.capture import writer
from vocabforge.train.capture.online import OnlineCapture
from vocabforge.train.capture.writer import prepare_folder, write_shards


def test_capture(tmp_path: Path, monkeypatch) -> None:
    target = HFTarget.load(tiny_target(tmp_path / "t"))
    rows = {"train": packed([5 + 7 * n % 28 for n in range(120)], 32), "heldout": packed([8, 13, 30], 32)}
    job = make_job(tmp_path / "c", target, rows)
    assert len(job.shards) > 5
    clock, online, save = fake_clock(monkeypatch), OnlineCapture(target, 0), writer._save
    forecasts = Forecasts(monkeypatch, clock)
    waits = [20.0]  # what the first pass takes longer

    def slowly(batch, keys):
        tokens = int((batch.document != 0).sum())
        clock.now += 0.01 * tokens + 0.0005 * tokens**2 + (waits.pop() if waits else 0.0)
        return online(batch, keys)

    def saved(*given) -> None:
        clock.now += 1.0
        save(*given)

    monkeypatch.setattr(writer, "PASS_TOKENS", 32)  # a row a pass
    monkeypatch.setattr(writer, "_save", saved)
    prepare_folder(job, overwrite=False)
    write_shards(job, job.shards, slowly, target)
    assert forecasts.worst("capture") <= 2
