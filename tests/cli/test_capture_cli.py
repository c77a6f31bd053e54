"""``vocabforge capture``, and training from what it wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.cli_support import facts_of, invoke, succeeds
from tests.train.run_support import assert_same, make_place, weights, write_config
from vocabforge.core.artifact import open_artifact
from vocabforge.models.target.hf import HFTarget


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_place(tmp_path_factory.mktemp("place"))


@pytest.fixture(scope="module")
def cache(place: Path) -> Path:
    succeeds("capture", "-c", write_config(place, "run"), "-o", place / "states", "--yes", "--shard-mb", 1)
    return place / "states"


@pytest.mark.parametrize("sections", [{}, {"drafter": {"kind": "eagle1"}}], ids=["eagle3", "eagle1"])
def test_training_from_the_cache_is_training_online_bit_for_bit(place, cache, sections, monkeypatch):
    name = "-".join(["run", *sections])
    quick = {"run": {"live": {"prompts": 0}, "trackers": []}, "optim": {"steps": 6}}
    sections = {**quick, **sections}
    succeeds("train-drafter", "-c", write_config(place, f"{name}-online", **sections))
    monkeypatch.setattr(HFTarget, "forward", lambda *_, **__: pytest.fail("the target was run"))
    config = write_config(place, f"{name}-cached", **sections)
    succeeds("train-drafter", "-c", config, f"capture.cache={cache}")
    assert_same(weights(place / f"{name}-online"), weights(place / f"{name}-cached"))


def test_other_data_or_layers_are_refused_when_training_starts(place: Path, cache: Path) -> None:
    config = write_config(place, "other")
    done = invoke("train-drafter", "-c", config, f"capture.cache={cache}", "data.heldout_documents=7")
    assert done.exit_code == 1
    assert "does not belong to this run" in done.output
    assert "digest of the train rows" in done.output
    done = invoke("train-drafter", "-c", config, f"capture.cache={cache}", "drafter.aux_layers=[0,2,3]")
    assert "auxiliary layers [0, 2, 3]" in done.output
    done = invoke("train-drafter", "-c", config, f"capture.cache={cache}", "capture.dtype=bfloat16")
    assert "made in another dtype" in done.output


def test_plan_says_what_it_takes_and_writes_no_shard(place: Path) -> None:
    config = write_config(place, "run")
    plan = facts_of(
        invoke(
            "capture", "-c", config, "-o", place / "planned", "--plan", "--json", "--store-dtype", "bfloat16"
        )
    )
    assert plan["fits"] is True
    assert plan["bytes"] == plan["tokens"] * ((3 * 32 + 32) * 2 + 16)
    assert plan["key"]["dtype"] == "bfloat16"
    assert not list(place.glob("planned*"))


def test_a_full_disk_is_refused_beforehand(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vocabforge.train.capture import writer as cache_write

    monkeypatch.setattr(cache_write.shutil, "disk_usage", lambda _: type("", (), {"free": 1000})())
    done = invoke("capture", "-c", write_config(place, "run"), "-o", place / "full", "--yes")
    assert done.exit_code == 2
    assert "do not fit on the disk" in done.output


def test_parts_and_overwriting(place: Path, cache: Path) -> None:
    config = write_config(place, "run")
    words = ["capture", "-c", config, "-o", place / "parts", "--yes", "--shard-mb", 1]
    first = succeeds(*words, "--part", "2/2", "--json")
    assert json.loads(first.stdout)["finished"] is False
    second = invoke(*words, "--part", "1/2", "--json")
    assert json.loads(second.stdout)["finished"] is True
    one, other = (open_artifact(folder, "capture") for folder in (cache, place / "parts"))
    files = [{name: f["sha256"] for name, f in a.manifest["files"].items()} for a in (one, other)]
    assert files[0] == files[1], "parts give the same files"
    assert "exists already" in invoke(*words).output
    again = invoke(*words, "--overwrite", "--json")
    assert json.loads(again.stdout)["shards"] == 2
    for text in ("3/2", "0/2", "x"):
        assert "cannot read --part" in invoke(*words, "--part", text).output


def test_launched_processes_share_the_shards(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["capture", "-c", write_config(place, "run"), "-o", place / "launched", "--yes", "--shard-mb", 1]
    for rank, finished in (("1", False), ("0", True)):
        monkeypatch.setenv("WORLD_SIZE", "2")
        monkeypatch.setenv("RANK", rank)
        done = succeeds(*words, "--json")
        assert json.loads(done.stdout)["finished"] is finished
