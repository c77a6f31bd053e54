"""Reads the commands out of the documentation: shell blocks, indented ones, and those within a sentence."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.worlds import ROOT
from vocabforge.core.config import recipe_path

SHELL = ("bash", "sh", "shell", "console")
# First words of a line that make it a command in a block without a language, and in an indented one.
STARTS = ("vocabforge", "accelerate", "torchrun", "make", "python")
_FENCE = re.compile(r"^(\s*)(```+|~~~+)\s*(\S*)")
_ASSIGNMENT = re.compile(r"^[A-Z_][A-Z0-9_]*=")
_INLINE = re.compile(r"(?<!`)`((?:vocabforge|make) [^`]+)`(?!`)")
_RECIPE = re.compile(r"\$\(vocabforge recipes path ([\w./-]+)\)")
_VARIABLE = re.compile(r"\$(\w+|\{\w+\})")
_ALTERNATIVES = re.compile(r"[\w-]+(\|[\w-]+)+")


@dataclass(frozen=True)
class Command:
    """One command as it is printed.

    Attributes:
        file: below the project's folder.
        line: where it begins.
        words: after the shell's quoting; comments, redirections and assigned variables are gone.
        whole: False for one within a sentence, and for one with an ellipsis: required options may be missing.
    """

    file: str
    line: int
    words: tuple[str, ...]
    whole: bool = True

    @property
    def text(self) -> str:
        return " ".join(self.words)

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"

    def variants(self) -> list[Command]:
        """Without the parts in brackets, and with all of them, once for each of their alternatives."""
        fixed, optional = _parted(self.words)
        if not optional:
            return [self]
        most = max(word.count("|") + 1 for word in optional)
        full = [(*fixed, *(_alternative(word, number) for word in optional)) for number in range(most)]
        return [Command(self.file, self.line, words, self.whole) for words in (tuple(fixed), *full)]


@dataclass(frozen=True)
class Block:
    """A fenced or indented block: the line in front of its first one, the language, its lines."""

    line: int
    language: str
    lines: tuple[str, ...]


def documents() -> list[Path]:
    """README, CONTRIBUTING and everything in docs."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(text: str) -> Iterator[Block]:
    """Fenced blocks as they are; an indented line that begins like a command is a block with its continuations."""
    lines = text.split("\n")
    at = 0
    while at < len(lines):
        fence = _FENCE.match(lines[at])
        if fence:
            end = at + 1
            while end < len(lines) and not re.fullmatch(rf"\s*{fence[2]}\s*", lines[end]):
                end += 1
            body = tuple(line.removeprefix(fence[1]) for line in lines[at + 1 : end])
            yield Block(at + 1, fence[3], body)
            at = end + 1
        elif lines[at].startswith("    ") and lines[at].split()[:1] and lines[at].split()[0] in STARTS:
            end = at
            while lines[end].endswith("\\"):
                end += 1
            yield Block(at, "", tuple(line.strip() for line in lines[at : end + 1]))
            at = end + 1
        else:
            at += 1


def commands(path: Path, text: str | None = None) -> list[Command]:
    """All commands of a document in their order.

    Raises:
        ValueError: a line whose quotes do not close; the message says where.
    """
    file = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name
    text = path.read_text("utf-8") if text is None else text
    found = []
    for block in blocks(text):
        if block.language in ("", *SHELL):
            found += list(_block_commands(file, block))
    return sorted([*found, *_inline_commands(file, text)], key=lambda one: one.line)


def _block_commands(file: str, block: Block) -> Iterator[Command]:
    known: dict[str, str] = {}
    joined, start = "", 0
    for number, line in enumerate(block.lines, 1):
        start = start if joined else number
        joined += line.strip().removeprefix("$ ") if not joined else " " + line.strip()
        if joined.endswith("\\"):
            joined = joined[:-1].rstrip()
            continue
        whole_line, joined = joined, ""
        if block.language == "" and not _looks_like_command(whole_line):
            continue
        try:
            named = _RECIPE.sub(lambda found: _recipe_file(found[1]), whole_line)
            words = shlex.split(_filled(named, known), comments=True)
        except ValueError as error:
            raise ValueError(f"{file}:{block.line + start}: {error}: {whole_line}") from error
        for part in _parts(words, known):
            yield Command(file, block.line + start, part, "…" not in part)


def _inline_commands(file: str, text: str) -> Iterator[Command]:
    inside = False
    for number, line in enumerate(text.split("\n"), 1):
        if _FENCE.match(line):
            inside = not inside
        elif not inside:
            for match in _INLINE.finditer(line):
                words = shlex.split(match[1].replace("'", "'\\''") if match[1].count("'") % 2 else match[1])
                yield Command(file, number, tuple(words), whole=False)


def _recipe_file(name: str) -> str:
    """What the command prints, from the project's folder."""
    return recipe_path(Path(name)).relative_to(ROOT).as_posix()


def _looks_like_command(line: str) -> bool:
    words = line.split()
    while words and _ASSIGNMENT.match(words[0]):
        if words[0].endswith(";"):
            return True
        words = words[1:]
    return words[0] in STARTS if words else bool(line)


def _filled(line: str, known: dict[str, str]) -> str:
    """Variables that the block has set take their values, inside of words and between them."""

    def value(match: re.Match[str]) -> str:
        return known.get(match[1].strip("{}"), match[0])

    if known:
        return _VARIABLE.sub(value, line)
    # The assignments of this very line are known to what stands behind them.
    return line


def _parts(words: Sequence[str], known: dict[str, str]) -> Iterator[tuple[str, ...]]:
    """The commands of a line, parted by ``;`` and ``&&``; assignments are remembered and not given out."""
    part: list[str] = []
    for word in [*words, ";"]:
        ends = word.endswith(";") or word == "&&"
        if not ends or word.strip("&;"):
            part.append(word.rstrip(";"))
        if not ends:
            continue
        part = _without_redirection(part)
        while part and _ASSIGNMENT.match(part[0]):
            name, _, value = part.pop(0).partition("=")
            if not part:
                known[name] = _VARIABLE.sub(lambda m: known.get(m[1].strip("{}"), m[0]), value)
        if part:
            yield tuple(part)
        part = []


def _without_redirection(words: list[str]) -> list[str]:
    kept: list[str] = []
    skip = False
    for word in words:
        if word in ("|", "&"):
            break
        if word in (">", ">>", "2>", "<"):
            skip = True
        elif skip:
            skip = False
        else:
            kept.append(word)
    return kept


def _parted(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Words outside of brackets and words inside; ``data.train=[a]`` is neither."""
    fixed: list[str] = []
    optional: list[str] = []
    inside = False
    for word in words:
        inside = inside or word.startswith("[-")
        if inside:
            closes = word.endswith("]") and word.count("]") > word.lstrip("[").count("[")
            optional.append(word.removeprefix("[").removesuffix("]") if closes else word.removeprefix("["))
            inside = not closes
        else:
            fixed.append(word)
    return fixed, optional


def _alternative(word: str, number: int) -> str:
    if not _ALTERNATIVES.fullmatch(word):
        return word
    choices = word.split("|")
    return choices[min(number, len(choices) - 1)]
