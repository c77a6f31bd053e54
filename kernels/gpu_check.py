"""Build the kernels, run the GPU tests and benchmarks on a machine with a GPU, and write a report.

Run ``make gpu-check`` or ``python kernels/gpu_check.py``. Needs torch with CUDA, nvcc, g++ and pytest 9, but no
network and no installation. Every part runs even if another fails; the exit code is 0 only if all parts pass.
Results: ``runs/gpu-check/gpu-check.json`` and ``gpu-check.md``.

``--device cpu --small`` runs the same code on a CPU at small sizes; ``--parts bench --only draft_topk`` measures one
op.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))  # nothing need be installed
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from bench.figures import figures, measure_all
from bench.table import markdown
from build import find_nvcc, nvcc_version

from vocabforge.core.console import markdown_table
from vocabforge.core.errors import UsageError, VocabForgeError
from vocabforge.core.files import atomic_write, atomic_write_json
from vocabforge.core.provenance import git_revision, program_output
from vocabforge.evaluate.run.environment import describe_environment
from vocabforge.models.device import choose_device
from vocabforge.ops.backend import library_facts

ROOT = Path(__file__).resolve().parents[1]
SCHEMA, SCHEMA_VERSION = "vocabforge.gpu-check", 3
PARTS = ("build", "tests", "bench")
_LIMITS = {"build": 200.0, "tests": 200.0, "bench": 400.0}  # maximum seconds per part
_RESERVE = {"build": 200.0, "tests": 150.0, "bench": 20.0}  # seconds reserved for later parts
_TEST, _FILE = 30.0, 90.0  # maximum seconds of a test and of a file of tests
_JOBS = 4  # files of tests side by side
_SOURCES = (".py", ".cu", ".cuh", ".h", ".cpp")


def machine_facts(device: str) -> dict[str, Any]:
    """Return machine, GPU, driver, torch, compiler, revision, source hash and date, as plain JSON values."""
    import torch

    nvcc = find_nvcc()
    facts = {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "revision": git_revision(),
        "sources": sources_hash(ROOT),
        **describe_environment(device=device, dtype="bfloat16"),
        "torch_cuda": torch.version.cuda,
        "nvcc": nvcc and nvcc_version(nvcc),
        "dependent_launches": os.environ.get("VOCABFORGE_PDL") == "1",
    }
    if device != "cpu":
        facts["gpu_memory"] = torch.cuda.get_device_properties(device).total_memory
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        facts["driver"] = program_output(query)
    return facts


def sources_hash(root: Path) -> str:
    """Return the SHA-256 of package and kernels, which identifies the code outside a repository."""
    digest = hashlib.sha256()
    paths = [path for folder in ("vocabforge", "kernels") for path in (root / folder).rglob("*")]
    for path in sorted(path for path in paths if path.suffix in _SOURCES and "build" not in path.parts):
        digest.update(f"{path.relative_to(root).as_posix()}\n".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def run(command: Sequence[str], seconds: float, log: Path) -> tuple[int, str]:
    """Run a command in the repository; after ``seconds`` it and its children are killed.

    Args:
        log: receives its output.

    Returns:
        Exit code and output.
    """
    # Plugins installed on a shared machine are ignored; pytest cuts its summary to the columns.
    variables = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "COLUMNS": "200"}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, env=variables, start_new_session=True
        )
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(seconds)
        finally:
            late = process.poll() is None
            if late:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    said = log.read_text("utf-8", "replace").strip()
    return process.returncode, f"{said}\nnot done after {seconds:.0f} s" if late else said


def build(seconds: float, asked: argparse.Namespace) -> Mapping[str, Any]:
    """Compile the kernels that are out of date."""
    code, said = run([sys.executable, "kernels/build.py"], seconds, asked.output / "build.log")
    return {"state": "passed"} if code == 0 else {"state": "failed", "problem": said[-3000:]}


def gpu_files() -> list[str]:
    """Return the files with tests marked ``gpu``: ops before code that uses them, slow compilations last."""
    texts = {str(path.relative_to(ROOT)): path.read_text("utf-8") for path in ROOT.glob("tests/**/test_*.py")}
    marked = [name for name, text in texts.items() if re.search(r"mark\.gpu|= parity\(", text)]
    return sorted(marked, key=lambda name: ("tests/ops/" not in name, "tests/decode/" in name, name))


def run_tests(seconds: float, asked: argparse.Namespace) -> Mapping[str, Any]:
    """Run the tests marked ``gpu``, each file in its own process: a hang or a lost device ends only that file."""
    folder, until = asked.output / "tests", time.monotonic() + seconds
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    options = ["-q", "-m", "gpu", "-p", "no:cacheprovider", "-o", f"faulthandler_timeout={_TEST}"]
    options += ["-o", "faulthandler_exit_on_timeout=true"]

    def of_file(name: str) -> tuple[int, str]:
        left = max(0.0, min(_FILE, until - time.monotonic()))
        log = folder / f"{name.replace('/', '-')}.log"
        code, said = run([sys.executable, "-m", "pytest", *options, name], left, log)
        _say(f"{name}: {last_line(said)}")
        return code, said

    files = gpu_files()
    with ThreadPoolExecutor(_JOBS) as pool:
        return judged(dict(zip(files, pool.map(of_file, files))), asked.device)


def last_line(text: str) -> str:
    return (text.splitlines() or [""])[-1]


def judged(files: Mapping[str, tuple[int, str]], device: str) -> dict[str, Any]:
    """Summarize exit codes and outputs of pytest by file; on a GPU, no test at all is a failure."""
    counts, problems = Counter[str](), []
    for name, (code, said) in files.items():
        told = re.findall(r"(\d+) (passed|failed|skipped)", last_line(said))
        counts.update({kind: int(number) for number, kind in told})
        if code not in (0, 5):  # 5: its tests have other marks
            # pytest's summary, or the place in the trace of a hang or an abort
            shown = r"(?:^FAILED |^ERROR |Timeout \(|Fatal Python error: |File .* in test_).*"
            lines = re.findall(shown, said, re.MULTILINE) or [last_line(said)]
            problems += [f"{name}: {line}" for line in lines]
    state = "failed" if problems else "passed"
    if not problems and not counts["passed"]:
        state, problems = "skipped" if device == "cpu" else "failed", ["no test ran"]
    return {"state": state, "problem": "\n".join(problems), **counts}


def bench(seconds: float, asked: argparse.Namespace) -> Mapping[str, Any]:
    """Measure the figures; those for which no time is left are listed; they are not failures.

    Returns:
        ``rows`` by part and name, some with a ``problem``; ``open``: names without a row; ``not_real``: why the
        figures do not represent compiled kernels on a GPU at real sizes, or None.
    """
    wanted = partial(figures, asked.device, asked.small, asked.only)
    measured = measure_all(wanted, asked.device, asked.output / "bench.log", seconds)
    problems = [
        f"{name}: {row['problem'].splitlines()[0]}" for name, row in measured.items() if "problem" in row
    ]
    rows: dict[str, dict[str, Any]] = {}
    for figure in wanted():
        if figure.name in measured:
            rows.setdefault(figure.part, {})[figure.name] = measured[figure.name]
    return {
        "state": "failed" if problems else "passed",
        "problem": "\n".join(problems),
        "rows": rows,
        "open": [figure.name for figure in wanted() if figure.name not in measured],
        "not_real": not_real(asked.device, asked.small),
    }


def not_real(device: str, small: bool) -> str | None:
    """Return why figures do not represent compiled kernels on a GPU at real sizes, or None."""
    if device == "cpu":
        return "no GPU was used: this run only proves the code"
    if small:
        return "this run has small sizes"
    try:
        facts = library_facts()
    except VocabForgeError as error:
        return str(error)
    return None if facts is not None and facts["variant"] == "native" else "the CUDA kernels were not built"


def run_part(
    name: str,
    seconds: float,
    run: Callable[[float, argparse.Namespace], Mapping[str, Any]],
    asked: argparse.Namespace,
) -> dict[str, Any]:
    """Run a part within its time limit; a failure of any kind is in its report, so the next part can run."""
    seconds = max(min(seconds - _RESERVE[name], _LIMITS[name]), 20.0)
    _say(f"{name}: up to {seconds:.0f} s")
    start = time.monotonic()
    try:
        report = dict(run(seconds, asked))
    except Exception as error:  # noqa: BLE001 (the other parts must run)
        report = {"state": "failed", "problem": f"{type(error).__name__}: {error}"}
        traceback.print_exc()
    report["seconds"] = round(time.monotonic() - start, 1)
    _say(f"{name}: {report['state']} after {report['seconds']} s {report.get('problem', '')}".rstrip())
    return report


def _say(text: str) -> None:
    print(f"[gpu-check] {text}", file=sys.stderr, flush=True)


def write(report: Mapping[str, Any], folder: Path) -> None:
    """Write the report as JSON and Markdown."""
    atomic_write_json(folder / "gpu-check.json", json.loads(json.dumps(report)))
    lines = ["# GPU check", ""]
    lines += [*markdown_table(("fact", "value"), [(k, str(v)) for k, v in report["facts"].items()]), ""]
    for name, part in report["parts"].items():
        counts = ", ".join(f"{part[key]} {key}" for key in ("passed", "failed", "skipped") if key in part)
        told = f" ({counts})" if counts else ""
        lines.append(f"- {name}: {part['state']}{told}, {part.get('seconds', 0)} s")
        if part.get("problem"):
            lines += ["", "  ```", *(f"  {line}" for line in part["problem"].splitlines()), "  ```", ""]
    measured = report["parts"].get("bench", {})
    if measured.get("not_real"):
        lines += ["", f"**{measured['not_real']}.**"]
    if "rows" in measured:
        lines.append(markdown(measured["rows"]))
    if measured.get("open"):
        lines += ["## No time was left for", "", *(f"- {name}" for name in measured["open"])]
    atomic_write(folder / "gpu-check.md", "\n".join([*lines, ""]))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line; exit if its options are invalid."""
    parser = argparse.ArgumentParser(description="Build, test and measure the kernels on this machine.")
    parser.add_argument(
        "--device", default="cuda", help="cuda, cuda:1, or cpu to prove the code without a GPU"
    )
    parser.add_argument("--small", action="store_true", help="small sizes; needed with --device cpu")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument(
        "--only",
        default="",
        metavar="PATTERN",
        help="only figures whose name, such as `silu_mul R=10 i=14336`, matches",
    )
    parser.add_argument("--seconds", type=float, default=525.0, help="time limit for the whole run")
    parser.add_argument("--output", type=Path, default=ROOT / "runs" / "gpu-check")
    asked = parser.parse_args(arguments)
    if asked.device == "cpu" and not asked.small:
        parser.error("--device cpu needs --small: real sizes would take hours")
    try:
        choose_device(asked.device)
        if not figures(asked.device, asked.small, asked.only):
            parser.error(f"--only {asked.only}: no figure has such a name")
    except re.error as error:
        parser.error(f"--only {asked.only}: {error}")
    except UsageError as error:
        parser.error(f"{error.message} ({asked.device}); --device cpu --small proves the code without a GPU")
    asked.output = asked.output.resolve()
    return asked


def main(arguments: Sequence[str] | None = None) -> int:
    asked = parse(arguments)
    asked.output.mkdir(parents=True, exist_ok=True)
    until, parts = time.monotonic() + asked.seconds, dict[str, dict[str, Any]]()
    report = {"schema": SCHEMA, "schema_version": SCHEMA_VERSION, "facts": machine_facts(asked.device)}
    for name, run in zip(PARTS, (build, run_tests, bench)):
        if name in asked.parts:
            parts[name] = run_part(name, until - time.monotonic(), run, asked)
            write(report | {"parts": parts}, asked.output)  # kept if a later part crashes
    _say(f"{asked.output / 'gpu-check.md'}")
    failed = [name for name, part in parts.items() if part["state"] == "failed"]
    if failed:
        _say(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
