"""A folder that is no artefact: what it seems to be, and which command reads it."""

from __future__ import annotations

from pathlib import Path

from ...core.artifact import MANIFEST
from ...core.errors import ArtifactError, DataError
from ...core.files import read_json

# A file in the folder -> what the folder seems to be, and what reads it.
_MARKS = {
    "tune.json": ("a run of tune", "vocabforge eval --recipe {0}/recipe.yaml, or open {0}/report.html"),
    "latency.json": ("a measurement of tune", "vocabforge tune --what-if {0}/latency.json"),
    "stages.json": ("a vocabulary study", "vocabforge study report, or open {0}/report"),
    "demo.json": ("a folder of the demo", "vocabforge inspect {0}/drafter/drafter"),
    "metrics.jsonl": ("a training run", "vocabforge report-training {0}, or inspect {0}/drafter"),
    "config.json": ("a model of Hugging Face", "vocabforge doctor --target {0}"),
    "tokenizer.json": ("a tokenizer", "vocabforge compare-vocab {0} OTHER, or count-freq --tokenizer {0}"),
}
_FILES = {
    MANIFEST: ("the manifest of an artefact", "give its folder"),
    "tokenizer.json": ("a tokenizer", "vocabforge count-freq --tokenizer {0}"),
}
_LAYOUT = (
    "vocabforge doctor --target MODEL --drafter {0}; vocabforge export --drafter {0} --format native "
    "--output DIR makes an artefact of it"
)


def check_ours(path: Path) -> None:
    """Refuse what is there and plainly something else than an artefact, with the command that reads it.

    Raises:
        ArtifactError: a model, a drafter made elsewhere, a tokenizer, a run, or a file.
    """
    if (path / MANIFEST).is_file() or not path.exists():
        return
    if path.is_file():
        found = _FILES.get(path.name, ("a file", "inspect reads folders"))
    elif path.name.endswith(".partial"):
        found = "what an interrupted run left", "the command that wrote it, given again, goes on from here"
    elif (layout := _layout(path)) is not None:
        found = f"a drafter made elsewhere, in the layout {layout}", _LAYOUT
    else:
        marks = [row for name, row in _MARKS.items() if (path / name).is_file()]
        if not marks:
            return
        found = marks[0]
    what, remedy = found
    raise ArtifactError(
        "this is not a VocabForge artefact",
        got=f"{path}, which seems to be {what}",
        expected=f"a folder with a {MANIFEST}",
        remedy=remedy.format(path),
    )


def _layout(path: Path) -> str | None:
    """The layout of a drafter's folder; None for anything else."""
    from ...export.registry import FORMATS, layout_of

    try:
        config = read_json(path / "config.json", "config.json", finite=False)
    except DataError:
        return None
    return next(
        (name for name in FORMATS if isinstance(config, dict) and layout_of(name).matches(config)), None
    )
