"""Every file that can reach a network is known, with the reason; commands on local folders reach for none."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contracts.test_no_unsafe_calls import SOURCES, _called, _read
from tests.worlds import ROOT, World

# file: why it reaches for a network. Whatever else does would have to import one of these.
NETWORK_MODULES = {
    "socket", "ssl", "http", "httpx", "httpx2", "urllib.request", "requests", "aiohttp", "ftplib", "smtplib",
    "telnetlib", "xmlrpc", "huggingface_hub", "fsspec", "websockets", "boto3", "paramiko", "grpc", "datasets",
    "wandb", "mlflow",
}  # fmt: skip
NETWORK = {
    "vocabforge/core/cluster.py": "the Ray cluster of --ray",
    "vocabforge/core/hub.py": "models and tokenizers named as on the Hub, which are not in its cache",
    "vocabforge/corpus/regenerate/server.py": "the servers of --server; the client library for both files below",
    "vocabforge/corpus/sources/hub.py": "data sets named hub:..., by the library datasets",
    "vocabforge/corpus/sources/remote.py": "inputs given as URLs, by fsspec",
    "vocabforge/evaluate/benchmarks/find.py": "published question files, checked by SHA-256",
    "vocabforge/evaluate/servers/process.py": "no network: a free port of this machine for the server of --start",
    "vocabforge/serve/vllm/state_files.py": "hidden states, served by vLLM's process where its options ask for it",
    "vocabforge/train/monitoring/trackers.py": "W&B and MLflow, where run.trackers names them",
}


def test_every_file_that_can_reach_a_network_is_listed() -> None:
    found = set()
    for path in SOURCES:
        text = path.read_text("utf-8")
        if not any(word in text for word in (*NETWORK_MODULES, "http_library", "LOGGER_TYPE_TO_CLASS")):
            continue
        names = {'in ("httpx2", "httpx")'} if 'in ("httpx2", "httpx")' in text else set()
        for node in _read(text)[0]:
            if isinstance(node, ast.Import):
                names |= {one.name for one in node.names}
            elif isinstance(node, ast.ImportFrom):
                names |= {f"{node.module or ''}.{one.name}" for one in node.names}
            elif isinstance(node, ast.Call) and _called(node.func, {}).endswith(
                ("import_extra", "import_module")
            ):
                names |= {str(one.value) for one in node.args[:1] if isinstance(one, ast.Constant)}
        if any(_reaches(name) for name in names):
            found.add(path.relative_to(ROOT).as_posix())
    assert found == set(NETWORK)


def _reaches(name: str) -> bool:
    parts = name.split(".")
    whole = {".".join(parts[:end]) for end in range(1, len(parts) + 1)}
    return (
        bool(whole & NETWORK_MODULES)
        or parts[-1] in ("http_library", "LOGGER_TYPE_TO_CLASS")
        or "httpx" in name
    )


# The interpreter itself reports every look-up of a name and every connection, whichever library asks for it.
WATCHED = """
import sys
reached = []
def watch(event, given):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"):
        place = given[1] if event == "socket.connect" else given
        if not isinstance(place, (str, bytes)):  # a file of this machine
            reached.append(f"{event} {place}")
            raise OSError("no network in this test")
sys.addaudithook(watch)
from vocabforge.cli import COMMANDS
from vocabforge.cli.app import build_app
from vocabforge.core.registry import load_attribute
app = build_app({name: load_attribute(place) for name, place in COMMANDS.items()}, list(COMMANDS))
for line in sys.stdin.read().splitlines():
    try:
        app(line.split("\\t"))
    except SystemExit as done:
        assert not done.code, line
    assert not reached, (line, reached)
import huggingface_hub
try:
    huggingface_hub.HfApi().whoami(token="hf_none")
except Exception:
    pass
assert reached, "what watches sees nothing"
"""


@pytest.mark.long
def test_nothing_is_sent_home(pristine: World, tmp_path: Path) -> None:
    """The whole line on local folders, in a process that may use the network: none of it asks for one."""
    target, drafter = ["--target", pristine.target], ["--drafter", pristine.drafter]
    recipe = {
        "target": str(pristine.target),
        "output": str(tmp_path / "run"),
        "data": {
            "train": [str(pristine.text)],
            "text_unit": "paragraph",
            "heldout_documents": 4,
            "sequence_length": 64,
        },
        "optim": {"steps": 2, "batch_size": 1},
        "ttt": {"steps": 2},
        "run": {"live": {"prompts": 1, "max_new_tokens": 4}},
    }
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))
    results = ["--limit", 1, "--max-new-tokens", 4, "--output", tmp_path / "e"]
    lines = [
        ["count-freq", "--tokenizer", pristine.target, "--input", pristine.text, "--output", tmp_path / "c"],
        ["select-vocab", "--counts", tmp_path / "c", "--size", 8, "--output", tmp_path / "v"],
        ["train-drafter", "--config", tmp_path / "recipe.yaml"],
        ["generate", *target, *drafter, "--prompt", "once", "--max-new-tokens", 4],
        ["eval", *target, *drafter, "--benchmark", "sample", *results],
        ["export", *target, *drafter, "--format", "sglang-eagle3", "--output", tmp_path / "x"],
        ["doctor", *target, "--drafter", tmp_path / "x"],
        ["inspect", tmp_path / "x"],
    ]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    done = subprocess.run(
        [sys.executable, "-c", WATCHED],
        cwd=ROOT,
        env={**clean, "HF_HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT)},
        input="\n".join("\t".join(map(str, line)) for line in lines),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
