"""Build the kernels, run the GPU tests and benchmarks on a machine with a GPU, and write a report.

Run ``make gpu-check`` or ``python kernels/gpu_check.py``. Needs torch with CUDA, nvcc, g++ and pytest, but no
network and no installation. Every part runs even if another fails; the exit code is 0 only if all parts pass.
Results: ``runs/gpu-check/gpu-check.json`` and ``gpu-check.md``.

``--device cpu --small`` runs the same code on a CPU at small sizes; ``--parts bench --bench ops --ops draft_topk``
measures one op.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))  # nothing need be installed
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import gpu_process
import gpu_tests
from bench import run as kernels
from bench.cases import OP_BENCHES
from bench.cases.types import SHAPES
from bench.parts import PARTS as BENCH_PARTS
from bench.run import machine_facts
from bench.table import markdown
from gpu_process import ROOT

from vocabforge.core.console import markdown_table
from vocabforge.core.errors import UsageError
from vocabforge.core.files import atomic_write, atomic_write_json
from vocabforge.models.device import choose_device

SCHEMA, SCHEMA_VERSION = "vocabforge.gpu-check", 1
PARTS = ("build", "tests", "bench")
_LIMITS = {"build": 200.0, "tests": 200.0, "bench": 400.0}  # maximum seconds per part
_RESERVE = {"build": 200.0, "tests": 150.0, "bench": 20.0}  # seconds reserved for later parts


@dataclass
class Check:
    """A run: its options and the report so far."""

    asked: argparse.Namespace
    began: float = field(default_factory=time.monotonic)
    report: dict[str, Any] = field(default_factory=dict)

    def left(self) -> float:
        """Return the remaining seconds."""
        return float(self.asked.seconds) - (time.monotonic() - self.began)

    def part(self, name: str, run: Callable[[float], Mapping[str, Any]]) -> None:
        """Run a part within its time limit and record any failure, so the next part can run."""
        parts: dict[str, Any] = self.report.setdefault("parts", {})
        if name not in self.asked.parts:
            parts[name] = {"state": "left out"}
            return
        seconds = min(self.left() - _RESERVE[name], _LIMITS[name])
        _say(f"{name}: up to {seconds:.0f} s")
        start = time.monotonic()
        try:
            found = dict(run(max(seconds, 20.0)))
        except Exception as error:  # noqa: BLE001 (the other parts must run)
            found = {"state": "failed", "problem": f"{type(error).__name__}: {error}"}
            traceback.print_exc()
        parts[name] = {**found, "seconds": round(time.monotonic() - start, 1)}
        _say(f"{name}: {found['state']} after {parts[name]['seconds']} s {found.get('problem', '')}".rstrip())
        write(self.report, self.asked.output)  # keep the results if a later part crashes

    @property
    def failed(self) -> list[str]:
        """Names of the failed parts."""
        return [name for name, part in self.report["parts"].items() if part["state"] == "failed"]


def _say(text: str) -> None:
    print(f"[gpu-check] {text}", file=sys.stderr, flush=True)


def build(seconds: float, folder: Path) -> Mapping[str, Any]:
    """Compile the kernels that are out of date."""
    code, said = gpu_process.run([sys.executable, "kernels/build.py"], seconds, folder / "build.log")
    return {"state": "passed"} if code == 0 else {"state": "failed", "problem": said}


def run_tests(seconds: float, asked: argparse.Namespace, folder: Path) -> Mapping[str, Any]:
    """Run the tests marked ``gpu``; see ``gpu_tests.py``.

    At least one test must run: without a GPU all are skipped, which is a failure unless the device is a CPU.
    """
    limits = gpu_tests.TestLimits(all=seconds)
    found = gpu_tests.run_files(gpu_tests.gpu_files(asked.tests), limits, folder / "tests")
    return judged(found, asked.device)


def judged(found: gpu_tests.Outcomes, device: str) -> dict[str, Any]:
    """Summarize a test run. Files skipped for a missing package are listed but are not failures."""
    failures = {name: one for name, one in found.tests.items() if one["outcome"] == "failed"}
    outcomes = [one["outcome"] for one in found.tests.values()]
    counts = {name: outcomes.count(name) for name in ("passed", "failed", "skipped")}
    cut = {name: why for name, why in found.left.items() if not why.startswith("No module")}
    report = {"state": "passed", **counts, "failures": failures, "left": found.left}
    if failures or cut:
        told = [f"{name}: {one['problem'].strip().splitlines()[-1:]}" for name, one in failures.items()]
        told += [f"{name}: {why}" for name, why in cut.items()]
        return {**report, "state": "failed", "problem": "\n".join(told)}
    if not counts["passed"]:
        nothing = ("skipped", "no GPU") if device == "cpu" else ("failed", "no test ran")
        return report | dict(zip(("state", "problem"), nothing))
    return report


def bench(seconds: float, asked: argparse.Namespace, folder: Path) -> Mapping[str, Any]:
    """Run all benchmarks, each part in a separate process."""
    options = replace(kernels.SMALL if asked.small else kernels.REAL, device=asked.device)
    asked_for: dict[str, Any] = {
        name: tuple(value) for name in ("rows", "ops", "shapes") if (value := getattr(asked, name))
    }
    options = replace(options, budget=seconds, only=asked.only, **asked_for)

    def run(part: str, options: Any) -> Any:
        return gpu_process.run_isolated(part, options, folder / "parts")

    result = kernels.measure(options, tuple(asked.bench), run)
    failed = result["failed"]
    state = {"state": "failed" if failed else "passed", "result": result}
    if failed:
        state["problem"] = f"{sum(map(len, failed.values()))} figures wrong or not measured"
    return state


def write(done: Mapping[str, Any], folder: Path) -> None:
    """Write the report as JSON and Markdown."""
    report = json.loads(json.dumps(done))
    atomic_write_json(folder / "gpu-check.json", report)
    lines = ["# GPU check", ""]
    if report.get("cpu"):
        lines += ["**No GPU was used: this run proves the code and measures nothing.**", ""]
    lines += [*markdown_table(("fact", "value"), [(k, str(v)) for k, v in report["facts"].items()]), ""]
    for name, part in report["parts"].items():
        counts = ", ".join(f"{part[key]} {key}" for key in ("passed", "failed", "skipped") if key in part)
        lines.append(
            f"- {name}: {part['state']}{f' ({counts})' if counts else ''}, {part.get('seconds', 0)} s"
        )
        if part.get("problem"):
            lines += ["", "  ```", *(f"  {line}" for line in part["problem"].splitlines()), "  ```", ""]
    result = report["parts"].get("bench", {}).get("result")
    text = markdown(result) if result else "\nNo benchmark ran.\n"
    atomic_write(folder / "gpu-check.md", "\n".join([*lines, "", text]))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line; exit if its options are invalid."""
    parser = argparse.ArgumentParser(description="Build, test and measure the kernels on this machine.")
    parser.add_argument(
        "--device", default="cuda", help="cuda, cuda:1, or cpu to prove the code without a GPU"
    )
    parser.add_argument("--small", action="store_true", help="small sizes; needed with --device cpu")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--bench", nargs="+", default=list(BENCH_PARTS), help="parts to measure")
    parser.add_argument("--rows", nargs="+", type=int, default=[], help="values of N [all]")
    parser.add_argument("--ops", nargs="+", default=[], help="ops to measure [all]")
    parser.add_argument("--shapes", nargs="+", default=[], help="model shapes to measure [all]")
    parser.add_argument("--only", default="", metavar="TEXT", help="only figures whose name contains TEXT")
    parser.add_argument("--tests", nargs="+", default=[], help="test files [all with GPU tests]")
    parser.add_argument("--seconds", type=float, default=525.0, help="time limit for the whole run")
    parser.add_argument("--output", type=Path, default=ROOT / "runs" / "gpu-check")
    asked = parser.parse_args(arguments)
    if asked.device == "cpu" and not asked.small:
        parser.error("--device cpu needs --small: real sizes would take hours")
    for name in {*asked.ops} - {*OP_BENCHES} | {*asked.shapes} - {*SHAPES}:
        parser.error(f"{name} is unknown; ops: {', '.join(OP_BENCHES)}; shapes: {', '.join(SHAPES)}")
    try:
        choose_device(asked.device)
    except UsageError as error:
        parser.error(f"{error.message} ({asked.device}); --device cpu --small proves the code without a GPU")
    asked.output = asked.output.resolve()
    return asked


def main(arguments: Sequence[str] | None = None) -> int:
    asked = parse(arguments)
    asked.output.mkdir(parents=True, exist_ok=True)
    check = Check(asked)
    check.report = {"schema": SCHEMA, "schema_version": SCHEMA_VERSION, "cpu": asked.device == "cpu"}
    check.report["facts"] = machine_facts(asked.device)
    check.part("build", lambda seconds: build(seconds, asked.output))
    check.part("tests", lambda seconds: run_tests(seconds, asked, asked.output))
    check.part("bench", lambda seconds: bench(seconds, asked, asked.output))
    write(check.report, asked.output)
    _say(f"{asked.output / 'gpu-check.md'}")
    if check.failed:
        _say(f"failed: {', '.join(check.failed)}")
    return 1 if check.failed else 0


if __name__ == "__main__":
    sys.exit(main())
