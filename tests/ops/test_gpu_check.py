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
from bench.ops import head_figures, op_figures
from bench.parts import KernelOptions
from bench.run import SMALL, sources_hash

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "kernels" / "gpu_check.py"
LACKING = ("pydantic", "typer", "rich", "datasets", "faiss", "deepspeed", "accelerate")

# A run, then the collection of all tests that a GPU machine runs.
RUN = f"""
import os, runpy, sys
for name in {LACKING!r}:
    sys.modules[name] = None
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
    done = subprocess.run(
        [sys.executable, "-c", RUN, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
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
        recalls = [
            row["measured"].get("recall")
            for row in result["parts"]["ops"].values()
            if " fp8" in row["case"] and row["op"] == "ranker_select"
        ]
        assert recalls
        assert all(value is not None and 0.9 <= value <= 1 for value in recalls)
        assert ", recall 0.9" in report[1] or ", recall 1.0" in report[1]
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
        for title in ("Ceilings", "Draft heads", "Cycle", "Ops", "Goals"):
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

    def test_the_time_is_shared_out(self, check: Any, tmp_path: Path) -> None:
        made = self.made(check, tmp_path, "--seconds", "525")
        given: dict[str, float] = {}
        for name in check.PARTS:

            def note(seconds: float, name: str = name) -> Mapping[str, Any]:
                given[name] = seconds
                return {"state": "passed"}

            made.part(name, note)
        assert given["build"] == pytest.approx(200, abs=2)
        assert given["tests"] == pytest.approx(200, abs=2)
        assert 380 <= given["bench"] <= 400
        assert sum((200, 200)) + given["bench"] > 525  # a part gets more where the ones before it were quick
        late = self.made(check, tmp_path, "--seconds", "100")
        late.part("bench", lambda seconds: given.update(bench=seconds) or {"state": "passed"})
        assert given["bench"] == pytest.approx(80, abs=2)

    def test_commands_that_fail_or_hang(self, check: Any, tmp_path: Path) -> None:
        python, log = [sys.executable, "-S", "-c"], tmp_path / "log"
        found = check.gpu_process.run([*python, "print('why'); raise SystemExit(3)"], 20.0, log)
        assert found == (3, "why")
        sleeps = [*python, "import time; print('so far', flush=True); time.sleep(60)"]
        code, said = check.gpu_process.run(sleeps, 0.5, log)
        assert code == 124
        assert "so far" in said
        assert "not done after" in said


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
    if not os.environ.get("CUDA_LAUNCH_BLOCKING"):
        context.append("lost")
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
    raise RuntimeError("CUDA error: an illegal memory access in the kernel that did it")
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

    def test_counts_and_names_of_failures(self, check: Any, tmp_path: Path) -> None:
        found = self.run(check, tmp_path, {"test_some.py": TESTS})
        assert (found["state"], found["passed"], found["failed"], found["skipped"]) == ("failed", 1, 1, 1)
        assert set(found["failures"]) == {"test_some.py::test_wrong"}
        assert "assert False" in found["failures"]["test_some.py::test_wrong"]["problem"]
        assert found["failures"]["test_some.py::test_wrong"]["blocking"]["outcome"] == "failed"

    @pytest.mark.long
    def test_a_hang_an_abort_and_a_lost_device_cost_one_test_each(
        self, check: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        found = self.run(check, tmp_path, {"test_faults.py": FAULTS, "test_some.py": TESTS})
        failures = {name.rpartition("::")[2]: one for name, one in found["failures"].items()}
        assert set(failures) == {
            *("test_that_hangs", "test_that_aborts", "test_that_loses_the_device", "test_wrong")
        }
        assert (found["passed"], found["skipped"], found["left"]) == (3, 1, {})
        assert "hung for 2 s" in failures["test_that_hangs"]["problem"]
        assert "line 9 in test_that_hangs" in failures["test_that_hangs"]["problem"]
        assert "the process ended with -6" in failures["test_that_aborts"]["problem"]
        assert "in the kernel that did it" in failures["test_that_loses_the_device"]["blocking"]["problem"]
        lines = capfd.readouterr().err
        assert "passed  test_faults.py::test_behind" in lines
        assert "failed  test_faults.py::test_that_hangs" in lines

    def test_a_file_that_needs_what_is_not_here_is_named(self, check: Any, tmp_path: Path) -> None:
        needs = {"test_needs.py": "import pydantic_of_nobody\n" + TESTS, "test_some.py": TESTS}
        found = self.run(check, tmp_path, needs)
        assert found["left"] == {"test_needs.py": "No module named 'pydantic_of_nobody'"}
        assert (found["passed"], found["failed"]) == (1, 1)

    @pytest.mark.proof  # waits for the limit; a hang is met by default
    def test_what_the_time_does_not_suffice_for_is_named(self, check: Any, tmp_path: Path) -> None:
        slow = "import time\n" + TESTS + "def test_slow():\n    time.sleep(600)\n"
        found = self.run(check, tmp_path, {"test_slow.py": slow}, test=60.0, file=6.0)
        assert found["left"][str(tmp_path / "test_slow.py")].startswith("the rest did not run: ")
        assert found["passed"] == 1
        assert "test_slow.py::test_slow" in found["failures"]

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

    @pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
    def test_the_sanitizer_runs_the_ops_tests(
        self, check: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: str
    ) -> None:
        fake = tmp_path / "compute-sanitizer"
        fake.write_text(
            '#!/bin/sh\necho "$PYTORCH_NO_CUDA_MEMORY_CACHING $@" >> "$(dirname "$0")/said"\nexit 99\n'
        )
        fake.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setattr(
            check.gpu_tests, "gpu_files", lambda named: ["tests/ops/test_a.py", "tests/train/test_b.py"]
        )
        asked = check.parse(["--device", "cpu", "--small", "--sanitize", tool])
        found = check.run_tests(60.0, asked, tmp_path)
        assert asked.parts == ["build", "tests"]
        said = (tmp_path / "said").read_text()
        assert said.startswith("1 " if tool == "memcheck" else " ")
        assert f"--tool {tool} --error-exitcode 99" in said
        assert "test_b.py" not in said
        assert found["state"] == "failed"
        assert f"{tool} found errors" in found["problem"]


@pytest.mark.long
def test_a_figure_that_hangs_costs_itself_alone(check: Any, tmp_path: Path) -> None:
    script = tmp_path / "hangs.py"
    script.write_text(
        f"import sys, time\nsys.path.insert(0, {str(SCRIPT.parent)!r})\nfrom pathlib import Path\n"
        "import gpu_parts as parts\n"
        "own = parts.JournalFile(Path(sys.argv[1]), hangs=1.0)\n"
        "own.measure('first', lambda: {'us': 1})\nown.measure('hangs', lambda: time.sleep(600))\n"
        "own.measure('last', lambda: {'us': 2})\n"
    )

    def command(part: str, journal: Path, options: Path) -> list[str]:
        return [sys.executable, str(script), str(journal)]

    found = check.gpu_parts.run_isolated("ops", replace(SMALL, budget=60.0), tmp_path / "parts", command)
    assert set(found.rows) == {"first", "last"}
    assert "hangs.py" in found.open["hangs"]


def test_goals_are_measured_first() -> None:
    options = KernelOptions(shapes=("llama3-8b", "qwen3-8b"))
    heads = [name for name, _ in head_figures(options)]
    ops = [name for name, _ in op_figures(replace(options, ops=("indexed_logits",)))]
    assert all("static" in name or "context" in name or "k = 512" in name for name in heads[:34])
    assert not any("static" in name or "context" in name for name in heads[34:])
    assert all("N=60" in name and "unlike" in name for name in heads[34:] if "k = 512" in name)
    assert all("k=2048" in name for name in ops[:14])
    assert not any("k=2048" in name for name in ops[14:])


class TestGoals:
    def test_measured_figures_are_found_and_judged(self, check: Any) -> None:
        def head(kind: str, us: float, **sizes: int) -> dict[str, Any]:
            own = {"V": 1000, "N": 1, "dynamic": int(kind != "static"), "alike": 1, "fp8": 0, **sizes}
            return {"op": f"head {kind}", "sizes": own, "timing": {"us": us}}

        heads = [head("static", 100.0), head("static", 90.0), head("ranker", 45.0), head("context", 27.0)]
        heads += [
            head("ranker", 9.0, fp8=1),
            head("ranker", 9.0, N=60),
            {**head("ranker", 1.0), "timing": None},
        ]
        del heads[-1]["timing"]  # its result was wrong
        baselines = {"gather + matmul": {"ratio": 2.6}}
        op = {"op": "indexed_logits", "case": "x N=1 k=2048 own", "sizes": {"N": 1, "k": 2048}, "share": 0.6}
        cycle = [{"nodes": 1, "share": 0.91}, {"nodes": 60, "share": 0.9}, {"nodes": 60, "share": 0.7}]
        parts = {
            "heads": dict(enumerate(heads)),
            "ops": {0: op | {"timing": {}, "baselines": baselines}},
            "cycle": dict(enumerate(cycle)),
        }
        measured = {(row[0], row[1]): row[-1] for row in check.gpu_goals.goals_table({"parts": parts}).rows}
        dynamic, ranker = (f"best {kind} head, time over static 32k" for kind in ("dynamic", "ranker"))
        assert measured.pop((dynamic, "N = 1, 10")) == "0.30: yes"
        assert measured.pop((ranker, "N = 1")) == "0.50: no"
        assert measured.pop(("`indexed_logits`, k = 2,048, share of the copy's rate", "N = 1")) == "0.60: no"
        assert measured.pop(("gather + matmul over it, time", "N = 1")) == "2.60: yes"
        assert measured.pop(("plain decoding, share of the byte roofline", "8B shapes")) == "0.91: yes"
        found = measured.pop(("cycle of 60 nodes, share of the byte roofline", "8B shapes, five heads"))
        assert found == "0.70 to 0.90: no"
        assert set(measured.values()) == {"open"}

    def test_the_documentation_has_this_table(self, check: Any) -> None:
        text = (ROOT / "docs" / "performance.md").read_text()
        for row in check.gpu_goals.goals_table().markdown()[2:]:
            assert row.rpartition("| open")[0] in text  # what was measured is filled in by hand
