"""The EAGLE-3 serving layout: what is written, what is read, what is refused."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support import tiny_drafter, tiny_target
from vocabforge.core.artifact import MANIFEST, open_artifact
from vocabforge.core.errors import ArtifactError, DataError, MismatchError
from vocabforge.decode.build import make_head
from vocabforge.decode.engine import Decoder
from vocabforge.decode.proposers import tree_proposer
from vocabforge.decode.tree import TreeSettings
from vocabforge.export.formats import load_drafter
from vocabforge.export.layout import Export
from vocabforge.export.serving import SglangEagle3, read_layers, read_serving, rope_fields, serving_config
from vocabforge.models.drafter_io import TargetTensors, save_drafter
from vocabforge.models.eagle3 import Eagle3Drafter
from vocabforge.models.fingerprint import target_fingerprint
from vocabforge.models.lean import load_target
from vocabforge.models.rope import RopeSettings, parse_rope
from vocabforge.models.target import HFTarget

IDS = torch.tensor([0, 1, 2, 3, 9, 17, 20, 41, 58, 60])
H, V, R, D, HEADS, KV, INNER = 32, 61, 10, 8, 4, 2, 40
SHAPES = {
    "fc.weight": (H, 3 * H),
    "midlayer.self_attn.q_proj.weight": (HEADS * D, 2 * H),
    "midlayer.self_attn.k_proj.weight": (KV * D, 2 * H),
    "midlayer.self_attn.v_proj.weight": (KV * D, 2 * H),
    "midlayer.self_attn.o_proj.weight": (H, HEADS * D),
    "midlayer.mlp.gate_proj.weight": (INNER, H),
    "midlayer.mlp.up_proj.weight": (INNER, H),
    "midlayer.mlp.down_proj.weight": (H, INNER),
    "midlayer.hidden_norm.weight": (H,),
    "midlayer.input_layernorm.weight": (H,),
    "midlayer.post_attention_layernorm.weight": (H,),
    "norm.weight": (H,),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_target(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def target(folder: Path) -> HFTarget:
    return HFTarget.load(folder)


def make(target: HFTarget, reduced: bool) -> Eagle3Drafter:
    return tiny_drafter(target, own_head=R if reduced else None, target_ids=IDS if reduced else None)


def write(
    path: Path, drafter: Eagle3Drafter, folder: Path, dtype: torch.dtype = torch.float32, **meta: Any
) -> Path:
    config = json.loads((folder / "config.json").read_text())
    shared = TargetTensors(drafter.embedding, drafter.target_head)
    SglangEagle3.write(path, Export(drafter, config, shared, str(folder), dtype, meta=meta))
    return path


def tensors_of(target: HFTarget) -> TargetTensors:
    return TargetTensors(target.embedding, target.head_weight)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("reduced", [False, True])
def test_keys_shapes_and_dtypes(
    target: HFTarget, folder: Path, tmp_path: Path, reduced: bool, dtype: torch.dtype
) -> None:
    path = write(tmp_path / "e", make(target, reduced), folder, dtype)
    tensors = load_file(path / "model.safetensors")
    shapes = dict(SHAPES)
    if reduced:
        shapes |= {"lm_head.weight": (R, H), "d2t": (R,), "t2d": (V,)}
        assert tensors["d2t"].dtype == torch.int64
        assert (torch.arange(R) + tensors["d2t"]).tolist() == IDS.tolist(), "d2t holds offsets"
        assert tensors["t2d"].dtype == torch.bool
        assert tensors["t2d"].nonzero().flatten().tolist() == IDS.tolist()
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == shapes
    assert {tensor.dtype for name, tensor in tensors.items() if name not in ("d2t", "t2d")} == {dtype}


def test_config_fields(target: HFTarget, folder: Path, tmp_path: Path) -> None:
    for reduced in (False, True):
        path = write(tmp_path / str(reduced), make(target, reduced), folder, torch.bfloat16)
        config = json.loads((path / "config.json").read_text())
        wanted = {
            "architectures": ["LlamaForCausalLMEagle3"],
            "model_type": "llama",
            "num_hidden_layers": 1,
            "vocab_size": V,
            "draft_vocab_size": R if reduced else None,
            "tie_word_embeddings": False,
            "hidden_size": H,
            "target_hidden_size": H,
            "intermediate_size": INNER,
            "num_attention_heads": HEADS,
            "num_key_value_heads": KV,
            "head_dim": D,
            "max_position_embeddings": 256,
            "rope_theta": 10000.0,
            "rope_scaling": None,
            "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
            "torch_dtype": "bfloat16",
            "bos_token_id": 1,
            "eos_token_id": 2,
        }
        assert {key: config.get(key) for key in wanted} == wanted
        assert config["rms_norm_eps"] == 1e-5
        # Not EAGLE-3's own layers: listed as outputs, to which SGLang adds 1.
        assert target.aux_layers == (1, 2, 3)
        assert config["eagle_config"] == {
            "eagle_aux_hidden_state_layer_ids": [1, 2, 3],
            "use_aux_hidden_state": True,
        }


def test_eagle3s_own_layers_are_left_to_the_servers_default(target: HFTarget) -> None:
    config = dataclasses.replace(make(target, False).config, aux_layers=(1, 15, 28))
    written = serving_config(config, {"num_hidden_layers": 32}, torch.float32)
    assert written["eagle_config"] == {"use_aux_hidden_state": True}
    assert read_layers(written, 32) == (1, 15, 28)


@pytest.mark.parametrize("layers", [(0, 2, 3), (2, 3, 3), (1, 2, 4), (1, 2)])
def test_layers_that_the_layout_cannot_express_are_refused(
    folder: Path, tmp_path: Path, layers: tuple[int, ...]
) -> None:
    """A list that starts with 1 is read alike by all of SGLang's models; none reads the last output."""
    with pytest.raises(MismatchError, match="cannot express these auxiliary layers"):
        write(tmp_path / "e", make(HFTarget.load(folder, aux_layers=layers), False), folder)
    assert not (tmp_path / "e").exists()


