"""``vocabforge doctor``: check the environment, a target and a drafter."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .app import JsonOption, print_json

if TYPE_CHECKING:
    from ..evaluate.doctor.checks import Report
    from ..evaluate.doctor.servers import ServerOptions
    from ..evaluate.doctor.target import TargetFacts

_STYLES = {"ok": "green", "warning": "yellow", "failed": "bold red", "skipped": "dim"}


def doctor(
    target: Annotated[
        Path | None, typer.Option("--target", metavar="PATH", help="Target model folder to check.")
    ] = None,
    drafter: Annotated[
        Path | None,
        typer.Option(
            "--drafter",
            metavar="DIR",
            help="Drafter, or draft model of any vocabulary, to check against the target.",
        ),
    ] = None,
    vocab: Annotated[
        Path | None,
        typer.Option(
            "--vocab", metavar="DIR", help="Subset artefact to check against --target and --drafter."
        ),
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option("--tokenizer", metavar="PATH", help="Tokenizer folder [default: the target's]."),
    ] = None,
    server: Annotated[
        list[str] | None,
        typer.Option(
            "--server",
            metavar="NAME",
            help="Look at these servers' readers only: sglang, vllm, speculators, fr-spec (repeatable).",
        ),
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            "--prompts",
            metavar="FILE",
            help="Questions to try the target layers of --drafter on [default: a few built-in beginnings].",
        ),
    ] = None,
    keys: Annotated[
        bool,
        typer.Option("--keys", help="List every stored tensor with what each server does with it."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Check this machine and, with --target, a target, a drafter and a draft vocabulary.

    A drafter in a layout of SGLang, vLLM, speculators or FR-Spec is read as each of them reads it, key by
    key, and its logits are compared with those computed here. Every check says what it found and, where
    something is wrong, what to do. Nothing is changed. The exit code is 1 if any check failed.

    Example: `vocabforge doctor --target model/ --drafter exported/ --server vllm`
    """
    from ..core.errors import UsageError
    from ..core.progress import say
    from ..evaluate.doctor.checks import Report
    from ..evaluate.doctor.environment import check_environment

    for name, given in (("--drafter", drafter), ("--vocab", vocab), ("--tokenizer", tokenizer)):
        if given is not None and target is None:
            raise UsageError(f"{name} is checked against a target", expected="--target PATH beside it")
    for name, wanted in (("--server", server), ("--prompts", prompts), ("--keys", keys or None)):
        if wanted is not None and drafter is None:
            raise UsageError(f"{name} is about a drafter's folder", expected="--drafter DIR beside it")
    _check_servers(server)
    report = Report()
    say("Checking the environment …")
    torch = check_environment(report)
    if target is not None and torch is None:
        report.skip("target", "all checks")
    elif target is not None:
        _check_models(report, target, drafter, vocab, tokenizer, server, prompts)
    if as_json:
        print_json(report.to_json())
    else:
        _print_table(report, keys)
    if report.count("failed"):
        raise typer.Exit(1)


def _check_servers(names: list[str] | None) -> None:
    from ..export.readers.table import reader_of

    for name in names or ():
        reader_of(name)


def _check_models(
    report: Report,
    target: Path,
    drafter: Path | None,
    vocab: Path | None,
    tokenizer: Path | None,
    servers: list[str] | None,
    prompts: Path | None,
) -> None:
    from ..core.errors import UsageError
    from ..core.progress import say
    from ..decode.build import is_draft_model
    from ..evaluate.doctor.draft_model import check_draft_model
    from ..evaluate.doctor.drafter import check_drafter, check_vocab
    from ..evaluate.doctor.servers import check_servers
    from ..evaluate.doctor.target import check_target

    say(f"Checking the target {target} …")
    facts = check_target(report, target, tokenizer)
    loaded = None
    if drafter is not None:
        say(f"Checking the drafter {drafter} …")
        if is_draft_model(drafter):
            if servers or prompts:
                raise UsageError(
                    "--server and --prompts are about drafters", got=f"{drafter}, a language model of its own"
                )
            check_draft_model(report, drafter, facts)
        else:
            loaded = check_drafter(report, drafter, facts)
            say("Reading it as servers do …")
            check_servers(report, drafter, facts, loaded, _server_options(facts, servers, prompts))
    if vocab is not None:
        say(f"Checking the draft vocabulary {vocab} …")
        check_vocab(report, vocab, facts, loaded)


def _server_options(facts: TargetFacts | None, servers: list[str] | None, file: Path | None) -> ServerOptions:
    from ..core.errors import UsageError
    from ..evaluate.doctor.servers import ServerOptions
    from ..evaluate.live_prompts import read_prompts
    from ..train.config import LiveConfig

    names = tuple(servers or ())
    if file is None or facts is None:
        return ServerOptions(names)
    if facts.tokenizer is None:
        raise UsageError("--prompts needs the target's tokenizer", expected="--tokenizer PATH beside it")
    wishes = LiveConfig(max_new_tokens=ServerOptions.new)
    read = read_prompts(file, facts.tokenizer, wishes, facts.model.config.max_positions)
    return ServerOptions(names, [list(prompt) for prompt in read.prompts])


def _print_table(report: Report, keys: bool) -> None:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    from ..core.console import open_console

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
    out = open_console(markup=True)
    out.print(table)
    counts = {name: report.count(name) for name in ("failed", "warning", "skipped")}
    told = ", ".join(f"{number} {name}" for name, number in counts.items() if number)
    out.print(f"\n{len(report.rows)} checks: {told or 'nothing is wrong'}")
