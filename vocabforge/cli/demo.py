"""``vocabforge demo``: the whole pipeline on texts and a target made here, by the commands a user would type.

A step is skipped only if its record says that it finished with the same command and the same inputs (by
content) and its outputs are unchanged. The record stores hashes, never dates.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from .. import __version__
from ..core.console import say
from ..core.errors import ArtifactError, DataError, UsageError, VocabForgeError
from .app import JsonOption, print_json

_GRACE_S = 20.0
_STDERR = 2


@dataclass(frozen=True)
class Step:
    """One step of the demo.

    Attributes:
        name: key of its record.
        inputs: files and folders that it reads.
        outputs: files and folders that it makes.
        facts: whatever else decides the result (settings of a step that is no command).
        command: arguments of the process, the interpreter included.
        shown: the command as a user would type it.
        again: arguments added when the step made something before that must be replaced.
        run: for a step that is no command: makes the outputs; its argument says whether to replace them.
    """

    name: str
    inputs: tuple[Path, ...]
    outputs: tuple[Path, ...]
    facts: Any = None
    command: tuple[str, ...] = ()
    shown: str = ""
    again: tuple[str, ...] = ()
    run: Callable[[bool], None] | None = None

    def key(self) -> str:
        """Hash of everything that decides the outputs."""
        body = [__version__, self.name, self.facts, self.shown, [content_hash(path) for path in self.inputs]]
        return hashlib.sha256(json.dumps(body, sort_keys=True, default=str).encode()).hexdigest()


def content_hash(path: Path) -> str:
    """Hash of what a file, an artefact (verified) or another folder holds.

    Raises:
        ArtifactError: an artefact that is damaged.
        DataError: nothing there.
    """
    # Not for a help page: both load safetensors.
    from ..core.artifact import MANIFEST, open_artifact
    from ..core.files import sha256_file

    if path.is_file():
        return sha256_file(path)
    if (path / MANIFEST).is_file():
        return open_artifact(path).content_hash
    if not path.is_dir():
        raise DataError("an input of the demo is missing", expected=path)
    digest = hashlib.sha256()
    for file in sorted(p for p in path.rglob("*") if p.is_file()):
        digest.update(f"{file.relative_to(path).as_posix()}\0{sha256_file(file)}\n".encode())
    return digest.hexdigest()


class Record:
    """What was begun and finished in an output folder: ``demo.json``, replaced atomically."""

    def __init__(self, path: Path) -> None:
        from ..core.files import read_json

        self.path = path
        self._steps: dict[str, dict[str, Any]] = {}
        with contextlib.suppress(DataError):  # missing or damaged: then nothing is known to be finished
            steps = read_json(path, "demo's record").get("steps", {})
            self._steps = {name: dict(entry) for name, entry in steps.items()}

    def is_current(self, step: Step, key: str) -> bool:
        """Whether the step finished with this key and its outputs are as it left them."""
        entry = self._steps.get(step.name, {})
        if entry.get("key") != key or "outputs" not in entry:
            return False
        try:
            return [content_hash(path) for path in step.outputs] == entry["outputs"]
        except (ArtifactError, DataError):
            return False

    def is_unfinished(self, step: Step, key: str) -> bool:
        """Whether the step was begun with this key and never finished."""
        entry = self._steps.get(step.name)
        return entry is not None and entry.get("key") == key and "outputs" not in entry

    def is_known(self, step: Step) -> bool:
        """Whether the demo itself has begun this step here before."""
        return step.name in self._steps

    def begin(self, step: Step, key: str) -> None:
        self._steps[step.name] = {"key": key}
        self._write()

    def finish(self, step: Step) -> None:
        self._steps[step.name]["outputs"] = [content_hash(path) for path in step.outputs]
        self._write()

    def _write(self) -> None:
        from ..core.files import atomic_write_json

        atomic_write_json(self.path, {"steps": self._steps})


def perform(step: Step, record: Record, *, quiet: bool = False) -> bool:
    """Run a step unless what it would make is there.

    Args:
        quiet: send what commands print on stdout to stderr.

    Returns:
        whether it ran.

    Raises:
        VocabForgeError: the step failed.
    """
    key = step.key()
    if record.is_current(step, key):
        say(f"{step.name}: up to date")
        return False
    # What a begun step left may be replaced; a resumable one goes on if nothing changed.
    replace = record.is_known(step) and (
        not record.is_unfinished(step, key) or any(path.exists() for path in step.outputs)
    )
    record.begin(step, key)
    if step.run is not None:
        say(f"\n{step.shown}")
        step.run(replace)
    else:
        extra = step.again if replace else ()
        say(f"\n$ {step.shown}{''.join(f' {word}' for word in extra)}")
        call([*step.command, *extra], step.name, quiet=quiet)
    record.finish(step)
    return True


def call(command: Sequence[str], name: str, *, quiet: bool = False) -> None:
    """Run a process in the foreground; Ctrl-C lets it put things in order first.

    Raises:
        VocabForgeError: it failed; it has said why itself.
        KeyboardInterrupt: the user stopped it.
    """
    process = subprocess.Popen(list(command), stdout=_STDERR if quiet else None)
    try:
        code = process.wait()
    except KeyboardInterrupt:
        # The terminal sent the signal to the child too: wait for its own tidy end.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
        raise
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()
    if code in (130, -signal.SIGINT):
        raise KeyboardInterrupt
    if code:
        raise VocabForgeError(
            f"the demo stopped at the step {name}",
            got=f"exit code {code}",
            source=shlex.join(command),
            remedy="see the message above; the same `vocabforge demo` goes on from here",
        )


def ours(*words: object) -> tuple[tuple[str, ...], str]:
    """Process arguments and shown form of a ``vocabforge`` command."""
    given = tuple(str(word) for word in words)
    return (sys.executable, "-m", "vocabforge", *given), shlex.join(("vocabforge", *given))


def launched(*words: object) -> tuple[tuple[str, ...], str]:
    """The same under ``accelerate launch``, in one process on the CPU."""
    given = tuple(str(word) for word in words)
    # accelerate prints a paragraph of warning for each option that is left out.
    options = (
        "--cpu --num_processes 1 --num_machines 1 --mixed_precision no --dynamo_backend no "
        f"--num_cpu_threads_per_process {usable_cores()}"
    ).split()
    command = (sys.executable, "-m", "accelerate.commands.launch", *options, "-m", "vocabforge", *given)
    return command, shlex.join(("accelerate", "launch", *options, "-m", "vocabforge", *given))


def usable_cores() -> int:
    """CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Size(str, Enum):
    """How much the demo does."""

    ci = "ci"
    tutorial = "tutorial"
    full = "full"


