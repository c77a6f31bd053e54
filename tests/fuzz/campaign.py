"""Spoils good examples by chance and says what every reader made of it.

Example: python -m tests.fuzz.campaign --inputs 20000 --seed 0 --json fuzz.json
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz.goods import copy_good, make_goods, replace, reseal
from tests.fuzz.mutate import spoil
from tests.fuzz.readers import READERS, Reader, files_of, form_of
from tests.fuzz.watch import Outcome, watched
from vocabforge.core.files import atomic_write_json
from vocabforge.core.progress import ProgressBar

BATCH = 200
SEALED_SHARE = 0.8


@dataclass(frozen=True)
class Input:
    """A spoilt example: ``reader`` and ``number`` name it for good, under a seed."""

    reader: str
    number: int
    change: str
    path: Path


def make_input(name: str, number: int, seed: int, goods: Path, place: Path) -> Input:
    """The input of that number in a folder of its own."""
    reader: Reader = READERS[name]
    draw = Random(f"{seed} {name} {number}")
    path = copy_good(goods / reader.good, place)
    file = draw.choice(files_of(reader, path))
    change, data = spoil(file.read_bytes(), form_of(file), draw)
    replace(file, data)
    if reader.sealed and draw.random() < SEALED_SHARE:
        reseal(path)
    return Input(name, number, f"{change} of {file.name}", path)


def campaign(
    names: Sequence[str], inputs: int, seed: int, goods: Path, work: Path
) -> Iterator[tuple[Input, Outcome]]:
    """Inputs spread evenly over the readers, with what became of each."""
    wanted = [(names[at % len(names)], at // len(names)) for at in range(inputs)]
    wanted.sort(
        key=lambda one: names.index(one[0])
    )  # one reader after the other: its modules are imported once
    for start in range(0, inputs, BATCH):
        made = []
        for at, (name, number) in enumerate(wanted[start : start + BATCH]):
            made.append(make_input(name, number, seed, goods, work / f"{start + at}"))
        tasks = [(one.path.parent, _task(one, goods)) for one in made]
        yield from zip(made, watched(tasks), strict=True)
        for one in made:
            shutil.rmtree(one.path.parent)


def _task(one: Input, goods: Path) -> Any:
    return lambda: READERS[one.reader].read(one.path, goods)


def main(words: Sequence[str]) -> int:
    """Run a campaign; returns 1 where something was wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--inputs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--reader", action="append", help="only these [default: all]", choices=list(READERS))
    parser.add_argument("--json", type=Path, help="write figures and what was wrong here")
    given = parser.parse_args(words)
    names = given.reader or list(READERS)
    counts: dict[str, Counter[str]] = {name: Counter() for name in names}
    wrong: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="vocabforge-fuzz-") as folder:
        goods = make_goods(Path(folder) / "good")
        run = campaign(names, given.inputs, given.seed, goods, Path(folder) / "work")
        with ProgressBar("fuzz", given.inputs, "inputs") as bar:
            for one, outcome in run:
                counts[one.reader][outcome.verdict] += 1
                if outcome.verdict == "wrong":
                    wrong.append(
                        {**vars(one), "path": str(one.path), "said": outcome.said, "left": outcome.left}
                    )
                bar.update(1)
    print(table(counts))
    for one_wrong in wrong[:20]:
        told = f"\n{one_wrong['reader']}, number {one_wrong['number']}: {one_wrong['change']}\n{one_wrong['said']}"
        print(told.encode("utf-8", "backslashreplace").decode())  # a half character cannot be printed
    if given.json:
        atomic_write_json(
            given.json, {"inputs": given.inputs, "seed": given.seed, "counts": counts, "wrong": wrong}
        )
    return 1 if wrong else 0


def table(counts: dict[str, Counter[str]]) -> str:
    """Reader, inputs, and what became of them."""
    verdicts = ("rejected", "accepted", "wrong")
    lines = [f"{'reader':36}{'inputs':>8}{'rejected':>10}{'accepted':>10}{'wrong':>7}"]
    rows = [*counts.items(), ("all", sum(counts.values(), Counter()))]
    for name, found in rows:
        cells = "".join(f"{found[verdict]:>{width}}" for verdict, width in zip(verdicts, (10, 10, 7)))
        lines.append(f"{name:36}{sum(found.values()):>8}{cells}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
