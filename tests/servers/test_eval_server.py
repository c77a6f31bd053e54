"""``vocabforge eval --start`` measures a real vLLM on a CPU: its counters are our decoder's accepted lengths."""

from __future__ import annotations

import json
import secrets
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.cli.cli_support import invoke
from tests.servers.world import Served, python_of, server_world
from vocabforge.evaluate.results.schema import Results, read_results

pytestmark = pytest.mark.servers
TOKENS = 5
ASKED = "--limit 10 --max-new-tokens 48 --warmup 1"
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}
KEY = secrets.token_hex(8)


@pytest.fixture(scope="module")
def world() -> Served:
    return server_world()


def command(python: Path, world: Served) -> str:
    return (
        f"{python} -m vllm.entrypoints.openai.api_server --model {world.target.resolve()} --served-model-name tiny "
        f"--host 127.0.0.1 --port {{port}} --dtype float32 --enforce-eager --max-model-len 512 "
        f"--no-enable-prefix-caching"
    )


def drafting(drafter: object) -> str:
    config = {"method": "eagle3", "model": str(drafter), "num_speculative_tokens": TOKENS}
    return f"--speculative-config {shlex.quote(json.dumps(config))}"


@pytest.fixture(scope="module")
def served(world: Served, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An evaluation of vLLM with and without the drafter, under two loads."""
    python, folder = python_of("vllm"), tmp_path_factory.mktemp("served")
    export = folder / "export"
    words = ("--drafter", world.drafter("eagle3"), "--format", "sglang-eagle3", "--output", export)
    assert invoke("export", *words).exit_code == 0
    plain = f"{command(python, world)} --api-key {KEY}"
    eagle = f"{plain} {drafting(export)}"
    output = folder / "out"
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**ENVIRONMENT, "SERVER_KEY": KEY}.items():
            patch.setenv(name, value)
        starts = ("--start", f"eagle3={eagle}", "--start", f"plain={plain}", "--api-key-env", "SERVER_KEY")
        asked = ("--benchmark", str(world.root / "question.jsonl"), *ASKED.split())
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "vocabforge",
                "eval",
                *starts,
                *asked,
                "--concurrency",
                "1,4",
                "--output",
                output,
            ],
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert KEY not in done.stdout + done.stderr
    return output


@pytest.fixture(scope="module")
def local(world: Served, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same questions decoded here, with chains of the same length."""
    output = tmp_path_factory.mktemp("local") / "out"
    method = (
        "--drafter",
        f"eagle3={world.drafter('eagle3')}",
        "--tree",
        "chain",
        "--depth",
        str(TOKENS - 1),
        "--control",
        "fixed",
    )
    asked = ("--benchmark", str(world.root / "question.jsonl"), *ASKED.split())
    words = ("--target", world.target, *method, "--device", "cpu", *asked, "--output", output)
    assert invoke("eval", *words).exit_code == 0
    return output


def details(folder: Path, method: str, load: str = "") -> dict[int, Mapping[str, Any]]:
    rows = (folder / "details" / load / f"{method}.jsonl").read_text("utf-8").splitlines()
    return {row["question_id"]: row["choices"][0] for row in map(json.loads, rows)}


@pytest.mark.parametrize("load", ["", "concurrency_4"])
@pytest.mark.parametrize("method", ["plain", "eagle3"])
def test_outputs_are_those_of_our_decoder(served: Path, local: Path, method: str, load: str) -> None:
    ours = details(local, "plain")
    found = details(served, method, load)
    assert len(found) == 10
    assert {number: row["token_ids"] for number, row in found.items()} == {
        number: row["token_ids"] for number, row in ours.items()
    }
    assert {number: row["prompt_tokens"] for number, row in found.items()} == {
        number: row["prompt_tokens"] for number, row in ours.items()
    }


def test_every_turn_has_our_decoders_verifications(served: Path, local: Path) -> None:
    ours = details(local, "eagle3")
    for number, row in details(served, "eagle3").items():
        assert row["verifications"] == [len(turn) for turn in ours[number]["accept_lengths"]], number
        assert row["accepted"] == [sum(turn) for turn in ours[number]["accepted_by_depth"]], number


def test_figures_are_our_decoders_under_every_load(served: Path, local: Path) -> None:
    found: Results = read_results(served)
    ours = read_results(local).methods[1].summary
    eagle = found.methods[1].summary
    assert [(row.offered, row.accepted) for row in eagle.depths] == [
        (row.offered, row.accepted) for row in ours.depths
    ]
    # The server counts drafts behind an end, too.
    turns = [turn for row in details(local, "eagle3").values() for turn in row["accepted_by_depth"]]
    cycles = sum(len(turn) for row in details(local, "eagle3").values() for turn in row["accept_lengths"])
    verified = 1 + sum(map(sum, turns)) / cycles
    assert eagle.overall.accepted_length.value == pytest.approx(verified)
    assert verified > 1.5, "the drafter helps"
    for load in found.load:
        same = verified if load.method == "eagle3" else None
        assert load.accepted_length == pytest.approx(same) if same else load.accepted_length is None
    assert eagle.outputs is not None
    assert eagle.outputs.identical == eagle.outputs.compared == 10
    assert found.warnings == []


def test_the_servers_are_gone_and_the_key_is_in_no_file(served: Path) -> None:
    files = [path for path in served.parent.rglob("*") if path.is_file() and path.suffix != ".safetensors"]
    assert any(path.suffix == ".log" for path in files)
    assert [path for path in files if KEY.encode() in path.read_bytes()] == []
    running = [one for one in Path("/proc").glob("[0-9]*/cmdline") if KEY.encode() in _read(one)]
    assert running == []


def test_an_untrained_drafter_drafts_before_its_training(
    world: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``train-drafter --dry-run``, with speculation in the server's command and without."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    plain, data = command(python_of("vllm"), world), world.root / "responses" / "responses.jsonl"
    words = (
        "--config",
        "tiny/demo",
        f"target={world.target}",
        f"data.train=[{data}]",
        f"output={tmp_path}/run",
    )
    words = ("train-drafter", *words, "drafter.intermediate_size=192", "--json", "--dry-run")
    done = invoke(*words, f"{plain} {drafting('{sglang-eagle3}')}")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["server"]["kind"] == "vllm"
    assert found["drafted"] % TOKENS == 0 < found["drafted"]
    done = invoke(*words, f"{plain} --served-model-name {{sglang-eagle3}}")
    assert done.exit_code == 1
    assert "answers without drafting" in done.stderr


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it ended meanwhile
        return b""
