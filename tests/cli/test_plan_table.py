"""What ``--plan`` shows on a terminal: one table in which a newcomer finds what matters."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.cli_support import invoke
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


def test_the_table_agrees_with_the_json(place: Path) -> None:
    config = write_config(place, "run", heads={"low_rank": {"rank": 4}})
    shown = invoke("train-drafter", "-c", config, "--plan")
    facts = json.loads(invoke("train-drafter", "-c", config, "--plan", "--json").stdout)
    assert shown.exit_code == 0, shown.output
    assert len(shown.stdout.splitlines()) <= 15
    table = lines(shown.stdout)
    assert f"{facts['target']['parameters']:,} parameters" in table["target"]
    assert f"eagle3, {facts['drafter']['trained_parameters']:,} trained parameters" in table["drafter"]
    assert "reads target layers 1, 2, 3" in table["drafter"]
    assert table["draft heads"] == f"low-rank, {facts['heads']['low_rank']:,} trained parameters"
    assert "texts.jsonl, in rows of 64 tokens; 1 input, 0.0 MB, not prepared yet" in table["data"]
    assert f"about {facts['data']['epochs_about']:g} times" in table["epochs"]
    assert facts["tokens_a_step"] == 3 * 64
    assert table["steps"] == "12 of 3 rows = 192 tokens a step over all processes, 2,304 tokens in all"
    memory = facts["memory_bytes_a_process"]
    assert memory["target"] == 4 * facts["target"]["parameters"]
    assert memory["trained_state"] == facts["trained_state_bytes"]["total"]
    assert memory["total"] == sum(size for name, size in memory.items() if name != "total")
    assert f"{memory['total'] / 1e6:,.1f} MB a process" in table["memory"]
    assert facts["flop_at_most"] == 2304 * facts["flop_a_token"]["total"]
    assert f"{facts['flop_a_token']['total']:.1e}".replace("e+0", "e") in table["FLOP"]
    assert all(str(Path(path).name) in table["writes"] for path in facts["writes"])
    assert f"{place / 'run'}/" in table["writes"]
    assert not (place / "run").exists()


def test_prepared_rows_and_the_warning_beside_the_table(place: Path) -> None:
    made = invoke(
        *("prepare-data", "--target", place / "target", "--input", place / "texts.jsonl", "--length", 64),
        *("--heldout-documents", 6, "--output", place / "prepared"),
    )
    assert made.exit_code == 0, made.output
    config = write_config(place, "over", data={"train": [], "prepared": str(place / "prepared")})
    shown = invoke("train-drafter", "-c", config, "--plan", "optim.steps=10000")
    facts = json.loads(invoke("train-drafter", "-c", config, "--plan", "--json", "optim.steps=10000").stdout)
    rows = facts["data"]["rows"]
    assert "Warning: each of the" in shown.stderr
    assert "Warning" not in shown.stdout
    table = lines(shown.stdout)
    assert f"{rows:,} rows of 64" in table["data"]
    assert f"{facts['data']['counted_tokens']:,} are learnt" in table["data"]
    assert table["epochs"] == f"each row is seen {30000 / rows:,.0f} times"
    few = lines(invoke("train-drafter", "-c", config, "--plan", "optim.steps=1").stdout)
    assert few["epochs"] == f"{300 / rows:.2g}% of the rows are seen, once"


def test_a_run_from_a_cache_holds_and_runs_no_layers(place: Path) -> None:
    config = write_config(place, "cached")
    changed = invoke("train-drafter", "-c", config, "--plan", "--json", f"capture.cache={place / 'cache'}")
    facts = json.loads(changed.stdout)
    assert facts["flop_a_token"]["target"] == 0
    assert facts["memory_bytes_a_process"]["target"] == 4 * 2 * 261 * 32, "embedding and LM head in fp32"


def test_only_the_first_process_speaks(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = write_config(place, "ranks")
    monkeypatch.setenv("WORLD_SIZE", "3")
    for rank, speaks in (("0", True), ("1", False)):
        monkeypatch.setenv("RANK", rank)
        done = invoke("train-drafter", "-c", config, "--plan", "--json")
        assert done.exit_code == 0, done.output
        assert bool(done.stdout) is speaks
    monkeypatch.setenv("RANK", "0")
    table = lines(invoke("train-drafter", "-c", config, "--plan").stdout)
    assert table["processes"] == "3 on cpu (ddp): each 1 rows a step, 1 a forward pass"


def test_a_target_without_weights_is_said(place: Path, tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        if (place / "target" / name).is_file():
            (tmp_path / name).write_bytes((place / "target" / name).read_bytes())
    done = invoke("train-drafter", "-c", write_config(place, "bare"), "--plan", f"target={tmp_path}")
    assert done.exit_code == 0, done.output
    assert "Warning: the model folder holds no safetensors weights" in done.stderr
    table = lines(done.stdout)
    assert "without the target (not known)" in table["memory"]
    assert ", without the target)" in table["FLOP"]


def test_capture_and_study_show_tables_too(place: Path) -> None:
    config = write_config(place, "states")
    captured = lines(invoke("capture", "-c", config, "-o", place / "states", "--plan").stdout)
    assert captured["states"] == "layers 1, 2, 3 and the last hidden states, in float32"
    assert captured["free"].endswith("it fits")
    shown = lines(invoke("study", "data", "target", "--size", "ci", "--plan").stdout)
    facts = json.loads(invoke("study", "data", "target", "--size", "ci", "--plan", "--json").stdout)
    assert {name: shown[name] for name in facts["stages"]} == facts["stages"]
    assert facts["config"]["output"] == shown["writes"].rstrip("/")
