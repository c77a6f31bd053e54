"""``vocabforge capture`` and training that take their states from a server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from tests.capture.hidden_server import HiddenServer
from tests.cli.cli_support import invoke, ok, succeeds
from tests.train.run_support import assert_same, make_place, weights, write_config
from vocabforge.models.target.hf import HFTarget

SECTIONS: dict[str, Any] = {"optim": {"steps": 8}, "run": {"live": {"prompts": 0}, "trackers": []}}


@pytest.fixture
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_place(tmp_path_factory.mktemp("place"))


@pytest.fixture(params=[None, 10**9], ids=["folder", "http"])
def server(place: Path, request: pytest.FixtureRequest) -> Iterator[HiddenServer]:
    with HiddenServer(place / "sent", HFTarget.load(place / "target"), share_bytes=request.param) as running:
        yield running


def section(server: HiddenServer, **more: Any) -> dict[str, Any]:
    return {"url": server.url, **({} if server.files else {"folder": str(server.folder)}), **more}


def capture(place: Path, server: HiddenServer, output: Path, *words: Any) -> Any:
    config = write_config(place, "run", **SECTIONS)
    given = [f"capture.server.{key}={value}" for key, value in section(server).items()]
    return invoke("capture", "-c", config, "-o", output, "--yes", *given, *words)


def test_training_from_the_server_is_training_from_its_cache(place, server, tmp_path):
    small = ("capture.server.buffer_gb=0.0002", "capture.server.concurrency=1")
    ok(capture(place, server, tmp_path / "states", *small))
    captured = len(server.bodies)
    config = write_config(place, "cached", **SECTIONS)
    succeeds("train-drafter", "-c", config, f"capture.cache={tmp_path / 'states'}")
    assert len(server.bodies) == captured
    config = write_config(place, "served", **SECTIONS, capture={"server": section(server, buffer_gb=0.0002)})
    succeeds("train-drafter", "-c", config)
    assert len(server.bodies) > captured
    assert_same(weights(place / "cached"), weights(place / "served"))
    assert not list(server.folder.iterdir())


@pytest.mark.long
@pytest.mark.parametrize("server", [10**9], ids=["http"], indirect=True)
def test_the_same_command_goes_on_when_the_server_is_back(place, server, tmp_path):
    words = ("--shard-mb", "1", "capture.server.retries=0", "capture.server.concurrency=1")
    ok(capture(place, server, tmp_path / "whole", *words))
    shards = sorted(file.name for file in (tmp_path / "whole").glob("*.safetensors"))
    needed = len(server.bodies)
    assert len(shards) > 1
    server.fail_after = 2 * needed - 1
    died = capture(place, server, tmp_path / "twice", *words)
    assert died.exit_code == 1
    assert "the server gives no hidden states" in died.output
    assert not list(server.folder.iterdir())
    kept = len(list((tmp_path / "twice.partial").glob("*.safetensors")))
    assert 0 < kept < len(shards)
    server.fail_after, before = None, len(server.bodies)
    ok(capture(place, server, tmp_path / "twice", *words))
    assert 0 < len(server.bodies) - before < needed
    for name in shards:
        assert_same(load_file(tmp_path / "whole" / name), load_file(tmp_path / "twice" / name))


@pytest.mark.long
@pytest.mark.parametrize("server", [None], ids=["folder"], indirect=True)
def test_a_stopped_training_goes_on_from_the_server(place: Path, server: HiddenServer) -> None:
    sections = {**SECTIONS, "capture": {"server": section(server, retries=0, buffer_gb=0.0002)}}
    succeeds("train-drafter", "-c", write_config(place, "straight", **sections))
    needed = len(server.bodies)
    config, server.fail_after = write_config(place, "resumed", **sections), needed + needed * 3 // 4
    died = invoke("train-drafter", "-c", config)
    assert died.exit_code == 1
    assert "the server gives no hidden states" in died.output
    server.fail_after, before = None, len(server.bodies)
    succeeds("train-drafter", "-c", config)
    assert len(server.bodies) - before < needed  # from its checkpoint
    assert_same(weights(place / "resumed"), weights(place / "straight"))
