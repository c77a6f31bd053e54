"""Every command in README, CONTRIBUTING and docs is one that the program (or make) understands."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.docs.doc_commands import Command, commands, documents
from tests.docs.doc_parse import Wrong, check, check_ours, program
from tests.docs.doc_tables import HUB_NAMES, READ_NAMES
from tests.worlds import ROOT, cached_model


@pytest.fixture(autouse=True)
def _cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The models that the documents name are in the cache of the Hub."""
    for name in (*HUB_NAMES, *READ_NAMES):
        cached_model(monkeypatch, tmp_path, name, {})


NAMES = [path.relative_to(ROOT).as_posix() for path in documents()]


def problems(found: list[Command]) -> list[str]:
    lines = []
    for command in found:
        try:
            check(command)
        except Wrong as error:
            lines.append(f"{command.place}: {command.text}\n    {error}")
    return lines


@pytest.mark.parametrize("name", NAMES)
def test_every_command_is_understood(name: str) -> None:
    wrong = problems(commands(ROOT / name))
    assert not wrong, "\n" + "\n".join(wrong)


def test_the_examples_of_the_help_pages_are_understood() -> None:
    wrong = []
    for name, command in program().commands.items():
        text = re.sub(r"`[^`]*`", lambda match: " ".join(match[0].split()), command.help or "")
        wrong += problems(commands(Path(f"vocabforge {name} --help"), text))
    assert not wrong, "\n" + "\n".join(wrong)


def test_the_first_lines_of_the_recipes_are_understood() -> None:
    wrong = []
    for path in sorted((ROOT / "recipes").rglob("*.yaml")):
        lines = [
            line.removeprefix("#") for line in path.read_text("utf-8").split("\n") if line.startswith("#")
        ]
        text = "\n".join(re.sub(r"^ (accelerate|vocabforge) ", r"    \1 ", line) for line in lines)
        wrong += problems(commands(path, text))
    assert not wrong, "\n" + "\n".join(wrong)


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
@pytest.mark.parametrize(
    "words", [("smollm2", "smollm2-study", "smollm2-bench"), ("gemma3",), ("demo",)], ids=" ".join
)
def test_what_make_would_run_is_understood(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Targets that take hours: no other test runs them."""
    monkeypatch.chdir(ROOT)
    done = subprocess.run(["make", "-n", *words], capture_output=True, text=True, check=True)
    wrong = []
    for line in done.stdout.replace("\\\n", " ").splitlines():
        found = shlex.split(line.split(" > ")[0])
        if found and found[0].endswith("bin/vocabforge"):
            try:
                check_ours(found[1:])
            except Wrong as error:
                wrong.append(f"{line}\n    {error}")
    assert "bin/vocabforge" in done.stdout
    assert not wrong, "\n" + "\n".join(wrong)
