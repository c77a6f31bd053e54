"""Training figures and the vocabulary study on a GPU that is had for minutes at a time, unattended.

``python kernels/gpu_runs.py training`` measures training steps and the vocabulary loss with random weights and tokens.
``python kernels/gpu_runs.py study`` does as much of ``vocabforge study --size pieces`` as the time allows and writes
its state as pieces; the same command continues from them, here or elsewhere. See docs/guides/study.md.

Needs torch, transformers, tokenizers and typer. What else is missing is installed from wheels in ``--wheels``.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "kernels")]  # nothing need be installed
import pieces  # noqa: E402

RUNS = ROOT / "runs"
NEEDED = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "typer", "rich", "yaml", "pydantic")
_GRACE = 40.0  # seconds for a checkpoint, after a command was asked to stop
_RESERVE = 30.0  # for the pieces
STOPPED = 130  # exit code of a command that was asked to stop

Run = Callable[[Sequence[str], float], int]  # arguments of ``vocabforge``, seconds -> exit code


def _say(text: str) -> None:
    print(f"[gpu-runs] {text}", file=sys.stderr, flush=True)


def install_wheels(folder: Path) -> None:
    """Unpack carried wheels beside the environment, for this process and those that it starts.

    Raises:
        SystemExit: a package is missing that no wheel brings.
    """
    wheels = sorted(folder.glob("*.whl"))
    if wheels:
        site = tempfile.mkdtemp(prefix="gpu-runs-")
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile"]
        subprocess.run([*pip, "--target", site, *map(str, wheels)], check=True)
        sys.path.insert(0, site)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [site, os.environ.get("PYTHONPATH")]))
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        sys.exit(f"missing: {', '.join(missing)}; put their wheels into {folder}")


def run_child(arguments: Sequence[str], seconds: float) -> int:
    """Run ``vocabforge`` in a process; when the time is over it is asked to stop, then killed."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    process = subprocess.Popen(
        [sys.executable, "-m", "vocabforge", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
    try:
        process.wait(_GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    return STOPPED


def training(asked: argparse.Namespace, run: Run) -> int:
    """``bench training``, one shape after the other; a shape that was measured with these sources is not again."""
    from vocabforge.bench.kernels.run import machine_facts
    from vocabforge.cli.bench import training_shown
    from vocabforge.core.files import atomic_write, atomic_write_json, read_json
    from vocabforge.models.device import choose_device

    end = time.monotonic() + asked.seconds
    place = asked.output / "training.json"
    facts = machine_facts(str(choose_device(asked.device)))
    found: dict[str, Any] = read_json(place, "training figures") if place.is_file() else {}
    key = {
        "sources": facts["sources"],
        "settings": asked.settings,
        "repeats": asked.repeats,
        "device": asked.device,
    }
    for shape in asked.shapes:
        if found.get(shape, {}).get("key") == key:
            _say(f"{shape}: measured before")
            continue
        asked.output.mkdir(parents=True, exist_ok=True)
        part = asked.output / "part.json"
        part.unlink(missing_ok=True)
        settings = [f"shapes=[{shape}]", f"device={asked.device}", *asked.settings]
        command = ["bench", "training", *settings, "--repeats", str(asked.repeats), "--output", str(part)]
        if code := run(command, end - time.monotonic()):
            _say(
                f"{shape}: {'the time is over; the same command continues' if code == STOPPED else 'failed'}"
            )
            return int(code != STOPPED)
        found[shape] = {"key": key, "machine": facts, "result": read_json(part, "training figures")}
        part.unlink()
        atomic_write_json(place, found)
        shown = [part for one in found.values() for part in training_shown(one["result"])]
        lines = [
            line
            for one in shown
            for line in ([one, ""] if isinstance(one, str) else [f"## {one.title}", "", *one.markdown(), ""])
        ]
        atomic_write(place.with_suffix(".md"), "\n".join(lines))
        _say(f"{shape}: {place.with_suffix('.md')}")
    return 0


@dataclass(frozen=True)
class Unit:
    """What one command of the study does: stages, for some of the seeds."""

    name: str
    stages: tuple[str, ...]
    seeds: tuple[int, ...]


def units(seeds: Sequence[int]) -> Iterator[Unit]:
    """The units of a study in order.

    The weights of a seed are too large for pieces: drafters and replay of one are one unit, and the seed that ``check``
    decodes with, the first, comes last.
    """
    every = tuple(seeds)
    for name in ("data", "target", "answers", "vocab"):
        yield Unit(name, (name,), every)
    for place in reversed(range(len(every))):
        checked = ("check",) if place == 0 else ()
        yield Unit(f"seed-{every[place]}", ("drafters", "replay", *checked), every[place:])
    yield Unit("report", ("report",), every)


def is_done(unit: Unit, config: Any, layout: Any) -> bool:
    """Whether nothing of a unit is left to do."""
    from vocabforge.study.stages.run import has_replay, is_finished

    config = config.model_copy(update={"seeds": unit.seeds})
    if "replay" in unit.stages:
        last = unit.stages[-1]
        return has_replay(config, layout, unit.seeds[0]) and (
            last == "replay" or is_finished(config, layout, last)
        )
    return is_finished(config, layout, unit.name)


def carried(root: Path, folder: Path) -> Iterator[tuple[Path, Path]]:
    """The files of a study that its next command needs, with their content, most important first.

    Not the seeds' folders, and nothing that is made again from texts. An unfinished target is its newest checkpoint,
    without the state of the optimiser.

    Args:
        folder: for files that are made smaller.
    """
    work, target = root / "target.checkpoints", root / "target"
    apart = [root / "prepared", target, work, *root.glob("seed-*")]
    files = sorted(path for path in root.rglob("*") if path.is_file() and not path.name.startswith("."))
    yield from ((one, one) for one in files if not any(place in one.parents for place in apart))
    yield from ((one, one) for one in files if target in one.parents)
    steps = sorted((work / "steps").glob("step-*/manifest.json"))
    if steps and not (target / "manifest.json").is_file():
        yield from ((one, one) for one in files if one.parent == work)
        newest = steps[-1].parent
        for path in sorted(pieces.lighten(newest, folder).iterdir()):
            yield newest / path.name, path


def study(asked: argparse.Namespace, run: Run) -> int:
    """As many units as the time allows, from the pieces and into them."""
    from vocabforge.study.config import StudyLayout, load_study

    end, root = time.monotonic() + asked.seconds, asked.output / "study"
    if pieces.read_pieces(asked.pieces, root):
        _say(f"{asked.pieces}: {pieces.number_of(root)} of this study")
    recipe, code = ROOT / "recipes" / "study" / "study.yaml", 0
    config, layout = load_study(recipe, asked.size, asked.settings), StudyLayout(root)
    for unit in units(config.seeds):
        if (asked.only and unit.name not in asked.only) or is_done(unit, config, layout):
            continue
        if (left := end - time.monotonic() - _GRACE - _RESERVE) <= 0:
            code = STOPPED
            break
        _say(f"{unit.name}: up to {left:.0f} s")
        options = ["--size", asked.size, "--config", str(recipe), "--output", str(root)]
        seeds = f"seeds=[{','.join(map(str, unit.seeds))}]"
        code = run(["study", *unit.stages, *asked.settings, seeds, *options], left)
        write_study(root, asked)
        if code:
            break
    names = ", ".join(unit.name for unit in units(config.seeds) if not is_done(unit, config, layout))
    _say(f"left to do: {names}" if names else f"finished: {layout.report}")
    return int(code not in (0, STOPPED))


def write_study(root: Path, asked: argparse.Namespace) -> None:
    """The study as pieces; what does not fit is named, and made again by the next command."""
    if not root.is_dir():
        return
    with tempfile.TemporaryDirectory() as temporary:
        files = carried(root, Path(temporary))
        index = pieces.write_pieces(
            root, files, asked.out, piece=int(asked.piece_mb * 1e6), limit=int(asked.limit_mb * 1e6)
        )
    _say(f"{asked.out}: {len(index['files'])} files, {index['bytes'] / 1e6:.1f} MB")
    if index["left"]:
        _say(f"does not fit into {asked.limit_mb} MB: {', '.join(index['left'])}")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="of bench training, or of the study")
    common.add_argument("--seconds", type=float, default=480.0, help="for everything")
    common.add_argument(
        "--wheels", type=Path, default=RUNS / "wheels", help="folder of packages to install first"
    )
    common.add_argument("--output", type=Path, default=None, help="folder of the work [runs/gpu-COMMAND]")
    one = commands.add_parser("training", parents=[common], help="training steps and the vocabulary loss")
    one.add_argument("--shapes", nargs="+", default=["qwen3-0.6b"], help="of bench training")
    one.add_argument("--repeats", type=int, default=3)
    one.add_argument("--device", default="cuda")
    two = commands.add_parser("study", parents=[common], help="the vocabulary study in pieces")
    two.add_argument("--size", default="pieces", help="of recipes/study/study.yaml")
    two.add_argument(
        "--only", nargs="+", default=[], metavar="UNIT", help="data, target, answers, vocab, seed-N, report"
    )
    two.add_argument("--pieces", type=Path, default=None, help="folder to continue from [OUTPUT/pieces]")
    two.add_argument("--out", type=Path, default=None, help="folder for the pieces [as --pieces]")
    two.add_argument("--piece-mb", type=float, default=15.0)
    two.add_argument("--limit-mb", type=float, default=52.0, help="of all pieces")
    asked = parser.parse_args(arguments)
    asked.output = (asked.output or RUNS / f"gpu-{asked.command}").resolve()
    if asked.command == "study":
        asked.pieces = (asked.pieces or asked.output / "pieces").resolve()
        asked.out = (asked.out or asked.pieces).resolve()
    return asked


def main(arguments: Sequence[str] | None = None, run: Run = run_child) -> int:
    asked = parse(arguments)
    install_wheels(asked.wheels)
    return {"training": training, "study": study}[asked.command](asked, run)


if __name__ == "__main__":
    sys.exit(main())
