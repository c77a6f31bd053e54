"""All rows of the table of malformed inputs."""

from __future__ import annotations

from typing import NamedTuple

from tests.fuzz import cases_artifacts, cases_data, cases_drafters, cases_servers, cases_text
from tests.fuzz.changes import Change, half, whole
from tests.fuzz.readers import READERS, Reader

HARMLESS = "harmless: "
"""Starts the reason why an odd input is accepted, in the place of an error's words."""


class Case(NamedTuple):
    """One malformed input.

    ``words`` stand in its error; nothing but an error is asked for where they are empty.
    """

    reader: str
    name: str
    change: Change
    words: str


def _everywhere() -> list[Case]:
    """What is tried on every reader, in the file that its name sorts first."""
    found = []
    for name, reader in READERS.items():
        if name in ("journal", "answers of regenerate", "texts"):
            continue  # a damaged line is made anew, and any bytes that are UTF-8 are a text
        file = _first_file(reader)
        found.append(Case(name, "bytes of no text", whole(b"\x81\xff\x00\x80" * 9, file), ""))
        if (
            not file.endswith("metrics.jsonl") and name != "conversations"
        ):  # a cut last line is dropped, or skipped
            found.append(Case(name, "half of it", half(file), ""))
    return found


def _first_file(reader: Reader) -> str:
    """A file that is not a pattern, relative to the folder; empty for a file of its own."""
    if not reader.files:
        return ""
    known = {"model": "config.json", "sharded": "config.json", "samples": "data_0.safetensors", "training": "metrics.jsonl",
             "speeds": cases_data.KEPT, "eval-a": "results.json", "others-gguf": "drafter.gguf", "server-vllm": "models.json",
             "server-raw": "models.json", "server-sglang": "models.json", "server-states": "reply.json"}  # fmt: skip
    if reader.good in known:
        return known[reader.good]
    return "config.json" if "config.json" in reader.files else "manifest.json"


_TABLES = cases_text, cases_data, cases_artifacts, cases_drafters, cases_servers
CASES: list[Case] = [
    *(Case(*row) for table in _TABLES for row in table.CASES),
    *_everywhere(),
]
