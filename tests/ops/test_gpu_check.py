"""``kernels/gpu_check.py``: a whole run at small sizes without packages that a GPU machine lacks, and its failures."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from bench.cases import OP_BENCHES

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
files = module["gpu_tests"].gpu_files()
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


@pytest.mark.long
class TestWholeRun:
    def test_everything_was_measured(self, report: tuple[dict[str, Any], str]) -> None:
        found = report[0]["parts"]["bench"]
        assert (found["state"], found["failed"], found["open"]) == ("passed", {}, [])
        rows = found["rows"]
        assert all(row["us"] > 0 for part in rows.values() for row in part.values())
        assert {name.split()[0] for name in rows["ops"]} >= {*OP_BENCHES}
        assert {name.split()[1] for name in rows["heads"]} >= {"static", "ranker"}
        assert len(rows["cycle"]) == 5
        assert found["ceilings"]["copy"] > 0

    def test_it_says_where_it_ran(self, check: Any, report: tuple[dict[str, Any], str]) -> None:
        facts = report[0]["facts"]
        assert (report[0]["schema"], report[0]["schema_version"]) == ("vocabforge.gpu-check", 2)
        assert facts["device"] == "cpu"
        assert {"date", "revision", "system", "processor", "python", "torch", "torch_cuda", "nvcc"} <= set(
            facts
        )
        assert facts["sources"] == check.sources_hash(ROOT)

    def test_the_tables_are_there(self, report: tuple[dict[str, Any], str]) -> None:
        text = report[1]
        for title in ("Ceilings", "Heads", "Cycle", "Ops"):
            assert f"\n## {title}" in text
        assert "**no GPU was used" in text
        assert "- bench: passed" in text
        assert "- tests" not in text


class TestParts:
    def run(self, check: Any, folder: Path, *arguments: str) -> tuple[int, dict[str, Any], str]:
        code = check.main(["--device", "cpu", "--small", "--output", str(folder), *arguments])
        return (
            code,
            json.loads((folder / "gpu-check.json").read_text())["parts"],
            (folder / "gpu-check.md").read_text(),
        )

    def test_a_part_that_fails_does_not_stop_the_next(
        self, check: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: object) -> Mapping[str, Any]:
            raise ValueError("no compiler")

        monkeypatch.setattr(check, "build", fail)
        monkeypatch.setattr(check, "run_tests", lambda *_: {"state": "passed", "passed": 3})
        code, parts, text = self.run(check, tmp_path, "--parts", "build", "tests")
        assert code == 1
        assert parts["build"]["problem"] == "ValueError: no compiler"
        assert "- build: failed" in text
        assert "no compiler" in text
        assert "- tests: passed (3 passed)" in text

    def test_wrong_figures_fail_the_run_and_open_ones_do_not(
        self, check: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        wrong: dict[str, Any] = {"silu_mul R=5 i=96": {"row": {"problems": {"bfloat16": "NaN"}}}}
        for found, code in ((wrong, 1), ({}, 0)):
            entries = {name: {"outcome": "passed", **one} for name, one in found.items()}
            answer = (entries, check.NO_TIME)
            monkeypatch.setattr(check.gpu_process, "supervise", lambda *_, answer=answer, **more: answer)
            ended, parts, text = self.run(
                check, tmp_path, "--parts", "bench", "--only", "^(silu_mul|tree_expand)"
            )
            assert ended == code
            assert ("wrong: bfloat16: NaN" in text) is bool(code)
            assert "- tree_expand W=4 k=4" in text
            assert parts["bench"]["failed"].keys() == found.keys()

    def test_a_figure_that_nobody_has_is_a_mistake(
        self, check: Any, capsys: pytest.CaptureFixture[str]
    ) -> None:
        for pattern, told in (("of nobody", "no figure has such a name"), ("(", "missing )")):
            with pytest.raises(SystemExit):
                check.parse(["--device", "cpu", "--small", "--only", pattern])
            assert told in capsys.readouterr().err

    def test_real_means_a_gpu_real_sizes_and_compiled_kernels(
        self, check: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert "no GPU" in check.not_real("cpu", True)
        assert "small" in check.not_real("cuda", True)
        for library, real in (({"variant": "native"}, True), ({"variant": "cpu"}, False), (None, False)):
            monkeypatch.setattr(check, "library_facts", lambda library=library: library)
            assert (check.not_real("cuda", False) is None) is real


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
    @pytest.mark.long
    def test_a_hang_an_abort_and_a_lost_device_cost_one_test_each(
        self, check: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = gpu\n")
        needs = "import pydantic_of_nobody\n" + TESTS
        files = {"test_needs.py": needs, "test_faults.py": FAULTS, "test_some.py": TESTS}
        for name, text in files.items():
            (tmp_path / name).write_text(text)
        named, runner = [str(tmp_path / name) for name in files], check.gpu_tests
        tests = runner.run_files(named, 100.0, tmp_path / "out", test=2.0, file=60.0)
        found = runner.judged(tests, "cuda")
        failures = {name.rpartition("::")[2]: problem for name, problem in found["failures"].items()}
        assert set(failures) == {
            *("test_that_hangs", "test_that_aborts", "test_that_loses_the_device", "test_wrong")
        }
        assert (found["state"], found["passed"], found["skipped"]) == ("failed", 3, 1)
        assert found["left"] == {"test_needs.py": "No module named 'pydantic_of_nobody'"}
        assert "assert False" in failures["test_wrong"]
        assert "Timeout (0:00:02)" in failures["test_that_hangs"]
        assert "line 9 in test_that_hangs" in failures["test_that_hangs"]
        assert "the process ended with -6" in failures["test_that_aborts"]
        assert "illegal memory access" in failures["test_that_loses_the_device"]
        lines = capfd.readouterr().err
        assert "test_faults.py: 2 of 5 passed" in lines
        assert "test_faults.py::test_that_aborts: the process ended with -6" in lines

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
        assert check.gpu_tests.judged(tests, device)["state"] == state

    def test_files_with_gpu_tests_are_found_ops_first(self, check: Any) -> None:
        found = check.gpu_tests.gpu_files()
        assert "tests/train/test_vocab_loss.py" in found
        assert "tests/core/test_core_small.py" not in found
        assert found[0].startswith("tests/ops/")
        assert found[-1].startswith("tests/decode/")
