"""``vocabforge doctor``: check the environment, a target and a drafter."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..app import JsonOption, print_json, print_line, stdout_console

if TYPE_CHECKING:
    from ...doctor.checks import Report
    from ...doctor.servers import ServerCheckOptions
    from ...doctor.target import TargetFacts
    from ...models.drafters.interface import Drafter

_STYLES = {"ok": "green", "warning": "yellow", "failed": "bold red", "skipped": "dim"}


@dataclass(frozen=True, kw_only=True)
class Subjects:
    """What is looked at beside the machine."""

    target: Annotated[
        Path | None, typer.Option("--target", metavar="PATH", help="Target model folder to check.")
    ] = None
    drafter: Annotated[
        Path | None,
        typer.Option(
            "--drafter",
            metavar="DIR",
            help="Drafter, or draft model of any vocabulary, to check against the target.",
        ),
    ] = None
    vocab: Annotated[
        Path | None,
        typer.Option(
            "--vocab", metavar="DIR", help="Subset artefact to check against --target and --drafter."
        ),
    ] = None
    tokenizer: Annotated[
        Path | None,
        typer.Option("--tokenizer", metavar="PATH", help="Tokenizer folder [default: the target's]."),
    ] = None
    server: Annotated[
        list[str] | None,
        typer.Option(
            "--server",
            metavar="NAME",
            help="Look at these servers' readers only: sglang, vllm, speculators, fr-spec (repeatable).",
        ),
    ] = None
    prompts: Annotated[
        Path | None,
        typer.Option(
            "--prompts",
            metavar="FILE",
            help="Questions to try the target layers of --drafter on [default: a few built-in beginnings].",
        ),
    ] = None
    keys: Annotated[
        bool,
        typer.Option("--keys", help="List every stored tensor with what each server does with it."),
    ] = False

    def check(self) -> None:
        """Refuse what has nothing to be checked against, before anything is loaded.

        Raises:
            UsageError: an option without the one it needs, or an unknown server.
        """
        from ...core.errors import UsageError
        from ...export.servers.registry import reader_of

        for name, given in (
            ("--drafter", self.drafter),
            ("--vocab", self.vocab),
            ("--tokenizer", self.tokenizer),
        ):
            if given is not None and self.target is None:
                raise UsageError(f"{name} is checked against a target", expected="--target PATH beside it")
        for name, wanted in (
            ("--server", self.server),
            ("--prompts", self.prompts),
            ("--keys", self.keys or None),
        ):
            if wanted is not None and self.drafter is None:
                raise UsageError(f"{name} is about a drafter's folder", expected="--drafter DIR beside it")
        for server in self.server or ():
            reader_of(server)


def doctor(asked: Subjects, as_json: JsonOption = False) -> None:
    """Check this machine and, with --target, a target, a drafter and a draft vocabulary.

    A drafter in a layout of SGLang, vLLM, speculators or FR-Spec is read as each of them reads it, key by
    key, and its logits are compared with those computed here. Every check says what it found and, where
    something is wrong, what to do. Nothing is changed. The exit code is 1 if any check failed.

    Example: `vocabforge doctor --target model/ --drafter exported/ --server vllm`
    """
    from ...core.console import say
    from ...doctor.checks import Report
    from ...doctor.machine import check_environment

    asked.check()
    report = Report()
    say("Checking the environment …")
    torch = check_environment(report)
    if asked.target is not None and torch is None:
        report.skip("target", "all checks")
    elif asked.target is not None:
        _check_models(report, asked.target, asked)
    if as_json:
        print_json(report.to_json())
    else:
        _print_table(report, keys=asked.keys)
        print_line(_verdict(report), style="bold")
    if report.count("failed"):
        raise typer.Exit(1)


def _check_models(report: Report, target: Path, asked: Subjects) -> None:
    from ...core.console import say
    from ...doctor.drafter import check_vocab
    from ...doctor.target import check_target

    say(f"Checking the target {target} …")
    facts = check_target(report, target, asked.tokenizer)
    loaded = None if asked.drafter is None else _check_drafter(report, asked.drafter, facts, asked)
    if asked.vocab is not None:
        say(f"Checking the draft vocabulary {asked.vocab} …")
        check_vocab(report, asked.vocab, facts, loaded)


def _check_drafter(report: Report, path: Path, facts: TargetFacts | None, asked: Subjects) -> Drafter | None:
    from ...core.console import say
    from ...core.errors import UsageError
    from ...decode.build.models import is_draft_model
    from ...doctor.drafter import check_draft_model, check_drafter
    from ...doctor.servers import check_servers

    say(f"Checking the drafter {path} …")
    if is_draft_model(path):
        if asked.server or asked.prompts:
            raise UsageError(
                "--server and --prompts are about drafters",
                got=f"{path}, a language model of its own",
                expected="a drafter that is trained for its target",
                remedy="leave --server and --prompts out",
            )
        check_draft_model(report, path, facts)
        return None
    loaded = check_drafter(report, path, facts)
    say("Reading it as servers do …")
    check_servers(report, path, facts, loaded, _server_options(facts, asked.server, asked.prompts))
    return loaded


def _server_options(
    facts: TargetFacts | None, servers: list[str] | None, file: Path | None
) -> ServerCheckOptions:
    from ...core.errors import UsageError
    from ...doctor.servers import ServerCheckOptions
    from ...evaluate.acceptance.prompts import read_prompts
    from ...train.config import LiveConfig

    names = tuple(servers or ())
    if file is None or facts is None:
        return ServerCheckOptions(names)
    if facts.tokenizer is None:
        raise UsageError("--prompts needs the target's tokenizer", expected="--tokenizer PATH beside it")
    wishes = LiveConfig(max_new_tokens=ServerCheckOptions.new)
    read = read_prompts(file, facts.tokenizer, wishes, facts.model.config.max_positions)
    return ServerCheckOptions(names, [list(prompt) for prompt in read.prompts])


def _print_table(report: Report, *, keys: bool) -> None:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("check", no_wrap=True)
    table.add_column("result", no_wrap=True)
    table.add_column("found; what to do", overflow="fold")
    group = None
    for row in report.rows:
        if row.group != group:
            group = row.group
            if table.row_count:
                table.add_section()
            table.add_row(f"[bold]{group}[/bold]", "", "")
        text = escape(row.found)
        if row.remedy:
            text += f"\n[{_STYLES[row.state]}]→ {escape(row.remedy)}[/]"
        if keys and row.details:
            text += "\n" + escape("\n".join(row.details))
        table.add_row(f"  {row.check}", f"[{_STYLES[row.state]}]{row.state}[/]", text)
    stdout_console(markup=True).print(table)


def _verdict(report: Report) -> str:
    from ...doctor.machine import GROUP

    failed, warnings, skipped = (report.count(state) for state in ("failed", "warning", "skipped"))
    groups = dict.fromkeys(row.group for row in report.rows if row.state == "failed")
    alone = all(row.group == GROUP for row in report.rows)
    good, bad = (
        ("This machine is fit for use", "This machine lacks something") if alone else ("Fits", "Does not fit")
    )
    number = len(report.rows)
    told = [f"{failed} of {number} checks failed ({', '.join(groups)})" if failed else f"{number} checks"]
    told += [f"{warnings} warning{'' if warnings == 1 else 's'}"] if warnings else []
    told += [f"{skipped} skipped"] if skipped else []
    return f"\n{bad if failed else good}: {', '.join(told if len(told) > 1 or failed else [*told, 'nothing is wrong'])}"
