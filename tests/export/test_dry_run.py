"""``train-drafter --dry-run``: an untrained drafter of the recipe's form in a server."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pytest

from tests.train.run_support import config
from tests.worlds import byte_tokenizer, tiny_target
from vocabforge.core.errors import UsageError, VocabForgeError
from vocabforge.export.dry_run import dry_run

SERVER = f"{sys.executable} -m tests.evaluate.served_fakes --port {{port}} --drafter {{sglang-eagle3}}"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    tiny_target(tmp_path / "target", vocab_size=261, num_hidden_layers=8)
    byte_tokenizer(tmp_path / "target")
    (tmp_path / "texts.jsonl").write_text('{"text": "a cat"}\n')
    return tmp_path


def test_the_server_gets_the_drafter_and_its_draft_tokens_are_counted(place, monkeypatch):
    (place / "a folder").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place / "a folder"))
    found = dry_run(config(place, "run"), SERVER)
    assert found["format"] == "sglang-eagle3"
    assert found["server"]["kind"] == "vllm"
    assert found["drafted"] > 0
    assert "architectures ['LlamaForCausalLMEagle3']" in Path(found["log"]).read_text("utf-8")
    assert not (place / "run").exists(), "nothing is trained"


def test_a_server_without_speculation_and_one_that_ends_show_their_last_lines(place: Path) -> None:
    with pytest.raises(VocabForgeError, match=r"(?s)answers without drafting.*args: .*'plain': True"):
        dry_run(config(place, "run"), f"{SERVER} --plain")
    with pytest.raises(VocabForgeError, match=r"(?s)ended before it was ready.*CUDA error"):
        dry_run(config(place, "run"), f"{SERVER} --fails")


def test_the_command_names_a_format_of_the_kind_and_the_port(place: Path) -> None:
    for command, told in (
        ("serve --port {port}", r"(?s)no place for the drafter.*\{sglang-eagle3\} or"),
        ("serve --port {port} {medusa}", r"(?s)no place for the drafter.*got: +\{medusa\}"),
        ("serve {sglang-eagle3}", "(?s)no place for its port.*--dry-run"),
    ):
        with pytest.raises(UsageError, match=told):
            dry_run(config(place, "run"), command)


def test_the_log_of_a_run_in_the_current_folder_lies_beside_it(place, monkeypatch):
    settings = config(place, "run").model_copy(update={"output": Path(".")})
    (place / "run").mkdir()
    monkeypatch.chdir(place / "run")
    with pytest.raises(UsageError, match="cannot be started"):
        dry_run(settings, "no-such-server {sglang-eagle3} {port}")
    assert (place / "run.dry-run.log").is_file()
