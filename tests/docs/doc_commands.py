"""Reads the commands out of the documentation: shell blocks, indented ones, and those within a sentence."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import dropwhile, groupby, pairwise, takewhile
from pathlib import Path

from tests.worlds import ROOT
from vocabforge.core.config import recipe_path

SHELL = ("bash", "sh", "shell", "console")
# First words of a line that make it a command in a block without a language, and in an indented one.
STARTS = ("vocabforge", "accelerate", "torchrun", "make", "python")
_FENCE = re.compile(r"^(\s*)(```+|~~~+)\s*(\S*)")
_ASSIGNMENT = re.compile(r"[A-Z_][A-Z0-9_]*=")
_BEGINS = re.compile(rf"({_ASSIGNMENT.pattern}\S* )*({'|'.join(STARTS)})(\s|$)")
_INLINE = re.compile(r"(?<!`)`((?:vocabforge|make) [^`]+)`(?!`)")
_RECIPE = re.compile(r"\$\(vocabforge recipes path ([\w./-]+)\)")
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
        return [replace(self, words=words) for words in (tuple(fixed), *full)]


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
        end = at + 1
        if fence:
            while end < len(lines) and not re.fullmatch(rf"\s*{fence[2]}\s*", lines[end]):
                end += 1
            yield Block(at + 1, fence[3], tuple(line.removeprefix(fence[1]) for line in lines[at + 1 : end]))
            end += 1
        elif lines[at].startswith("    ") and lines[at].split()[:1] and lines[at].split()[0] in STARTS:
            while lines[end - 1].endswith("\\"):
                end += 1
            yield Block(at, "", tuple(line.strip() for line in lines[at:end]))
        at = end


def commands(path: Path, text: str | None = None) -> list[Command]:
    """All commands of a document in their order."""
    file = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name
    text = path.read_text("utf-8") if text is None else text
    shell = [block for block in blocks(text) if block.language in ("", *SHELL)]
    found = [command for block in shell for command in _of_block(file, block)]
    return sorted([*found, *_in_sentences(file, text)], key=lambda command: command.line)


def _of_block(file: str, block: Block) -> Iterator[Command]:
    lines = iter(enumerate(block.lines, block.line + 1))
    for number, line in lines:
        while line.endswith("\\"):
            line = f"{line[:-1].rstrip()} {next(lines)[1].strip()}"
        line = line.strip().removeprefix("$ ")
        if not block.language and not _BEGINS.match(line):
            continue
        try:
            words = shlex.split(_RECIPE.sub(_recipe_file, line), comments=True)
        except ValueError as error:
            raise ValueError(f"{file}:{number}: {error}: {line}") from error
        for part in _parts(words):
            yield Command(file, number, part, "…" not in part)


def _in_sentences(file: str, text: str) -> Iterator[Command]:
    inside = False
    for number, line in enumerate(text.split("\n"), 1):
        if _FENCE.match(line):
            inside = not inside
        elif not inside:
            for match in _INLINE.finditer(line):
                words = shlex.split(match[1].replace("'", "'\\''") if match[1].count("'") % 2 else match[1])
                yield Command(file, number, tuple(words), whole=False)


def _recipe_file(match: re.Match[str]) -> str:
    """What ``vocabforge recipes path`` prints, from the project's folder."""
    return recipe_path(Path(match[1])).relative_to(ROOT).as_posix()


def _parts(words: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """The commands of a line, parted by ``;`` and ``&&``, without assignments, pipes and redirections."""
    pieces = [piece for word in words for piece in ((word[:-1], ";") if word.endswith(";") else (word,))]
    for ends, group in groupby(pieces, lambda word: word in (";", "&&")):
        if not ends:
            first = takewhile(lambda word: word not in ("|", "&"), group)
            kept = (
                word
                for pair in pairwise(["", *first])
                if not {*pair} & {">", ">>", "2>", "<"}
                for word in pair[1:]
            )
            if part := tuple(dropwhile(_ASSIGNMENT.match, kept)):
                yield part


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
