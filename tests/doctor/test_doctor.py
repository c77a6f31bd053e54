"""The doctor's parts that need no model: the report, the machine, the environment's verdicts."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vocabforge.core.errors import DataError
from vocabforge.core.threads import usable_cores
from vocabforge.doctor import machine as environment
from vocabforge.doctor.checks import Finding, Report
from vocabforge.doctor.machine import free_memory


def raising(error: BaseException):
    def check(*_: object) -> Finding:
        raise error

    return check


def test_a_report_of_every_outcome() -> None:
    report = Report()
    assert report.run("g", "fine", lambda: Finding("good", value=3)) == 3
    assert report.run("g", "odd", lambda: Finding("hm", "warning", "look", value=4)) == 4
    assert report.run("g", "bad", lambda: Finding("no", "failed", "mend", value=5)) is None
    assert report.run("g", "needs bad", lambda value: Finding("never"), None) is None
    error = DataError("it is broken", got="a", expected="b", source="c", remedy="mend it")
    assert report.run("g", "error", raising(error)) is None
    assert report.run("g", "crash", raising(RuntimeError("boom"))) is None
    states = [row.state for row in report.rows]
    assert states == ["ok", "warning", "failed", "skipped", "failed", "failed"]
    known, crash = report.rows[-2:]
    assert (known.found, known.remedy) == ("it is broken: got a; expected b; in c", "mend it")
    assert crash.found == "RuntimeError: boom"
    assert report.to_json()["counts"] == {"ok": 1, "warning": 1, "failed": 3, "skipped": 1}


def test_an_interrupt_is_not_a_finding() -> None:
    with pytest.raises(KeyboardInterrupt):
        Report().run("g", "c", raising(KeyboardInterrupt()))


def test_a_containers_limits_count(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 100 kB\nMemAvailable: 64 kB\n")
    nothing = tmp_path / "none"
    assert free_memory(nothing, meminfo) == 64 * 1024
    assert free_memory(nothing, nothing) is None
    assert usable_cores(nothing) == len(os.sched_getaffinity(0))
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("9000\n")
    assert free_memory(tmp_path, meminfo) == 64 * 1024
    (tmp_path / "memory.max").write_text("10000\n")
    (tmp_path / "memory.stat").write_text("anon 5000\ninactive_file 3000\n")
    assert free_memory(tmp_path, meminfo) == 1000 + 3000
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    assert usable_cores(tmp_path) == 0.5
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert usable_cores(tmp_path) == len(os.sched_getaffinity(0))


def fake_torch(
    *, cuda: str | None, devices: int = 0, threads: int = 2, broken: bool = False
) -> SimpleNamespace:
    properties = SimpleNamespace(name="A card", total_memory=80 * 2**30, major=9, minor=0)

    def ones(*_: object, **__: object) -> SimpleNamespace:
        if broken:
            raise RuntimeError("no kernel image is available\nmore")
        return SimpleNamespace(sum=lambda: SimpleNamespace(item=lambda: 8.0))

    return SimpleNamespace(
        ones=ones,
        version=SimpleNamespace(cuda=cuda),
        get_num_threads=lambda: threads,
        cuda=SimpleNamespace(
            is_available=lambda: devices > 0,
            device_count=lambda: devices,
            get_device_properties=lambda _: properties,
        ),
    )


@pytest.mark.parametrize(
    ("driver", "torch", "state", "words"),
    [
        (None, fake_torch(cuda=None), "ok", "no driver"),
        (None, fake_torch(cuda="12.8"), "ok", "no driver"),
        ("driver 570.1", fake_torch(cuda=None), "warning", "CPU build"),
        ("driver 570.1", fake_torch(cuda="12.8"), "warning", "finds no device"),
        ("driver 570.1", fake_torch(cuda="12.8", devices=2), "ok", "A card (80 GiB, sm_90), A card"),
        ("driver 570.1", fake_torch(cuda="12.8", devices=1, broken=True), "failed", "no kernel image"),
    ],
)
def test_cuda_driver_and_torch_build_are_compared(monkeypatch, driver, torch, state: str, words: str) -> None:
    monkeypatch.setattr(environment, "_driver", lambda: driver)
    finding = environment.check_cuda(torch)
    assert finding.state == state
    assert words in finding.found
    assert (finding.remedy is None) == (state == "ok")


def fake_program(folder: Path, name: str, says: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\necho '{says}'\n")
    (folder / name).chmod(0o755)


def test_the_driver_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    fake_program(tmp_path, "nvidia-smi", "570.86.15")
    assert environment._driver() == "driver 570.86.15"
    fake_program(tmp_path, "nvidia-smi", "NVIDIA-SMI has failed")
    if not Path("/proc/driver/nvidia/version").exists():
        assert environment._driver() is None


def test_nvcc_is_optional_and_its_generation_matters(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert environment.check_nvcc(fake_torch(cuda=None)).state == "skipped"
    monkeypatch.setenv("PATH", os.defpath)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    fake_program(tmp_path / "bin", "nvcc", "Cuda compilation tools, release 12.8, V12.8.93")
    assert environment.check_nvcc(fake_torch(cuda="12.6")).state == "ok"
    other = environment.check_nvcc(fake_torch(cuda="13.0"))
    assert (other.state, "CUDA 13 toolkit" in (other.remedy or "")) == ("warning", True)
    assert "12.8" in environment.check_nvcc(fake_torch(cuda=None)).found


def test_threads_are_held_against_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "usable_cores", lambda: 4.0)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert environment.check_threads(fake_torch(cuda=None, threads=4)).state == "ok"
    many = environment.check_threads(fake_torch(cuda=None, threads=64))
    assert (many.state, "OMP_NUM_THREADS=4" in (many.remedy or "")) == ("warning", True)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    one = environment.check_threads(fake_torch(cuda=None, threads=1))
    assert (one.state, "OMP_NUM_THREADS=1" in one.found) == ("warning", True)


def test_little_memory_and_disk_are_warned_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(environment, "free_memory", lambda: 2**30)
    assert environment.check_memory().state == "warning"
    monkeypatch.setattr(environment, "free_memory", lambda: 2**36)
    assert environment.check_memory().state == "ok"
    monkeypatch.chdir(tmp_path)
    usage = SimpleNamespace(free=2**30)
    monkeypatch.setattr(environment.shutil, "disk_usage", lambda _: usage)
    assert environment.check_disk().state == "warning"
    usage.free = 2**40
    assert environment.check_disk().state == "ok"


def test_packages_are_held_against_the_requirements(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ["transformers>=5.0,<6", "deepspeed>=0.18; extra == 'gpu'"]
    monkeypatch.setattr(environment, "requires", lambda _: asked)
    monkeypatch.setattr(environment, "version", lambda _: "5.1")
    assert environment.check_package("transformers").state == "ok"
    monkeypatch.setattr(environment, "version", lambda _: "4.57")
    old = environment.check_package("transformers")
    assert (old.state, "<6,>=5.0" in old.found) == ("warning", True)

    def absent(_: str) -> str:
        raise environment.PackageNotFoundError

    monkeypatch.setattr(environment, "version", absent)
    assert environment.check_package("transformers").state == "failed"


def torch_with(device: tuple[int, int] | None) -> Any:
    return SimpleNamespace(
        cuda=SimpleNamespace(is_available=lambda: device is not None, get_device_capability=lambda: device)
    )


@pytest.mark.parametrize(
    ("facts", "device", "state", "words"),
    [
        (None, None, "skipped", "not built"),
        (None, (9, 0), "warning", "in PyTorch"),
        ({"variant": "cpu", "architectures": []}, None, "ok", "built for the CPU"),
        ({"variant": "cpu", "architectures": []}, (9, 0), "warning", "for the CPU, while"),
        ({"variant": "native", "architectures": ["80", "90a"]}, (9, 0), "ok", "which the device runs"),
        ({"variant": "native", "architectures": ["80", "90a"]}, (12, 0), "ok", "sm_80, sm_90a"),
        ({"variant": "native", "architectures": ["80", "90a"]}, (7, 5), "warning", "the device is sm_75"),
    ],
)
def test_kernels(monkeypatch: pytest.MonkeyPatch, facts: Any, device: Any, state: str, words: str) -> None:
    monkeypatch.setattr("vocabforge.ops.backend.library_facts", lambda: facts)
    finding = environment.check_kernels(torch_with(device))
    assert (finding.state, words in finding.found) == (state, True)
    assert (finding.remedy is not None) == (state != "ok")
