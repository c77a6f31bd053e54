"""``vocabforge prepare-data``: packed training rows with their loss mask."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...train.config import DataConfig
from ..app import ResultOptions, echo, print_json, stdout_console
from ..options.groups import FromModel
from ..options.texts import MoreInputsArgument, check_parting

if TYPE_CHECKING:
    from rich.text import Text

    from ...corpus.prepared.artifact import PreparedData
    from ...corpus.tokenizer.tokenizer import TextTokenizer


Documents = Annotated[
    dict[str, Any],
    FromModel(DataConfig, only=tuple(n for n, f in DataConfig.model_fields.items() if f.description)),
]


@dataclass(frozen=True, kw_only=True)
class FolderOptions:
    """Whose tokenizer, and where to."""

    output: Annotated[Path, typer.Option("--output", metavar="DIR", help="Folder to write.")]
    target: Annotated[
        Path | None,
        typer.Option(
            "--target", metavar="DIR", help="The target's folder, for its tokenizer and chat template."
        ),
    ] = None
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            "--tokenizer", metavar="PATH", help="A tokenizer.json or its folder, instead of a target."
        ),
    ] = None

    def tokenizer_source(self) -> Path:
        """Where the tokenizer is read from.

        Raises:
            UsageError: nothing names one, or two things do.
        """
        from ...core.errors import UsageError

        source = self.tokenizer or self.target
        if source is None or (self.tokenizer is not None and self.target is not None):
            raise UsageError("a tokenizer is needed", expected="either --target DIR or --tokenizer PATH")
        return source


@dataclass(frozen=True, kw_only=True)
class PrepareInputOptions:
    """What is read."""

    first_inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            metavar="PATH …",
            help="Texts or conversations: files, folders, globs in quotes, `hub:NAME[:CONFIG[:SPLIT]]`. "
            "Several may follow one --input, and it may be repeated.",
        ),
    ] = None
    more_inputs: MoreInputsArgument = None
    heldout: Annotated[
        list[str] | None,
        typer.Option(
            "--heldout",
            metavar="PATH",
            help="The same for held-out figures; may be repeated. Without it the last documents are set aside.",
        ),
    ] = None

    def paths(self) -> tuple[Path, ...]:
        """All paths to train on.

        Raises:
            UsageError: there are none.
        """
        from ...core.errors import UsageError

        inputs = [*(self.first_inputs or []), *(self.more_inputs or [])]
        if not inputs:
            raise UsageError("no input was given", expected="--input PATH …")
        return tuple(map(Path, inputs))


@dataclass(frozen=True, kw_only=True)
class RowOptions:
    """How documents become rows."""

    length: Annotated[int, typer.Option(metavar="T", min=8, max=131072, help="Tokens a row.")] = 2048
    documents: Documents
    template: Annotated[
        list[str] | None,
        typer.Option(
            "--template",
            metavar="NAME=VALUE",
            help="A further variable of the chat template (the value is read as YAML); may be repeated.",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class EndingOptions:
    """What is shown, and how."""

    show: Annotated[
        int,
        typer.Option("--show", metavar="N", min=0, help="Show N documents with what is learnt in colour."),
    ] = 0
    result: ResultOptions


def data_config(inputs: PrepareInputOptions, rows: RowOptions) -> DataConfig:
    """The options as training's configuration has them.

    Raises:
        UsageError: no input, two ways of parting documents, or a variable that cannot be read.
    """
    given = rows.documents
    check_parting(given["separator"], given["text_unit"])
    return DataConfig(
        train=inputs.paths(),
        heldout=tuple(map(Path, inputs.heldout or ())),
        sequence_length=rows.length,
        template=_variables(rows.template),
        **given,
    )


def _variables(given: list[str] | None) -> dict[str, Any]:
    """Variables of the chat template by name.

    Raises:
        UsageError: one that cannot be read, or whose name a template cannot use.
    """
    from ...core.errors import UsageError
    from ...core.values import yaml_pairs

    found = yaml_pairs(given, "--template", "NAME=VALUE")
    for name in found:
        if not name.isidentifier():
            raise UsageError(
                "this is no name of a template's variable",
                got=name,
                expected="a name such as date_string",
                source="--template",
            )
    return found


def prepare_data(
    folders: FolderOptions,
    inputs: PrepareInputOptions,
    rows: RowOptions,
    ending: EndingOptions,
) -> None:
    """Render, tokenise, mask and pack texts and conversations into rows for drafter training.

    The loss mask comes from the chat template's generation tags, else from comparing renderings. What is
    longer than a row, skipped, or left out by an option is counted and shown. A folder that holds the same
    content already (same sources, tokenizer, template and options) is used again.

    Train with it by `data.prepared: DIR`.

    Example: `vocabforge prepare-data --target model/ --input chats.jsonl --length 4096 --output data/`
    """
    from ...corpus.tokenizer.tokenizer import load_tokenizer
    from ...train.data import prepare_options

    source = folders.tokenizer_source()
    config = data_config(inputs, rows)
    loaded, output = load_tokenizer(source), folders.output
    prepared = _prepared(output, loaded, config, prepare_options(config), overwrite=ending.result.overwrite)
    if ending.result.as_json:
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
        _report(prepared, loaded, ending.show)


def _prepared(
    output: Path, tokenizer: TextTokenizer, config: Any, options: Any, *, overwrite: bool
) -> PreparedData:
    """What stands at ``output`` when it is of the same content, else made there."""
    from ...core.artifact import MANIFEST, check_output
    from ...core.console import say
    from ...corpus.prepared.artifact import find_prepared, write_prepared
    from ...corpus.prepared.options import content_key

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

    from ..inspect.data import data_tables

    out = stdout_console(highlight=True)
    for table in data_tables(prepared):
        out.print(table)
    for number, text in enumerate(
        _examples(prepared, tokenizer, show, plain=not out.is_terminal or out.no_color), start=1
    ):
        out.rule(f"document {number}")
        out.print(text, soft_wrap=True)
    echo(f"Written to {prepared.artifact.path}")


def _examples(
    prepared: PreparedData, tokenizer: TextTokenizer, number: int, *, plain: bool
) -> Iterator[Text]:
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