@dataclass(frozen=True)
class _Scale:
    """What differs between the sizes.

    Attributes:
        sample: sizes of the sample texts (fields of SampleSizes).
        target: overrides of recipes/tiny/target.yaml.
        drafter: overrides of recipes/tiny/demo.yaml.
        subset: entries of the restricted draft vocabulary.
        evaluation: options of ``vocabforge eval``.
    """

    sample: dict[str, int]
    target: tuple[str, ...]
    drafter: tuple[str, ...]
    subset: int
    evaluation: tuple[str, ...]


SCALES = {
    Size.full: _Scale({}, (), (), 1024, ("--max-new-tokens", "160", "--warmup", "1", "--total-nodes", "30")),
    Size.tutorial: _Scale(
        {"train": 1500, "heldout": 60, "questions_per_category": 2},
        (
            "vocab_size=1024",
            "hidden_size=96",
            "intermediate_size=144",
            "num_heads=3",
            "num_kv_heads=1",
            "optim.steps=480",
            "optim.batch_size=1",
            "optim.lr=4.0e-3",
        ),
        ("optim.steps=100", "drafter.intermediate_size=144", "run.eval_every=50", "run.eval_rows=8"),
        256,
        ("--limit", "6", "--max-new-tokens", "48", "--warmup", "0"),
    ),
    Size.ci: _Scale(
        {"train": 240, "heldout": 24, "questions_per_category": 1},
        (
            "vocab_size=768",
            "hidden_size=64",
            "intermediate_size=128",
            "num_layers=4",
            "num_heads=2",
            "num_kv_heads=1",
            "optim.steps=60",
        ),
        ("optim.steps=10", "ttt.steps=2", "run.eval_every=10", "run.checkpoint_every=10", "run.eval_rows=4"),
        256,
        ("--limit", "3", "--max-new-tokens", "16", "--warmup", "0"),
    ),
}


