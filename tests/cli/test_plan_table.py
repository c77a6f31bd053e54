"""What ``--plan`` shows on a terminal: a list of facts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.cli_support import invoke, succeeds
from tests.train.run_support import make_place, write_config


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_place(tmp_path_factory.mktemp("plan_table"))


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of a test may have a long name, which would fold the table."""
    monkeypatch.setenv("COLUMNS", "300")


def lines(text: str) -> dict[str, str]:
    """The rows of a table by their names, without title and last line; what is folded is joined."""
    found: dict[str, str] = {}
    _, *rows, last = text.splitlines()
    width = len(last) - len(last.lstrip())
    assert last.strip() == "--json prints the whole configuration and all figures"
    name = ""
    for row in rows:
        name = row[:width].strip() or name
        found[name] = f"{found.get(name, '')} {row[width:].strip()}".strip()
    return found


def test_the_list_agrees_with_the_json(place: Path) -> None:
    config = write_config(place, "run", heads={"low_rank": {"rank": 4}})
    shown = invoke("train-drafter", "-c", config, "--plan")
    facts = json.loads(invoke("train-drafter", "-c", config, "--plan", "--json").stdout)
    assert shown.exit_code == 0, shown.output
    table = lines(shown.stdout)
    assert f"parameters {facts['target']['parameters']:,}" in table["target"]
    assert "kind eagle3" in table["drafter"]
    assert f"trained parameters {facts['drafter']['trained_parameters']:,}" in table["drafter"]
    assert table["heads"] == f"low rank {facts['heads']['low_rank']:,}"
    assert "inputs 1" in table["data"]
    assert facts["tokens_a_step"] == 3 * 64
    assert table["tokens at most"] == "2,304"
    memory = facts["memory_bytes_a_process"]
    assert memory["target"] == 4 * facts["target"]["parameters"]
    assert memory["trained_state"] == facts["trained_state_bytes"]["total"]
    assert memory["total"] == sum(size for name, size in memory.items() if name != "total")
    assert f"total {memory['total'] / 1e6:,.1f} MB" in table["memory bytes a process"]
    assert facts["flop_at_most"] == 2304 * facts["flop_a_token"]["total"]
    assert all(str(path) in table["writes"] for path in facts["writes"])
    assert not (place / "run").exists()


def test_a_target_without_weights_is_said(place: Path, tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        if (place / "target" / name).is_file():
            (tmp_path / name).write_bytes((place / "target" / name).read_bytes())
    done = succeeds("train-drafter", "-c", write_config(place, "bare"), "--plan", f"target={tmp_path}")
    assert "Warning: the model folder holds no safetensors weights" in done.stderr
    assert "target unknown" in lines(done.stdout)["memory bytes a process"]


def test_capture_shows_lists_too(place: Path) -> None:
    config = write_config(place, "states")
    captured = lines(invoke("capture", "-c", config, "-o", place / "states", "--plan").stdout)
    assert "aux layers 1, 2, 3" in captured["key"]
    assert captured["fits"] == "yes"
