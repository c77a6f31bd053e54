"""The command line: one module per command, listed in one table."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Callable
from pathlib import Path

from ..core.registry import load_attribute

# name -> "module:attr". To add a command, add a module and a row.
COMMANDS: dict[str, str] = {
    "count-freq": "vocabforge.cli.vocab.count_freq:count_freq",
    "merge-freq": "vocabforge.cli.vocab.merge_freq:merge_freq",
    "select-vocab": "vocabforge.cli.vocab.select_vocab:select_vocab",
    "coverage": "vocabforge.cli.vocab.coverage:coverage",
    "cluster-vocab": "vocabforge.cli.vocab.cluster_vocab:cluster_vocab",
    "compare-vocab": "vocabforge.cli.vocab.compare_vocab:compare_vocab",
    "inspect": "vocabforge.cli.inspect:inspect",
    "regenerate": "vocabforge.cli.training.regenerate:regenerate",
    "capture": "vocabforge.cli.training.capture:capture",
    "prepare-data": "vocabforge.cli.training.prepare_data:prepare_data",
    "recipes": "vocabforge.cli.training.recipes:recipes",
    "train-drafter": "vocabforge.cli.training.train_drafter:train_drafter",
    "report-training": "vocabforge.cli.training.report_training:report_training",
    "export": "vocabforge.cli.drafting.export:export",
    "tune": "vocabforge.cli.drafting.tune:tune",
    "eval": "vocabforge.cli.drafting.eval:evaluate",
    "report": "vocabforge.cli.drafting.report:report",
    "generate": "vocabforge.cli.drafting.generate:generate",
    "kernels": "vocabforge.cli.kernels:kernels",
    "doctor": "vocabforge.cli.doctor:doctor",
    "demo": "vocabforge.cli.demo:demo",
}

# Removed command -> its replacement.
MOVED = {
    "study": "python recipes/study/study.py in the repository; see docs/guides/study.md",
    "bench": "the scripts of recipes/bench or kernels/gpu_check.py in the repository",
    "train-router": "vocabforge train-drafter --config RECIPE drafter.init=DRAFTER drafter.freeze=true "
    "heads.router.clusters=CLUSTERS; see docs/guides/draft-heads.md",
    "revocab": "vocabforge export --drafter DRAFTER --vocab SUBSET|full --format native --output FOLDER; see "
    "docs/guides/revocab.md",
    "push": "hf upload OWNER/NAME FOLDER; see docs/guides/serving.md",
}

# First command -> heading of this and the following commands on the help page.
HEADINGS = {
    "count-freq": "Vocabularies",
    "regenerate": "Data and training",
    "export": "Drafters in use: decode, measure, serve",
    "kernels": "This machine, a first try",
}


def main() -> None:
    """Run ``vocabforge`` or ``python -m vocabforge``."""
    if not any(Path("/dev").glob("nvidia*")):
        # If DeepSpeed is installed, other packages import it, and its device detection prints to stdout.
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    # Import only the requested command, so that `--help` and errors are fast.
    # A shell asks for completions with the line so far in one of these variables.
    line = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")
    words = sys.argv[1:] or line.split()[1:]
    wanted = next((word for word in words if not word.startswith("-")), None)
    if wanted in MOVED:
        sys.stderr.write(f"Error: `vocabforge {wanted}` has moved\n  remedy:   run {MOVED[wanted]}\n")
        sys.exit(2)
    try:
        from .app import build_app

        if wanted in COMMANDS:
            commands = {wanted: load_attribute(COMMANDS[wanted])}
        else:
            commands = {name: _described(place) for name, place in COMMANDS.items()}
        build_app(commands, all_names=list(COMMANDS), headings=HEADINGS)()
    except KeyboardInterrupt:  # outside the command, which prints its own message
        sys.exit(130)


def _described(place: str) -> Callable[..., None]:
    """Return a command's name and docstring for the help page, read without importing its module and options."""
    module, _, name = place.partition(":")
    file = Path(__file__).parent.joinpath(*module.split(".")[2:]).with_suffix(".py")
    defined = (node for node in ast.parse(file.read_bytes()).body if isinstance(node, ast.FunctionDef))
    function = next(node for node in defined if node.name == name)

    def command() -> None:
        raise NotImplementedError(f"{place} is only described")

    command.__doc__ = ast.get_docstring(function)
    return command
