"""``--format gguf --with-target`` from the command line: Llama and Qwen3 under the names of the package ``gguf``."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.cli.cli_support import invoke, succeeds
from tests.decode.build_support import grid_methods
from tests.export.readers_support import write_tokenizer
from tests.worlds import make_drafter, tiny_target
from vocabforge.layouts.gguf.file import to_halves

gguf = pytest.importorskip("gguf", reason="the extra gguf is not installed")
HEADS = {"q_proj": 4, "k_proj": 2}


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_target_and_drafter_are_written(kind: str, tmp_path: Path) -> None:
    target = tiny_target(tmp_path / "target", kind=kind, vocab_size=31, num_hidden_layers=8)
    write_tokenizer(target)
    drafter, output = make_drafter(tmp_path / "drafter", target), tmp_path / "out"
    succeeds("export", "--drafter", drafter, "--format", "gguf", "--with-target", "--output", output)

    reader = gguf.GGUFReader(output / "target.gguf")
    fields = {name: field.contents() for name, field in reader.fields.items()}
    assert fields["general.architecture"] == kind
    assert (fields[f"{kind}.block_count"], fields[f"{kind}.attention.head_count_kv"]) == (8, 2)
    assert fields["tokenizer.ggml.tokens"][27] == "<|end|>"
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[kind.upper()], 8)
    found = {one.name: torch.from_numpy(one.data.copy()) for one in reader.tensors}
    for name, tensor in load_file(target / "model.safetensors").items():
        part = name.split(".")[-2]
        stored = found.pop(names.get_name(name, try_suffixes=(".weight",)))
        if kind == "llama" and part in HEADS:  # rotary pairs are neighbours
            stored = to_halves(stored, HEADS[part])
        assert torch.equal(stored, tensor), name
    assert not found

    methods = grid_methods(
        target, [f"a={drafter}", f"b={output}"], depth=2, topk=1, total_nodes=4, control="fixed"
    )
    made = [one.generator.generate([3, 4, 5], max_new_tokens=24, stop_ids=()) for one in methods]
    plain, before, after = made
    assert after.token_ids == before.token_ids == plain.token_ids
    assert after.accept_lengths == before.accept_lengths


def test_other_targets_stay_with_the_converter(tmp_path: Path) -> None:
    target = tiny_target(tmp_path / "target", vocab_size=31, num_hidden_layers=8, attention_bias=True)
    write_tokenizer(target)
    drafter = make_drafter(tmp_path / "drafter", target)
    words = ("export", "--drafter", drafter, "--format", "gguf", "--output", tmp_path / "out")
    done = invoke(*words, "--with-target")
    assert done.exit_code == 1
    assert "leave --with-target out" in done.output
    assert invoke(*words).exit_code == 0