def demo(
    output: Annotated[Path, typer.Option("--output", help="Folder for everything the demo makes.")] = Path(
        "runs/demo"
    ),
    size: Annotated[
        Size,
        typer.Option(
            "--size",
            help="`full`: at most ten minutes on two cores; `tutorial`: two minutes, the sizes of docs/tutorial.md; "
            "`ci`: a short run for tests.",
        ),
    ] = Size.full,
    until: Annotated[
        str | None,
        typer.Option("--until", metavar="STEP", help="Stop behind this step, such as `target`."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make texts, tokenizer and target, train an EAGLE-3 drafter, export it, and measure it.

    Needs no network. Prints every command before it runs. The same command again skips what is there, valid
    and made from the same inputs, and goes on where it was stopped.
    """
    from ..core.files import read_json
    from ..evaluate.results.schema import read_results
    from .decode.eval_record import print_tables

    start = time.monotonic()
    record = Record(output / "demo.json")
    steps = _steps_until(demo_steps(output, size), until)
    ran = [perform(step, record, quiet=as_json) for step in steps]
    if until is not None:
        if as_json:
            print_json({"outputs": [str(path) for path in steps[-1].outputs]})
        say(f"Done in {time.monotonic() - start:.0f} s, up to the step {until}.")
        return
    results = output / "eval" / "results.json"
    if as_json:
        print_json({"report": str(output / "eval" / "report.html"), "results": read_json(results, "result")})
    elif not ran[-1]:
        print_tables(read_results(results), output / "eval")
    say(f"Done in {time.monotonic() - start:.0f} s. The report: {output / 'eval' / 'report.html'}")


def demo_steps(output: Path, size: Size) -> list[Step]:
    """The steps in order; later ones name the outputs of earlier ones as their inputs."""
    scale, texts, target, run = SCALES[size], output / "texts", output / "target", output / "drafter"
    train, heldout, questions = (texts / f"{name}.jsonl" for name in ("train", "heldout", "question"))
    counts, subset, drafter = output / "counts", output / "subset", run / "drafter"
    full, restricted = output / "exports" / "native", output / "exports" / "sglang-eagle3"
    config, evaluation = recipe("tiny/demo.yaml"), output / "eval"
    count = ("count-freq", "--tokenizer", target, "--input", train, "--mode", "assistant", "--output", counts)
    select = ("select-vocab", "--counts", counts, "--size", scale.subset, "--output", subset)
    native = ("export", "--drafter", drafter, "--format", "native", "--output", full)
    sglang = (
        "export", "--drafter", drafter, "--format", "sglang-eagle3", "--vocab", subset, "--target", target,
        "--output", restricted,
    )  # fmt: skip
    evaluate = (
        "eval", "--target", target, "--drafter", f"eagle3={full}",
        "--drafter", f"eagle3-{scale.subset}={restricted}", "--benchmark", questions, *scale.evaluation,
        "--output", evaluation,
    )  # fmt: skip
    trained = (
        "train-drafter", "--config", config, f"target={target}", f"output={run}", f"data.train=[{train}]",
        f"data.heldout=[{heldout}]", *scale.drafter,
    )  # fmt: skip
    command, shown = launched(*trained)
    read = (config, train, heldout, target)
    return [
        _sample_step(texts, (train, heldout, questions), scale),
        _target_step(target, train, heldout, scale),
        _step("counts", (train, target), counts, count),
        _step("subset", (counts,), subset, select),
        Step("drafter", read, (drafter,), command=command, shown=shown, again=("--fresh",)),
        _step("export native", (drafter,), full, native),
        _step("export sglang-eagle3", (drafter, subset, target), restricted, sglang),
        _step("eval", (target, questions, full, restricted), evaluation, evaluate),
    ]


def _step(name: str, inputs: tuple[Path, ...], output: Path, words: tuple[object, ...]) -> Step:
    """A ``vocabforge`` command that makes one folder."""
    command, shown = ours(*words)
    return Step(name, inputs, (output,), command=command, shown=shown, again=("--overwrite",))


def _sample_step(folder: Path, outputs: tuple[Path, ...], scale: _Scale) -> Step:
    from ..demo.texts.writer import SampleSizes, write_sample

    sizes = SampleSizes(**scale.sample)
    shown = f"Writing sample texts in nine task categories to {folder}"

    def write(_replace: bool) -> None:
        write_sample(folder, 0, sizes)

    return Step("texts", (), outputs, facts=sizes.model_dump(), shown=shown, run=write)


def _target_step(folder: Path, train: Path, heldout: Path, scale: _Scale) -> Step:
    from ..core.config import load_config
    from ..demo.target.config import TinyTargetConfig

    paths = (f"train={train}", f"heldout={heldout}")
    config = load_config(TinyTargetConfig, recipe("tiny/target.yaml"), [*paths, *scale.target])
    shown = f"Making a tokenizer of {config.vocab_size:,} entries and a small Llama target in {folder}"

    def make(replace: bool) -> None:
        from ..demo.target.build import train_tiny_target

        meta = train_tiny_target(config, folder, overwrite=replace).meta
        say(
            f"The target is in {folder}: {meta['parameters']:,} parameters, held-out loss "
            f"{meta['heldout_loss']:.2f} nats a token"
        )

    facts = config.model_dump(mode="json")
    return Step("target", (train, heldout), (folder,), facts=facts, shown=shown, run=make)


def _steps_until(steps: list[Step], last: str | None) -> list[Step]:
    """The steps up to the one called ``last``; all of them without a name.

    Raises:
        UsageError: there is no such step.
    """
    names = [step.name for step in steps]
    if last is None:
        return steps
    if last not in names:
        raise UsageError("the demo has no such step", got=f"--until {last}", expected=", ".join(names))
    return steps[: names.index(last) + 1]


def recipe(name: str) -> Path:
    """A recipe of the ``recipes`` folder, from the source tree or the current folder.

    Raises:
        DataError: it is in neither place.
    """
    places = [Path("recipes") / name, Path(__file__).resolve().parents[2] / "recipes" / name]
    for place in places:
        if place.is_file():
            return place
    raise DataError(
        "the demo's recipe is missing",
        expected=" or ".join(str(place) for place in places),
        remedy="run the demo from VocabForge's source folder",
    )
