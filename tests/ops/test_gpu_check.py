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

from vocabforge.bench.kernels.cases import OP_BENCHES
from vocabforge.bench.kernels.run import sources_hash

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
collected = pytest.main(["--collect-only", "-q", "-m", "gpu", "-p", "no:cacheprovider", *module["gpu_tests"]([])])
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


class TestWholeRun:
    def test_everything_was_measured(self, report: tuple[dict[str, Any], str]) -> None:
        result = result_of(report)
        assert result["failed"] == {}
        assert {row["op"] for row in result["parts"]["ops"].values()} >= set(OP_BENCHES)
        assert all(row["timing"]["us"] > 0 for row in result["parts"]["ops"].values())
        assert {row["op"] for row in result["parts"]["heads"].values()} >= {"head static", "head ranker"}
        recalls = [
            row["measured"].get("recall") for row in result["parts"]["ops"].values() if " fp8" in row["case"]
        ]
        assert recalls
        assert all(value is not None and 0.9 <= value <= 1 for value in recalls)
        assert ", recall 0.9" in report[1] or ", recall 1.0" in report[1]
        assert len(result["parts"]["cycle"]) == 6
        assert len(result["parts"]["drafting"]) == 5
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
        assert facts["sources"] == result_of(report)["machine"]["sources"]

    def test_the_tables_are_there(self, report: tuple[dict[str, Any], str]) -> None:
        text = report[1]
        for title in ("Ceilings", "Draft heads", "Drafting", "Cycle", "Ops"):
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

        monkeypatch.setattr("vocabforge.bench.kernels.run.measure", measure)
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

    def test_commands_that_fail_or_hang(self, check: Any) -> None:
        python = [sys.executable, "-S", "-c"]
        code, said = check.command([*python, "print('why'); raise SystemExit(3)"], 20.0, {})
        assert (code, said.strip()) == (3, "why")
        code, said = check.command(
            [*python, "import time; print('so far', flush=True); time.sleep(60)"], 0.5, {}
        )
        assert code == 124
        assert "so far" in said
        assert "not done after" in said


TEST_FILE = """
import pytest
@pytest.mark.gpu
def test_right():
    pass
@pytest.mark.gpu
def test_wrong():
    assert False
@pytest.mark.gpu
@pytest.mark.skipif(True, reason="no CUDA")
def test_skipped():
    pass
def test_not_marked():
    assert False
"""


class TestTests:
    def test_counts_and_names_of_failures(self, check: Any, tmp_path: Path) -> None:
        (tmp_path / "test_some.py").write_text(TEST_FILE)
        (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = gpu\n")
        asked = check.parse(["--device", "cpu", "--small", "--tests", str(tmp_path / "test_some.py")])
        found = check.run_tests(60.0, asked, tmp_path)
        assert (found["state"], found["passed"], found["failed"], found["skipped"]) == ("failed", 1, 1, 1)
        assert found["failures"] == ["test_some::test_wrong"]
        assert "assert False" in found["problem"]

    @pytest.mark.parametrize(
        ("code", "passed", "device", "state"),
        [
            (0, 3, "cuda", "passed"),
            (0, 0, "cuda", "failed"),
            (5, 0, "cuda", "failed"),
            (0, 0, "cpu", "skipped"),
            (5, 0, "cpu", "skipped"),
            (1, 3, "cpu", "failed"),
            (124, 0, "cpu", "failed"),
            (99, 3, "cuda", "failed"),  # compute-sanitizer found something
        ],
    )
    def test_a_run_in_which_nothing_ran_proves_nothing(
        self, check: Any, code: int, passed: int, device: str, state: str
    ) -> None:
        assert check.judged(code, "", {"passed": passed}, device)["state"] == state

    def test_files_with_gpu_tests_are_found(self, check: Any) -> None:
        found = check.gpu_tests([])
        assert "tests/train/test_vocab_loss.py" in found
        assert "tests/core/test_core_small.py" not in found

    @pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
    def test_the_sanitizer_runs_the_ops_tests(
        self, check: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: str
    ) -> None:
        seen: list[Any] = []

        def command(arguments: Any, seconds: float, environment: Any) -> tuple[int, str]:
            seen.append((arguments, environment))
            return 0, ""

        monkeypatch.setattr(check, "command", command)
        asked = check.parse(["--device", "cpu", "--small", "--sanitize", tool])
        check.run_tests(60.0, asked, tmp_path)
        arguments, environment = seen[0]
        assert asked.parts == ["build", "tests"]
        assert arguments[1:5] == ["--tool", tool, "--error-exitcode", "99"]
        files = [one for one in arguments if one.startswith("tests/")]
        assert all(one.startswith("tests/ops/") for one in files)
        assert ("PYTORCH_NO_CUDA_MEMORY_CACHING" in environment) == (tool == "memcheck")
