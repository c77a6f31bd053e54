"""``vocabforge prepare-data``: packed training rows with their loss mask."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .app import echo, print_json, stdout_console
from .prepare_options import (
    EndingOptions,
    FolderOptions,
    HeldoutOptions,
    InputOptions,
    RowOptions,
    data_config,
)

if TYPE_CHECKING:
    from rich.text import Text

    from ..corpus.prepared import PreparedData
    from ..corpus.tokenizer import TextTokenizer


def prepare_data(
    folders: FolderOptions,
    inputs: InputOptions,
    rows: RowOptions,
    heldout: HeldoutOptions,
    ending: EndingOptions,
) -> None:
    """Render, tokenise, mask and pack texts and conversations into rows for drafter training.

    The loss mask comes from the chat template's generation tags, else from comparing renderings. What is
    longer than a row, skipped, or left out by an option is counted and shown. A folder that holds the same
    content already (same sources, tokenizer, template and options) is used again.

    Train with it by `data.prepared: DIR`.

    Example: `vocabforge prepare-data --target model/ --input chats.jsonl --length 4096 --output data/`
    """
    from ..corpus.tokenizer import load_tokenizer
    from ..train.data import prepare_options

    source = folders.tokenizer_source()
    config = data_config(inputs, rows, heldout, strict=ending.strict)
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

    from .inspection.data import data_tables

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
