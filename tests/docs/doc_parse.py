"""Holds a documented command against what would read it: the program's parser, its configuration, the Makefile."""

from __future__ import annotations

import functools
import importlib.util
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import typer
import yaml
from pydantic import ValidationError

from tests.docs.doc_commands import Command, blocks
from tests.worlds import ROOT
from vocabforge.cli import COMMANDS
from vocabforge.cli.app import build_app
from vocabforge.core.config import apply_overrides, read_yaml
from vocabforge.core.errors import VocabForgeError
from vocabforge.core.registry import load_attribute

# Words that stand for something of the reader's where a number is wanted.
NUMBERS = {"R": "0", "N": "2", "K": "2", "D": "2", "PORT": "29500"}
# Names for "any of these" in the text.
GENERIC = {"COMMAND", "KIND"}
# Programs of others, whose options are theirs.
FOREIGN_MODULES = ("sglang", "vllm", "http", "pip", "venv")
_OVERRIDE = re.compile(r"^[a-z_][\w.-]*=")


class Wrong(Exception):
    """What is wrong with a documented command, in one line."""


@functools.cache
def program() -> Any:
    """The whole command line, as the program builds it."""
    app = build_app({name: load_attribute(COMMANDS[name]) for name in COMMANDS}, list(COMMANDS))
    return typer.main.get_command(app)


def ours(words: Sequence[str]) -> list[str] | None:
    """The words behind ``vocabforge``, also behind a launcher; None for another program's."""
    if words[0] == "vocabforge":
        return list(words[1:])
    for at in range(len(words) - 1):
        if words[at] == "-m" and words[at + 1] == "vocabforge":
            return list(words[at + 2 :])
    return None


def check(command: Command) -> None:
    """Every variant of the command must be readable."""
    for one in command.variants():
        words = [NUMBERS.get(word, word) for word in one.words if word != "…"]
        if words[0] == "make":
            _check_make(words[1:])
        elif words[0] in ("python", "python3") and ours(words) is None:
            _check_python(words[1:], command.file)
        else:
            _check_launcher(words)
            arguments = ours(words)
            if arguments is None:
                raise Wrong("no command of VocabForge behind the launcher")
            check_ours(arguments, whole=one.whole)


def check_ours(arguments: list[str], *, whole: bool = True) -> None:
    """The words behind ``vocabforge`` must be readable; of a part (not ``whole``) only the options are looked at."""
    name, *rest = arguments if arguments and arguments[0][:1] != "-" else ("", *arguments)
    if name and name not in GENERIC and name not in program().commands:
        raise Wrong(f"there is no command {name!r}")
    command = program().commands.get(name, program())
    if whole:
        _check_overrides(name, _parsed(command, name, rest).params, rest)
        return
    known = {opt for p in command.params for opt in (*p.opts, *p.secondary_opts)} | {"--help", "-h"}
    if unknown := [word for word in rest if word.startswith("-") and word.split("=")[0] not in known]:
        raise Wrong(f"{name} has no option {', '.join(unknown)}")


def _parsed(command: Any, name: str, rest: list[str]) -> Any:
    try:
        return command.make_context(name, list(rest))
    except click.exceptions.Exit as error:  # --help, --version, --list-…
        raise Wrong("ends before it does anything; written as a whole command?") from error
    except Exception as error:  # typer's own copy of click has a class of errors of its own
        if not hasattr(error, "format_message"):
            raise
        raise Wrong(str(error.format_message())) from error


def _check_overrides(name: str, params: dict[str, Any], rest: Sequence[str]) -> None:
    """Each ``key.sub=value`` names a key of the command's configuration and has a value of its type."""
    from vocabforge.train.config import TrainConfig

    if name not in ("train-drafter", "capture"):
        return
    items = [word for word in params.get("overrides") or () if "=" in word]
    written = [word for before, word in pairwise(["", *rest]) if _OVERRIDE.match(word) and before[:1] != "-"]
    if stray := [word for word in written if word not in items]:
        raise Wrong(f"not read as an override: {', '.join(stray)}")
    if not items:
        return
    recipe = params.get("config")
    values = read_yaml(ROOT / recipe) if recipe is not None and (ROOT / recipe).is_file() else {}
    try:
        TrainConfig.model_validate(apply_overrides(values, items))
    except VocabForgeError as error:
        raise Wrong(error.render().split("\n")[0]) from error
    except ValidationError as error:
        keys = [item.partition("=")[0] for item in items]
        for problem in error.errors():
            where = ".".join(str(part) for part in problem["loc"])
            given = any(where == key or where.startswith(key + ".") for key in keys)
            # A missing key is the reader's to give; what a whole section lacks, too.
            if given and problem["type"] not in ("missing", "value_error"):
                raise Wrong(f"{where}: {problem['msg']}") from error


# --- other programs


def _check_launcher(words: list[str]) -> None:
    if words[:2] == ["accelerate", "launch"]:
        from accelerate.commands.launch import launch_command_parser

        parsed = _quietly(launch_command_parser(), words[2:])
        file = parsed.config_file
        if file is not None:
            if not (ROOT / file).is_file():
                raise Wrong(f"there is no {file}")
            yaml.safe_load((ROOT / file).read_text("utf-8"))
    elif words[0] == "torchrun":
        from torch.distributed.run import get_args_parser

        _quietly(get_args_parser(), words[1:])
    elif words[0] == "accelerate":
        raise Wrong(f"only `accelerate launch` is known here, not `accelerate {words[1]}`")


def _quietly(parser: Any, words: list[str]) -> Any:
    def complain(message: str) -> None:
        raise Wrong(f"the launcher says: {message}")

    parser.error = complain
    return parser.parse_args(words)


def _check_make(words: list[str]) -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for word in words:
        name, is_variable, _ = word.partition("=")
        if is_variable:
            if not re.search(rf"\$\({name}\)|^{name} *[?:]?=", makefile, re.MULTILINE):
                raise Wrong(f"the Makefile reads no {name}")
        elif not re.search(rf"^{re.escape(word)}:", makefile, re.MULTILINE):
            raise Wrong(f"the Makefile has no target {word!r}")


def _check_python(words: list[str], document: str) -> None:
    """``python FILE``, ``python -m pytest FILE``: the files are there, or in the document: ``# FILE`` heads a block."""
    if words[:1] == ["-m"]:
        if words[1].split(".")[0] not in FOREIGN_MODULES and importlib.util.find_spec(words[1]) is None:
            raise Wrong(f"there is no module {words[1]}")
        files = [word.partition("::")[0] for word in words[2:] if word.startswith("tests/")]
    else:
        files = words[:1]
    for file in files:
        if not (ROOT / Path(file)).exists() and file not in _files_of(document):
            raise Wrong(f"there is no {file}")


def _files_of(document: str) -> set[str]:
    path = ROOT / document
    text = path.read_text("utf-8") if path.is_file() else ""
    heads = [block.lines[0] for block in blocks(text) if block.language == "python" and block.lines]
    return {head.removeprefix("# ") for head in heads if head.startswith("# ")}
