"""GGUF files as targets: converted once, faithfully; what cannot be converted is refused by name."""

from __future__ import annotations

import json
import multiprocessing
import shutil
from pathlib import Path

import pytest
import torch

from tests.worlds import merging_tokenizer, tiny_target
from vocabforge.core.errors import DataError, VocabForgeError
from vocabforge.core.hub import hub_name, model_folder, model_name

gguf = pytest.importorskip("gguf", reason="the extra gguf is not installed")

PROMPT = "the cat sat on the mat, 128 times!"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("VOCABFORGE_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """A tiny Llama with a GPT-2 tokenizer and a chat template."""
    from tokenizers import pre_tokenizers

    folder = tmp_path_factory.mktemp("source")
    letters = "".join(sorted(pre_tokenizers.ByteLevel.alphabet()))
    size = merging_tokenizer(folder, letters, ["th", "the", "at"])
    body = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    body["pre_tokenizer"]["use_regex"] = True
    (folder / "tokenizer.json").write_text(json.dumps(body), "utf-8")
    tiny_target(
        folder,
        vocab_size=size,
        bos_token_id=0,
        eos_token_id=1,
        tie_word_embeddings=True,
        intermediate_size=64,
    )
    return folder


def write(
    path: Path, source: Path, *, kind: str = "F32", architecture: str = "llama", **fields: object
) -> Path:
    """Write a checkpoint as the project exports targets, its matrices in a type of GGUF, with further fields."""
    from vocabforge.layouts.gguf.file import gguf_file, to_neighbours
    from vocabforge.layouts.gguf.target import _gguf_name, _tensors
    from vocabforge.models.lean.config import LeanConfig

    config = LeanConfig.from_hf_config(source)
    sizes = {"layers": config.num_layers, "positions": config.max_positions}
    heads = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads}
    with gguf_file(
        path, architecture, config, **sizes, dtype=torch.float32, tokenizer=source, name="tiny"
    ) as writer:
        for name, value in fields.items():
            writer.add_key_value(name.replace("__", "."), value, gguf.GGUFValueType.get_type(value))
        for ours, tensor in _tensors(source):
            part = ours.rsplit(".", 2)[-2]
            moved = to_neighbours(tensor, heads[part]) if part in heads else tensor
            stored = gguf.GGMLQuantizationType["F32" if tensor.dim() == 1 else kind]
            data = gguf.quants.quantize(moved.float().contiguous().numpy(), stored)
            writer.add_tensor(_gguf_name(ours), data, raw_dtype=stored)
    return path


def logits(folder: Path, ids: list[int]) -> torch.Tensor:
    from transformers import AutoModelForCausalLM

    with torch.inference_mode():
        return AutoModelForCausalLM.from_pretrained(folder)(torch.tensor([ids])).logits[0]


def test_weights_tokenizer_and_ends_survive(source, tmp_path):
    from vocabforge.corpus.tokenizer.tokenizer import load_tokenizer
    from vocabforge.models.target.fingerprint import norms_fingerprint, target_fingerprint

    file = write(tmp_path / "tiny-F32.gguf", source)
    folder = model_folder(file)
    ids = load_tokenizer(source).encode(PROMPT)
    assert load_tokenizer(folder).encode(PROMPT) == ids
    torch.testing.assert_close(logits(folder, ids), logits(source, ids), atol=1e-5, rtol=1e-5)
    assert load_tokenizer(folder).eos_ids == load_tokenizer(source).eos_ids
    assert norms_fingerprint(folder) == norms_fingerprint(source)
    eighth = model_folder(write(tmp_path / "tiny-Q8_0.gguf", source, kind="Q8_0"))
    assert target_fingerprint(eighth) != target_fingerprint(folder)
    assert norms_fingerprint(eighth) == norms_fingerprint(folder)


def test_converted_once_and_named_by_content(source, tmp_path, capsys):
    file = write(tmp_path / "tiny.gguf", source)
    folder = model_folder(file)
    assert "Converting tiny.gguf" in capsys.readouterr().err
    lock = folder.with_name(f".{folder.name}.lock")
    lock.touch()  # of a process that was killed at its end
    assert model_folder(tmp_path / "tiny.gguf") == folder
    assert not lock.exists()
    (tmp_path / "alone").mkdir()
    copy = shutil.copy(file, tmp_path / "alone" / "tiny.gguf")
    assert model_folder(Path(copy).parent) == folder  # a folder with one file, and equal content
    assert capsys.readouterr().err == ""
    name = hub_name(folder)
    assert name.startswith("tiny.gguf@sha256:")
    assert len(name.partition("sha256:")[2]) == 64
    assert model_folder(Path(name)) == folder  # as records name it
    assert model_name(folder) == "tiny"
    with pytest.raises(DataError, match="not in the cache"):
        model_folder(Path("tiny.gguf@sha256:" + "0" * 64))


def test_a_tokenizer_alone_needs_no_weights(source, tmp_path):
    folder = model_folder(write(tmp_path / "tiny.gguf", source), weights=False)
    assert (folder / "tokenizer.json").is_file()
    assert not (folder / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        ("cut in its tensors", "truncated"),
        ("cut in its header", "truncated"),
        ("not GGUF", "cannot be converted"),
        ("unknown architecture", "cannot be converted"),
        ("adapter", "not a language model"),
        ("drafter", "not a language model"),
        ("unknown RoPE", "RoPE scaling"),
        ("a layer is missing", "lacks weights"),
    ],
)
def test_what_cannot_be_converted_is_one_error_and_leaves_nothing(source, tmp_path, spoil, message):
    file = tmp_path / "spoilt.gguf"
    if spoil == "unknown architecture":
        write(file, source, architecture="rwkv7")
    elif spoil == "adapter":
        write(file, source, general__type="adapter")
    elif spoil == "drafter":
        write(file, source, architecture="eagle3")
    elif spoil == "unknown RoPE":
        write(file, source, llama__rope__scaling__type="longrope")
    elif spoil == "a layer is missing":
        shutil.copytree(source, tmp_path / "less")
        from safetensors.torch import load_file, save_file

        tensors = load_file(source / "model.safetensors")
        gone = next(name for name in tensors if name.endswith("layers.0.mlp.up_proj.weight"))
        save_file({k: v for k, v in tensors.items() if k != gone}, tmp_path / "less/model.safetensors")
        write(file, tmp_path / "less")
    else:
        data = write(file, source).read_bytes()
        cuts = {"cut in its tensors": data[:-5000], "cut in its header": data[:900], "not GGUF": b"PK" + data}
        file.write_bytes(cuts[spoil])
    with pytest.raises(DataError) as error:
        model_folder(file)
    assert message in str(error.value)
    assert "spoilt.gguf" in str(error.value)
    assert [one.name for one in (tmp_path / "cache/gguf-2").iterdir() if one.name != "hashes"] == []


def test_llama3_frequencies_become_settings_again(source, tmp_path):
    """GGUF has no key for them, only a tensor, which Transformers leaves out."""
    import numpy as np

    from vocabforge.core.gguf import _llama3

    theta, count = 500_000.0, 32
    waves = 2 * np.pi * theta ** (np.arange(count) / count)
    smooth = (8192 / waves - 1) / 3
    factors = np.where(waves < 2048, 1, np.where(waves > 8192, 8, 1 / ((1 - smooth) / 8 + smooth)))
    found = _llama3(factors.astype(np.float32), {"rope_theta": theta})
    assert found is not None
    assert (found["rope_type"], found["factor"]) == ("llama3", 8.0)
    assert _llama3(np.full(count, 1.7, np.float32), {"rope_theta": theta}) is None


def test_folders_with_several_files_and_split_files_are_refused(source, tmp_path):
    write(tmp_path / "a.gguf", source)
    shutil.copy(tmp_path / "a.gguf", tmp_path / "b.gguf")
    with pytest.raises(DataError, match="several GGUF files"):
        model_folder(tmp_path)
    part = shutil.copy(tmp_path / "a.gguf", tmp_path / "m-00001-of-00002.gguf")
    with pytest.raises(DataError, match="split model"):
        model_folder(Path(part))


def test_a_full_disk_is_told_before_anything_is_written(source, tmp_path, monkeypatch):
    file = write(tmp_path / "tiny.gguf", source)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(VocabForgeError, match="no room for the converted model"):
        model_folder(file)


def _convert(file: Path, answers) -> None:
    answers.put(str(model_folder(file)))


@pytest.mark.long
def test_two_processes_convert_a_file_once(source, tmp_path):
    file = write(tmp_path / "tiny.gguf", source)
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    both = [context.Process(target=_convert, args=(file, answers)) for _ in range(2)]
    for one in both:
        one.start()
    found = {answers.get(timeout=300) for _ in both}
    for one in both:
        one.join()
    assert len(found) == 1
    assert sorted(one.name for one in (tmp_path / "cache/gguf-2").iterdir() if one.is_dir()) == sorted(
        ["hashes", Path(found.pop()).name]
    )
