"""Extra hints on top of typer: similar commands, settings written as options, help on narrow terminals."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import Any, Literal

import typer.core

from ..core.errors import closest

SETTING = "KEY.SUB=VALUE"  # metavar of arguments that override recipe keys
_PANELS = 100  # minimum columns for rich's option tables, which would truncate option names


def help_style() -> Literal["markdown", None]:
    """Return the help and error style: panels, or plain lines if panels would truncate option names."""
    return "markdown" if shutil.get_terminal_size().columns >= _PANELS else None


class Commands(typer.core.TyperGroup):
    """The program; for a partial (``train``) or misspelt command it suggests similar commands."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        word, names = args[0], self.list_commands(ctx)
        close = closest(word, names)
        meant = [name for name in names if word in name.split("-")] or ([close] if close else [])
        if meant and self.get_command(ctx, word) is None:
            ctx.fail(f"No such command '{word}'. Did you mean {' or '.join(meant)}?")
        return super().resolve_command(ctx, args)


class Command(typer.core.TyperCommand):
    """A command; for recipe settings written as options it shows the correct form."""

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
                ctx.fail(f"No such option: {name}. Recipe settings are written without dashes: {key}=VALUE")
