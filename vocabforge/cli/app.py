"""Shared parts of all commands: the typer application, error reporting, exit codes, ``--json`` output."""

from __future__ import annotations

import functools
import inspect
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
import typer.core

from .. import __version__
from ..core.console import console, open_console, spelled_in_json, spelled_out
from ..core.errors import VocabForgeError, closest
from ..core.progress import ProgressBar, hide
from .option_groups import arguments, signature

if TYPE_CHECKING:
    from rich.console import Console

SETTING = "KEY.SUB=VALUE"  # metavar of arguments that override recipe keys
_WIDE = 200
_NARROWEST = 70
_PANELS = 100  # minimum columns for rich's option tables, which would truncate option names

JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")]
PlanOption = Annotated[
    bool, typer.Option("--plan", help="Print the plan and exit. Add --json for every detail.")
]
FreshOption = Annotated[
    bool, typer.Option("--fresh", help="Discard a run in the output folder and start over.")
]


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
        if any(getattr(option, "metavar", None) == SETTING for option in self.params):
            known = [name for option in self.params for name in (*option.opts, *option.secondary_opts)]
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


def _version(show: bool) -> None:
    if show:
        typer.echo(f"vocabforge {__version__}")
        raise typer.Exit


def build_app(
    commands: Mapping[str, Callable[..., None]],
    all_names: list[str],
    headings: Mapping[str, str] | None = None,
) -> typer.Typer:
    """Build a typer application from ``commands``.

    ``all_names`` and ``headings`` (by the first command under each) are only used for the help page.
    """
    app = typer.Typer(
        name="vocabforge",
        help="Drafter training and vocabulary preparation for speculative decoding.",
        epilog="First time here? `vocabforge demo` runs everything on a small target in a few minutes; "
        "`vocabforge doctor` checks this machine.",
        no_args_is_help=True,
        cls=Commands,
        rich_markup_mode="markdown" if len(commands) > 1 else help_style(),
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback()
    def root(
        version: Annotated[
            bool,
            typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit."),
        ] = False,
    ) -> None:
        """Drafter training and vocabulary preparation for speculative decoding."""

    heading = None
    for name in all_names:
        heading = (headings or {}).get(name, heading)
        if name in commands:
            silent = name not in ("doctor", "demo", "recipes")
            app.command(name, cls=Command, rich_help_panel=heading, no_args_is_help=silent)(
                guarded(commands[name])
            )
    return app


def guarded(command: Callable[..., None]) -> Callable[..., None]:
    """Wrap a command: flatten its groups of options, show progress, and report errors as messages.

    Errors that a user can cause become a message and an exit code; bugs keep their traceback.
    """

    @functools.wraps(command)
    def run(**given: Any) -> None:
        try:
            with ProgressBar(command.__name__.replace("_", "-")):
                command(**arguments(command, given))
        except VocabForgeError as error:
            console().print(f"Error: {error.render()}", style="red")
            raise typer.Exit(error.exit_code) from None
        except KeyboardInterrupt:
            console().print("Interrupted. No partial output was left.", style="yellow")
            raise typer.Exit(130) from None
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(1) from None
        except (OSError, MemoryError, RuntimeError) as error:
            message = _surroundings(error)
            if message is None:
                raise
            console().print(f"Error: {message}", style="red")
            raise typer.Exit(1) from None

    # The help text keeps line breaks inside code spans, with the indentation after them.
    run.__doc__ = re.sub(r"(?<=\S)\n {4,}(?=\S)", " ", inspect.cleandoc(command.__doc__ or ""))
    run.__signature__ = signature(command)  # type: ignore[attr-defined]
    run.__annotations__ = {name: option.annotation for name, option in signature(command).parameters.items()}
    return run


def _surroundings(error: Exception) -> str | None:
    """Describe a resource error (a file, memory); None for a bug."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.strerror}: {error.filename}"
    text = str(error)
    if isinstance(error, MemoryError) or "out of memory" in text or "can't allocate memory" in text:
        return (
            f"out of memory\n  got:      {text.splitlines()[0] if text else 'no memory left'}\n"
            "  remedy:   use smaller batches, shorter texts or a narrower dtype, or close other programs"
        )
    return None


def print_json(value: Any) -> None:
    """Print a result on stdout as one JSON document."""
    hide()
    typer.echo(spelled_in_json(json.dumps(value, indent=2, ensure_ascii=False)))


def echo(text: str) -> None:
    """Print a line on stdout with terminal control characters escaped."""
    hide()
    typer.echo(spelled_out(text))


def stdout_console(*, highlight: bool = False) -> Console:
    """Return the console for results.

    If stdout is not a terminal and COLUMNS is not set, the console is wide: rich would assume 80 columns and
    truncate or wrap. If a terminal is too narrow for a table, the terminal wraps the lines: rich would
    truncate figures and drop names.
    """
    hide()
    out = open_console(highlight=highlight)
    if not out.is_terminal and not os.environ.get("COLUMNS"):
        out.width = _WIDE
    out.width = max(out.width, _NARROWEST)
    return out


def print_line(text: str, style: str | None = None) -> None:
    """Print one line of a result verbatim, without wrapping or markup."""
    stdout_console().print(text, style=style, soft_wrap=True)
