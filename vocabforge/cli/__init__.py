"""The command line: one thin file a command, listed in one table."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ..core.registry import load_attribute

# name -> "module:attr"; adding a command is a file and a row.
COMMANDS: dict[str, str] = {
    "count-freq": "vocabforge.cli.vocab.count_freq:count_freq",
    "merge-freq": "vocabforge.cli.vocab.merge_freq:merge_freq",
    "select-vocab": "vocabforge.cli.vocab.select_vocab:select_vocab",
    "coverage": "vocabforge.cli.vocab.coverage:coverage",
    "cluster-vocab": "vocabforge.cli.vocab.cluster_vocab:cluster_vocab",
    "compare-vocab": "vocabforge.cli.vocab.compare_vocab:compare_vocab",
    "inspect": "vocabforge.cli.inspect.command:inspect",
    "regenerate": "vocabforge.cli.data.regenerate:regenerate",
    "capture": "vocabforge.cli.data.capture:capture",
    "prepare-data": "vocabforge.cli.data.prepare_data:prepare_data",
    "recipes": "vocabforge.cli.recipes:recipes",
    "train-drafter": "vocabforge.cli.train.train_drafter:train_drafter",
    "train-router": "vocabforge.cli.train.train_router:train_router",
    "report-training": "vocabforge.cli.train.report_training:report_training",
    "export": "vocabforge.cli.ship.export:export",
    "revocab": "vocabforge.cli.ship.revocab:revocab",
    "push": "vocabforge.cli.ship.push:push",
    "tune": "vocabforge.cli.decode.tune:tune",
    "eval": "vocabforge.cli.decode.eval:evaluate",
    "report": "vocabforge.cli.decode.report:report",
    "generate": "vocabforge.cli.decode.generate:generate",
    "kernels": "vocabforge.cli.kernels:kernels",
    "doctor": "vocabforge.cli.ship.doctor:doctor",
    "demo": "vocabforge.cli.demo:demo",
}

# Former command -> what to run instead.
MOVED = {
    "study": "python recipes/study/study.py in the repository; see docs/guides/study.md",
    "bench": "the scripts of recipes/bench or kernels/measure.py in the repository",
}

# Headings of the help page, each over the commands from this one on.
HEADINGS = {
    "count-freq": "Vocabularies",
    "regenerate": "Data and training",
    "export": "Drafters in use: decode, measure, serve",
    "kernels": "This machine, a first try",
}


def main() -> None:
    """Entry point of ``vocabforge`` and ``python -m vocabforge``."""
    if not any(Path("/dev").glob("nvidia*")):
        # Where DeepSpeed is installed, others import it, and its search for a device writes to stdout.
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    # Parse only the command that is asked for, so that `--help` and errors stay quick.
    wanted = next((word for word in sys.argv[1:] if not word.startswith("-")), None)
    if wanted in MOVED:
        sys.stderr.write(f"Error: `vocabforge {wanted}` has moved\n  remedy:   run {MOVED[wanted]}\n")
        sys.exit(2)
    names = [wanted] if wanted in COMMANDS else list(COMMANDS)
    try:
        from .app import build_app

        commands = {name: load_attribute(COMMANDS[name]) for name in names}
        build_app(commands, all_names=list(COMMANDS), headings=HEADINGS)()
    except KeyboardInterrupt:  # before or after the command itself, which says more
        sys.exit(130)
