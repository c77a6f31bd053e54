"""Holds a documented command against what would read it: the program's parser, its configuration, the Makefile."""

from __future__ import annotations

import functools
import importlib.util
import re
from collections.abc import Sequence
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
from vocabforge.core.config import StrictModel, apply_overrides, read_yaml
from vocabforge.core.errors import VocabForgeError
from vocabforge.core.registry import load_attribute

# Words that stand for something of the reader's where a number is wanted.
NUMBERS = {"R": "0", "N": "2", "K": "2", "D": "2", "PORT": "29500"}
# Names for "any of these" in the text.
GENERIC = {"COMMAND", "KIND"}
# Programs of others, whose options are theirs.
FOREIGN_MODULES = ("sglang", "vllm", "http", "pip", "venv")
_OVERRIDE = re.compile(r"^([a-z_][\w.-]*)=(.*)$", re.DOTALL)


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
    """Every variant of the command must be readable.

    Raises:
        Wrong: an unknown command, option, choice, key, make target, launcher's option, or a file that is missing.
    """
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
    """The words behind ``vocabforge`` must be readable; of a part (not ``whole``) only the options are looked at.

    Raises:
        Wrong: an unknown command, option, choice or key.
    """
    if not arguments or arguments[0].startswith("-"):
        name, rest = None, arguments
    else:
        name, *rest = arguments
    if name is None or name in GENERIC:
        found: Any = program()
    elif name not in program().commands:
        raise Wrong(f"there is no command {name!r}")
    else:
        found = program().commands[name]
    if whole:
        context = _parsed(found, name, rest)
        _check_overrides(str(name), context.params, rest)
    else:
        known = {opt for p in found.params for opt in (*p.opts, *p.secondary_opts)} | {"--help", "-h"}
        unknown = [word for word in rest if word.startswith("-") and word.split("=")[0] not in known]
        if unknown:
            raise Wrong(f"{name} has no option {', '.join(unknown)}")


def _parsed(command: Any, name: str | None, rest: list[str]) -> Any:
    try:
        return command.make_context(name, list(rest))
    except click.exceptions.Exit as error:  # --help, --version, --list-…
        raise Wrong("ends before it does anything; written as a whole command?") from error
    except Exception as error:  # typer's own copy of click has a class of errors of its own
        if not hasattr(error, "format_message"):
            raise
        raise Wrong(str(error.format_message())) from error


# --- key.sub=value


def overrides_of(arguments: Sequence[str]) -> list[str]:
    """Words like ``optim.steps=10`` that are no option's value."""
    found = []
    for before, word in zip(["", *arguments], arguments, strict=False):
        if _OVERRIDE.match(word) and not before.startswith("-"):
            found.append(word)
    return found


def _check_overrides(name: str, params: dict[str, Any], rest: Sequence[str]) -> None:
    given = params.get("overrides") or params.get("settings") or ()
    items = [word for word in given if "=" in word]
    stray = [word for word in overrides_of(rest) if _OVERRIDE.match(word) and word not in items]
    if stray and name in ("train-drafter", "train-router", "capture"):
        raise Wrong(f"not read as an override: {', '.join(stray)}")
    if items:
        model, base = _configuration(name, params)
        check_keys(model, base, items)


def _configuration(name: str, params: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The class that reads a command's overrides, and the values of its recipe where that is in this project."""
    from vocabforge.train.config import RouterTrainConfig, TrainConfig

    models = {"train-router": RouterTrainConfig, "train-drafter": TrainConfig, "capture": TrainConfig}
    recipe = params.get("config")
    values = read_yaml(ROOT / recipe) if recipe is not None and (ROOT / recipe).is_file() else {}
    return models.get(name, TrainConfig), values


def check_keys(model: Any, base: dict[str, Any], items: Sequence[str]) -> None:
    """Each override names a key of the configuration and has a value of its type.

    Raises:
        Wrong: it does not.
    """
    if not issubclass(model, StrictModel):
        raise TypeError(model)
    try:
        model.model_validate(apply_overrides(dict(base), items))
    except VocabForgeError as error:
        raise Wrong(error.render().split("\n")[0]) from error
    except ValidationError as error:
        keys = [item.partition("=")[0] for item in items]
        for problem in error.errors():
            where = ".".join(str(part) for part in problem["loc"])
            ours_it_is = any(where == key or where.startswith(key + ".") for key in keys)
            # A missing key is the reader's to give; what a whole section lacks, too.
            if ours_it_is and problem["type"] not in ("missing", "value_error"):
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


@functools.cache
def make_targets() -> frozenset[str]:
    return frozenset(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))


def _check_make(words: list[str]) -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for word in words:
        name, is_variable, _ = word.partition("=")
        if is_variable:
            if not re.search(rf"\$\({name}\)|^{name} *[?:]?=", makefile, re.MULTILINE):
                raise Wrong(f"the Makefile reads no {name}")
        elif word not in make_targets():
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
