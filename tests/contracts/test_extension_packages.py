"""Packages of others add rows to the extension tables by entry points, and cannot break what is here."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.cli.cli_support import ok
from tests.contracts.guide_code import checks_of, fresh, read_guide, run
from tests.worlds import ROOT, byte_tokenizer, tiny_target
from vocabforge.cli.app import build_app
from vocabforge.cli.drafting.generate import generate
from vocabforge.core import registry
from vocabforge.core.errors import UsageError, VocabForgeError
from vocabforge.core.registry import ExtensionTable, resolve
from vocabforge.corpus.sources.known import DATASETS
from vocabforge.decode.proposers.registry import FITTING, PROPOSERS
from vocabforge.decode.verify.registry import VERIFIERS
from vocabforge.evaluate.benchmarks.load import load_benchmark
from vocabforge.evaluate.benchmarks.registry import BENCHMARKS
from vocabforge.evaluate.benchmarks.registry import FORMATS as QUESTION_FORMATS
from vocabforge.export.servers.registry import READERS
from vocabforge.layouts.registry import FORMATS
from vocabforge.models.drafters.registry import DRAFTERS
from vocabforge.models.heads.registry import HEADS
from vocabforge.models.lean.config import FAMILIES, find_family

TABLES: dict[str, ExtensionTable[Any]] = {
    table.group: table
    for table in (
        *(DRAFTERS, FITTING, HEADS, PROPOSERS, VERIFIERS, FAMILIES),
        *(BENCHMARKS, QUESTION_FORMATS, DATASETS, FORMATS, READERS),
    )
}
Ship = Callable[..., None]


@pytest.fixture
def ship(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ship]:
    """Installs a package as pip leaves it: modules, and a folder with its metadata."""
    site, modules = tmp_path / "site", set(sys.modules)
    site.mkdir()
    monkeypatch.syspath_prepend(site)

    def package(name: str, files: Mapping[str, str], entries: Mapping[str, Mapping[str, str]]) -> None:
        for file, text in files.items():
            (site / file).write_text(text)
        info = site / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        lines = [
            line
            for group, rows in entries.items()
            for line in (f"[{group}]", *(f"{key} = {value}" for key, value in rows.items()))
        ]
        (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
        registry._installed.cache_clear()
        registry._say_once.cache_clear()
        for table in TABLES.values():
            monkeypatch.delitem(vars(table), "data", raising=False)

    yield package
    registry._installed.cache_clear()
    for name in set(sys.modules) - modules:
        if name.startswith("acorn"):
            del sys.modules[name]


def test_the_guide_lists_every_group() -> None:
    sources = [path.read_text("utf-8") for path in (ROOT / "vocabforge").rglob("*.py")]
    groups = {group for text in sources for group in re.findall(r'ExtensionTable\(\s*"([\w.]+)"', text)}
    assert groups == set(TABLES)
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    assert set(re.findall(r"`(vocabforge\.\w+)` \|", text)) == groups


def test_nothing_is_searched_before_a_table_is_used() -> None:
    made = "import sys; from vocabforge.core.registry import ExtensionTable; ExtensionTable('vocabforge.heads', {})"
    code = f"{made}; assert 'importlib.metadata' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


@pytest.mark.parametrize("group", TABLES)
def test_a_package_adds_a_row(group: str, ship: Ship) -> None:
    own = list(TABLES[group])
    ship("acorn", {"acorn_row.py": "ROW = ['the row']"}, {group: {"acorn": "acorn_row:ROW"}})
    assert list(TABLES[group]) == [*own, "acorn"]
    assert "acorn_row" not in sys.modules  # a list of names imports no package
    assert TABLES[group]["acorn"] == ["the row"]
    with pytest.raises(UsageError, match=r"acron(.|\n)*did you mean acorn\?"):
        resolve(TABLES[group], "acron", "thing")


def test_a_name_that_is_taken_is_refused(ship: Ship) -> None:
    ship(
        "acorn",
        {"acorn_row.py": "ROW = 1"},
        {HEADS.group: {"router": "acorn_row:ROW", "nut": "acorn_row:ROW"}},
    )
    with pytest.raises(UsageError) as raised:
        HEADS["router"]
    assert raised.value.got == "the package acorn (acorn_row:ROW) and VocabForge itself"
    assert "uninstall acorn" in str(raised.value.remedy)
    ship("oak", {}, {HEADS.group: {"nut": "oak_row:ROW"}})
    with pytest.raises(UsageError) as raised:
        HEADS["nut"]
    assert {"acorn (acorn_row:ROW)", "oak (oak_row:ROW)"} == set(
        re.findall(r"the package (\S+ \S+)", str(raised.value.got))
    )
    assert HEADS["static"] == "vocabforge.models.heads.exact:StaticHead"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import acorn_needs_this", "ModuleNotFoundError"),
        ("1 / 0", "ZeroDivisionError"),
        ("", "AttributeError"),
    ],
)
def test_a_package_that_cannot_be_imported_is_named_and_breaks_nothing_else(text, said, ship, capsys):
    ship("acorn", {"acorn_row.py": text}, {group: {"acorn": "acorn_row:ROW"} for group in TABLES})
    for group, table in TABLES.items():
        with pytest.raises(VocabForgeError) as raised:
            table["acorn"]
        assert raised.value.message == "the package acorn cannot be imported"
        assert str(raised.value.got).startswith(said)
        assert group in str(raised.value.expected)
        for _ in range(2):
            assert [*table.usable(), "acorn"] == list(table)
        assert capsys.readouterr().err.count("the package acorn cannot be imported") == 1


_PLUGIN = '''
from vocabforge.decode.proposers.ngram import build
from vocabforge.decode.tree import Verifier
from vocabforge.decode.verify.match import MATCH
from vocabforge.evaluate.benchmarks.types import BenchmarkRow
from vocabforge.models.lean.config import FamilyTraits

CHECKED = []

def walk(row):
    CHECKED.append(row)
    return MATCH.walk(row)

VERIFIER = Verifier(walk)
QUESTIONS = BenchmarkRow(("acorn.jsonl",), "spec-bench", (), 8, "Acorn's.")
FAMILY = FamilyTraits("acorn", qk_norm="head")
'''  # fmt: skip


def test_the_rows_of_a_package_are_used_by_name(ship: Ship, tmp_path: Path) -> None:
    """A proposer without a drafter and a verifier by ``generate``; a benchmark; a family by both of its names."""
    entries = {
        PROPOSERS.group: {"acorn-gram": "acorn_plugin:build"},
        VERIFIERS.group: {"acorn-walk": "acorn_plugin:VERIFIER"},
        BENCHMARKS.group: {"acorn-bench": "acorn_plugin:QUESTIONS"},
        FAMILIES.group: {"AcornForCausalLM": "acorn_plugin:FAMILY"},
    }
    ship("acorn", {"acorn_plugin.py": _PLUGIN}, entries)
    tiny_target(tmp_path / "t", vocab_size=261)
    byte_tokenizer(tmp_path / "t")
    words = ["generate", "--target", tmp_path / "t", "--device", "cpu", "--prompt", "a cat, a cat, a cat"]
    words += [
        "--max-new-tokens",
        "6",
        "--proposer",
        "acorn-gram",
        "--verifier",
        "acorn-walk",
        "--temperature",
        "1",
    ]
    ok(CliRunner().invoke(build_app({"generate": generate}, ["generate"]), [*map(str, words), "--json"]))
    assert sys.modules["acorn_plugin"].CHECKED
    question = {"question_id": 1, "category": "qa", "turns": ["Which tree?"]}
    (tmp_path / "acorn.jsonl").write_text(json.dumps(question) + "\n")
    loaded = load_benchmark("acorn-bench", data=tmp_path)
    assert (loaded.name, loaded.max_new_tokens) == ("acorn-bench", 8)
    assert loaded.questions[0].turns == ("Which tree?",)
    for config in ({"architectures": ["AcornForCausalLM"]}, {"model_type": "acorn"}):
        assert find_family(config)[1].qk_norm == "head"


def in_a_package(text: str, place: str) -> str:
    """A module of a guide as it stands in a package of one's own: with absolute imports."""
    folders = place.split("/")[:-1]

    def absolute(found: re.Match[str]) -> str:
        base = ".".join(folders[: len(folders) - len(found[1]) + 1])
        return f"from {base}.{found[2]} import" if found[2] else f"from {base} import"

    return re.sub(r"^from (\.+)([\w.]*) import", absolute, text, flags=re.M)


