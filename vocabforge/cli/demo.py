"""``vocabforge demo``: the whole line on texts and a target of our own, by the commands a user would type."""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .app import JsonOption, print_json

if TYPE_CHECKING:
    from .demo_steps import Step


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
    from ..core.progress import say
    from ..evaluate.results import read_results
    from .demo_steps import Record, perform
    from .eval_record import print_tables

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
    scale = SCALES[size]
    return [
        _sample_step(output, scale),
        _target_step(output, scale),
        *_vocabulary_steps(output, scale),
        _drafter_step(output, scale),
        *_export_steps(output),
        _evaluation_step(output, scale),
    ]


def _steps_until(steps: list[Step], last: str | None) -> list[Step]:
    """The steps up to the one called ``last``; all of them without a name.

    Raises:
        UsageError: there is no such step.
    """
    from ..core.errors import UsageError

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
    from ..core.errors import DataError

    places = [Path("recipes") / name, Path(__file__).resolve().parents[2] / "recipes" / name]
    for place in places:
        if place.is_file():
            return place
    raise DataError(
        "the demo's recipe is missing",
        expected=" or ".join(str(place) for place in places),
        remedy="run the demo from VocabForge's source folder",
    )


def _sample_step(output: Path, scale: _Scale) -> Step:
    from ..corpus.sample_writer import HELDOUT, QUESTIONS, TRAIN, SampleSizes, write_sample
    from .demo_steps import Step

    sizes = SampleSizes(**scale.sample)
    texts = output / "texts"

    def write(_replace: bool) -> None:
        write_sample(texts, 0, sizes)

    outputs = tuple(texts / name for name in (TRAIN, HELDOUT, QUESTIONS))
    shown = f"Writing sample texts in nine task categories to {texts}"
    return Step("texts", (), outputs, facts=sizes.model_dump(), shown=shown, run=write)


def _target_step(output: Path, scale: _Scale) -> Step:
    from ..core.config import load_config
    from ..train.tiny_target_config import TinyTargetConfig
    from .demo_steps import Step

    texts, folder = output / "texts", output / "target"
    paths = (f"train={texts / 'train.jsonl'}", f"heldout={texts / 'heldout.jsonl'}")
    config = load_config(TinyTargetConfig, recipe("tiny/target.yaml"), [*paths, *scale.target])

    def train(replace: bool) -> None:
        from ..core.progress import say
        from ..train.tiny_target import train_tiny_target

        meta = train_tiny_target(config, folder, overwrite=replace).meta
        say(
            f"The target is in {folder}: {meta['parameters']:,} parameters, held-out loss "
            f"{meta['heldout_loss']:.2f} nats a token"
        )

    shown = f"Making a tokenizer of {config.vocab_size:,} entries and a small Llama target in {folder}"
    facts = config.model_dump(mode="json")
    inputs = (config.train, *config.heldout_files)
    return Step("target", inputs, (folder,), facts=facts, shown=shown, run=train)


def _vocabulary_steps(output: Path, scale: _Scale) -> list[Step]:
    from .demo_steps import Step, ours

    train, target = output / "texts" / "train.jsonl", output / "target"
    counts, subset = output / "counts", output / "subset"
    count = ours(
        "count-freq", "--tokenizer", target, "--input", train, "--mode", "assistant", "--output", counts
    )
    select = ours("select-vocab", "--counts", counts, "--size", scale.subset, "--output", subset)
    return [
        Step("counts", (train, target), (counts,), command=count[0], shown=count[1], again=("--overwrite",)),
        Step("subset", (counts,), (subset,), command=select[0], shown=select[1], again=("--overwrite",)),
    ]


def _drafter_step(output: Path, scale: _Scale) -> Step:
    from .demo_steps import Step, launched

    texts, target, run = output / "texts", output / "target", output / "drafter"
    config = recipe("tiny/demo.yaml")
    overrides = (
        f"target={target}",
        f"output={run}",
        f"data.train=[{texts / 'train.jsonl'}]",
        f"data.heldout=[{texts / 'heldout.jsonl'}]",
        *scale.drafter,
    )
    command, shown = launched("train-drafter", "--config", config, *overrides)
    inputs = (config, texts / "train.jsonl", texts / "heldout.jsonl", target)
    return Step("drafter", inputs, (run / "drafter",), command=command, shown=shown, again=("--fresh",))


def _export_steps(output: Path) -> list[Step]:
    from .demo_steps import Step, ours

    drafter, subset, exports = output / "drafter" / "drafter", output / "subset", output / "exports"
    target = output / "target"
    full, restricted = exports / "native", exports / "sglang-eagle3"
    one = ours("export", "--drafter", drafter, "--format", "native", "--output", full)
    two = ours(
        "export", "--drafter", drafter, "--format", "sglang-eagle3", "--vocab", subset,
        "--target", target, "--output", restricted,
    )  # fmt: skip
    again = ("--overwrite",)
    return [
        Step("export native", (drafter,), (full,), command=one[0], shown=one[1], again=again),
        Step(
            "export sglang-eagle3",
            (drafter, subset, target),
            (restricted,),
            command=two[0],
            shown=two[1],
            again=again,
        ),
    ]


def _evaluation_step(output: Path, scale: _Scale) -> Step:
    from .demo_steps import Step, ours

    target, questions, folder = output / "target", output / "texts" / "question.jsonl", output / "eval"
    full, restricted = output / "exports" / "native", output / "exports" / "sglang-eagle3"
    command, shown = ours(
        "eval", "--target", target,
        "--drafter", f"eagle3={full}", "--drafter", f"eagle3-{scale.subset}={restricted}",
        "--benchmark", questions, *scale.evaluation, "--output", folder,
    )  # fmt: skip
    inputs = (target, questions, full, restricted)
    return Step("eval", inputs, (folder,), command=command, shown=shown, again=("--overwrite",))
