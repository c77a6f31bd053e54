"""``kernels/gpu_check.py``: a whole run at small sizes without packages that a GPU machine lacks, and its failures."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bench.cases import OP_BENCHES
from bench.run import SMALL, sources_hash

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "kernels" / "gpu_check.py"
LACKING = ("pydantic", "typer", "rich", "datasets", "faiss", "deepspeed", "accelerate")

# A run, then the collection of all tests that a GPU machine runs.
RUN = f"""
import os, runpy, sys
import torch
torch.set_num_threads(1)
sys.argv = ["gpu_check.py", *sys.argv[1:]]
try:
    runpy.run_path({str(SCRIPT)!r}, run_name="__main__")
except SystemExit as done:
    code = done.code
module = runpy.run_path({str(SCRIPT)!r})
os.chdir({str(ROOT)!r})
import pytest
files = module["gpu_tests"].gpu_files([])
collected = pytest.main(["--collect-only", "-q", "-m", "gpu", "-p", "no:cacheprovider", *files])
sys.exit(code or collected)
"""


@pytest.fixture(scope="module")
def check() -> Any:
    spec = importlib.util.spec_from_file_location("gpu_check", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["gpu_check"] = module  # dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    """JSON and Markdown of a run on the CPU."""
    folder = tmp_path_factory.mktemp("gpu-check")
    arguments = ["--device", "cpu", "--small", "--parts", "bench", "--output", str(folder)]
    (folder / "sitecustomize.py").write_text(f"import sys\nsys.modules |= dict.fromkeys({LACKING})\n")
    lacking = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", RUN, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=folder,
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTHONPATH": lacking,  # in the processes that it starts, too
        },
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    assert "tests/ops/test_indexed_logits.py" in done.stdout
    return json.loads((folder / "gpu-check.json").read_text()), (folder / "gpu-check.md").read_text()


def result_of(report: tuple[dict[str, Any], str]) -> dict[str, Any]:
    return dict(report[0]["parts"]["bench"]["result"])


@pytest.mark.long
class TestWholeRun:
    def test_everything_was_measured(self, report: tuple[dict[str, Any], str]) -> None:
        result = result_of(report)
        assert result["failed"] == {}
        assert {row["op"] for row in result["parts"]["ops"].values()} >= set(OP_BENCHES)
        assert all(row["timing"]["us"] > 0 for row in result["parts"]["ops"].values())
        assert {row["op"] for row in result["parts"]["heads"].values()} >= {"head static", "head ranker"}
        assert len(result["parts"]["cycle"]) == 6
        assert result["ceilings"]["copy_gb_per_s"] > 0

    def test_it_says_where_it_ran(self, report: tuple[dict[str, Any], str]) -> None:
        facts = report[0]["facts"]
        assert (report[0]["schema"], report[0]["schema_version"]) == ("vocabforge.gpu-check", 1)
        assert report[0]["cpu"]
        assert facts["device"] == "cpu"
        assert {"date", "revision", "system", "processor", "python", "torch", "torch_cuda", "nvcc"} <= set(
            facts
        )
        assert facts["sources"] == sources_hash(ROOT)

    def test_the_tables_are_there(self, report: tuple[dict[str, Any], str]) -> None:
        text = report[1]
        for title in ("Ceilings", "Draft heads", "Cycle", "Ops"):
            assert f"\n## {title}" in text
        assert "**no GPU was used" in text
        assert "- tests: left out" in text


class TestParts:
    def made(self, check: Any, folder: Path, *arguments: str) -> Any:
        made = check.Check(check.parse(["--device", "cpu", "--small", "--output", str(folder), *arguments]))
        made.report = {"facts": {}}
        return made

    def test_a_part_that_fails_does_not_stop_the_next(self, check: Any, tmp_path: Path) -> None:
        made = self.made(check, tmp_path)

        def fail(seconds: float) -> Mapping[str, Any]:
            raise ValueError("no compiler")

        made.part("build", fail)
        made.part("tests", lambda seconds: {"state": "passed", "passed": 3})
        assert made.failed == ["build"]
        assert made.report["parts"]["build"]["problem"] == "ValueError: no compiler"
        text = (tmp_path / "gpu-check.md").read_text()
        assert "- build: failed" in text
        assert "no compiler" in text
        assert "- tests: passed (3 passed)" in text
        assert "No benchmark ran." in text

    def test_a_wrong_figure_fails_the_run(
        self, check: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def measure(options: Any, parts: Any, run: Any) -> dict[str, Any]:
            return {"failed": {"ops": {"a": "NaN", "b": "died"}}}

        monkeypatch.setattr("bench.run.measure", measure)
        asked = check.parse(["--device", "cpu", "--small"])
        found = check.bench(10.0, asked, tmp_path)
        assert (found["state"], found["problem"]) == ("failed", "2 figures wrong or not measured")


TESTS = """
import pytest
pytestmark = pytest.mark.gpu
def test_right():
    pass
