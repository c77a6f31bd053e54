"""The doctor's verdict on the compiled kernels."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from vocabforge.evaluate.doctor.environment import check_kernels


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
        ({"variant": "cpu", "architectures": []}, (9, 0), "warning", "the CPU alone"),
        ({"variant": "native", "architectures": ["80", "90a"]}, (9, 0), "ok", "which the device runs"),
        ({"variant": "native", "architectures": ["80", "90a"]}, (12, 0), "ok", "sm_80, sm_90a"),
        ({"variant": "native", "architectures": ["80", "90a"]}, (7, 5), "warning", "the device is sm_75"),
    ],
)
def test_kernels(monkeypatch: pytest.MonkeyPatch, facts: Any, device: Any, state: str, words: str) -> None:
    monkeypatch.setattr("vocabforge.ops.backend.library_facts", lambda: facts)
    finding = check_kernels(torch_with(device))
    assert (finding.state, words in finding.found) == (state, True)
    assert (finding.remedy is not None) == (state == "warning")
