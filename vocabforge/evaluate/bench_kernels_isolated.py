"""A part of the benchmark in a process of its own: a kernel that crashes takes its figure along, not the others.

``python -m vocabforge.evaluate.bench_kernels_isolated PART JOURNAL OPTIONS`` is that process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from .bench_kernels_parts import Journal, Options, read_journal, run_part

_MOST_STARTS = 8
_GRACE = 15.0  # seconds beyond the budget, for the figure that was begun in time
_TAIL = 600  # characters of a dead process's last words

Command = Callable[[str, Path, Path], Sequence[str]]


def this_python(part: str, journal: Path, options: Path) -> Sequence[str]:
    """The command of a part's process."""
    return [sys.executable, "-m", __name__, part, str(journal), str(options)]


def run_isolated(part: str, options: Options, folder: Path, command: Command = this_python) -> Journal:
    """Measure one part in processes of its own; one that dies is followed by another for the rest.

    Args:
        part: row of ``PARTS``.
        options: ``budget`` is for all its processes together.
        folder: gets the journal and what the processes said.
        command: of a process; it adds to the journal and skips what stands there.

    Returns:
        its figures, and those that stay open with the reason.
    """
    folder.mkdir(parents=True, exist_ok=True)
    journal, settings, log = (folder / f"{part}.{end}" for end in ("jsonl", "json", "log"))
    journal.unlink(missing_ok=True)
    journal.touch()
    end = time.monotonic() + options.budget
    for _ in range(_MOST_STARTS):
        left = end - time.monotonic()
        if left <= 0:
            break
        settings.write_text(json.dumps({**options.to_dict(), "budget": left, "began": time.time()}))
        why = _one(command(part, journal, settings), log, left + _GRACE)
        found, at = read_journal(journal)
        if why is None:
            return found
        name = at or f"{part}: start"
        _add(journal, {"name": name, "open": why})
        if at is None:  # it will not get further the next time
            break
    return read_journal(journal)[0]


def _one(command: Sequence[str], log: Path, seconds: float) -> str | None:
    """Run one process; why it ended before it was done, or None."""
    with log.open("a", encoding="utf-8") as output:
        begun = output.tell()
        try:
            done = subprocess.run(
                command, stdout=output, stderr=subprocess.STDOUT, timeout=seconds, env=_environment()
            )
        except subprocess.TimeoutExpired:
            return f"not done after {seconds:.0f} s"
    if done.returncode == 0:
        return None
    said = log.read_bytes()[begun:].decode("utf-8", "replace").strip()
    return f"the process ended with {done.returncode}: {said[-_TAIL:]}"


def _environment() -> dict[str, str]:
    """This process's, with the package where it was found."""
    root = str(Path(__file__).resolve().parents[2])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def _add(journal: Path, line: dict[str, str]) -> None:
    with journal.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def main(arguments: Sequence[str]) -> None:
    """Measure a part in this process: ``PART JOURNAL OPTIONS``."""
    part, journal, settings = arguments
    values = json.loads(Path(settings).read_text())
    passed = time.time() - values.pop("began")  # importing torch took its time
    options = Options.from_dict(values)
    before, _ = read_journal(Path(journal))
    known = frozenset({*before.rows, *before.open})
    run_part(part, options, Journal(Path(journal), known, time.monotonic() + options.budget - passed))


if __name__ == "__main__":
    main(sys.argv[1:])
