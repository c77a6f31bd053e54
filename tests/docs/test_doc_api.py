"""The notebook and the examples of the API page, cell by cell as they are printed, on a smaller target."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import vocabforge
from tests.cli.cli_support import in_this_process
from tests.worlds import ROOT

DOCS = ROOT / "docs"
SMALLER = {
    "--size full": "--size ci",
    '"steps": 100': '"steps": 4',
    '"eval_every": 50': '"eval_every": 4',
    '512, "tutorial/subset"': '400, "tutorial/subset"',
    "limit=6, max_new_tokens=48": "limit=2, max_new_tokens=8, warmup=0",
}


def cells() -> list[str]:
    notebook = json.loads((DOCS / "first-drafter.ipynb").read_text("utf-8"))
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]


def examples() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", (DOCS / "api.md").read_text("utf-8"), re.M | re.S)


def run(blocks: list[str], names: dict[str, Any]) -> None:
    for block in blocks:
        exec(compile(block, block.splitlines()[0], "exec"), names)


@pytest.mark.long
def test_the_notebook_and_the_examples_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    small = cells()
    for text, less in SMALLER.items():
        assert sum(text in cell for cell in small) == 1, text
        small = [cell.replace(text, less) for cell in small]
    with in_this_process():
        run(small, {})
    told = capsys.readouterr().out
    assert "identical: 2 of 2" in told
    assert (tmp_path / "tutorial" / "served" / "config.json").is_file()
    names: dict[str, Any] = {}
    run(examples(), names)
    assert names["answer"].generation.token_ids
    assert names["drafter_folder"] == Path("tutorial/short/drafter")


def test_every_name_is_there_and_documented() -> None:
    page = (DOCS / "api.md").read_text("utf-8")
    for name in vocabforge.__all__:
        assert getattr(vocabforge, name) is not None
        assert name.startswith("__") or name in page, name
    with pytest.raises(AttributeError, match="load_target"):
        vocabforge.load_targets  # noqa: B018
