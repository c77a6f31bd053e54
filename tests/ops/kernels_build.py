"""The scripts of kernels/ as modules: they stand outside of the package."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

KERNELS = Path(__file__).resolve().parents[2] / "kernels"


@cache
def load_build() -> ModuleType:
    """``kernels/build.py``."""
    if str(KERNELS) not in sys.path:
        sys.path.append(str(KERNELS))  # as for a script that is run: they import each other
    spec = importlib.util.spec_from_file_location("vocabforge_kernels_build", KERNELS / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
