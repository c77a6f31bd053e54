"""What a frequency table is counted from, and how."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from ...core.config import CONTENT_FORMAT, RAY, STRICT, Count, Positive, StrictModel, TokenizerPath, option
from ...core.values import TextUnit


class CountRequest(StrictModel):
    """The tokenizer, the inputs, and how they are counted."""

    tokenizer: TokenizerPath = option(..., "A tokenizer.json, or the folder that contains one.", "PATH")
    output: Path = option(..., "Folder of the frequency table to write.", "DIR")
    input: tuple[str, ...] = option(
        (),
        "Files, folders (searched through), globs in quotes, URLs (`s3://…`), data sets (`ultrachat`, "
        "`hub:NAME[:CONFIG[:SPLIT]]`): .txt, .jsonl, .ndjson, .json, each also with .gz, .xz or .zst, and .parquet. "
        "Several may follow one --input.",
        "PATH …",
        many=True,
    )
    more_inputs: tuple[str, ...] = option((), "Further paths of --input.", "PATH", positional=True)
    domain: tuple[str, ...] = option(
        (), "Count this input separately, under NAME. Repeat a NAME to add to it.", "NAME=PATH", many=True
    )
    mode: Literal["corpus", "assistant"] = option(
        "corpus",
        "**corpus**: every token of raw text, no BOS or EOS added. **assistant**: only what the assistant writes "
        "in conversations rendered by the chat template.",
    )
    text_field: str | None = option(
        None, "Field with the text or conversation of a row; by default the usual names.", "NAME"
    )
    text_unit: TextUnit = option("file", "What one document of a text file is.")
    separator: str | None = option(
        None, "Literal that separates the documents of a text file, such as '<|endoftext|>'.", "TEXT"
    )
    tokens: Count | None = option(
        None,
        "Stop after the document with which this number of tokens is counted: 1B, 500M, 10_000 or 1e9. "
        "Not with --domain.",
        "N",
    )
    sample: float | None = option(
        None, "Count each document with this probability, decided by --seed.", "SHARE"
    )
    seed: int = option(0, "Seed of --sample.")
    workers: Positive = option(1, "Number of counting processes.", "N")
    ray: str | None = option(None, RAY, "ADDRESS")
    engine: str | None = option(
        None, "fast, kitoken or plain; by default the fastest one with proved identical results.", "NAME"
    )
    shard_mb: Positive = option(
        256,
        "Shard size in MB. An interrupted run loses at most one shard, or one file that cannot be divided.",
        "N",
    )
    content_format: Literal["auto", "text", "parts"] = option("auto", CONTENT_FORMAT)
    strict: bool = option(False, STRICT)
