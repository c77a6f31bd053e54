"""Which documented command is executed, planned or only parsed, and with which words."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tests.docs.doc_commands import Command, commands, documents
from tests.docs.doc_parse import ours
from tests.docs.doc_tables import KEPT, PROGRAMS, SMALLER, WORDS, Kept
from vocabforge.cli import COMMANDS

# Executed as it is printed, by a test of its own.
TUTORIAL = "docs/tutorial.md"


def kept_by(command: Command) -> Kept | None:
    """The excuse of a command that is not executed."""
    for one in KEPT:
        if command.file == one.file and command.text.startswith(one.begins):
            return one
    return None


def category(command: Command) -> str:
    """``tutorial``, ``executed``, ``planned``, or ``parsed`` only."""
    if command.words[0] in PROGRAMS and ours(command.words) is None:
        return "parsed"
    if not command.whole and "…" not in command.words:
        return "parsed"  # within a sentence
    kept = kept_by(command)
    if kept is not None:
        return "planned" if kept.plan else "parsed"
    if "…" in command.words and "--output" not in command.words:
        return "parsed"
    return "tutorial" if command.file == TUTORIAL else "executed"


def of_category(name: str) -> list[Command]:
    return [one for path in documents() for one in commands(path) if category(one) == name]


def executed() -> dict[str, list[Command]]:
    """Commands to execute by document, in their order."""
    found: dict[str, list[Command]] = {}
    for command in of_category("executed"):
        found.setdefault(command.file, []).append(command)
    return found


def planned() -> list[Command]:
    return of_category("planned")


def longest(command: Command) -> Command:
    """With all its optional parts, the first of their choices each; ``--plan`` would leave nothing for the next one."""
    found = command.variants()[:2][-1]
    return dataclasses.replace(found, words=tuple(word for word in found.words if word != "--plan"))


def arguments_of(command: Command, before: Sequence[Command]) -> list[str]:
    """The words behind ``vocabforge``: an ellipsis filled, sizes replaced, the smaller ones of ``SMALLER`` added."""
    words = ours(command.words) or []
    if "…" in words:
        words = _continued(words, [one for one in before if "…" not in one.words])
    words = [WORDS.get(word, word) for word in words]
    assert words[0] in COMMANDS, words
    return [*words, *SMALLER.get(words[0], ())]


def _continued(words: list[str], before: Sequence[Command]) -> list[str]:
    """``tune … --batch 8``: the words of the last whole command of this name, what is given again left out."""
    earlier = next(found for one in reversed(before) if (found := ours(one.words) or [])[:1] == words[:1])
    given = {word for word in words if word.startswith("--")}
    kept = []
    skip = False
    for word in earlier[1:]:
        if word.startswith("--"):
            skip = word in given
        if not skip:
            kept.append(word)
    return [words[0], *kept, *(word for word in words[1:] if word != "…")]