def test_layers_are_read_in_either_numbering_or_by_default() -> None:
    def body(*ids: int) -> dict[str, Any]:
        return {"eagle_config": {"eagle_aux_hidden_state_layer_ids": list(ids)}}

    assert read_layers(body(2, 16, 29), 32) == (1, 15, 28)
    assert read_layers(body(1, 15, 28), 32) == (1, 15, 28)
    assert read_layers(body(3, 10, 20), 32) == (2, 9, 19)
    assert read_layers({}, 32) == read_layers({"eagle_config": None}, 32) == (1, 15, 28)


@pytest.mark.parametrize(
    "rope",
    [
        RopeSettings(theta=7e4),
        RopeSettings(theta=1e4, kind="linear", factor=3.0),
        RopeSettings(5e5, "llama3", 8.0, 1.0, 4.0, 8192),
    ],
)
def test_both_spellings_of_rope_read_back(rope: RopeSettings) -> None:
    old = {"rope_theta": rope.theta, "rope_scaling": rope_fields(rope) if rope.kind != "default" else None}
    new = {"rope_parameters": {"rope_theta": rope.theta, **rope_fields(rope)}}
    assert parse_rope(old, 1.0) == parse_rope(new, 1.0) == parse_rope(old | new, 1.0) == rope


@pytest.mark.parametrize("reduced", [False, True])
@torch.inference_mode()
def test_read_back_gives_the_same_logits_and_drafts_from_every_form(
    target: HFTarget, folder: Path, tmp_path: Path, reduced: bool
) -> None:
    drafter = make(target, reduced)
    save_drafter(tmp_path / "native", drafter, {"target_fingerprint": target_fingerprint(folder)})
    write(tmp_path / "served", drafter, folder, target_fingerprint=target_fingerprint(folder))
    shutil.copytree(tmp_path / "served", tmp_path / "foreign")
    (tmp_path / "foreign" / MANIFEST).unlink()
    lean = load_target(folder)
    expected = trees(lean, drafter)
    g = torch.randn(4, H)
    for name in ("native", "served", "foreign"):
        loaded, artifact = load_drafter(tmp_path / name, tensors_of(target), folder)
        assert (artifact is None) == (name == "foreign")
        assert torch.equal(loaded.logits(g), drafter.logits(g))
        assert torch.equal(loaded.target_ids, drafter.target_ids)
        assert loaded.config.aux_layers == drafter.config.aux_layers
        assert trees(lean, loaded) == expected


