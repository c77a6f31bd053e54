"""A folder that is no artefact: what it seems to be, and which command reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...core.artifact import MANIFEST
from ...core.errors import ArtifactError, DataError
from ...core.files import read_json

# A file that tells a folder -> what the folder seems to be, and what reads it; {0}: the folder, {1}: artefacts in it.
_RUNS = {
    "tune.json": (
        "a run of tune",
        "vocabforge eval --recipe {0}/recipe.yaml, or open {0}/report.html",
    ),
    "latency.json": ("a measurement of tune", "vocabforge tune --what-if {0}/latency.json"),
    "stages.json": ("a vocabulary study", "vocabforge study report, or open {0}/report"),
    "demo.json": (
        "a folder of the demo",
        "vocabforge demo --output {0}, or vocabforge inspect {0}/drafter/drafter",
    ),
    "metrics.jsonl": (
        "a training run",
        "inspect what it made ({1}); vocabforge report-training {0} shows the figures of a drafter's run",
    ),
}
_TEXTS = (".txt", ".jsonl", ".ndjson", ".json", ".parquet", ".gz", ".xz", ".zst")


def check_ours(path: Path) -> None:
    """Refuse what is there and plainly something else than an artefact, with the command that reads it.

    Raises:
        ArtifactError: a model, a drafter made elsewhere, a tokenizer, a run, or a file.
    """
    if (path / MANIFEST).is_file() or not path.exists():
        return
    found = _file(path) if path.is_file() else _folder(path)
    if found is None:
        return
    what, remedy = found
    raise ArtifactError(
        "this is not a VocabForge artefact",
        got=f"{path}, which seems to be {what}",
        expected=f"a folder with a {MANIFEST}",
        remedy=remedy,
    )


def _file(path: Path) -> tuple[str, str] | None:
    if path.name == MANIFEST:
        return "the manifest of an artefact", f"give its folder: vocabforge inspect {path.parent}"
    if path.name == "tokenizer.json":
        return _tokenizer(path)
    if path.suffix in _TEXTS:
        return "a file of texts or rows", f"vocabforge count-freq or prepare-data --input {path}"
    return "a file", f"inspect reads folders: is {path.parent} meant?"


def _folder(path: Path) -> tuple[str, str] | None:
    for name, (what, remedy) in _RUNS.items():
        if (path / name).is_file():
            inside = sorted(one.parent.name for one in path.glob(f"*/{MANIFEST}"))
            return what, remedy.format(path, ", ".join(inside) or "nothing yet")
    if path.name.endswith(".partial"):
        return "what an interrupted run left", "the command that wrote it, given again, goes on from here"
    config = _config(path)
    if config is not None:
        return _model(path, config)
    return _tokenizer(path) if (path / "tokenizer.json").is_file() else None


def _model(path: Path, config: dict[str, Any]) -> tuple[str, str]:
    """Of a folder with a ``config.json``."""
    from ...export.registry import FORMATS, layout_of

    for name in FORMATS:
        if layout_of(name).matches(config):
            return (
                f"a drafter made elsewhere, in the layout {name}",
                f"vocabforge doctor --target MODEL --drafter {path}; vocabforge export --drafter {path} "
                "--format native --output DIR makes an artefact of it",
            )
    kind = config.get("architectures") or config.get("model_type")
    named = f" ({', '.join(map(str, kind)) if isinstance(kind, list) else kind})" if kind else ""
    return f"a model of Hugging Face{named}", f"vocabforge doctor --target {path}"


def _tokenizer(path: Path) -> tuple[str, str]:
    return (
        "a tokenizer",
        f"vocabforge compare-vocab {path} OTHER, or count-freq --tokenizer {path}",
    )


def _config(path: Path) -> dict[str, Any] | None:
    """The folder's ``config.json``; empty where it cannot be read, None where there is none."""
    if not (path / "config.json").is_file():
        return None
    try:
        body = read_json(path / "config.json", "config.json", finite=False)
    except DataError:
        return {}
    return body if isinstance(body, dict) else {}