@pytest.mark.long
def test_a_head_and_a_drafter_in_a_package_keep_the_contracts(ship, folder, target, tmp_path, monkeypatch):
    """The guides' own code, installed as they say at their end."""
    heads, drafters = read_guide("add-a-draft-head"), read_guide("add-a-drafter")
    places = {"acorn_head.py": (heads, "vocabforge/models/heads/int8.py")}
    places["acorn_drafter.py"] = (drafters, "vocabforge/models/drafters/recurrent.py")
    files = {name: in_a_package(guide.files[place], place) for name, (guide, place) in places.items()}
    files["acorn_drafter.py"] += f"\nPROPOSERS = {drafters.rows['FITTING']['recurrent']}\n"
    entries = {
        HEADS.group: {"int8": "acorn_head:Int8Head"},
        DRAFTERS.group: {"recurrent": "acorn_drafter:RecurrentDrafter"},
        FITTING.group: {"recurrent": "acorn_drafter:PROPOSERS"},
    }
    ship("acorn", files, entries)
    contracts = [
        (fresh("tests.contracts.test_head_contracts", monkeypatch, "tests.models.head_cases"), "int8", 20),
        (fresh("tests.contracts.test_drafters", monkeypatch, "tests.decode.drafting"), "recurrent", 12),
    ]
    for contract, name, least in contracts:
        checks = list(checks_of(contract, name))
        assert len(checks) > least
        for number, check in enumerate(checks):
            run(check, folder=folder, target=target, tmp_path=tmp_path / f"{name}-{number}")
