"""``vocabforge inspect``: verify an artefact, and show what it contains and what made it."""

from __future__ import annotations

import contextlib
import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
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
    from rich.text import Text

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
    manifest, files = artifact.manifest, artifact.manifest["files"]
    command = [str(word) for word in manifest.get("command") or ()]
    if command and Path(command[0]).name in ("vocabforge", "__main__.py"):
        command[0] = "vocabforge"
    header = {
        "kind": artifact.kind,
        "path": str(artifact.path),
        "created": manifest.get("created"),
        "command": shlex.join(command),
        "content_hash": artifact.content_hash,
        "parents": dict(manifest.get("parents") or {}),
    }
    if as_json:
        more = {name: manifest.get(name) for name in ("versions", "git_revision")}
        sizes = {name: entry["bytes"] for name, entry in files.items()}
        print_json({**header, **more, "files": sizes, "verified": True, "content": content})
        return
    facts = {name.replace("_", " "): value for name, value in header.items()}
    facts["command"] = shorten(str(header["command"]), _COMMAND_LENGTH, placeholder="…")
    size = sum(entry["bytes"] for entry in files.values())
    facts["verified"] = f"every hash as recorded (files: {len(files)}, bytes: {size:,})"
    out = stdout_console(highlight=True)
    for table in (FactList(facts), *tables):
        out.print(Text(table) if isinstance(table, str) else table)
        out.print()
    if asked.tokenizer is None and artifact.kind in ("counts", "subset"):
        out.print("Tokens are shown by id: give --tokenizer PATH to see their texts.", style="dim")


# The content of each kind


def _weights(artifact: Artifact, asked: InspectRequest) -> Content:
    """Return the meta, the configuration, and the shapes of all tensors, from the headers of the files."""
    from ..core.files import read_json
    from ..layouts.gguf.file import read_file
    from ..models.checkpoint import read_headers
    from ..models.target.load import dtype_name

    names = [name for name in artifact.manifest["files"] if name != "optimizer.safetensors"]
    config: Any = next(
        (read_json(artifact.file(name), "configuration") for name in _CONFIGS if name in names), {}
    )
    stored = read_headers([artifact.file(name) for name in names if name.endswith(".safetensors")])
    dtypes = {name: (tensor.dtype, list(tensor.shape)) for name, tensor in sorted(stored.items())}
    for name in names:
        if name.endswith(".gguf"):
            config, held = read_file(artifact.file(name))
            dtypes = {key: (dtype_name(tensor.dtype), list(tensor.shape)) for key, tensor in held.items()}
    # F32, BF16 or float32; integers are token ids.
    floats = [(dtype, shape) for dtype, shape in dtypes.values() if "f" in dtype.lower()]
    sizes = {
        "parameters": sum(math.prod(shape) for _, shape in floats),
        "dtype": ", ".join(sorted({dtype for dtype, _ in floats})),
    }
    tensors = {name: {"dtype": dtype, "shape": shape} for name, (dtype, shape) in dtypes.items()}
    return {**(sizes if floats else {}), **artifact.meta, "config": config, "tensors": tensors}, None


def _counts(artifact: Artifact, asked: InspectRequest) -> Content:
    """Return totals, domains, the most frequent, the rarest and the special tokens."""
    import numpy as np

    from ..vocab.counts.table import load_counts

    table, text = load_counts(artifact.path), _texts(artifact, asked.tokenizer)
    order = np.argsort(-table.counts, kind="stable")[: table.seen].tolist()  # ties: lower id first
    special = table.special
    purposes = {"end": special.eos, "control": special.control, "tools": special.tools}

    def row(token: int) -> dict[str, Any]:
        count = int(table.counts[token])
        share = count / table.tokens if table.tokens else None
        return {"id": token, "text": text(token), "count": count, "share": share}

    # Others of the tokenizer's special tokens are listed if they occur.
    ids = {*special.eos, *special.control, *special.tools, *(id for id in special.others if table.counts[id])}
    content = {
        **table.totals(),
        "domains": {
            name: {key: getattr(part, key) for key in ("tokens", "documents", "bytes")}
            for name, part in table.domains.items()
        },
        "top": [row(token) for token in order[: asked.top]],
        "rare": [row(token) for token in order[::-1][: asked.top]],
        "special": [
            {**row(id), "purpose": ", ".join(name for name, those in purposes.items() if id in those)}
            for id in sorted(ids)
        ],
    }
    return content, None


def _subset(artifact: Artifact, asked: InspectRequest) -> Content:
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
    return overlap.to_json(), overlap_tables(overlap)


def _prepared(artifact: Artifact, asked: InspectRequest) -> Content:
    from ..corpus.prepared.artifact import load_prepared
    from .training.prepare_data import data_tables

    prepared = load_prepared(artifact.path, verify=False)
    return artifact.meta, [*_tables(artifact.meta["options"]), *data_tables(prepared)]


def _evaluation(artifact: Artifact, asked: InspectRequest) -> Content:
    from ..evaluate.reports.tables import divergence_lines, headline, main_tables
    from ..evaluate.results.schema import read_results

    results = read_results(artifact.file("results.json"))
    lines = [*divergence_lines(results), headline(results)]
    return results.model_dump(mode="json"), [FactList(results.run_facts), *main_tables(results), *lines]


def _coverage(artifact: Artifact, asked: InspectRequest) -> Content:
    from ..core.files import read_json
    from ..evaluate.reports.coverage import coverage_tables, summary_lines

    results = read_json(artifact.file("coverage.json"), "results")
    return results, [*coverage_tables(results), *summary_lines(results)]


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
    """Return a function that gives a token's printable text (empty without a tokenizer)."""
    from ..corpus.tokenizer.token_bytes import readable, token_forms
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
    forms: Sequence[bytes | None] = ()
    with contextlib.suppress(DataError):  # then the tokens are shown as written in the vocabulary
        forms = token_forms(loaded).forms

    def text(token: int) -> str:
        form = forms[token] if token < len(forms) else None
        return readable(form if form is not None else loaded.backend.id_to_token(token) or "(no token)")

    return text


def _tables(content: Mapping[str, Any]) -> list[RenderableType]:
    """Return single values as a list, and a table for each list of rows and each group of facts."""
    lines: dict[str, Any] = {}
    tables: list[RenderableType] = []
    for key, value in content.items():
        title = key.replace("_", " ").capitalize()
        if isinstance(value, Mapping) and value:
            more = f" ({len(value):,}; all with --json)" if len(value) > _MOST_ROWS else ""
            tables.append(FactList(dict(islice(value.items(), _MOST_ROWS)), title + more))
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            heads = [
                name if isinstance(entry, (int, float)) else f"{name}<" for name, entry in value[0].items()
            ]
            cells = [[_cell(name, row.get(name)) for name in value[0]] for row in value[:_MOST_ROWS]]
            tables.append(DataTable(title, heads, cells))
        elif value not in ({}, []):
            lines[key.replace("_", " ")] = _cell(key, value)
    return [FactList(lines), *tables]


def _cell(name: str, value: Any) -> str:
    if name in ("coverage", "share") and isinstance(value, float):
        return percent(value, 3)
    return str(value) if name == "id" or value == "" else value_text(value)