def trees(lean: Any, drafter: Eagle3Drafter) -> list[list[list[int]]]:
    """Every draft tree of a short generation."""
    made: list[list[list[int]]] = []

    proposer = tree_proposer(lean, drafter, make_head(drafter), TreeSettings(topk=3, depth=2, total_nodes=9))
    propose = proposer.propose

    def watched(*given: Any) -> Any:
        tree = propose(*given)
        made.append([tree.tokens[0].tolist(), tree.parents[0].tolist()])
        return tree

    proposer.propose = watched  # type: ignore[method-assign]
    Decoder(lean, proposer, context=128).generate([5, 7, 11], max_new_tokens=6, stop_ids=())
    assert made
    return made


def test_foreign_embedding_is_ignored_and_other_extras_are_not(
    target: HFTarget, folder: Path, tmp_path: Path
) -> None:
    path = write(tmp_path / "e", make(target, True), folder)
    tensors = load_file(path / "model.safetensors")
    save_file({**tensors, "embed_tokens.weight": torch.zeros(V, H)}, path / "model.safetensors")
    loaded = read_serving(path, tensors_of(target), 5)
    assert torch.equal(loaded.embedding, target.embedding)
    save_file({**tensors, "midlayer.self_attn.q_proj.bias": torch.zeros(H)}, path / "model.safetensors")
    with pytest.raises(ArtifactError, match="not those of its configuration"):
        read_serving(path, tensors_of(target), 5)


def test_damaged_maps_configs_and_weights_are_refused(target: HFTarget, folder: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "e", make(target, True), folder)
    tensors = load_file(path / "model.safetensors")
    config = json.loads((path / "config.json").read_text())

    def refused(
        error: type[Exception], words: str, body: Any = config, **changed: torch.Tensor | None
    ) -> None:
        left = {name: tensor for name, tensor in {**tensors, **changed}.items() if tensor is not None}
        save_file(left, path / "model.safetensors")
        (path / "config.json").write_text(json.dumps(body))
        with pytest.raises(error, match=words):
            read_serving(path, tensors_of(target), 5)

    refused(MismatchError, "no matching list of target ids", d2t=None)
    refused(MismatchError, "ascending", d2t=tensors["d2t"].flip(0))
    refused(MismatchError, "ascending", d2t=tensors["d2t"] + 1)  # the last id is V
    refused(ArtifactError, "name different tokens", t2d=~tensors["t2d"])
    refused(
        DataError, "lacks a field", {key: value for key, value in config.items() if key != "draft_vocab_size"}
    )
    refused(DataError, "not a drafter in the EAGLE-3", {**config, "architectures": ["LlamaForCausalLM"]})
    refused(DataError, "not a drafter in the EAGLE-3", [1])
    (path / "config.json").write_text(json.dumps(config))
    (path / "model.safetensors").write_bytes(b"cut")
    with pytest.raises(DataError, match="cannot be read"):
        read_serving(path, tensors_of(target), 5)


def test_wrong_target_and_missing_layers_are_refused(target: HFTarget, folder: Path, tmp_path: Path) -> None:
    other = tiny_target(tmp_path / "other", seed=9)
    save_drafter(tmp_path / "native", make(target, False), {"target_fingerprint": target_fingerprint(folder)})
    write(tmp_path / "served", make(target, False), folder, target_fingerprint=target_fingerprint(folder))
    for name in ("native", "served"):
        with pytest.raises(MismatchError, match="another target"):
            load_drafter(tmp_path / name, tensors_of(target), other)
    (tmp_path / "served" / MANIFEST).unlink()
    shallow = tiny_target(tmp_path / "shallow", num_hidden_layers=3)
    with pytest.raises(MismatchError, match="layers that the target does not have"):
        load_drafter(tmp_path / "served", tensors_of(target), shallow)


def test_what_is_no_drafter_says_where_one_may_be(target: HFTarget, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such folder"):
        load_drafter(tmp_path / "none", tensors_of(target), folder)
    save_drafter(tmp_path / "run" / "drafter", make(target, False), {})
    with pytest.raises(DataError, match="no drafter here") as error:
        load_drafter(tmp_path / "run", tensors_of(target), folder)
    assert str(tmp_path / "run" / "drafter") in str(error.value)
    assert open_artifact(tmp_path / "run" / "drafter").kind == "drafter"
