"""The doctor on drafters' folders as servers read them: nothing to say of good ones, every single fault named."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.doctor.doctor_faults import FAULTS, GATE
from tests.export.readers_support import (
    IDS,
    changed,
    eagle1,
    eagle1_over,
    eagle3,
    make_tiny,
    write,
    write_tokenizer,
)
from vocabforge.core.errors import VocabForgeError
from vocabforge.doctor import servers
from vocabforge.doctor.checks import CheckRow, Report
from vocabforge.doctor.served_drafter import clearly_better
from vocabforge.doctor.servers import check_servers
from vocabforge.layouts.registry import load_drafter

SGLANG, VLLM, LLAMACPP = (f"served by {name}" for name in ("SGLang", "vLLM", "llama.cpp"))


class World:
    """Good folders of every layout, and what the target computes for the texts."""

    def __init__(self, folder: Path) -> None:
        self.tiny = make_tiny(folder / "target")
        self.texts = self.tiny.texts()
        fitted = eagle3(self.tiny)
        special = {"norm_before_residual": True, "qk_norm": True, "fc_norm": True, "layers": (1, 3, 4, 7)}
        made = {
            "sglang": (fitted, "sglang-eagle3", {}),
            "speculators": (fitted, "speculators-eagle3", {}),
            "bf16": (fitted, "sglang-eagle3", {"dtype": torch.bfloat16}),
            "speculators bf16": (fitted, "speculators-eagle3", {"dtype": torch.bfloat16}),
            "shared": (eagle3(self.tiny, rows=None), "sglang-eagle3", {}),
            "speculators shared bf16": (
                eagle3(self.tiny, rows=None),
                "speculators-eagle3",
                {"dtype": torch.bfloat16},
            ),
            "norm_output": (eagle3(self.tiny, norm_output=True), "sglang-eagle3", {}),
            "norm_before_fc": (eagle3(self.tiny, norm_before_fc=True), "sglang-eagle3", {}),
            "variant": (eagle3(self.tiny, **special), "speculators-eagle3", {}),
            "eagle": (eagle1(self.tiny.shared), "eagle", {"server": "sglang"}),
            "eagle vllm": (eagle1(self.tiny.shared, fc_bias=False), "eagle", {"server": "vllm"}),
            "fr-spec": (eagle1_over(self.tiny.shared, IDS), "fr-spec", {}),
        }
        self.folders = {
            name: write(self.tiny, drafter, layout, folder / name, **fields)
            for name, (drafter, layout, fields) in made.items()
        }

    def examine(self, path: Path, *, ends: tuple[int, ...] = (), **options: Any) -> dict[str, CheckRow]:
        report = Report()
        told = {"eos_ids": ends, "encode": lambda text, **_: [1]}
        tokenizer: Any = SimpleNamespace(**told) if ends else None
        facts = dataclasses.replace(self.tiny.facts, tokenizer=tokenizer)
        try:
            drafter = load_drafter(path, self.tiny.shared, self.tiny.path)[0]
        except VocabForgeError:
            drafter = None
        check_servers(report, path, facts, drafter, **options)
        return {f"{row.group}: {row.check}": row for row in report.rows}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


@pytest.fixture(autouse=True)
def _texts_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "probe", lambda *_: world.texts)


UNTRAINED = {"norm_before_fc", "variant", "eagle", "eagle vllm", "fr-spec"}  # random: they hardly draft
READ_BY = {
    "sglang": {SGLANG, VLLM, LLAMACPP},
    "speculators": {VLLM},
    "eagle": {SGLANG},
    "eagle vllm": {VLLM},
    "fr-spec": {SGLANG},
}


@pytest.mark.parametrize(
    "name",
    [
        "sglang",
        "speculators",
        "bf16",
        "speculators bf16",
        "shared",
        "speculators shared bf16",
        "norm_output",
        "norm_before_fc",
        "variant",
        "eagle",
        "eagle vllm",
        "fr-spec",
    ],
)
def test_good_folders_raise_no_alarm(world: World, name: str) -> None:
    rows = world.examine(world.folders[name])
    if name == "norm_output":  # which llama.cpp does not compute
        rows = {key: row for key, row in rows.items() if LLAMACPP not in key}
    odd = {key for key, row in rows.items() if row.state != "ok"}
    if name in UNTRAINED:
        odd = {key for key in odd if "layers by acceptance" not in key}
    assert odd == set(), {key: rows[key].found for key in odd}
    compared = {row.group for row in rows.values() if row.check == "logits"}
    assert compared == READ_BY.get(name, compared)
    assert all("draft steps" in row.found for row in rows.values() if row.check == "logits")
    assert compared


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_named(world: World, tmp_path: Path, fault: str) -> None:
    good, where, change, named, words = FAULTS[fault]
    server, check, state = named.split(": ")
    path = changed(world.folders[good], tmp_path / "x", **{where: change})  # type: ignore[arg-type]
    group = server if server == "servers" else f"served by {server}"
    row = world.examine(path)[f"{group}: {check}"]
    assert (row.state, words in row.found + (row.remedy or "")) == (state, True), row
    assert row.remedy


def test_end_tokens_outside_the_map(world: World) -> None:
    rows = world.examine(world.folders["sglang"], ends=(2, 0))
    assert (rows[f"{SGLANG}: draft tokens"].state, "[0]" in rows[f"{SGLANG}: draft tokens"].found) == (
        "warning",
        True,
    )
    inside = world.examine(world.folders["sglang"], ends=(2,))[f"{VLLM}: draft tokens"]
    assert (inside.state, "[2]" in inside.found) == ("ok", True)


@pytest.mark.parametrize("ids", [[1, 2, 2], [1, 2, 99], [-1, 2, 3]])
def test_a_token_map_of_other_ids(world: World, tmp_path: Path, ids: list[int]) -> None:
    path = changed(world.folders["fr-spec"], tmp_path / "x")
    next(path.glob("freq_*.pt")).unlink()
    torch.save(ids, path / "freq_3.pt")
    rows = world.examine(path)
    assert rows[f"{SGLANG}: draft tokens"].state == "failed"


def test_a_token_map_that_is_not_for_vllm(world: World, tmp_path: Path) -> None:
    path = changed(world.folders["eagle vllm"], tmp_path / "x")
    torch.save([3, 1, 2], path / "freq_3.pt")
    rows = world.examine(path)
    assert "not read" in rows[f"{VLLM}: configuration"].found
    assert rows[f"{VLLM}: logits"].state == "failed", "restricted here, whole there"


def test_other_logits_are_found(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    from vocabforge.models.drafters.eagle_layers import MLP

    right = MLP.forward
    monkeypatch.setattr("vocabforge.models.drafters.eagle_layers.runs_layers", lambda _: False)
    monkeypatch.setattr(MLP, "forward", lambda self, x: right(self, x) * 1.01)
    row = world.examine(world.folders["sglang"])[f"{SGLANG}: logits"]
    assert (row.state, "other logits" in row.found) == ("failed", True)


def test_only_the_servers_asked_for(world: World) -> None:
    rows = world.examine(world.folders["sglang"], servers=("vllm",))
    assert {row.group for row in rows.values()} == {"servers", VLLM}
    refused = world.examine(world.folders["speculators"], servers=("sglang",))["servers: layout"]
    assert (refused.state, "sglang-eagle3" in (refused.remedy or "")) == ("failed", True)


def test_every_key_is_told(world: World) -> None:
    rows = world.examine(world.folders["sglang"])
    told = "\n".join(rows[f"{SGLANG}: tensors"].details)
    stored = json.loads((world.folders["sglang"] / "config.json").read_text("utf-8"))
    assert stored["draft_vocab_size"] == 40
    assert f"{GATE} [40, 32] float32: read as model.layers.0.mlp.gate_proj.weight" in told
    assert "t2d [61] bool: ignored (not needed: SGLang does not read it)" in told
    assert "model.embed_tokens.weight: the target" in told


def test_a_native_drafter_is_told_what_it_could_become(world: World, tmp_path: Path) -> None:
    report = Report()
    native = SimpleNamespace(kind="eagle3", label="EAGLE-3")
    check_servers(report, tmp_path, world.tiny.facts, native)  # type: ignore[arg-type]
    assert "speculators-eagle3" in report.rows[0].found
    check_servers(
        report,
        tmp_path,
        world.tiny.facts,
        SimpleNamespace(kind="medusa", label="Medusa"),
    )
    assert "export --format medusa" in report.rows[1].found


@pytest.mark.parametrize(
    ("gained", "lost", "clear"),
    [(20, 0, True), (30, 8, True), (30, 22, False), (12, 4, False), (4, 0, False), (0, 20, False)],
)
def test_neighbours_must_be_clearly_better(gained: int, lost: int, clear: bool) -> None:
    """Of 200 tokens: by more than chance among those that differ, and by 5% of all."""
    other, own = torch.zeros(200, dtype=torch.bool), torch.zeros(200, dtype=torch.bool)
    other[:gained], own[100 : 100 + lost] = True, True
    assert clearly_better(other, own) == clear


@pytest.fixture(scope="module")
def gguf_folder(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("gguf", reason="the extra gguf is not installed")
    folder = tmp_path_factory.mktemp("gguf")
    tokenizer = write_tokenizer(folder / "tokenizer")
    return write(world.tiny, eagle3(world.tiny), "gguf", folder / "good", target_path=tokenizer)


def test_a_good_gguf_file_raises_no_alarm(world: World, gguf_folder: Path) -> None:
    rows = world.examine(gguf_folder)
    assert {key: row.found for key, row in rows.items() if row.state != "ok"} == {}
    assert {row.group for row in rows.values() if row.check == "logits"} == {LLAMACPP}


def later_layers(reader: Any) -> None:
    layers = reader.fields["eagle3.target_layers"]
    for at in layers.data:
        layers.parts[at][0] += 1


def d2t_of(change: Callable[[Any], Any]) -> Callable[[Any], None]:
    def edit(reader: Any) -> None:
        data = next(one for one in reader.tensors if one.name == "d2t").data
        data[:] = change(data)

    return edit


GGUF_FAULTS: dict[str, tuple[Callable[[Any], None], str, str]] = {
    "layers of another counting": (later_layers, "layers by acceptance", "failed"),
    "d2t of offsets": (d2t_of(lambda ids: ids - np.arange(len(ids))), "draft tokens", "failed"),
    "d2t beyond the vocabulary": (d2t_of(lambda ids: ids + 50), "draft tokens", "failed"),
}


@pytest.mark.parametrize("fault", GGUF_FAULTS)
def test_each_fault_of_a_gguf_file_is_named(world, gguf_folder, tmp_path, fault):
    from gguf import GGUFReader

    change, check, state = GGUF_FAULTS[fault]
    path = Path(shutil.copytree(gguf_folder, tmp_path / "x"))
    change(GGUFReader(path / "drafter.gguf", "r+"))
    rows = world.examine(path)
    row = rows[f"{LLAMACPP}: {check}"]
    assert row.state == state, row
    assert row.remedy


def test_a_misnamed_tensor_of_a_gguf_file(world: World, gguf_folder: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(gguf_folder, tmp_path / "x"))
    file = path / "drafter.gguf"
    file.write_bytes(file.read_bytes().replace(b"blk.0.ffn_norm", b"blk.0.ffn_nurm"))
    rows = world.examine(path)
    row = rows[f"{LLAMACPP}: tensors"]
    assert (row.state, "ffn_nurm" in row.found) == ("failed", True), row


@pytest.mark.parametrize(
    ("name", "check", "words"),
    [("two", "target layers", "loads exactly 3"), ("norm_output", "configuration", "norm_output")],
)
def test_what_llama_cpp_converts_and_does_not_run(world, tmp_path, name, check, words):
    path = world.folders.get(name)
    if path is None:
        path = write(world.tiny, eagle3(world.tiny, layers=(1, 4)), "sglang-eagle3", tmp_path / "two")
    rows = world.examine(path)
    row = rows[f"{LLAMACPP}: {check}"]
    assert (row.state, words in row.found) == ("warning", True), row
    assert all(one.state == "ok" for key, one in rows.items() if SGLANG in key)
