"""``vocabforge doctor``: check the environment, a target and a drafter."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ..core.config import ModelPath, StrictModel, TokenizerPath, option
from ..core.console import DataCell, DataTable, say
from ..core.errors import UsageError
from .app import JsonOption, print_json, print_line, stdout_console

if TYPE_CHECKING:
    from ..doctor.checks import Report
    from ..doctor.target import TargetFacts
    from ..models.drafters.interface import Drafter

_TONES = {"ok": "good", "warning": "mild", "failed": "bad", "skipped": ""}


class Subjects(StrictModel):
    """What to check in addition to the machine."""

    target: ModelPath | None = option(
        None, "Target to check: a folder, a GGUF file, or a name of the Hub.", "PATH"
    )
    drafter: ModelPath | None = option(
        None, "Drafter, or draft model of any vocabulary, to check against the target.", "DIR"
    )
    vocab: Path | None = option(None, "Subset artefact to check against --target and --drafter.", "DIR")
    tokenizer: TokenizerPath | None = option(None, "Tokenizer folder [default: the target's].", "PATH")
    server: tuple[str, ...] = option(
        (), "Check only these servers: sglang, vllm, llamacpp.", "NAME", many=True
    )
    keys: bool = option(False, "List every stored tensor and how each server uses it.")

    def check(self) -> None:
        """Raise UsageError for options that have nothing to be checked against."""
        from ..export.servers.registry import reader_of

        for name in ("drafter", "vocab", "tokenizer"):
            if getattr(self, name) is not None and self.target is None:
                raise UsageError(f"--{name} is checked against a target", expected="--target PATH as well")
        for name in ("server", "keys"):
            if getattr(self, name) and self.drafter is None:
                raise UsageError(f"--{name} is about a drafter's folder", expected="--drafter DIR as well")
        for server in self.server:
            reader_of(server)


def doctor(asked: Subjects, as_json: JsonOption = False) -> None:
    """Check this machine and, with --target, a target, a drafter and a draft vocabulary.

    Loads a drafter the way SGLang, vLLM and llama.cpp do, key by key, and compares its logits with those
    computed here. Every check reports what it found and, if something is wrong, what to do. Nothing is
    modified. The exit code is 1 if any check fails.

    Example: `vocabforge doctor --target model/ --drafter exported/ --server vllm`
    """
    from ..doctor.checks import Report
    from ..doctor.machine import check_environment

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
    from ..doctor.abilities import check_abilities
    from ..doctor.drafter import check_vocab
    from ..doctor.target import check_target

    say(f"Checking the target {target} …")
    facts = check_target(report, target, asked.tokenizer)
    loaded = None if asked.drafter is None else _check_drafter(report, asked.drafter, facts, asked)
    if asked.vocab is not None:
        say(f"Checking the draft vocabulary {asked.vocab} …")
        check_vocab(report, asked.vocab, facts, loaded)
    check_abilities(report, facts)


def _check_drafter(report: Report, path: Path, facts: TargetFacts | None, asked: Subjects) -> Drafter | None:
    from ..decode.build.models import is_draft_model
    from ..doctor.drafter import MADE_FOR, check_draft_model, check_drafter
    from ..doctor.servers import check_servers

    say(f"Checking the drafter {path} …")
    if is_draft_model(path):
        if asked.server:
            raise UsageError(
                "--server is about drafters",
                got=f"{path}, a separate language model",
                expected="a drafter that is trained for its target",
                remedy="leave --server out",
            )
        check_draft_model(report, path, facts)
        return None
    loaded = check_drafter(report, path, facts)
    if report.failed(MADE_FOR):
        return None
    say("Reading it as servers do …")
    check_servers(report, path, facts, loaded, asked.server)
    return loaded


def _print_table(report: Report, *, keys: bool) -> None:
    out = stdout_console()
    for group in dict.fromkeys(row.group for row in report.rows):
        rows = []
        for row in report.rows:
            if row.group != group:
                continue
            more = [f"→ {row.remedy}"] if row.remedy else []
            more += row.details if keys else ()
            state = DataCell(row.state, tone=_TONES[row.state])
            rows.append([row.check, state, DataCell(row.found, "\n".join(more))])
        out.print(DataTable(group, ["check<", "result<", "found; what to do<"], rows))


def _verdict(report: Report) -> str:
    from ..doctor.machine import GROUP

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
