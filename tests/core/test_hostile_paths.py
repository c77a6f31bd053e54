"""Folders made by others: no name in them leads out, no pipe is waited for, no device is read to its end."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from vocabforge.core.artifact import MANIFEST, content_hash, open_artifact, record_hash, write_artifact
from vocabforge.core.errors import ArtifactError, DataError, VocabForgeError
from vocabforge.core.files import read_json, sha256_file
from vocabforge.corpus.tokenizer.tokenizer import load_tokenizer
from vocabforge.models.checkpoint import INDEX, SINGLE, checkpoint_files, read_headers

pytestmark = pytest.mark.skipif(os.name != "posix", reason="Windows has no named pipes and no device files")


def forged(folder: Path, name: str) -> Path:
    """An artefact whose manifest is right in itself and names one file."""
    with write_artifact(folder, "counts", {}) as body:
        (body / "x").write_text("x")
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["files"] = {name: {"sha256": sha256_file(folder / "x"), "bytes": 1}}
    manifest["content_hash"] = content_hash("counts", {}, manifest["files"])
    manifest["record_hash"] = record_hash(manifest)
    (folder / MANIFEST).write_text(json.dumps(manifest))
    return folder


@pytest.mark.parametrize(
    "name",
    ["../secret", "..\\secret", "/secret", "sub/../../secret", "a\0b", "\ud800", "x" * 5000, "", ".", "..",
     "C:\\secret", "//x/secret", "file:///secret"],
)  # fmt: skip
def test_a_manifest_names_files_of_its_folder_only(tmp_path: Path, name: str) -> None:
    (tmp_path / "secret").write_text("x")
    folder = forged(tmp_path / "a", str(tmp_path / "secret") if name == "/secret" else name)
    for verify in (True, False):
        with pytest.raises(ArtifactError):
            open_artifact(folder, verify=verify)


def _link_out(folder: Path) -> None:
    (folder / "it").symlink_to(folder.parent / "secret")


def _folder_out(folder: Path) -> None:
    (folder / "sub").symlink_to(folder.parent, target_is_directory=True)


PLACED: dict[str, Callable[[Path], None]] = {
    "a pipe": lambda folder: os.mkfifo(folder / "it"),
    "a device": lambda folder: (folder / "it").symlink_to("/dev/zero"),
    "a link to itself": lambda folder: (folder / "it").symlink_to(folder / "it"),
    "a link out": _link_out,
    "a broken link": lambda folder: (folder / "it").symlink_to("nowhere"),
    "a folder": lambda folder: (folder / "it").mkdir(),
}


@pytest.mark.parametrize("what", PLACED)
def test_what_a_manifest_names_is_a_plain_file(tmp_path: Path, what: str) -> None:
    (tmp_path / "secret").write_text("x")
    folder = forged(tmp_path / "a", "it")
    PLACED[what](folder)
    with pytest.raises(ArtifactError):
        open_artifact(folder)


def test_a_folder_inside_may_not_lead_out(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    folder = forged(tmp_path / "a", "sub/secret")
    _folder_out(folder)
    with pytest.raises(ArtifactError, match="outside its folder"):
        open_artifact(folder)


SPECIAL = ["a pipe", "a device", "a link to itself", "a folder"]


@pytest.mark.parametrize("what", SPECIAL)
@pytest.mark.parametrize(
    "name", [MANIFEST, "tokenizer.json", "tokenizer_config.json", SINGLE, INDEX, "a.safetensors"]
)
def test_no_reader_waits_or_reads_without_end(tmp_path: Path, what: str, name: str) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    PLACED[what](folder)
    (folder / "it").rename(folder / name) if what != "a link to itself" else (folder / name).symlink_to(
        folder / name
    )
    with pytest.raises(DataError):
        read_json(folder / name)
    with pytest.raises(OSError, match=r"not a plain file|directory|links"):
        sha256_file(folder / name)
    for read in (
        lambda: open_artifact(folder),
        lambda: load_tokenizer(folder),
        lambda: read_headers(checkpoint_files(folder)),
    ):
        with pytest.raises(VocabForgeError):
            read()


@pytest.mark.parametrize(
    "name",
    ["..\\x", "a\0b", "\ud800", "x" * 5000, "", ".", "C:\\x", "/dev/zero", "sub/../../x", "../x", "pipe"],
)
def test_an_index_names_shards_of_its_folder_only(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    os.mkfifo(folder / "pipe")
    (folder / INDEX).write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(DataError, match=r"outside its folder|are missing"):
        checkpoint_files(folder)


def test_the_hubs_cache_is_made_of_links_and_is_read(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "1").write_bytes(b"x")
    (tmp_path / "snapshot").mkdir()
    (tmp_path / "snapshot" / SINGLE).symlink_to("../blobs/1")
    assert checkpoint_files(tmp_path / "snapshot") == [tmp_path / "snapshot" / SINGLE]
