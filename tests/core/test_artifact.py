"""Artefacts: what is under the final name is whole, and what is not whole is refused."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from vocabforge.core.artifact import MANIFEST, Artifact, check_output, open_artifact, write_artifact
from vocabforge.core.errors import ArtifactError, UsageError, VocabForgeError


def write(path: Path, text: str = "text", *, kind: str = "counts", overwrite: bool = False) -> Path:
    with write_artifact(path, kind, {"text": text}, overwrite=overwrite) as folder:
        (folder / "a.txt").write_text(text)
        (folder / "sub").mkdir()
        (folder / "sub" / "b.bin").write_bytes(bytes(range(256)))
    return path


def only(folder: Path, *names: str) -> None:
    assert sorted(p.name for p in folder.iterdir()) == sorted(names)


def edit(path: Path, change) -> None:
    manifest = json.loads((path / MANIFEST).read_text())
    change(manifest)
    (path / MANIFEST).write_text(json.dumps(manifest))


def test_round_trip_and_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "x"
    artifact = open_artifact(write(path), "counts")
    assert isinstance(artifact, Artifact)
    assert artifact.meta == {"text": "text"}
    assert artifact.file("sub/b.bin").read_bytes() == bytes(range(256))
    assert set(artifact.manifest["versions"]) >= {"vocabforge", "python", "torch"}
    only(path.parent, "x")
    only(path, MANIFEST, "a.txt", "sub")
    with pytest.raises(ArtifactError, match=r"holds no c\.txt"):
        artifact.file("c.txt")


def test_the_content_hash_is_the_contents(tmp_path: Path) -> None:
    one, same, other = (
        open_artifact(write(tmp_path / n, t)) for n, t in (("a", "x"), ("b", "x"), ("c", "y"))
    )
    assert one.content_hash == same.content_hash != other.content_hash


def test_the_card_may_be_edited(tmp_path: Path) -> None:
    with write_artifact(tmp_path / "x", "drafter", {}) as folder:
        (folder / "README.md").write_text("# license: name it here")
        (folder / "weights").write_bytes(b"0")
    (tmp_path / "x" / "README.md").write_text("license: mit")
    assert set(open_artifact(tmp_path / "x").manifest["files"]) == {"weights"}


def test_meta_is_hashed_as_it_is_read_back(tmp_path: Path) -> None:
    """Number keys sort otherwise than their texts do, and tuples come back as lists."""
    with write_artifact(tmp_path / "x", "k", {"by_id": {10: "a", 9: "b"}, "pair": (1, 2)}):
        pass
    assert open_artifact(tmp_path / "x").meta == {"by_id": {"10": "a", "9": "b"}, "pair": [1, 2]}


@pytest.mark.parametrize("error", [ValueError("bug"), KeyboardInterrupt(), OSError(errno.EIO, "broken")])
def test_a_writer_that_raises_leaves_nothing(tmp_path: Path, error: BaseException) -> None:
    def fail() -> None:
        with write_artifact(tmp_path / "x", "k", {}) as folder:
            (folder / "half").write_text("half")
            raise error

    with pytest.raises((type(error), VocabForgeError)):
        fail()
    only(tmp_path)


def test_a_writer_that_raises_keeps_the_former_artefact(tmp_path: Path) -> None:
    write(tmp_path / "x", "old")
    with pytest.raises(ValueError, match="bug"), write_artifact(tmp_path / "x", "k", {}, overwrite=True):
        raise ValueError("bug")
    assert open_artifact(tmp_path / "x").meta["text"] == "old"
    only(tmp_path, "x")


def test_the_body_may_not_write_the_manifest(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=MANIFEST), write_artifact(tmp_path / "x", "k", {}) as folder:
        (folder / MANIFEST).write_text("{}")
    only(tmp_path)


DAMAGE = {
    "truncated": (lambda p: (p / "a.txt").write_text("tex"), "differs in size"),
    "longer": (lambda p: (p / "a.txt").write_text("texts"), "differs in size"),
    "bit flipped": (lambda p: (p / "a.txt").write_text("tezt"), "differs in content"),
    "missing": (lambda p: (p / "sub" / "b.bin").unlink(), "is missing"),
    "manifest truncated": (lambda p: (p / MANIFEST).write_text('{"kind": "coun'), "not valid JSON"),
    "manifest empty": (lambda p: (p / MANIFEST).write_text(""), "not valid JSON"),
    "manifest of bytes": (lambda p: (p / MANIFEST).write_bytes(b"\xff\xfe"), "not UTF-8"),
    "manifest a list": (lambda p: (p / MANIFEST).write_text("[]"), "incomplete"),
    "manifest without meta": (lambda p: edit(p, lambda m: m.pop("meta")), "incomplete"),
    "manifest without sha256": (lambda p: edit(p, lambda m: m["files"]["a.txt"].pop("sha256")), "incomplete"),
    "files a list": (lambda p: edit(p, lambda m: m.update(files=[])), "incomplete"),
    "meta edited": (lambda p: edit(p, lambda m: m["meta"].update(text="new")), "was edited"),
    "kind edited": (lambda p: edit(p, lambda m: m.update(kind="subset")), "another kind"),
    "record edited": (lambda p: edit(p, lambda m: m.update(parents={"a": "b"})), "was edited"),
    "hash edited": (lambda p: edit(p, lambda m: m.update(content_hash="0")), "was edited"),
    "other schema": (lambda p: edit(p, lambda m: m.update(schema_version=99)), "another version"),
    "manifest missing": (lambda p: (p / MANIFEST).unlink(), "not a VocabForge artefact"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_found_and_named(tmp_path: Path, damage: str) -> None:
    path = write(tmp_path / "x")
    change, message = DAMAGE[damage]
    change(path)
    with pytest.raises(ArtifactError, match=message) as caught:
        open_artifact(path, "counts")
    assert str(path) in str(caught.value)


def test_a_flipped_bit_is_found_wherever_it_is(tmp_path: Path) -> None:
    path = write(tmp_path / "x")
    for name, end, step in ((MANIFEST, 1, 13), ("a.txt", 0, 1), ("sub/b.bin", 0, 13)):
        whole = (path / name).read_bytes()
        # Behind a manifest's last brace there is a line break, which nobody misses.
        for bit in range(0, 8 * (len(whole) - end), step):
            spoilt = bytearray(whole)
            spoilt[bit // 8] ^= 1 << bit % 8
            (path / name).write_bytes(spoilt)
            with pytest.raises(ArtifactError):
                open_artifact(path, "counts")
        (path / name).write_bytes(whole)
    open_artifact(path, "counts")


def test_a_failing_disk_names_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(file: Path) -> str:
        raise OSError(errno.EIO, "Input/output error")  # as of a read: without a name

    path = write(tmp_path / "x")
    monkeypatch.setattr("vocabforge.core.artifact.sha256_file", fail)
    with pytest.raises(ArtifactError, match="cannot be read") as caught:
        open_artifact(path)
    assert caught.value.source == path


def test_without_hashing_only_sizes_are_compared(tmp_path: Path) -> None:
    path = write(tmp_path / "x")
    (path / "a.txt").write_text("tezt")
    assert open_artifact(path, verify=False).kind == "counts"
    (path / "a.txt").write_text("t")
    with pytest.raises(ArtifactError, match="differs in size"):
        open_artifact(path, verify=False)


@pytest.mark.parametrize("overwrite", [False, True])
def test_foreign_things_are_never_replaced(tmp_path: Path, overwrite: bool) -> None:
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.txt").write_text("keep")
    extension = tmp_path / "extension"  # other programs have files of this name too
    extension.mkdir()
    (extension / MANIFEST).write_text('{"manifest_version": 3, "name": "not ours"}')
    plain = tmp_path / "file"
    plain.write_text("keep")
    for path in (foreign, extension, plain):
        with pytest.raises(UsageError, match="not an artefact"):
            write(path, overwrite=overwrite)
    assert (foreign / "thesis.txt").read_text() == plain.read_text() == "keep"
    assert "not ours" in (extension / MANIFEST).read_text()
    only(tmp_path, "foreign", "extension", "file")


def test_overwrite_replaces_whole_and_only_when_asked(tmp_path: Path) -> None:
    path = write(tmp_path / "x", "old")
    (path / "extra").write_text("left over")
    with pytest.raises(UsageError, match="exists already") as caught:
        write(path, "new")
    assert "--overwrite" in str(caught.value)
    write(path, "new", overwrite=True)
    assert open_artifact(path).meta["text"] == "new"
    only(path, MANIFEST, "a.txt", "sub")
    only(tmp_path, "x")


def test_an_output_below_a_file_is_refused_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written to") as caught:
        check_output(tmp_path / "file" / "deep" / "x")
    assert str(tmp_path / "file") in str(caught.value)


def test_replacing_through_a_link_replaces_what_it_points_to(tmp_path: Path) -> None:
    real = write(tmp_path / "disk" / "x", "old")
    (tmp_path / "link").symlink_to(real)
    write(tmp_path / "link", "new", overwrite=True)
    assert (tmp_path / "link").is_symlink()
    assert open_artifact(real).meta["text"] == "new"
    only(tmp_path, "disk", "link")
    only(tmp_path / "disk", "x")
