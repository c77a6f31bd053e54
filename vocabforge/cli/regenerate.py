"""``vocabforge regenerate``: the target's own responses to the prompts of a data set."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .app import JsonOption, OverwriteOption, print_json

if TYPE_CHECKING:
    from ..corpus.regenerate_backends import Backend
    from ..corpus.regenerate_rows import Generation


class Handling(str, Enum):
    """What becomes of a row."""

    keep = "keep"
    drop = "drop"


InputOption = Annotated[
    list[str],
    typer.Option(
        "--input",
        metavar="PATH",
        help="Conversations: files, folders, globs, `hub:NAME[:CONFIG[:SPLIT]]`; may be repeated.",
    ),
]
OutputOption = Annotated[
    Path, typer.Option("--output", metavar="DIR", help="Artefact; its rows are in `responses.jsonl`.")
]
TargetOption = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Target that answers in this process: a Hugging Face folder."),
]
ServerOption = Annotated[
    list[str] | None,
    typer.Option(
        "--server",
        metavar="URL",
        help="Instead: an OpenAI-compatible server that runs the target (`http://host:8000`); may be repeated.",
    ),
]
ModelOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="Model name at the servers; default: the one they serve.")
]
TemperatureOption = Annotated[float, typer.Option(min=0.0, metavar="T", help="0 is greedy.")]
TopPOption = Annotated[
    float, typer.Option("--top-p", min=1e-6, max=1.0, metavar="P", help="Nucleus sampling.")
]
MaxTokensOption = Annotated[int, typer.Option(min=1, metavar="N", help="Tokens of one answer at most.")]
SeedOption = Annotated[
    int,
    typer.Option(min=0, metavar="N", help="Each request draws its own seed from this one and its content."),
]
FirstOption = Annotated[
    bool, typer.Option("--first-turn-only", help="Answer the first question and end the conversation there.")
]
PromptOption = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Field of rows that hold a prompt alone (a text, or a list of turns)."),
]
ReasoningOption = Annotated[
    bool, typer.Option("--send-reasoning", help="Let the target read the thinking of earlier turns.")
]
TemplateOption = Annotated[
    list[str] | None,
    typer.Option(
        "--template-arg",
        metavar="KEY=VALUE",
        help="Argument of the chat template (`enable_thinking=false`); may be repeated.",
    ),
]
BodyOption = Annotated[
    list[str] | None,
    typer.Option(
        "--body",
        metavar="KEY=VALUE",
        help="Further key of a server's request (`top_k=20`); `null` removes one; may be repeated.",
    ),
]
TruncatedOption = Annotated[
    Handling, typer.Option(help="Rows with an answer that --max-tokens cut: **keep** or **drop** them.")
]
EmptyOption = Annotated[Handling, typer.Option(help="Rows with an empty answer: **keep** or **drop** them.")]
FailedOption = Annotated[
    bool, typer.Option("--drop-failed", help="Leave out rows whose requests found no answer.")
]
ConcurrencyOption = Annotated[
    int, typer.Option(min=1, metavar="N", help="Requests under way at each server.")
]
TimeoutOption = Annotated[float, typer.Option(min=0.1, metavar="S", help="Seconds that an answer may take.")]
RetriesOption = Annotated[
    int, typer.Option(min=0, metavar="N", help="Further attempts at a busy or absent server.")
]
KeyOption = Annotated[
    str | None, typer.Option(metavar="VARIABLE", help="Environment variable that holds the servers' API key.")
]
BatchOption = Annotated[int, typer.Option(min=1, metavar="N", help="With --target: conversations a batch.")]
DtypeOption = Annotated[
    str, typer.Option(metavar="NAME", help="With --target: `auto`, `float32`, `bfloat16` or `float16`.")
]
DeviceOption = Annotated[
    str, typer.Option(metavar="NAME", help="With --target: `auto`, `cpu`, `cuda`, `cuda:1`.")
]
DeviceMapOption = Annotated[
    str | None, typer.Option(metavar="PLAN", help="With --target: `auto` spreads it over the GPUs.")
]
TokenizerOption = Annotated[
    Path | None, typer.Option(metavar="PATH", help="With --target: its tokenizer, if not in its folder.")
]
SampleOption = Annotated[
    float | None, typer.Option(metavar="SHARE", help="Answer only this share of the rows, drawn by the seed.")
]


def regenerate(
    input: InputOption,
    output: OutputOption,
    target: TargetOption = None,
    server: ServerOption = None,
    model: ModelOption = None,
    temperature: TemperatureOption = 0.0,
    top_p: TopPOption = 1.0,
    max_tokens: MaxTokensOption = 2048,
    seed: SeedOption = 0,
    first_turn_only: FirstOption = False,
    prompt_field: PromptOption = None,
    send_reasoning: ReasoningOption = False,
    template_arg: TemplateOption = None,
    body: BodyOption = None,
    truncated: TruncatedOption = Handling.keep,
    empty: EmptyOption = Handling.drop,
    drop_failed: FailedOption = False,
    concurrency: ConcurrencyOption = 32,
    timeout: TimeoutOption = 600.0,
    retries: RetriesOption = 7,
    api_key_env: KeyOption = None,
    batch_size: BatchOption = 16,
    dtype: DtypeOption = "auto",
    device: DeviceOption = "auto",
    device_map: DeviceMapOption = None,
    tokenizer: TokenizerOption = None,
    sample: SampleOption = None,
    strict: Annotated[bool, typer.Option("--strict", help="The first unreadable row is an error.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Discard the answers of an unfinished run.")] = False,
    as_json: JsonOption = False,
    overwrite: OverwriteOption = False,
) -> None:
    """Replace the answers of a data set by the target's own.

    VocabTrim counts them, and ranker and drafters learn best from them. Every assistant turn is answered
    anew, in order; later turns see the new answers. The same command again goes on where it was interrupted.

    Examples: `vocabforge regenerate --input chat.jsonl --server http://gpu1:8000 --server http://gpu2:8000
    --temperature 0.7 --output responses/` and `vocabforge regenerate --input chat.jsonl --target
    models/Qwen3-0.6B --output responses/`
    """
    from ..core.artifact import check_output
    from ..core.errors import UsageError
    from ..core.progress import say
    from ..corpus.document import SourceOptions
    from ..corpus.regenerate import RESPONSES
    from ..corpus.regenerate import regenerate as run
    from ..corpus.regenerate_pool import PoolOptions
    from ..corpus.regenerate_rows import Policy
    from ..corpus.regenerate_work import Work
    from .regenerate_setup import Local, key_values, local_side, server_side

    if (target is None) == (not server):
        raise UsageError(
            "give the target once: as --target, or as --server", got="both" if server else "neither"
        )
    check_output(output, overwrite=overwrite)
    wanted = {
        "temperature": temperature,
        "top_p": top_p,
        "max_tokens": max_tokens,
        "seed": seed,
        "send_reasoning": send_reasoning,
        "template_arguments": key_values(template_arg or [], "--template-arg"),
        "body": key_values(body or [], "--body"),
    }
    generation: Generation
    backend: Backend
    if target is not None:
        local = Local(target, tokenizer, batch_size, dtype, device, device_map)
        generation, backend = local_side(local, model, wanted)
    else:
        options = PoolOptions(concurrency=concurrency, retries=retries)
        generation, backend = server_side(server or [], model, wanted, options, (api_key_env, timeout))
    sources = SourceOptions(text_field=prompt_field, strict=strict, sample=sample, seed=seed)
    policy = Policy(first_turn_only, truncated.value, empty.value)
    work = Work(input, sources, generation, policy, drop_failed)
    meta = run(work, backend, output, overwrite=overwrite, fresh=fresh)
    if as_json:
        print_json({"responses": str(output / RESPONSES), **meta})
        return
    for line in summary(meta):
        say(line)
    say(f"The responses are in {output / RESPONSES}")


def summary(meta: dict[str, Any]) -> list[str]:
    """What became of rows and answers, in words."""
    lines = [f"{meta['rows_written']:,} of {meta['rows']:,} rows written, {meta['answers']:,} answers"]
    told = {
        "rows_without_prompt": "rows hold no prompt",
        "rows_failed": "rows left out, since a request found no answer",
        "rows_dropped_truncated": "rows left out, since --max-tokens cut an answer",
        "rows_dropped_empty": "rows left out, since an answer was empty",
        "rows_ended_by_tools": "rows end early: the target calls other tools than the data set's results answer",
        "answers_truncated": "answers were cut by --max-tokens",
        "answers_empty": "answers were empty",
    }
    return lines + [f"{meta[name]:,} {words}" for name, words in told.items() if meta[name]]
