"""``vocabforge count-freq``: count how often each token occurs."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .app import JsonOption, OverwriteOption, print_json

if TYPE_CHECKING:
    from ..vocab.table import FrequencyTable


class Mode(str, Enum):
    """What is counted."""

    corpus = "corpus"
    assistant = "assistant"


class TextUnit(str, Enum):
    """What a document of a text file is."""

    file = "file"
    line = "line"
    paragraph = "paragraph"


TokenizerOption = Annotated[
    Path,
    typer.Option("--tokenizer", metavar="PATH", help="A tokenizer.json, or the folder that holds one."),
]
OutputOption = Annotated[
    Path, typer.Option("--output", metavar="DIR", help="Folder of the frequency table to write.")
]
FirstInputsOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--input",
        metavar="PATH …",
        help="Files or folders (searched through): .txt, .text, .jsonl, .ndjson, .json, each also with "
        ".gz or .xz. Several paths may follow one --input, and it may be repeated.",
    ),
]
MoreInputsOption = Annotated[
    list[Path] | None,
    typer.Argument(metavar="PATH", help="Further paths of --input.", show_default=False),
]
ModeOption = Annotated[
    Mode,
    typer.Option(
        help="**corpus**: every token of raw text, no BOS or EOS added. "
        "**assistant**: only what the assistant writes in conversations rendered by the chat template."
    ),
]
TextFieldOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="JSON field with the text or conversation; by default the usual names."
    ),
]
TextUnitOption = Annotated[TextUnit, typer.Option(help="What one document of a text file is.")]
SeparatorOption = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT",
        help="Documents of a text file are parted by this literal, such as '<|endoftext|>'.",
    ),
]
StrictOption = Annotated[
    bool,
    typer.Option("--strict", help="Fail at the first unreadable line instead of skipping and counting it."),
]


def count_freq(
    tokenizer: TokenizerOption,
    output: OutputOption,
    first_inputs: FirstInputsOption = None,
    more_inputs: MoreInputsOption = None,
    mode: ModeOption = Mode.corpus,
    text_field: TextFieldOption = None,
    text_unit: TextUnitOption = TextUnit.file,
    separator: SeparatorOption = None,
    strict: StrictOption = False,
    as_json: JsonOption = False,
    overwrite: OverwriteOption = False,
) -> None:
    """Count how often each token of a tokenizer occurs in text or in conversations.

    The table at --output serves every size of draft vocabulary: see **select-vocab**.
    Lines that are not UTF-8 or not JSON are skipped, counted, and the first few named on stderr.

    Example: `vocabforge count-freq --tokenizer model/ --input corpus/ more.jsonl.gz --output counts/`
    """
    from ..core.artifact import check_output
    from ..core.errors import UsageError
    from ..corpus.sources import SourceOptions
    from ..corpus.tokenizer import load_tokenizer
    from ..vocab.counts import count_files
    from ..vocab.table import save_counts

    inputs = [*(first_inputs or []), *(more_inputs or [])]
    if not inputs:
        raise UsageError("no input was given", expected="--input PATH …")
    if separator is not None and text_unit is not TextUnit.file:
        raise UsageError(
            "--separator and --text-unit exclude each other", got=f"--text-unit {text_unit.value}"
        )
    options = SourceOptions(text_field, text_unit.value, separator, strict)
    check_output(output, overwrite=overwrite)
    table = count_files(load_tokenizer(tokenizer), inputs, options, mode=mode.value)
    save_counts(table, output, overwrite=overwrite)
    _report(table, output, as_json=as_json)


def _report(table: FrequencyTable, output: Path, *, as_json: bool) -> None:
    result = {
        "output": str(output),
        "mode": table.mode,
        "files": len(table.sources),
        "documents": table.documents,
        "bytes": table.bytes,
        "tokens": table.tokens,
        "vocab_size": table.vocab_size,
        "ids_with_count": table.seen,
        "bytes_per_token": round(table.bytes / table.tokens, 3),
        "fingerprint": table.fingerprint,
    }
    if as_json:
        print_json(result)
        return
    typer.echo(
        f"{table.tokens:,} tokens in {table.documents:,} documents ({table.bytes / 1e6:,.1f} MB, "
        f"{result['bytes_per_token']} bytes a token); {table.seen:,} of {table.vocab_size:,} ids occur "
        f"({table.seen / table.vocab_size:.1%}). Written to {output}"
    )
