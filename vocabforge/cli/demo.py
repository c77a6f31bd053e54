"""``vocabforge demo``: the whole pipeline on a small target that comes with VocabForge, using regular commands.

A step is skipped if it finished with the same command, its outputs exist, and no earlier step ran.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from .. import __version__
from .. import demo as shipped
from ..core.config import StrictModel, option, recipe_path
from ..core.console import say
from ..core.errors import DataError, UsageError, VocabForgeError
from ..core.progress import ProgressBar, hushed
from .app import JsonOption, print_json

_STDERR = 2


@dataclass(frozen=True)
class Step:
    """A step of the demo: a command, or a function of this package."""

    name: str  # key of its record
    outputs: tuple[Path, ...]  # files and folders that it creates
    shown: str = ""  # the command as a user would type it, or a description
    command: tuple[str, ...] = ()  # arguments of the process, including the interpreter
    again: str = "--overwrite"  # arguments added to replace existing outputs
    # Called instead of a command, with whether to replace the outputs.
    run: Callable[[bool], None] | None = None
    facts: Any = None  # additional inputs that determine the result

    def key(self) -> str:
        """Return a hash of the version, the command and the facts."""
        body = [__version__, self.name, self.facts, self.shown]
        return hashlib.sha256(json.dumps(body, sort_keys=True, default=str).encode()).hexdigest()


def perform(step: Step, record: Path, *, stale: bool = False, quiet: bool = False) -> bool:
    """Run a step unless it already finished with the same command.

    Args:
        record: ``demo.json``, the progress of the steps in an output folder.
        stale: an earlier step ran, so the inputs have changed.
        quiet: redirect the stdout of commands to stderr.

    Returns:
        Whether the step ran.
    """
    from ..core.files import atomic_write_json

    key, steps = step.key(), _read_record(record)
    entry, made = steps.get(step.name), [path.exists() for path in step.outputs]
    if not stale and entry == {"key": key, "done": True} and all(made):
        say(f"{step.name}: up to date")
        return False
    # Replace the outputs of an unfinished step; resume it if nothing changed.
    replace = entry is not None and (stale or entry.get("key") != key or any(made))
    atomic_write_json(record, {"steps": {**steps, step.name: {"key": key, "done": False}}})
    if step.run is not None:
        say(f"\n{step.shown}")
        with ProgressBar(step.name):
            step.run(replace)
    else:
        extra = step.again.split() if replace else []
        say(f"\n$ {' '.join([step.shown, *extra])}")
        _call([*step.command, *extra], step.name, quiet=quiet)
    atomic_write_json(record, {"steps": {**steps, step.name: {"key": key, "done": True}}})
    return True


def _read_record(record: Path) -> dict[str, dict[str, Any]]:
    from ..core.files import read_json

    try:
        return dict(read_json(record, "demo's record").get("steps", {}))
    except DataError:
        return {}


def _call(command: list[str], name: str, *, quiet: bool) -> None:
    with hushed():
        code = subprocess.run(command, stdout=_STDERR if quiet else None, check=False).returncode
    if code in (130, -signal.SIGINT):
        raise KeyboardInterrupt
    if code:
        raise VocabForgeError(
            f"the demo stopped at the step {name}",
            got=f"exit code {code}",
            source=shlex.join(command),
            remedy="see the message above; the same `vocabforge demo` resumes here",
        )


# Size of the demo -> options of regenerate, overrides of recipes/tiny/demo.yaml, size of the restricted draft
# vocabulary, options of eval.
SCALES = {
    "full": ("", "", 768, "--control fixed --max-new-tokens 160 --warmup 1"),
    "ci": (
        "--sample 0.05",
        "optim.steps=10 ttt.steps=2 run.eval_every=10 run.checkpoint_every=10 run.eval_rows=4 data.heldout_documents=8",
        256,
        "--control fixed --limit 3 --max-new-tokens 16 --warmup 0",
    ),
}


class DemoRequest(StrictModel):
    """The output folder, and the size of the demo."""

    output: Path = option(Path("runs/demo"), "Output folder.")
    size: Literal["ci", "full"] = option(
        "full", "`full`: at most five minutes on two cores; `ci`: a short run for tests."
    )
    until: str | None = option(None, "Stop after this step, such as `responses`.", "STEP")


def demo(asked: DemoRequest, as_json: JsonOption = False) -> None:
    """Train an EAGLE-3 drafter on the answers of a small target, export it, and measure it.

    The target (2.8 million parameters) and its prompts come with VocabForge. Needs no network. Prints every
    command before running it. Re-run it to resume.
    """
    from ..core.files import check_run_folder, read_json
    from ..evaluate.results.schema import read_results
    from .drafting.results import print_results

    output = asked.output
    check_run_folder(output)
    start = time.monotonic()
    steps = _steps_until(demo_steps(output, asked.size), asked.until)
    ran = False
    for step in steps:
        ran |= perform(step, output / "demo.json", stale=ran, quiet=as_json)
    if asked.until is not None:
        if as_json:
            print_json({"outputs": [str(path) for path in steps[-1].outputs]})
        say(f"Done in {time.monotonic() - start:.0f} s, up to the step {asked.until}.")
        return
    results = output / "eval" / "results.json"
    if as_json:
        print_json({"report": str(output / "eval" / "report.html"), "results": read_json(results, "result")})
    elif not ran:
        print_results(read_results(results), output / "eval")
    say(f"Done in {time.monotonic() - start:.0f} s. The report: {output / 'eval' / 'report.html'}")


def demo_steps(output: Path, size: str) -> list[Step]:
    """Return the steps in order."""
    answering, training, rows, evaluating = SCALES[size]
    target, run = output / "target", output / "drafter"
    prompts, questions = output / "prompts.jsonl", output / "question.jsonl"
    responses, counts, subset = output / "responses", output / "counts", output / "subset"
    answers, drafter = responses / "responses.jsonl", run / "drafter"
    full, restricted = output / "exports" / "native", output / "exports" / "sglang-eagle3"
    config, evaluation = Path("tiny/demo"), output / "eval"
    return [
        _copy_step(target, prompts, questions),
        _command(
            "responses", responses,
            "regenerate", "--target", target, "--input", prompts, "--max-tokens", 160,
            *answering.split(), "--output", responses, again="--overwrite --fresh",
        ),
        _command(
            "counts", counts,
            "count-freq", "--tokenizer", target, "--input", answers, "--mode", "assistant", "--output", counts,
        ),
        _command(
            "subset", subset,
            "select-vocab", "--counts", counts, "--target", target, "--size", rows, "--output", subset,
        ),
        _command(
            "drafter", drafter,
            "train-drafter", "--config", config, f"target={target}", f"output={run}", f"data.train=[{answers}]",
            *training.split(), again="--fresh", facts=recipe_path(config).read_text("utf-8"),
        ),
        _command(
            "export native", full,
            "export", "--drafter", drafter, "--format", "native", "--output", full,
        ),
        _command(
            "export sglang-eagle3", restricted,
            "export", "--drafter", drafter, "--format", "sglang-eagle3", "--vocab", subset, "--target", target,
            "--output", restricted,
        ),
        _command(
            "eval", evaluation,
            "eval", "--target", target, "--drafter", f"eagle3={full}",
            "--drafter", f"eagle3-{rows}={restricted}", "--benchmark", questions,
            *evaluating.split(), "--output", evaluation,
        ),
    ]  # fmt: skip


def _command(name: str, output: Path, *words: object, again: str = "--overwrite", facts: Any = None) -> Step:
    given = [str(word) for word in words]
    shown = shlex.join(["vocabforge", *given])
    return Step(name, (output,), shown, (sys.executable, "-m", "vocabforge", *given), again, facts=facts)


def _copy_step(target: Path, prompts: Path, questions: Path) -> Step:
    def copy(replace: bool) -> None:
        from ..core.files import atomic_write

        made = [path for path in (target, prompts, questions) if path.exists()]
        if made and not replace:
            raise UsageError(
                "the output folder has files that no demo wrote",
                got=", ".join(map(str, made)),
                remedy="choose another --output",
            )
        if target.exists():
            shutil.rmtree(target)
        shutil.copytree(shipped.TARGET, target)
        atomic_write(prompts, lzma.decompress(shipped.PROMPTS.read_bytes()))
        atomic_write(questions, shipped.QUESTIONS.read_bytes())

    shown = f"Copying the demo's target, a Llama with 2.8 million parameters, to {target}"
    files = [*sorted(shipped.TARGET.iterdir()), shipped.PROMPTS, shipped.QUESTIONS]
    facts = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    return Step("target", (target, prompts, questions), facts=facts, shown=shown, run=copy)


def _steps_until(steps: list[Step], last: str | None) -> list[Step]:
    names = [step.name for step in steps]
    if last is None:
        return steps
    if last not in names:
        raise UsageError("the demo has no such step", got=f"--until {last}", expected=", ".join(names))
    return steps[: names.index(last) + 1]
