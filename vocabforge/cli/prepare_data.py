"""``vocabforge prepare-data``: packed training rows with their loss mask."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .app import JsonOption, OverwriteOption, echo, print_json
from .count_freq import MoreInputsOption, SeparatorOption, StrictOption, TextFieldOption, TextUnit

if TYPE_CHECKING:
    from ..corpus.prepared import PreparedData
    from ..corpus.tokenizer import TextTokenizer


class Overlong(Enum):
    """What becomes of a document longer than a row."""

    cut = "cut"
    split = "split"
    skip = "skip"


class Thinking(Enum):
    """What becomes of thinking blocks."""

    keep = "keep"
    mask = "mask"
    drop = "drop"


class Tools(Enum):
    """What becomes of conversations that use tools."""

    keep = "keep"
    skip = "skip"


class Answers(Enum):
    """Which answers of a conversation are learnt."""

    all = "all"
    last = "last"
    each = "each"


TargetOption = Annotated[
    Path | None,
    typer.Option("--target", metavar="DIR", help="The target's folder, for its tokenizer and chat template."),
]
TokenizerOption = Annotated[
    Path | None,
    typer.Option("--tokenizer", metavar="PATH", help="A tokenizer.json or its folder, instead of a target."),
]
OutputOption = Annotated[Path, typer.Option("--output", metavar="DIR", help="Folder to write.")]
FirstInputsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        metavar="PATH …",
        help="Texts or conversations: files, folders, globs in quotes, `hub:NAME[:CONFIG[:SPLIT]]`. "
        "Several may follow one --input, and it may be repeated.",
    ),
]
HeldoutOption = Annotated[
    list[str] | None,
    typer.Option(
        "--heldout",
        metavar="PATH",
        help="The same for held-out figures; may be repeated. Without it the last documents are set aside.",
    ),
]
TemplateOption = Annotated[
    list[str] | None,
    typer.Option(
        "--template",
        metavar="NAME=VALUE",
        help="A further variable of the chat template (the value is read as YAML); may be repeated.",
    ),
]


def prepare_data(
    output: OutputOption,
    target: TargetOption = None,
    tokenizer: TokenizerOption = None,
    first_inputs: FirstInputsOption = None,
    more_inputs: MoreInputsOption = None,
    heldout: HeldoutOption = None,
    length: Annotated[int, typer.Option(metavar="T", min=8, max=131072, help="Tokens a row.")] = 2048,
    overlong: Annotated[
        Overlong,
        typer.Option(
            help="Documents longer than a row: **cut** keeps the first T tokens, **split** makes documents of "
            "T tokens (each but the first without what came before), **skip** leaves them out."
        ),
    ] = Overlong.cut,
    thinking: Annotated[
        Thinking,
        typer.Option(
            help="Thinking blocks: **keep** learns them, **mask** has them in the context only, **drop** takes "
            "them out and tells the chat template not to think."
        ),
    ] = Thinking.keep,
    tools: Annotated[
        Tools,
        typer.Option(
            help="Tool lists, calls and results: **keep** renders them and learns the calls, **skip** leaves "
            "such conversations out."
        ),
    ] = Tools.keep,
    answers: Annotated[
        Answers,
        typer.Option(
            help="**all**: every answer, in one rendering. **last**: the answer to the last question. "
            "**each**: a document for each question, as a served target sees it."
        ),
    ] = Answers.all,
    text_field: TextFieldOption = None,
    text_unit: Annotated[TextUnit, typer.Option(help="What one document of a text file is.")] = TextUnit.file,
    separator: SeparatorOption = None,
    append_eos: Annotated[
        bool, typer.Option("--append-eos/--no-append-eos", help="End plain texts with the end token.")
    ] = True,
    template: TemplateOption = None,
    heldout_documents: Annotated[
        int, typer.Option(metavar="N", min=1, help="Documents set aside without --heldout.")
    ] = 64,
    heldout_prompts: Annotated[
        int, typer.Option(metavar="N", min=1, help="Held-out prompts to write, at most.")
    ] = 40,
    prompt_tokens: Annotated[
        int, typer.Option(metavar="N", min=1, help="Length of a prompt made of plain text.")
    ] = 32,
    strict: StrictOption = False,
    show: Annotated[
        int,
        typer.Option("--show", metavar="N", min=0, help="Show N documents with what is learnt in colour."),
    ] = 0,
    as_json: JsonOption = False,
    overwrite: OverwriteOption = False,
) -> None:
    """Render, tokenise, mask and pack texts and conversations into rows for drafter training.

    The loss mask comes from the chat template's generation tags, else from comparing renderings. What is
    longer than a row, skipped, or left out by an option is counted and shown. A folder that holds the same
    content already (same sources, tokenizer, template and options) is used again.

    Train with it by `data.prepared: DIR`.

    Example: `vocabforge prepare-data --target model/ --input chats.jsonl --length 4096 --output data/`
    """
    from ..core.errors import UsageError
    from ..corpus.tokenizer import load_tokenizer
    from ..train.data import prepare_options
    from ..train.data_config import DataConfig

    inputs = [*(first_inputs or []), *(more_inputs or [])]
    source = tokenizer or target
    if source is None or (tokenizer is not None and target is not None):
        raise UsageError("a tokenizer is needed", expected="either --target DIR or --tokenizer PATH")
    if not inputs:
        raise UsageError("no input was given", expected="--input PATH …")
    if separator is not None and text_unit is not TextUnit.file:
        raise UsageError(
            "--separator and --text-unit exclude each other", got=f"--text-unit {text_unit.value}"
        )
    config = DataConfig(
        train=tuple(map(Path, inputs)),
        heldout=tuple(map(Path, heldout or ())),
        heldout_documents=heldout_documents,
        heldout_prompts=heldout_prompts,
        prompt_tokens=prompt_tokens,
        text_field=text_field,
        text_unit=text_unit.value,
        separator=separator,
        sequence_length=length,
        overlong=overlong.value,
        append_eos=append_eos,
        thinking=thinking.value,
        tools=tools.value,
        answers=answers.value,
        template=_variables(template or ()),
        strict=strict,
    )
    loaded = load_tokenizer(source)
    prepared = _prepared(output, loaded, config, prepare_options(config), overwrite=overwrite)
    if as_json:
        print_json(
            {
                "output": str(output),
                "key": prepared.key,
                "digest": prepared.digest(),
                "rows": len(prepared.train),
                "heldout_rows": len(prepared.heldout),
                "figures": prepared.figures,
            }
        )
    else:
        _report(prepared, loaded, show)


def _variables(given: Any) -> dict[str, Any]:
    """``NAME=VALUE`` options by name."""
    import yaml

    from ..core.errors import UsageError

    found = {}
    for entry in given:
        name, sign, value = entry.partition("=")
        if not sign or not name.strip().isidentifier():
            raise UsageError(
                "a template variable cannot be read", got=entry, expected="--template NAME=VALUE"
            )
        try:
            found[name.strip()] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise UsageError("a template variable cannot be read", got=entry, source=error) from error
    return found


def _prepared(
    output: Path, tokenizer: TextTokenizer, config: Any, options: Any, *, overwrite: bool
) -> PreparedData:
    """What stands at ``output`` when it is of the same content, else made there."""
    from ..core.artifact import MANIFEST, check_output
    from ..core.progress import say
    from ..corpus.prepared import find_prepared, write_prepared
    from ..corpus.prepared_key import content_key

    exists = (output / MANIFEST).is_file()
    if not exists:
        check_output(output, overwrite=overwrite)
    keyed = content_key(tokenizer, config.train, config.heldout, options)
    if exists:
        found = find_prepared(output, keyed[0])
        if found is not None:
            say(f"{output} holds prepared data of the same content already; nothing is to be done.")
            return found
        check_output(output, overwrite=overwrite)
    return write_prepared(
        output, tokenizer, config.train, config.heldout, options, keyed=keyed, overwrite=overwrite
    )


def _report(prepared: PreparedData, tokenizer: TextTokenizer, show: int) -> None:
    from ..core.console import open_console
    from .inspection.data import data_tables

    out = open_console(highlight=True)
    for table in data_tables(prepared):
        out.print(table)
    for number, text in enumerate(_examples(prepared, tokenizer, show, plain=not out.is_terminal), start=1):
        out.rule(f"document {number}")
        out.print(text, soft_wrap=True)
    echo(f"Written to {prepared.artifact.path}")


def _examples(prepared: PreparedData, tokenizer: TextTokenizer, number: int, *, plain: bool) -> Any:
    """The first documents of the training rows; what is learnt is green, or in ⟦ ⟧ where there is no colour."""
    import itertools

    import numpy as np
    from rich.text import Text

    rows = prepared.train
    for row in range(len(rows)):
        for document in range(1, int(rows.document[row].max()) + 1):
            if number == 0:
                return
            number -= 1
            place = np.flatnonzero(rows.document[row] == document)
            pairs = zip(rows.input_ids[row, place].tolist(), rows.loss_mask[row, place].tolist())
            text = Text()
            for learnt, run in itertools.groupby(pairs, key=lambda pair: pair[1]):
                part = tokenizer.decode([token for token, _ in run], skip_special=False)
                if plain and learnt:
                    part = f"⟦{part}⟧"
                text.append(part, style="bold green" if learnt else "dim")
            yield text
