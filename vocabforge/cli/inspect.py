"""``vocabforge inspect``: verify an artefact, and show what it contains and what made it."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from ..core.config import Positive, StrictModel, TokenizerPath, option
from ..core.console import DataTable, FactList, percent, value_text
from ..core.errors import DataError
from .app import JsonOption, print_json, stdout_console

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..core.artifact import Artifact

_COMMAND_LENGTH = 400
_FILES = 12
_MOST_ROWS = 100
_CONFIGS = ("drafter.json", "head.json", "config.json")
# Content of an artefact: JSON values, and tables to show instead of the default ones.
Content = tuple[Mapping[str, Any], "Sequence[RenderableType] | None"]


class InspectRequest(StrictModel):
    """The artefact, and how much of it to show."""

    path: Path = option(..., "Folder of any artefact.", "DIR", positional=True)
    top: Positive = option(10, "Rows per list.", "N")
    tokenizer: TokenizerPath | None = option(None, "Tokenizer for displaying the text of tokens.", "PATH")


def inspect(asked: InspectRequest, as_json: JsonOption = False) -> None:
    """Verify an artefact and show its contents: counts, draft vocabulary, clusters, drafter, evaluation, ...

    Tokens are printed with a space as ␣ and non-text bytes as \\\\xNN.

    Example: `vocabforge inspect counts/ --top 20 --tokenizer model/`
    """
    from ..core.artifact import open_artifact
    from ..core.files import form_errors

    artifact = open_artifact(asked.path)
    with form_errors(
        f"this {artifact.kind} artefact does not hold what one of this kind does",
        asked.path,
        remedy="use the version that wrote it",
    ):
        content, tables = VIEWS.get(artifact.kind, _weights)(artifact, asked)
        tables = _tables(content) if tables is None else tables
    header = _header(artifact)
    if as_json:
        tokenizer = None if asked.tokenizer is None else str(asked.tokenizer)
        print_json({**header, "tokenizer": tokenizer, "content": content})
    else:
        _print(header, tables)
        if asked.tokenizer is None and artifact.kind in ("counts", "subset"):
            stdout_console().print(
                "Tokens are shown by id: give --tokenizer PATH to see their texts.", style="dim"
            )


def _header(artifact: Artifact) -> dict[str, Any]:
    """Return the fields that every artefact has; its files are already verified."""
    manifest = artifact.manifest
    command = [str(word) for word in manifest.get("command") or ()]
    if command and Path(command[0]).name in ("vocabforge", "__main__.py"):
        command[0] = "vocabforge"
    return {
        "kind": artifact.kind,
        "path": str(artifact.path),
        "created": manifest.get("created"),
        "command": shlex.join(command),
        "versions": dict(manifest.get("versions") or {}),
        "git_revision": manifest.get("git_revision"),
        "content_hash": artifact.content_hash,
        "parents": dict(manifest.get("parents") or {}),
        "files": {name: entry["bytes"] for name, entry in manifest["files"].items()},
        "verified": True,
    }


def _print(header: dict[str, Any], tables: Sequence[RenderableType]) -> None:
    files = header["files"]
    # List only the first files: a cache may have thousands.
    listed = ", ".join(f"{name} ({size:,} bytes)" for name, size in list(files.items())[:_FILES])
    facts = {name.replace("_", " "): value for name, value in header.items()}
    facts["command"] = shorten(header["command"], _COMMAND_LENGTH, placeholder="…")
    facts["files"] = listed + (f" and {len(files) - _FILES:,} more" if len(files) > _FILES else "")
    facts["verified"] = f"{len(files)} file{'s' if len(files) != 1 else ''}, every hash as recorded"
    out = stdout_console(highlight=True)
    for table in (FactList(facts), *tables):
        out.print(table)
        out.print()


# The content of each kind


def _weights(artifact: Artifact, asked: InspectRequest) -> Content:
    """Return the meta, the configuration, and the shapes of all tensors, from the headers of the files."""
    from ..core.files import read_json
    from ..models.checkpoint import read_headers

    names = [name for name in artifact.manifest["files"] if name != "optimizer.safetensors"]
    config: Any = next(
        (read_json(artifact.file(name), "configuration") for name in _CONFIGS if name in names), {}
    )
    stored = read_headers([artifact.file(name) for name in names if name.endswith(".safetensors")])
    tensors: dict[str, dict[str, Any]] = {
        name: {"dtype": one.dtype, "shape": list(one.shape)} for name, one in sorted(stored.items())
    }
    for name in names:
        if name.endswith(".gguf"):
            config, tensors = _gguf(artifact.file(name))
    # F32, BF16 or float32; integers are token ids.
    floats = [one for one in tensors.values() if "f" in str(one["dtype"]).lower()]
    sizes = {
        "parameters": sum(math.prod(one["shape"]) for one in floats),
        "dtype": ", ".join(sorted({str(one["dtype"]) for one in floats})),
    }
    return {**(sizes if floats else {}), **artifact.meta, "config": config, "tensors": tensors}, None


def _gguf(file: Path) -> tuple[Mapping[str, Any], dict[str, dict[str, Any]]]:
    from ..layouts.gguf.file import read_file
    from ..models.target.load import dtype_name

    config, stored = read_file(file)
    shapes = {
        name: {"dtype": dtype_name(one.dtype), "shape": list(one.shape)} for name, one in stored.items()
    }
    return config, shapes


def _counts(artifact: Artifact, asked: InspectRequest) -> Content:
    """Return totals, domains, the most frequent, the rarest and the special tokens."""
    import numpy as np

    from ..vocab.counts.table import load_counts

    table, text = load_counts(artifact.path), _texts(artifact, asked.tokenizer)
    order = np.argsort(-table.counts, kind="stable")[: table.seen].tolist()  # ties: lower id first
    special = table.special
    purposes = {
        "end": special.eos,
        "control": special.control,
        "tools": special.tools,
        "other": special.others,
    }

    def row(token: int) -> dict[str, Any]:
        count = int(table.counts[token])
        share = count / table.tokens if table.tokens else None
        return {"id": token, "text": text(token), "count": count, "share": share}

    named: dict[int, list[str]] = {}
    for purpose, ids in purposes.items():
        for token in ids:
            if purpose != "other" or table.counts[token]:
                named.setdefault(token, []).append(purpose)
    content = {
        **table.totals(),
        "bytes_per_token": round(table.bytes / table.tokens, 3) if table.tokens else None,
        "sources": len(table.sources),
        "domains": {
            name: {"tokens": part.tokens, "documents": part.documents, "bytes": part.bytes}
            for name, part in table.domains.items()
        },
        "top": [row(token) for token in order[: asked.top]],
        "rare": [row(token) for token in order[::-1][: asked.top]],
        "special": [{**row(token), "purpose": ", ".join(named[token])} for token in sorted(named)],
        "origin": dict(table.origin),
    }
    return content, None


def _subset(artifact: Artifact, asked: InspectRequest) -> Content:
    """Return size, coverage, forced ids, and the first and the last tokens by rank."""
    from ..vocab.subset.subset import load_subset

    text = _texts(artifact, asked.tokenizer)
    ranked = enumerate(load_subset(artifact.path).ranked.tolist(), start=1)
    ranks = [{"rank": rank, "id": token, "text": text(token)} for rank, token in ranked]
    last = [] if 2 * asked.top >= len(ranks) else ranks[-asked.top :]
    return {**artifact.meta, "first": ranks[: asked.top] if last else ranks, "last": last}, None


def _clusters(artifact: Artifact, asked: InspectRequest) -> Content:
    from ..vocab.clusters.clusters import cluster_figures, load_clusters

    # The figures include the quality that ``origin`` records.
    origin = {name: value for name, value in artifact.meta["origin"].items() if name != "quality"}
    return {**artifact.meta, "origin": origin, **cluster_figures(load_clusters(artifact.path))}, None


def _overlap(artifact: Artifact, asked: InspectRequest) -> Content:
    from ..vocab.overlap.overlap import load_overlap
    from .vocab.compare_vocab import overlap_tables

    overlap = load_overlap(artifact.path)
    compared = dict(artifact.manifest.get("config") or {})
    return overlap.to_json(), [FactList(compared, "Compared"), *overlap_tables(overlap)]


def _prepared(artifact: Artifact, asked: InspectRequest) -> Content:
    from ..corpus.prepared.artifact import load_prepared
    from .training.prepare_data import data_tables

    prepared = load_prepared(artifact.path, verify=False)
    facts = _tables({"key": prepared.key, **artifact.meta["options"]})
    return artifact.meta, [*facts, *data_tables(prepared)]


def _evaluation(artifact: Artifact, asked: InspectRequest) -> Content:
    from rich.text import Text

    from ..evaluate.reports.tables import divergence_lines, headline, main_tables
    from ..evaluate.results.schema import read_results

    results = read_results(artifact.file("results.json"))
    lines = map(Text, [*divergence_lines(results), headline(results)])
    return results.model_dump(mode="json"), [FactList(results.run_facts), *main_tables(results), *lines]


def _coverage(artifact: Artifact, asked: InspectRequest) -> Content:
    from rich.text import Text

    from ..core.files import read_json
    from ..evaluate.reports.coverage import coverage_tables, summary_lines

    results = read_json(artifact.file("coverage.json"), "results")
    lines = map(Text, summary_lines(results))
    return results, [*coverage_tables(results), *lines]


# Kinds that are not listed contain weights, or only the manifest.
VIEWS: Mapping[str, Callable[[Artifact, InspectRequest], Content]] = {
    "counts": _counts,
    "subset": _subset,
    "clusters": _clusters,
    "overlap": _overlap,
    "coverage": _coverage,
    "responses": lambda artifact, _: (artifact.meta, None),
    "prepared-data": _prepared,
    "capture": lambda artifact, _: (artifact.meta, None),
    "evaluation": _evaluation,
}


def _texts(artifact: Artifact, tokenizer: Path | None) -> Callable[[int], str]:
    """Return a function that gives a token's printable text (empty without a tokenizer).

    Raises:
        MismatchError: the tokenizer does not match the artefact.
        DataError: the tokenizer cannot be read.
    """
    from ..corpus.tokenizer.token_bytes import readable, token_bytes
    from ..corpus.tokenizer.tokenizer import check_fingerprint, load_tokenizer

    if tokenizer is None:
        return lambda token: ""
    loaded = load_tokenizer(tokenizer)
    check_fingerprint(
        str(artifact.meta["fingerprint"]),
        loaded.fingerprint,
        expected_from=f"the artefact {artifact.path}",
        got_from=tokenizer,
        remedy="give the tokenizer that the artefact was made with",
    )
    try:
        forms: Sequence[bytes | None] = token_bytes(loaded)
    except DataError:  # fall back to the tokens as written in the vocabulary
        forms = ()

    def text(token: int) -> str:
        form = forms[token] if token < len(forms) else None
        return readable(form if form is not None else loaded.backend.id_to_token(token) or "(no token)")

    return text


# JSON values as tables


def _tables(content: Mapping[str, Any]) -> list[RenderableType]:
    """Return single values as a list, then a table for each list of rows and each group of facts."""
    lines: dict[str, Any] = {}
    tables: list[RenderableType] = []
    for key, value in content.items():
        name = key.replace("_", " ")
        title = name[:1].upper() + name[1:]
        if isinstance(value, list) and value and isinstance(value[0], Mapping):
            tables.append(_rows_table(title, value))
        elif isinstance(value, Mapping) and value:
            keys = [row.keys() if isinstance(row, Mapping) else None for row in value.values()]
            if keys[0] is not None and all(one == keys[0] for one in keys):
                tables.append(_rows_table(title, [{"name": one, **row} for one, row in value.items()]))
            else:
                tables.append(FactList(_flat(value), title))
        elif value not in ({}, []):
            share = name == "coverage" and isinstance(value, float)
            lines[name] = percent(value) if share else value
    return [FactList(lines), *tables]


def _rows_table(title: str, rows: Sequence[Mapping[str, Any]]) -> DataTable:
    """Return JSON rows as a table with a column per key: texts left-aligned, numbers right-aligned."""
    numbers = {name for name, value in rows[0].items() if isinstance(value, (int, float, type(None)))}
    heads = [name.replace("_", " ") + ("" if name in numbers else "<") for name in rows[0]]
    cells = [[_cell(name, row.get(name)) for name in rows[0]] for row in rows[:_MOST_ROWS]]
    more = len(rows) - len(cells)
    return DataTable(title, heads, cells, f"{more:,} more: --json has all" if more else "")


def _cell(name: str, value: Any) -> str:
    if name == "share":
        return percent(value, 3)
    return str(value) if name == "id" or value == "" else value_text(value)


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested mappings to dotted names."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return flat
