"""What decoding imports before its first token: seconds on every start; and commands that have moved."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from vocabforge.cli import MOVED, main
from vocabforge.demo import TARGET
from vocabforge.models.drafters.io import save_drafter
from vocabforge.models.drafters.registry import drafter_sizes, new_drafter
from vocabforge.models.target.fingerprint import target_facts
from vocabforge.models.target.head import load_target_tensors
from vocabforge.models.target.load import read_target_config

HEAVY = (
    "transformers",
    "torch._dynamo",
    "torch.distributed.tensor",
    "sympy",
    "matplotlib",
    "datasets",
    "pandas",
)
CODE = (
    "import sys; sys.argv[0] = 'vocabforge'\n"
    "from vocabforge.cli import main\n"
    "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
    f"print('heavy:', *[name for name in {HEAVY} if name in sys.modules])"
)


@pytest.fixture(scope="module")
def drafter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained EAGLE-3 drafter for the demo's target."""
    tensors = load_target_tensors(TARGET)
    sizes = drafter_sizes("eagle3", read_target_config(TARGET))
    made = new_drafter("eagle3", sizes, tensors.embedding, tensors.head, None)
    path = tmp_path_factory.mktemp("drafter") / "drafter"
    save_drafter(path, made, target_facts(TARGET))
    return path


def test_decoding_imports_no_training_code(drafter: Path) -> None:
    words = ["generate", "--target", TARGET, "--drafter", drafter, "--prompt", "Hi", "--max-new-tokens", "4"]
    done = subprocess.run(
        [sys.executable, "-c", CODE, *map(str, words)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].strip() == "heavy:"


@pytest.mark.parametrize("command", MOVED)
def test_a_command_that_has_moved_names_its_replacement(command, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["vocabforge", command, "--help"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert f"remedy:   run {MOVED[command]}" in capsys.readouterr().err
