"""Names of the Hugging Face Hub: from the cache, from a Hub in the test, and every way in which they are refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.worlds import ROOT, cached_model
from vocabforge.core.config import ModelPath
from vocabforge.core.errors import VocabForgeError
from vocabforge.core.hub import hub_name, model_folder, model_name

COMMIT, OLDER = "a" * 40, "b" * 40
FILES = {
    "config.json": b"{}",
    "tokenizer.json": b'{"model": {}}',
    "model.safetensors": b"weights" * 99,
    "pytorch_model.bin": b"the same weights",
    "consolidated.safetensors": b"the same weights",
    "original/model.safetensors": b"the same weights",
    "README.md": b"read me",
}
PICKLED = {
    "config.json": b'{"num_hidden_layers": 1}',
    "pytorch_model.bin": b"weights",
    "training_args.bin": b"no weights",
}
NEEDED = {"config.json", "tokenizer.json", "model.safetensors", "README.md"}


class FakeHub(BaseHTTPRequestHandler):
    """The paths of the Hub's interface that a download asks; ``asked`` records them."""

    asked: list[str]

    def log_message(self, *_: Any) -> None:
        """Nothing."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        files = PICKLED if "org/drafter" in path else FILES
        self.asked.append(f"{self.command} {path}")
        if "org/nothing" in path:
            return self.answer(401, b"", {"X-Error-Code": "RepoNotFound"})
        if "org/broken" in path and self.command == "GET" and "/resolve/" in path:
            return self.answer(400, b"")
        if "/revision/nowhere" in path:
            return self.answer(404, b"", {"X-Error-Code": "RevisionNotFound"})
        if path.startswith("/api/models/"):
            commit = OLDER if "/older" in path or OLDER in path else COMMIT
            if "/tree/" in path:
                rows = [
                    {"type": "file", "path": name, "size": len(data), "oid": f"{len(name):040x}"}
                    for name, data in files.items()
                ]
                return self.answer(200, json.dumps(rows).encode())
            return self.answer(200, json.dumps({"id": "org/model", "sha": commit, "siblings": []}).encode())
        _, _, _, _, commit, name = path.split("/", 5)
        if "org/gated" in path and self.headers.get("Authorization") != "Bearer hf_good":
            return self.answer(403, b"", {"X-Error-Code": "GatedRepo"})
        return self.answer(200, files[name], {"ETag": f'"{len(name):040x}"', "X-Repo-Commit": commit})

    def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


@pytest.fixture
def hub() -> Iterator[tuple[str, list[str]]]:
    """Its address, and what it was asked."""
    asked: list[str] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Hub", (FakeHub,), {"asked": asked}))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    server.server_close()
    thread.join()


ASK = """
import json, sys
from pathlib import Path
from vocabforge.core.errors import VocabForgeError
from vocabforge.core.hub import hub_name, model_folder
for name in sys.argv[2:]:
    try:
        folder = model_folder(Path(name), weights=sys.argv[1] == "weights")
        found = [file for file in folder.rglob("*") if file.is_file()]
        files = {str(file.relative_to(folder)): file.read_text() for file in found}
        print(json.dumps([hub_name(folder), files]))
    except VocabForgeError as error:
        print(json.dumps([error.message, str(error)]))
