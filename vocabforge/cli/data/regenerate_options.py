"""What ``vocabforge regenerate`` is asked for: rows, who answers, how answers are drawn, what becomes of them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from ..app import ResultOptions


class KeepOrDrop(str, Enum):
    """What becomes of a row."""

    keep = "keep"
    drop = "drop"


@dataclass(frozen=True, kw_only=True)
class PromptSourceOptions:
    """Which rows are answered, and where the answers go."""

    input: Annotated[
        list[str],
        typer.Option(
            "--input",
            metavar="PATH",
            help="Conversations: files, folders, globs, `hub:NAME[:CONFIG[:SPLIT]]`; may be repeated.",
        ),
    ]
    output: Annotated[
        Path, typer.Option("--output", metavar="DIR", help="Artefact; its rows are in `responses.jsonl`.")
    ]


@dataclass(frozen=True, kw_only=True)
class AnswererOptions:
    """Who answers: a target in this process, or servers."""

    target: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Target that answers in this process: a Hugging Face folder."),
    ] = None
    server: Annotated[
        list[str] | None,
        typer.Option(
            "--server",
            metavar="URL",
            help="Instead: an OpenAI-compatible server that runs the target (`http://host:8000`); may be repeated.",
        ),
    ] = None
    model: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Model name at the servers; default: the one they serve."),
    ] = None

    def check(self) -> None:
        """Raises: UsageError: both, or neither."""
        from ...core.errors import UsageError

        if (self.target is None) == (not self.server):
            raise UsageError(
                "give the target once: as --target, or as --server",
                got="both" if self.server else "neither",
                expected="one of --target DIR and --server URL",
            )


@dataclass(frozen=True, kw_only=True)
class DrawOptions:
    """How answers are drawn."""

    temperature: Annotated[float, typer.Option(min=0.0, metavar="T", help="0 is greedy.")] = 0.0
    top_p: Annotated[
        float, typer.Option("--top-p", min=1e-6, max=1.0, metavar="P", help="Nucleus sampling.")
    ] = 1.0
    max_tokens: Annotated[int, typer.Option(min=1, metavar="N", help="Tokens of one answer at most.")] = 2048
    seed: Annotated[
        int,
        typer.Option(
            min=0, metavar="N", help="Each request draws its own seed from this one and its content."
        ),
    ] = 0


@dataclass(frozen=True, kw_only=True)
class PromptOptions:
    """What the target reads of a row."""

    first_turn_only: Annotated[
        bool,
        typer.Option("--first-turn-only", help="Answer the first question and end the conversation there."),
    ] = False
    prompt_field: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Field of rows that hold a prompt alone (a text, or a list of turns)."
        ),
    ] = None
    send_reasoning: Annotated[
        bool, typer.Option("--send-reasoning", help="Let the target read the thinking of earlier turns.")
    ] = False
    template_arg: Annotated[
        list[str] | None,
        typer.Option(
            "--template-arg",
            metavar="KEY=VALUE",
            help="Argument of the chat template (`enable_thinking=false`); may be repeated.",
        ),
    ] = None
    body: Annotated[
        list[str] | None,
        typer.Option(
            "--body",
            metavar="KEY=VALUE",
            help="Further key of a server's request (`top_k=20`); `null` removes one; may be repeated.",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class HandlingOptions:
    """What becomes of rows whose answers are not what they should be."""

    truncated: Annotated[
        KeepOrDrop, typer.Option(help="Rows with an answer that --max-tokens cut: **keep** or **drop** them.")
    ] = KeepOrDrop.keep
    empty: Annotated[
        KeepOrDrop, typer.Option(help="Rows with an empty answer: **keep** or **drop** them.")
    ] = KeepOrDrop.drop
    drop_failed: Annotated[
        bool, typer.Option("--drop-failed", help="Leave out rows whose requests found no answer.")
    ] = False


@dataclass(frozen=True, kw_only=True)
class ServerLoadOptions:
    """How servers are asked."""

    concurrency: Annotated[
        int, typer.Option(min=1, metavar="N", help="Requests under way at each server.")
    ] = 32
    timeout: Annotated[float, typer.Option(min=0.1, metavar="S", help="Seconds that an answer may take.")] = (
        600.0
    )
    retries: Annotated[
        int, typer.Option(min=0, metavar="N", help="Further attempts at a busy or absent server.")
    ] = 7
    api_key_env: Annotated[
        str | None,
        typer.Option(metavar="VARIABLE", help="Environment variable that holds the servers' API key."),
    ] = None


@dataclass(frozen=True, kw_only=True)
class LocalOptions:
    """How a target runs in this process."""

    batch_size: Annotated[
        int, typer.Option(min=1, metavar="N", help="With --target: conversations a batch.")
    ] = 16
    dtype: Annotated[
        str, typer.Option(metavar="NAME", help="With --target: `auto`, `float32`, `bfloat16` or `float16`.")
    ] = "auto"
    device: Annotated[
        str, typer.Option(metavar="NAME", help="With --target: `auto`, `cpu`, `cuda`, `cuda:1`.")
    ] = "auto"
    device_map: Annotated[
        str | None, typer.Option(metavar="PLAN", help="With --target: `auto` spreads it over the GPUs.")
    ] = None
    tokenizer: Annotated[
        Path | None, typer.Option(metavar="PATH", help="With --target: its tokenizer, if not in its folder.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class WorkOptions:
    """How much is done, and how it ends."""

    sample: Annotated[
        float | None,
        typer.Option(metavar="SHARE", help="Answer only this share of the rows, drawn by the seed."),
    ] = None
    strict: Annotated[bool, typer.Option("--strict", help="The first unreadable row is an error.")] = False
    fresh: Annotated[bool, typer.Option("--fresh", help="Discard the answers of an unfinished run.")] = False
    result: ResultOptions
