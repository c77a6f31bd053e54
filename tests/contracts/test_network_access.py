"""Every file that can reach a network is known, with the reason."""

from __future__ import annotations

import ast

from tests.contracts.test_no_unsafe_calls import SOURCES, _called, _read
from tests.worlds import ROOT

# file: why it reaches for a network. Whatever else does would have to import one of these.
NETWORK_MODULES = {
    "socket", "ssl", "http", "httpx", "httpx2", "urllib.request", "requests", "aiohttp", "ftplib", "smtplib",
    "telnetlib", "xmlrpc", "huggingface_hub", "fsspec", "websockets", "boto3", "paramiko", "grpc", "datasets",
    "wandb", "mlflow",
}  # fmt: skip
NETWORK = {
    "vocabforge/core/hub.py": "models and tokenizers named as on the Hub, which are not in its cache",
    "vocabforge/corpus/regenerate/server.py": "the servers of --server; the client library for both files below",
    "vocabforge/corpus/sources/hub.py": "data sets named hub:..., by the library datasets",
    "vocabforge/evaluate/benchmarks/find.py": "published question files, checked by SHA-256",
    "vocabforge/evaluate/servers/process.py": "no network: a free port of this machine for the server of --start",
    "vocabforge/train/trackers.py": "W&B and MLflow, where run.trackers names them",
}


def test_every_file_that_can_reach_a_network_is_listed() -> None:
    found = set()
    for path in SOURCES:
        text = path.read_text("utf-8")
        names = {'in ("httpx2", "httpx")'} if 'in ("httpx2", "httpx")' in text else set()
        for node in _read(text)[0]:
            if isinstance(node, ast.Import):
                names |= {one.name for one in node.names}
            elif isinstance(node, ast.ImportFrom):
                names |= {f"{node.module or ''}.{one.name}" for one in node.names}
            elif isinstance(node, ast.Call) and _called(node.func, {}).endswith(
                ("import_extra", "import_module")
            ):
                names |= {str(one.value) for one in node.args[:1] if isinstance(one, ast.Constant)}
        if any(_reaches(name) for name in names):
            found.add(path.relative_to(ROOT).as_posix())
    assert found == set(NETWORK)


def _reaches(name: str) -> bool:
    parts = name.split(".")
    whole = {".".join(parts[:end]) for end in range(1, len(parts) + 1)}
    return (
        bool(whole & NETWORK_MODULES)
        or parts[-1] in ("http_library", "LOGGER_TYPE_TO_CLASS")
        or "httpx" in name
    )
