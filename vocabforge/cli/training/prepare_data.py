"""``vocabforge prepare-data``: packed training rows with their loss mask."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from ...core.config import RAY, ResultOptions, StrictModel, TokenizerPath, option
from ...core.console import DataTable, FactList, percent, say
from ...core.errors import UsageError
from ...core.values import yaml_pairs
from ...train.config import DataConfig
from ..app import echo, print_json, stdout_console
from ..option_groups import FromModel

if TYPE_CHECKING:
    from rich.text import Text

    from ...corpus.prepared.artifact import PreparedData
    from ...corpus.tokenizer.tokenizer import TextTokenizer

_CONTENTS = {
    "texts": "plain texts",
    "conversations": "conversations",
    "thinking": "with thinking",
    "tool_list": "with a tool list",
    "tool_calls": "with tool calls",
    "marked": "masked by generation tags",
    "marks_with_header": "whose generation tags include the header of the turn",
    "marks_without_end": "whose generation tags leave out the end of the turn",
    "thinking_turns_left_out": "turns whose thinking the template leaves out",
    "empty_thinking_blocks": "empty thinking blocks of the template, not learnt",
    "thinking_only_turns": "answers of thinking alone, dropped and not learnt",
    "cut_turns": "answers cut: end not learnt",
}
Documents = Annotated[
    dict[str, Any],
    FromModel(DataConfig, only=tuple(n for n, f in DataConfig.model_fields.items() if f.description)),
]


class PrepareRequest(StrictModel):
    """The tokenizer, the inputs and the output."""

    output: Path = option(..., "Folder to write.", "DIR")
    target: TokenizerPath | None = option(
        None, "The target's folder, for its tokenizer and chat template.", "DIR"
    )
    tokenizer: TokenizerPath | None = option(
        None, "A tokenizer.json or its folder, instead of a target.", "PATH"
    )
    input: tuple[str, ...] = option(
        (),
        "Texts or conversations: files, folders, globs in quotes, data sets (`ultrachat`, "
        "`hub:NAME[:CONFIG[:SPLIT]]`). Several may follow one --input.",
        "PATH …",
        many=True,
    )
    more_inputs: tuple[str, ...] = option((), "Further paths of --input.", "PATH", positional=True)
    heldout: tuple[str, ...] = option(
        (), "Held-out texts, as --input. By default the last documents are held out.", "PATH", many=True
    )
    length: Annotated[int, Field(ge=8, le=131072)] = option(2048, "Tokens a row.", "T")
    template: tuple[str, ...] = option(
        (), "Variable of the chat template; the value is parsed as YAML.", "NAME=VALUE", many=True
    )
    ray: str | None = option(None, RAY, "ADDRESS")
    show: Annotated[int, Field(ge=0)] = option(0, "Print N documents with the trained tokens in colour.", "N")


def prepare_data(asked: PrepareRequest, documents: Documents, ending: ResultOptions) -> None:
    """Render, tokenise, mask and pack texts and conversations into rows for drafter training.

    The loss mask comes from the chat template's generation tags, else from comparing renderings. Documents
    that are too long, skipped or left out are counted and reported. An existing folder with the same
    sources, tokenizer, template and options is reused.

    To train with it, set `data.prepared: DIR`.

    Example: `vocabforge prepare-data --target model/ --input chats.jsonl --length 4096 --output data/`
    """
    from ...corpus.tokenizer.tokenizer import load_tokenizer
    from ...train.data import prepare_options

    source = asked.tokenizer or asked.target
    if source is None or (asked.tokenizer is not None and asked.target is not None):
        raise UsageError("a tokenizer is needed", expected="either --target DIR or --tokenizer PATH")
    inputs = [*asked.input, *asked.more_inputs]
    if not inputs:
        raise UsageError("no input was given", expected="--input PATH …")
    config = DataConfig(
        train=tuple(map(Path, inputs)),
        heldout=tuple(map(Path, asked.heldout)),
        sequence_length=asked.length,
        template=yaml_pairs(asked.template, "--template", "NAME=VALUE"),
        **documents,
    )
    loaded, output = load_tokenizer(source), asked.output
    prepared = _prepared(
        output, loaded, config, prepare_options(config), asked.ray, overwrite=ending.overwrite
    )
    if ending.as_json:
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
        _report(prepared, loaded, asked.show)


def _prepared(
    output: Path, tokenizer: TextTokenizer, config: Any, options: Any, ray: str | None, *, overwrite: bool
) -> PreparedData:
    """Return the prepared data at ``output`` if it is up to date; otherwise prepare it."""
    from ...core.artifact import MANIFEST, check_output
    from ...corpus.prepared.artifact import find_prepared, write_prepared
    from ...corpus.prepared.options import content_key

    exists = (output / MANIFEST).is_file()
    if not exists:
        check_output(output, overwrite=overwrite)
    keyed = content_key(tokenizer, config.train, config.heldout, options)
    if exists:
        prepared = find_prepared(output, keyed[0])
        if prepared is not None:
            say(f"{output} is already up to date.")
            return prepared
        check_output(output, overwrite=overwrite)
    return write_prepared(
        output, tokenizer, config.train, config.heldout, options, keyed=keyed, ray=ray, overwrite=overwrite
    )


def _report(prepared: PreparedData, tokenizer: TextTokenizer, show: int) -> None:
    out = stdout_console(highlight=True)
    for table in data_tables(prepared):
        out.print(table)
    for number, text in enumerate(
        _examples(prepared, tokenizer, show, plain=not out.is_terminal or out.no_color), start=1
    ):
        out.rule(f"document {number}")
        out.print(text, soft_wrap=True)
    echo(f"Written to {prepared.artifact.path}")


def data_tables(prepared: PreparedData) -> list[DataTable | FactList]:
    """Return rows and tokens of each split, contents, and what was left out; also shown by ``inspect``."""
    figures = prepared.figures
    splits = {"train": prepared.train, "heldout": prepared.heldout}
    heads = ["split<", "sources", "documents", "rows", "full", "tokens", "learnt", "share", "rows counted"]
    rows = []
    for name, packed in splits.items():
        split = figures[name]
        tokens, counted = split["tokens"], split["counted"]
        share = percent(counted / max(1, tokens))
        sizes = [split["documents"], split["sequences"], len(packed), f"{packed.fill:.1%}", tokens, counted]
        rows.append([name, *sizes, share, split.get("rows_counted", 0)])

    def summed(key: str) -> int:
        return sum(figures[name]["overlong"][key] for name in splits)

    left_out = {
        "documents longer than a row": summed("sequences"),
        "documents made of those": summed("pieces"),
        "their tokens that are in no row": summed("lost_tokens"),
        "of these to be learnt": summed("lost_counted"),
        "parts with nothing to learn": summed("unlearnt"),
        "packed rows without a counted position": sum(
            figures[name].get("rows_without", 0) for name in splits
        ),
        **dict(sorted(figures["skipped"].items(), key=lambda item: -item[1])),
    }
    contents = {title: figures["facts"].get(name) for name, title in _CONTENTS.items()}
    lists = {"Contents": contents, "Left out": left_out}
    facts = [FactList({name: n for name, n in counts.items() if n}, title) for title, counts in lists.items()]
    return [DataTable("Rows", heads, rows), *(table for table in facts if table.facts)]


def _examples(
    prepared: PreparedData, tokenizer: TextTokenizer, number: int, *, plain: bool
) -> Iterator[Text]:
    """Return the first documents of the training rows, trained text in green, or in ⟦ ⟧ without colour."""
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
