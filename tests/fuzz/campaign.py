"""Spoil good examples by chance and print what every reader made of them.

Example: python -m tests.fuzz.campaign --inputs 20000 --seed 0
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import NamedTuple

from tests.fuzz.goods import copy_good, make_goods, replace, reseal
from tests.fuzz.readers import READERS, files_of
from tests.fuzz.spoil import spoil
from tests.fuzz.watch import Outcome, watched
from vocabforge.core.artifact import open_artifact
from vocabforge.core.console import say
from vocabforge.core.progress import ProgressBar

BATCH = 200
SEALED_SHARE = 0.8
VERDICTS = ("rejected", "accepted", "wrong")


class Input(NamedTuple):
    """A spoilt example: ``reader`` and ``number`` name it for good, under a seed.

    ``damaged``: its content is not what its manifest lists, so it must be rejected.
    """

    reader: str
    number: int
    change: str
    path: Path
    damaged: bool


def make_input(name: str, number: int, seed: int, goods: Path, place: Path) -> Input:
    """Make the input of that number in a folder of its own."""
    reader = READERS[name]
    draw = Random(f"{seed} {name} {number}")
    path = copy_good(goods / reader.good, place)
    file = draw.choice(files_of(reader, path))
    good = file.read_bytes()
    # README.md is not in a manifest: its reader may edit it.
    listed = reader.sealed and file.relative_to(path).as_posix() in open_artifact(path).manifest["files"]
    change, data = spoil(good, file.suffix, draw)
    replace(file, data)
    sealed = reader.sealed and draw.random() < SEALED_SHARE
    if sealed:
        reseal(path)
    damaged = listed and not sealed and data != good
    return Input(name, number, f"{change} of {file.name}", path, damaged)


def campaign(
    names: Sequence[str], inputs: int, seed: int, goods: Path, work: Path
) -> Iterator[tuple[Input, Outcome]]:
    """Spread inputs evenly over the readers, one reader after the other, and yield what became of each."""
    wanted = sorted((at % len(names), at // len(names)) for at in range(inputs))
    for start in range(0, inputs, BATCH):
        made = [
            make_input(names[at], number, seed, goods, work / f"{start + place}")
            for place, (at, number) in enumerate(wanted[start : start + BATCH])
        ]
        tasks = [(one.path.parent, partial(READERS[one.reader].read, one.path, goods)) for one in made]
        for spoilt, outcome in zip(made, watched(tasks), strict=True):
            if spoilt.damaged and outcome.verdict == "accepted":
                outcome = Outcome("wrong", "accepted, though the manifest lists other hashes")
            yield spoilt, outcome
            shutil.rmtree(spoilt.path.parent)


def main() -> int:
    """Run a campaign; returns 1 if something was wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--inputs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--reader", action="append", help="only these [default: all]", choices=list(READERS))
    given = parser.parse_args()
    names = given.reader or list(READERS)
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="vocabforge-fuzz-") as folder:
        goods = make_goods(Path(folder) / "good")
        with ProgressBar("fuzz", given.inputs, "inputs") as bar:
            for spoilt, outcome in campaign(names, given.inputs, given.seed, goods, Path(folder) / "work"):
                counts[outcome.verdict] += 1
                if outcome.verdict == "wrong":
                    text = f"{spoilt.reader}, number {spoilt.number}: {spoilt.change}\n{outcome.said}"
                    say(
                        text.encode("utf-8", "backslashreplace").decode()
                    )  # half a character stops a terminal
                bar.update(1)
    print(f"{len(names)} readers: " + ", ".join(f"{counts[name]:,} {name}" for name in VERDICTS))
    return int(counts["wrong"] > 0)


if __name__ == "__main__":
    sys.exit(main())
