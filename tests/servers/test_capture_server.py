"""A real vLLM on a CPU gives the states of our own capture, and training from it is training from files.

In fp32, with ``HiddenStatesConnector``, over HTTP. Not proved here: CUDA, tensor parallelism, other models than Llama.
"""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file

from tests.cli.cli_support import invoke
from tests.servers.world import ROOT, python_of
from tests.train.run_support import make_place, write_config
from tests.worlds import tiny_target
from vocabforge.train.capture.server import ServedStates

pytestmark = pytest.mark.servers
AUX, LAST = [0, 1, 3], 5
SECTIONS: dict[str, Any] = {
    "drafter": {"aux_layers": AUX},
    "optim": {"steps": 6},
    "run": {"live": {"prompts": 0}, "trackers": []},
}


class Running(NamedTuple):
    """A place with target and texts, and the server of that target."""

    place: Path
    process: subprocess.Popen[bytes]
    options: tuple[str, ...]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Started by the command that our own message tells."""
    python = os.environ.get("VOCABFORGE_VLLM_PYTHON") or str(python_of("vllm"))
    place = make_place(tmp_path_factory.mktemp("place"))
    wider = {"hidden_size": 128, "head_dim": 32, "num_attention_heads": 4}  # vLLM's attention wants 32
    tiny_target(place / "target", vocab_size=261, initializer_range=0.1, **wider)
    with socket.socket() as free, socket.socket() as other:
        for one in (free, other):
            one.bind(("127.0.0.1", 0))
        port, files = free.getsockname()[1], other.getsockname()[1]
    layers = (*(layer + 1 for layer in AUX), LAST)
    served = ServedStates(place / "target", "", layers, 128, torch.float32, 64)
    words = shlex.split(served.start_command(place / "states"))[2:]  # behind "vllm serve"
    transfer = json.loads(words[-1])
    transfer["kv_connector_extra_config"]["states_address"] = f"127.0.0.1:{files}"
    words[-1] = json.dumps(transfer)
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", *words, "--enforce-eager"]
    settings = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
    }
    with ExitStack() as stack:
        log = stack.enter_context((place / "server.log").open("wb"))
        process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port)],
            env={**os.environ, **settings},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        stack.callback(process.wait)
        stack.callback(process.terminate)
        url = f"http://127.0.0.1:{port}"
        for _ in range(600):
            with socket.socket() as one:
                if one.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert process.poll() is None, (place / "server.log").read_text()[-4000:]
            time.sleep(1)
        given = (f"capture.server.url={url}", f"capture.server.folder={place / 'states'}")
        yield Running(place, process, given)


def captured(running: Running, name: str, *words: str, **sections: Any) -> list[dict[str, torch.Tensor]]:
    """The shards of ``vocabforge capture``."""
    output = running.place / name
    config = write_config(running.place, "run", **{**SECTIONS, **sections})
    done = invoke("capture", "-c", config, "-o", output, "--yes", *words)
    assert done.exit_code == 0, done.output
    return [load_file(file) for file in sorted(output.glob("*.safetensors"))]


def apart(one: list[dict[str, torch.Tensor]], other: list[dict[str, torch.Tensor]], name: str) -> float:
    """The largest difference of a number."""
    assert len(one) == len(other)
    return max(float((a[name] - b[name]).abs().max()) for a, b in zip(one, other))


def test_states_are_those_of_our_own_capture(running: Running) -> None:
    ours, theirs = captured(running, "ours"), captured(running, "theirs", *running.options)
    for name in ("token_ids", "document", "offsets"):
        assert all(torch.equal(a[name], b[name]) for a, b in zip(ours, theirs))
    for name in ("features", "hidden"):
        assert 0 < apart(ours, theirs, name) < 1e-3
    shifted = captured(running, "shifted", drafter={"aux_layers": [layer + 1 for layer in AUX]})
    assert apart(shifted, theirs, "features") > 0.1  # what the comparison would find
    assert not list((running.place / "states").iterdir())


def test_other_layers_than_the_servers_are_refused(running: Running) -> None:
    config = write_config(running.place, "other", **{**SECTIONS, "drafter": {"aux_layers": [1, 2, 4]}})
    done = invoke("capture", "-c", config, "-o", running.place / "refused", "--yes", *running.options)
    assert done.exit_code == 1
    assert "not those that were asked for" in done.output


def test_training_from_the_server_is_training_from_its_cache(running: Running) -> None:
    url, shared = running.options
    folder = running.place / "states"
    before = set(folder.iterdir())
    fetching = (url, "capture.server.concurrency=1")
    server = (*fetching, shared)
    captured(running, "alone", *server)
    cached = (f"capture.cache={running.place / 'alone'}",)
    made = []
    for name, words in (("served", server), ("cached", cached), ("fetched", fetching)):
        done = invoke("train-drafter", "-c", write_config(running.place, name, **SECTIONS), *words)
        assert done.exit_code == 0, done.output
        made.append(load_file(running.place / name / "drafter" / "drafter.safetensors"))
    one, *others = made
    for other in others:
        assert one.keys() == other.keys()
        assert all(torch.equal(one[key], other[key]) for key in one)
    assert set(folder.iterdir()) <= before


def test_a_server_that_died_is_one_clear_error(running: Running) -> None:
    running.process.terminate()
    running.process.wait()
    config = write_config(running.place, "late", **SECTIONS)
    done = invoke("capture", "-c", config, "-o", running.place / "none", "--yes", *running.options)
    assert done.exit_code == 1
    assert "the server gives no hidden states" in done.output
