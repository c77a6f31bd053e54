"""``push``: what is sent to the Hub, to whom it is shown, and what is never sent."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
import yaml

from tests.cli.cli_support import assert_user_error, invoke, truncate
from tests.worlds import World
from vocabforge.layouts.registry import load_drafter
from vocabforge.models.target.head import load_target_tensors
from vocabforge.vocab.subset.subset import load_subset


class FakeHub:
    """A Hub that keeps repositories: name -> private, and commits: name -> path -> content."""

    def __init__(self) -> None:
        self.private: dict[str, bool] = {}
        self.commits: dict[str, dict[str, bytes]] = {}
        self.broken = False

    def create_repo(self, name: str, *, private: bool, exist_ok: bool) -> str:
        assert exist_ok
        if self.broken:
            raise ConnectionError("no route to host")
        self.private.setdefault(name, private)
        return f"https://hub/{name}"

    def repo_info(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(private=self.private[name])

    def create_commit(self, name: str, operations: list[Any], *, commit_message: str) -> None:
        assert name not in self.commits, "one commit"
        sent = {}
        for one in operations:
            with one.as_file() as file:
                sent[one.path_in_repo] = file.read()
        self.commits[name] = sent

    def unpack(self, name: str, folder: Path) -> Path:
        for path, content in self.commits[name].items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
        return folder


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    fake = FakeHub()
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: fake)
    return fake


def front_matter(card: bytes) -> dict[str, Any]:
    return dict(yaml.safe_load(card.decode().split("---\n")[1]))


@pytest.fixture
def vocab(world: World, tmp_path: Path) -> Path:
    """A draft vocabulary, counted on a file whose place is nobody's business."""
    place = tmp_path / "private-place"
    place.mkdir()
    (place / "diary.txt").write_text("once upon a time")
    counted = invoke(
        *("count-freq", "--tokenizer", world.target, "--input", place / "diary.txt"),
        *("--output", tmp_path / "counts", "--workers", 1),
    )
    assert counted.exit_code == 0, counted.output
    made = invoke(
        "select-vocab", "--counts", tmp_path / "counts", "--size", 8, "--output", tmp_path / "vocab"
    )
    assert made.exit_code == 0, made.output
    return tmp_path / "vocab"


def test_a_draft_vocabulary_goes_there_and_comes_back(vocab: Path, hub: FakeHub, tmp_path: Path) -> None:
    (vocab / "notes.txt").write_text("mine")
    done = invoke("push", vocab, "me/words", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == {
        "address": "https://hub/me/words",
        "public": False,
        "files": ["README.md", "manifest.json", "subset.safetensors"],
    }
    assert hub.private == {"me/words": True}
    card = hub.commits["me/words"]["README.md"]
    assert b"| counted | `diary.txt` |" in card
    assert "license" not in front_matter(card)
    assert not any(b"private-place" in content for content in hub.commits["me/words"].values())
    assert json.loads(hub.commits["me/words"]["manifest.json"])["command"] == []
    back = hub.unpack("me/words", tmp_path / "back")
    (back / "README.md").write_text("edited on the Hub")
    assert load_subset(back).ranked.tolist() == load_subset(vocab).ranked.tolist()


def test_the_card_of_a_draft_vocabulary_names_its_data(vocab: Path, hub: FakeHub) -> None:
    data = [
        {"name": "gsm8k", "repository": "openai/gsm8k", "licence": "mit"},
        {"name": "org/texts", "repository": "org/texts", "licence": None},
    ]
    manifest = json.loads((vocab / "manifest.json").read_text())
    del manifest["record_hash"]
    (vocab / "manifest.json").write_text(json.dumps({**manifest, "config": {"data": data}}))
    done = invoke("push", vocab, "me/words", "--public", "--license", "cc-by-4.0")
    assert done.exit_code == 0, done.output
    assert hub.private == {"me/words": False}
    card = hub.commits["me/words"]["README.md"]
    head = front_matter(card)
    assert (head["license"], head["datasets"]) == ("cc-by-4.0", ["openai/gsm8k", "org/texts"])
    assert b"- data `openai/gsm8k`: mit" in card
    assert b"- data `org/texts`: see its card" in card


def test_an_exported_drafter_goes_there_and_comes_back(world: World, hub: FakeHub, tmp_path: Path) -> None:
    done = invoke(
        *("export", "--drafter", world.drafter, "--target", world.target),
        *("--format", "sglang-eagle3", "--output", tmp_path / "served"),
    )
    assert done.exit_code == 0, done.output
    assert not hub.private, "nothing is sent unless asked"
    done = invoke("push", tmp_path / "served", "me/drafter", "--license", "apache-2.0")
    assert done.exit_code == 0, done.output
    assert "https://hub/me/drafter (private)" in done.stdout
    assert front_matter(hub.commits["me/drafter"]["README.md"])["license"] == "apache-2.0"
    manifest = hub.commits["me/drafter"]["manifest.json"]
    assert json.loads(manifest)["config"]["target"] == world.target.name
    assert str(tmp_path).encode() not in manifest
    back = hub.unpack("me/drafter", tmp_path / "back")
    shared = load_target_tensors(world.target)
    drafter, artifact = load_drafter(back, shared, world.target)
    assert artifact is not None
    assert drafter.config == load_drafter(tmp_path / "served", shared, world.target)[0].config


@pytest.mark.parametrize(("there", "options"), [("public", []), ("private", ["--public"])])
def test_a_repository_that_others_see_otherwise_is_refused(
    there: str, options: list[str], vocab: Path, hub: FakeHub
) -> None:
    hub.private["me/words"] = there == "private"
    result = invoke("push", vocab, "me/words", *options)
    assert_user_error(result, 2, f"the repository is {there} already", "--public")
    assert not hub.commits


def test_what_cannot_be_pushed(vocab: Path, world: World, hub: FakeHub, tmp_path: Path) -> None:
    assert_user_error(invoke("push", vocab, "words"), 2, "not the name of a repository", "OWNER/NAME")
    assert_user_error(invoke("push", tmp_path / "counts", "me/counts"), 1, "no card", "got: counts")
    assert_user_error(invoke("push", world.drafter, "me/drafter"), 1, "no card", "--format native")
    assert_user_error(invoke("push", world.target, "me/target"), 1, "manifest.json")
    truncate(vocab / "subset.safetensors")
    assert_user_error(invoke("push", vocab, "me/words"), 1, "differs in size")
    assert not hub.private


def test_a_hub_that_refuses(vocab: Path, hub: FakeHub) -> None:
    hub.broken = True
    result = invoke("push", vocab, "me/words")
    assert_user_error(result, 1, "did not take the folder", "no route to host", "HF_TOKEN")
