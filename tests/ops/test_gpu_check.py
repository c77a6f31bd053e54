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
files = module["gpu_files"]()
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
        assert (found["state"], found["problem"], found["open"]) == ("passed", "", [])
        rows = found["rows"]
        assert rows.pop("ceilings")["ceilings"]["copy"] > 0
        assert all(row["us"] > 0 for part in rows.values() for row in part.values())
        assert {name.split()[0] for name in rows["ops"]} >= {*OP_BENCHES}
        assert {name.split()[1] for name in rows["heads"]} >= {"static", "ranker"}
        assert len(rows["cycle"]) == 5

    def test_it_says_where_it_ran(self, check: Any, report: tuple[dict[str, Any], str]) -> None:
        facts = report[0]["facts"]
        assert (report[0]["schema"], report[0]["schema_version"]) == ("vocabforge.gpu-check", 3)
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
        for found, code in (({"silu_mul R=5 i=96": {"problem": "bfloat16: NaN\nmore"}}, 1), ({}, 0)):
            monkeypatch.setattr(check, "measure_all", lambda *_, found=found: found)
            ended, parts, text = self.run(
                check, tmp_path, "--parts", "bench", "--only", "^(silu_mul|tree_expand)"
            )
            assert ended == code
            assert ("| wrong: bfloat16: NaN |" in text) is bool(code)
            assert "- tree_expand W=4 k=4" in text
            assert parts["bench"]["problem"] == ("silu_mul R=5 i=96: bfloat16: NaN" if code else "")

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
import os, time
import pytest
pytestmark = pytest.mark.gpu
def test_right():
    pass
@pytest.mark.skipif(True, reason="no CUDA")
def test_skipped():
    pass
def test_fault():
    FAULT
"""
FAULTS = {"wrong": "assert 3 == 4", "hangs": "time.sleep(600)", "aborts": "os.abort()", "right": "pass"}


class TestTests:
    @pytest.mark.long
    def test_a_hang_or_an_abort_ends_the_tests_of_its_file(
        self, check: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = gpu\n")
        files = [str(tmp_path / f"test_{name}.py") for name in FAULTS]
        for file, fault in zip(files, FAULTS.values()):
            Path(file).write_text(TESTS.replace("FAULT", fault))
        monkeypatch.setattr(check, "gpu_files", lambda: files)
        monkeypatch.setattr(check, "_TEST", 2.0)
        found = check.run_tests(100.0, check.argparse.Namespace(output=tmp_path, device="cuda"))
        problem = found.pop("problem")
        assert found == {"state": "failed", "passed": 3, "skipped": 2, "failed": 1}
        assert "test_wrong.py::test_fault - assert 3 == 4" in problem
        assert "test_hangs.py: Timeout (0:00:02)!" in problem
        assert 'test_hangs.py", line 11 in test_fault' in problem
        assert "test_aborts.py: Fatal Python error: Aborted" in problem
        assert "test_wrong.py: 1 failed, 1 passed, 1 skipped" in capfd.readouterr().err

    def test_what_exceeds_the_time_is_stopped(self, check: Any, tmp_path: Path) -> None:
        program = "import time; print('begun', flush=True); time.sleep(60)"
        code, said = check.run([sys.executable, "-c", program], 2.0, tmp_path / "log")
        assert (code, said) == (-9, "begun\nnot done after 2 s")

    @pytest.mark.parametrize(
        ("code", "said", "device", "state"),
        [
            (0, "1 passed in 1s", "cuda", "passed"),
            (5, "7 deselected in 1s", "cuda", "failed"),
            (0, "1 skipped in 1s", "cuda", "failed"),
            (0, "1 skipped in 1s", "cpu", "skipped"),
            (1, "1 failed, 1 passed in 1s", "cpu", "failed"),
            (2, "ERROR t.py - ModuleNotFoundError\n1 error in 1s", "cpu", "failed"),
        ],
    )
    def test_a_run_in_which_nothing_ran_proves_nothing(
        self, check: Any, code: int, said: str, device: str, state: str
    ) -> None:
        found = check.judged({"t.py": (code, said)}, device)
        assert found["state"] == state
        assert bool(found["problem"]) is (state != "passed")

    def test_files_with_gpu_tests_are_found_ops_first(self, check: Any) -> None:
        found = check.gpu_files()
        assert "tests/train/test_vocab_loss.py" in found
        assert "tests/core/test_core_small.py" not in found
        assert found[0].startswith("tests/ops/")
        assert found[-1].startswith("tests/decode/")
