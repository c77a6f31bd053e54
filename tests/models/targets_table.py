"""The table of ``docs/guides/targets.md``: the doctor's findings for a tiny model of every architecture.

Example: python -m tests.models.targets_table docs/guides/targets.md
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from tests.models.architectures import ARCHITECTURES, make_architecture
from tests.worlds import ROWS, byte_tokenizer
from vocabforge.doctor.abilities import GROUP, check_abilities
from vocabforge.doctor.checks import CheckRow, Report
from vocabforge.doctor.target import check_target

START, END = "<!-- made by `make targets` -->", "<!-- end -->"
_HEADER = (
    "target",
    "`model_type`",
    "trains",
    "decodes",
    "drafts",
    "evaluates",
    "vLLM runs its EAGLE-3 drafter",
)


def table(folder: Path) -> str:
    """The table in Markdown; the models are made in ``folder``."""
    lines = [_line(_HEADER), _line(["---"] * len(_HEADER))]
    lines += [row(name, folder) for name in ARCHITECTURES]
    return "\n".join([START, *lines, END])


def replaced(text: str, made: str, start: str = START, end: str = END) -> str:
    """A document with another table."""
    before, rest = text.split(start)
    return before + made + rest.split(end, 1)[1]


def _cells(name: str, folder: Path) -> list[str]:
    ends = {"bos_token_id": 256, "eos_token_id": 257, "pad_token_id": 256}
    model = make_architecture(name, vocab_size=ROWS, **ends)
    model.save_pretrained(folder)
    byte_tokenizer(folder)
    report = Report()
    check_abilities(report, check_target(report, folder))
    found = {row.check: row for row in report.rows if row.group == GROUP}
    decodes = found["decodes"].found.removeprefix("by ").partition("; drafts ")
    return [
        name,
        f"`{model.config.model_type}`",
        _yes(found["trains"]),
        decodes[0],
        decodes[2].partition(":")[0],
        _yes(found["evaluates"]),
        "yes" if found["exports to"].state == "ok" else "not in its list",
    ]


def _yes(row: CheckRow) -> str:
    return "yes" if row.state == "ok" else f"no: {row.found}"


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def row(name: str, folder: Path) -> str:
    """The row of an architecture."""
    return _line(_cells(name, folder / name.replace(" ", "-")))


if __name__ == "__main__":
    document = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        document.write_text(replaced(document.read_text("utf-8"), table(Path(folder))), "utf-8")
    print(f"{document}: {len(ARCHITECTURES)} targets")
