"""The wheel in an environment of its own, outside the repository: commands find recipes and kernels in it.

The sdist has the files of the repository, no others.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
from pathlib import Path

import pytest

from tests.worlds import ROOT

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The environment's folder of programs; third-party packages are this environment's."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    options = ["--no-deps", "--no-build-isolation", "--wheel-dir", str(folder)]
    subprocess.run([*pip, "wheel", *options, str(ROOT)], check=True)
    venv.create(folder / "env", with_pip=False)
    programs = folder / "env" / "bin"
    (wheel,) = folder.glob("*.whl")
    subprocess.run(
        [*pip, "--python", str(programs / "python"), "install", "--no-deps", str(wheel)], check=True
    )
    (site,) = (folder / "env").glob("lib/python*/site-packages")
    # Links in that folder, such as the editable installation of this repository, are not followed.
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return programs


def run(program: Path, *words: str, cwd: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [program, *words], cwd=cwd, env=environment, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


PAGE = """
import vocabforge
from vocabforge.evaluate.reports.page import render_page
assert "<html" in render_page("its template", [])
print(vocabforge.__file__)
"""


def test_the_package_and_its_templates_are_the_wheels(installed: Path, tmp_path: Path) -> None:
    where = run(installed / "python", "-c", PAGE, cwd=tmp_path)
    assert not Path(where.strip()).is_relative_to(ROOT)


def test_recipes_are_in_the_wheel(installed: Path, tmp_path: Path) -> None:
    names = json.loads(run(installed / "vocabforge", "recipes", "--json", cwd=tmp_path))
    assert {"models/qwen3-8b", "accelerate/fsdp2", "decoding/smollm2"} <= set(names)


def test_the_demo_begins_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    words = ("demo", "--size", "ci", "--until", "target", "--json")
    made = json.loads(run(installed / "vocabforge", *words, cwd=tmp_path))["outputs"]
    assert all(Path(tmp_path, path).exists() for path in made)
    assert (tmp_path / "runs" / "demo" / "target" / "model.safetensors").stat().st_size < 6_000_000


def test_kernels_build_from_the_wheels_sources(installed: Path, tmp_path: Path) -> None:
    code = "from vocabforge.core.config import shipped; print(shipped('kernels'))"
    sources = Path(run(installed / "python", "-c", code, cwd=tmp_path).strip())
    assert not sources.is_relative_to(ROOT)
    run(installed / "python", str(sources / "build.py"), "--emulator", "--only", "silu_mul", cwd=tmp_path)
    assert (sources / "build" / "emulated" / "libsilu_mul.so").is_file()


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a git checkout")
def test_the_sdist_has_the_repositorys_files(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", tmp_path], cwd=ROOT, check=True
    )
    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        packed = {member.name.partition("/")[2] for member in archive if member.isfile()}
    listing = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listing, check=True, capture_output=True, text=True).stdout.splitlines()
    assert packed - {"PKG-INFO"} == {name for name in names if (ROOT / name).is_file()}