def test_wrong():
    assert False
@pytest.mark.skipif(True, reason="no CUDA")
def test_skipped():
    pass
"""
FAULTS = """
import os, time
import pytest
pytestmark = pytest.mark.gpu
context = []  # of a device that is lost once
def test_before():
    assert not context
def test_that_hangs():
    time.sleep(600)
def test_that_aborts():
    os.abort()
def test_that_loses_the_device():
    context.append("lost")
    raise RuntimeError("CUDA error: an illegal memory access was encountered")
def test_behind():
    assert not context
"""


class TestTests:
    def run(self, check: Any, folder: Path, files: Mapping[str, str], **limits: float) -> dict[str, Any]:
        (folder / "pytest.ini").write_text("[pytest]\nmarkers = gpu\n")
        for name, text in files.items():
            (folder / name).write_text(text)
        runner = check.gpu_tests
        given = runner.TestLimits(**{"test": 2.0, "file": 60.0, "all": 100.0, **limits})
        found = runner.run_files([str(folder / name) for name in files], given, folder / "out")
        return dict(check.judged(found, "cuda"))

    @pytest.mark.long
    def test_a_hang_an_abort_and_a_lost_device_cost_one_test_each(
        self, check: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        needs = "import pydantic_of_nobody\n" + TESTS
        files = {"test_needs.py": needs, "test_faults.py": FAULTS, "test_some.py": TESTS}
        found = self.run(check, tmp_path, files)
        failures = {name.rpartition("::")[2]: one for name, one in found["failures"].items()}
        assert set(failures) == {
            *("test_that_hangs", "test_that_aborts", "test_that_loses_the_device", "test_wrong")
        }
        assert (found["state"], found["passed"], found["skipped"]) == ("failed", 3, 1)
        assert found["left"] == {"test_needs.py": "No module named 'pydantic_of_nobody'"}
        assert "assert False" in failures["test_wrong"]["problem"]
        assert "hung for 2 s" in failures["test_that_hangs"]["problem"]
        assert "line 9 in test_that_hangs" in failures["test_that_hangs"]["problem"]
        assert "the process ended with -6" in failures["test_that_aborts"]["problem"]
        assert "illegal memory access" in failures["test_that_loses_the_device"]["problem"]
        lines = capfd.readouterr().err
        assert "passed  test_faults.py::test_behind" in lines
        assert "failed  test_faults.py::test_that_hangs" in lines

    @pytest.mark.parametrize(
        ("outcomes", "device", "state"),
        [
            (("passed",), "cuda", "passed"),
            ((), "cuda", "failed"),
            (("skipped",), "cuda", "failed"),
            (("skipped",), "cpu", "skipped"),
            (("passed", "failed"), "cpu", "failed"),
        ],
    )
    def test_a_run_in_which_nothing_ran_proves_nothing(
        self, check: Any, outcomes: tuple[str, ...], device: str, state: str
    ) -> None:
        tests = {f"t::{n}": {"outcome": one, "problem": "why"} for n, one in enumerate(outcomes)}
        assert check.judged(check.gpu_tests.Outcomes(tests), device)["state"] == state

    def test_files_with_gpu_tests_are_found_ops_first(self, check: Any) -> None:
        found = check.gpu_tests.gpu_files([])
        assert "tests/train/test_vocab_loss.py" in found
        assert "tests/core/test_core_small.py" not in found
        assert found[0].startswith("tests/ops/")
        assert found[-1].startswith("tests/decode/")


@pytest.mark.long
def test_a_figure_that_hangs_costs_itself_alone(check: Any, tmp_path: Path) -> None:
    script = tmp_path / "hangs.py"
    script.write_text(
        f"import sys, time\nsys.path.insert(0, {str(SCRIPT.parent)!r})\nfrom pathlib import Path\n"
        "from bench.parts import FigureJournal\n"
        "own = FigureJournal(path=Path(sys.argv[2]), hangs=1.0)\n"
        "own.measure('first', lambda: {'us': 1})\nown.measure('hangs', lambda: time.sleep(600))\n"
        "own.measure('last', lambda: {'us': 2})\n"
    )

    found = check.gpu_process.run_isolated("ops", replace(SMALL, budget=60.0), tmp_path / "parts", script)
    assert set(found.rows) == {"first", "last"}
    assert "hangs.py" in found.open["hangs"]
