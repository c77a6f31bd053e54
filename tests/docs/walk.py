"""Time and peak memory of the documented commands, as a table: ``python -m tests.docs.walk PAGE.md``.

Each command runs in a process of its own. The tutorial's run as printed; those of the other pages run over the tiny
world of ``test_doc_guides``, so their figures show what a command costs at the least: start-up and libraries.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import NamedTuple

from tests.corpus.chat_server import FakeServer
from tests.docs.doc_commands import Command
from tests.docs.doc_parse import ours
from tests.docs.doc_plan import TUTORIAL, arguments_of, executed, longest, of_category
from tests.docs.doc_world import World, provide
from tests.worlds import ROOT

SHOWN = 60  # characters of a command


class Taken(NamedTuple):
    """What a command took, and how it ended."""

    command: Command
    seconds: float
    megabytes: float
    code: int

    def line(self) -> str:
        text = self.command.text.removeprefix("vocabforge ")
        text = text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"
        ended = "" if self.code == 0 else f"exit code {self.code}"
        return f"| `{text}` | {self.seconds:.1f} | {self.megabytes:,.0f} | {ended} |"


# A process between: what Linux reports as a process's peak is at least its parent's when it was started.
_BETWEEN = """
import os, resource, subprocess, sys, time
began = time.monotonic()
with open("output.txt", "ab") as output:
    code = subprocess.call([sys.executable, "-m", "vocabforge", *sys.argv[1:]], stdout=output, stderr=output)
print(time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / 1e6, code)
"""


def measure(words: list[str], folder: Path) -> tuple[float, float, int]:
    """Wall seconds, peak resident MB and exit code of a command, whose output goes to ``folder/output.txt``."""
    done = subprocess.run(
        [sys.executable, "-c", _BETWEEN, *words], cwd=folder, stdout=subprocess.PIPE, text=True, check=True
    )
    seconds, megabytes, code = done.stdout.split()
    return float(seconds), float(megabytes), int(code)


def documents() -> Iterator[tuple[str, list[Command]]]:
    yield TUTORIAL, of_category("tutorial")
    yield from executed().items()


def walk(world: World) -> Iterator[tuple[str, list[Taken]]]:
    with FakeServer() as one, FakeServer() as two:
        servers = {"{server}": one.url, "{second_server}": two.url}
        for document, found in documents():
            taken: list[Taken] = []
            with tempfile.TemporaryDirectory() as folder:
                os.environ.update(VOCABFORGE_DATA=str(world.benchmarks), XDG_CACHE_HOME=f"{folder}/cache")
                os.chdir(folder)
                for at, command in enumerate(found):
                    words = ours(command.words) or []
                    if document != TUTORIAL:
                        words = arguments_of(longest(command), found[:at])
                        words = [servers.get(word, word) for word in words]
                        provide(world, document, words, Path(folder))
                    taken.append(Taken(command, *measure(words, Path(folder))))
                    print(taken[-1].line(), flush=True)
                os.chdir(ROOT)
            yield document, taken


def page(found: list[tuple[str, list[Taken]]]) -> str:
    every = [one for _, taken in found for one in taken]
    lines = [
        "# Time and memory of the documented commands",
        "",
        f"Command: `python -m tests.docs.walk PAGE.md`. Date: {date.today()}. Machine:",
        f"{os.cpu_count()} cores ({platform.machine()}), Python {platform.python_version()}, "
        f"OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS', 'unset')}.",
        "",
        "Wall time of the whole process and its peak resident memory. The tutorial runs as printed. The",
        "other pages run over tiny models and texts: the least that a command costs, start-up and libraries.",
        "`kernels build` finds everything built.",
        "",
        f"{len(every)} commands, {sum(one.seconds for one in every):,.0f} s, at most "
        f"{max(one.megabytes for one in every):,.0f} MB.",
    ]
    for document, taken in found:
        lines += ["", f"## {document}", "", "| `vocabforge` … | s | MB | |", "|---|---:|---:|---|"]
        lines += [one.line() for one in taken]
    return "\n".join([*lines, ""])


def main() -> None:
    output = Path(sys.argv[1]).absolute()
    os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
    with tempfile.TemporaryDirectory() as folder:
        output.write_text(page(list(walk(World(Path(folder))))), "utf-8")


if __name__ == "__main__":
    main()