"""


def ask(cache: Path, *names: str, what: str = "weights", **environment: str) -> list[Any]:
    """What each name means to a new process: huggingface_hub reads its environment when it is imported."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    done = subprocess.run(
        [sys.executable, "-c", ASK, what, *names],
        cwd=cache.parent,
        env={
            **clean,
            "PYTHONPATH": str(ROOT),
            "HF_HOME": str(cache.parent / "home"),
            "HF_HUB_CACHE": str(cache),
            "HF_HUB_DISABLE_XET": "1",
            **environment,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_name_is_fetched_once_without_duplicates_of_its_weights(tmp_path, hub):
    address, asked = hub
    cache = tmp_path / "cache"
    ((name, files),) = ask(cache, "org/model", what="tokenizer", HF_ENDPOINT=address)
    assert (name, set(files)) == (f"org/model@{COMMIT}", NEEDED - {"model.safetensors"})
    asked.clear()
    ((name, files),) = ask(cache, "org/model", HF_ENDPOINT=address)
    assert set(files) == NEEDED, "the weights are added"
    assert files["model.safetensors"] == FILES["model.safetensors"].decode()
    assert [path for path in asked if path.startswith("GET /org")] == [
        f"GET /org/model/resolve/{COMMIT}/model.safetensors"
    ]
    asked.clear()
    assert ask(cache, "org/model", HF_ENDPOINT=address) == [[name, files]]
    assert asked == [], "what is in the cache asks nobody"
    assert ask(cache, "org/model", name, HF_HUB_OFFLINE="1") == [[name, files]] * 2


def test_the_pickles_of_a_drafter_without_safetensors_are_fetched(tmp_path, hub):
    wanted = {name: data.decode() for name, data in PICKLED.items() if name != "training_args.bin"}
    ((name, files),) = ask(tmp_path / "cache", "org/drafter", HF_ENDPOINT=hub[0])
    assert (name, files) == (f"org/drafter@{COMMIT}", wanted)
    assert ask(tmp_path / "cache", "org/drafter", HF_HUB_OFFLINE="1") == [[name, files]]


def test_revisions(tmp_path: Path, hub: tuple[str, list[str]]) -> None:
    one, other, missing = ask(
        tmp_path / "cache", "org/model@older", f"org/model@{OLDER}", "org/model@nowhere", HF_ENDPOINT=hub[0]
    )
    assert one[0] == other[0] == f"org/model@{OLDER}"
    assert missing[0] == "the model has no such revision"


def test_what_the_hub_refuses(tmp_path: Path, hub: tuple[str, list[str]]) -> None:
    names = ["org/nothing", "org/gated", "org/broken"]
    nothing, gated, broken = ask(tmp_path / "cache", *names, HF_ENDPOINT=hub[0])
    assert nothing[0] == "there is no such model"
    assert "org/nothing: no folder here, and no model at http" in nothing[1]
    assert gated[0].startswith("the model is gated")
    assert f"{hub[0]}/org/gated" in gated[1]
    assert "HF_TOKEN" in gated[1]
    assert broken[0] == "the model cannot be fetched from the Hub"
    ((name, files),) = ask(tmp_path / "cache", "org/gated", HF_ENDPOINT=hub[0], HF_TOKEN="hf_good")
    assert (name, set(files)) == (f"org/gated@{COMMIT}", NEEDED)


def test_without_a_network(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    ((message, text),) = ask(cache, "org/model", HF_HUB_OFFLINE="1")
    assert message == "the model is neither here nor in the cache, and the Hub cannot be asked"
    assert "HF_HUB_OFFLINE is set" in text
    ((again, text),) = ask(cache, "org/model", HF_ENDPOINT="http://127.0.0.1:9")
    assert again == message
    assert "no usable answer from http://127.0.0.1:9" in text


def test_folders_and_other_paths_ask_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "model").mkdir(parents=True)
    for path in (
        "a b/c",
        *["org/model", "model", "a/b/c", "../a/b", "/nowhere/model", "-x/y", "a--b/c", "a..b/c"],
    ):
        assert model_folder(Path(path)) == Path(path)
    with pytest.raises(VocabForgeError, match="neither here nor in the cache"):
        model_folder(Path("org/other"))


def test_records_name_the_model_and_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pydantic import BaseModel

    class Asked(BaseModel):
        target: ModelPath

    place = cached_model(monkeypatch, tmp_path / "hub", "org/some-model", {"tokenizer.json": "{}"})
    asked = Asked(target=Path("org/some-model"))
    assert asked.target == place
    assert model_name(place) == "some-model"
    assert hub_name(place, revision=False) == "org/some-model"
    again = Asked.model_validate_json(asked.model_dump_json())
    assert f'"org/some-model@{place.name}"' in asked.model_dump_json()
    assert again == asked
    assert (hub_name(tmp_path), model_name(tmp_path)) == (str(tmp_path), tmp_path.name)
