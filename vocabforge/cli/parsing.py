"""What typer does not say itself: the command that was meant, settings given as options, help on narrow terminals."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import Any, Literal

import typer.core

from ..core.errors import closest

SETTING = "KEY.SUB=VALUE"  # metavar of the arguments that override a recipe's keys
_PANELS = 100  # columns below which rich's table of options cuts the names of options


def help_style() -> Literal["markdown", None]:
    """How one command's help and errors are set: panels, or plain lines that show every option's whole name."""
    return "markdown" if shutil.get_terminal_size().columns >= _PANELS else None


class Commands(typer.core.TyperGroup):
    """The program: a part of a command's name (``train``), or one misspelt, is answered with what may be meant."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        word, names = args[0], self.list_commands(ctx)
        close = closest(word, names)
        meant = [name for name in names if word in name.split("-")] or ([close] if close else [])
        if meant and self.get_command(ctx, word) is None:
            ctx.fail(f"No such command '{word}'. Did you mean {' or '.join(meant)}?")
        return super().resolve_command(ctx, args)


class Command(typer.core.TyperCommand):
    """One command: settings of a recipe that are written as options are answered with how they are written."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if any(getattr(one, "metavar", None) == SETTING for one in self.params):
            known = [name for one in self.params for name in (*one.opts, *one.secondary_opts)]
            self._refuse_settings_as_options(ctx, args, ["-h", "--help", *known])
        return super().parse_args(ctx, args)

    def _refuse_settings_as_options(self, ctx: Any, args: Sequence[str], known: list[str]) -> None:
        for word in args:
            name = word.partition("=")[0]
            if name == "--":
                return
            if name.startswith("--") and name not in known and closest(name, known) is None:
                key = name.removeprefix("--").replace("-", "_")
                ctx.fail(f"No such option: {name}. Settings of the recipe stand without dashes: {key}=VALUE")
