"""Drafters as their projects publish them: read or refused by name. The table is that of docs/formats.md."""

from __future__ import annotations

import json
import pickle
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.export.eagle3_cases import (
    HEADS,
    KV,
    ROWS,
    TARGET,
    H,
    V,
    assert_same,
    config_of,
    drafter_of,
    shared_of,
)
from tests.worlds import ROOT
from vocabforge.core.errors import DataError, VocabForgeError
from vocabforge.decode.build.methods import kind_of
from vocabforge.decode.build.models import is_draft_model
from vocabforge.export.servers.registry import open_folder
from vocabforge.layouts.importing import folder_digest
from vocabforge.layouts.registry import folder_layout, load_drafter
from vocabforge.models.drafters.eagle1 import Eagle1Config, Eagle1Drafter
from vocabforge.models.drafters.medusa import MedusaConfig, MedusaDrafter
from vocabforge.models.heads.io import drafter_digest
from vocabforge.models.rope import RopeSettings

Tensors = dict[str, torch.Tensor]
INNER = 20
FORM: dict[str, Any] = {"head_dim": H // HEADS, "rope": RopeSettings()}  # meant by folders that name neither
EAGLE3 = drafter_of(config_of(**FORM))
WHOLE = drafter_of(config_of(**FORM, draft_vocab_size=V))
NORMED = drafter_of(config_of(**FORM, fc_norm=True, norm_output=True))
SHARED = shared_of(EAGLE3)
LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": H,
    "initializer_range": 0.02,
    "intermediate_size": INNER,
    "max_position_embeddings": 64,
    "model_type": "llama",
    "num_attention_heads": HEADS,
    "num_hidden_layers": 1,
    "num_key_value_heads": KV,
    "pad_token_id": 0,
    "rms_norm_eps": 3e-6,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "transformers_version": "4.28.1",
    "use_cache": True,
    "vocab_size": V,
}
REDUCED = LLAMA | {"draft_vocab_size": ROWS}
SERVED = REDUCED | {"architectures": ["LlamaForCausalLMEagle3"]}
LIST = "eagle_aux_hidden_state_layer_ids"
OPTIMIZER = SERVED | {  # Model-Optimizer's template
    "rope_scaling": {"rope_type": "default", "rope_theta": 10_000},
    "rope_theta": 10_000,
    "attention_bias": False,
    "mlp_bias": False,
    "head_dim": H // HEADS,
    "pretraining_tp": None,
    "eagle_config": {
        LIST: [1, 5, 8],
        "use_aux_hidden_state": True,
        "use_input_layernorm_in_first_layer": True,
        "use_last_layernorm": True,
        "use_mtp_layernorm": False,
        "next_layer_regular": True,
        "parallel_draft_step": 1,
        "parallel_draft_heads_num_layers": 1,
    },
}
SPECULATORS = {
    "architectures": ["Eagle3Speculator"],
    "draft_vocab_size": ROWS,
    LIST: None,
    "embed_requires_grad": False,
    "fc_norm": False,
    "norm_before_fc": False,
    "norm_before_residual": False,
    "norm_output": False,
    "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": "org/target"}},
    "speculators_model_type": "eagle3",
    "target_hidden_size": None,
    "tie_word_embeddings": False,
    "transformer_layer_config": {**LLAMA, "head_dim": H // HEADS},
}
MEDUSA = {"base_model_name_or_path": "lmsys/vicuna-7b-v1.3", "medusa_num_heads": 2, "medusa_num_layers": 1}


def stored(drafter: Any, *, layer: str = "midlayer.", maps: str = "d2t t2d") -> Tensors:
    """An EAGLE-3 drafter's tensors without the embedding."""
    tensors = {name.replace("midlayer.", layer): p.clone() for name, p in drafter.named_parameters()}
    ids = drafter.target_ids
    tables = {"d2t": ids - torch.arange(len(ids)), "t2d": torch.zeros(V).bool().index_fill(0, ids, True)}
    return tensors | {name: tables[name] for name in maps.split()}


def eagle1(bias: bool, rope: RopeSettings = FORM["rope"]) -> Eagle1Drafter:
    torch.manual_seed(1)
    config = Eagle1Config(H, INNER, HEADS, KV, H // HEADS, V, None, 64, 3e-6, rope, fc_bias=bias)
    drafter = Eagle1Drafter(config, SHARED.embedding, SHARED.head)
    for parameter in drafter.parameters():
        parameter.data.normal_()
    return drafter


def medusa(heads: int, own: bool, blocks: int = 1) -> MedusaDrafter:
    torch.manual_seed(2)
    config = MedusaConfig(H, V, V if own else None, 1 << 20, heads, blocks, own)
    drafter = MedusaDrafter(config, SHARED.embedding, SHARED.head)
    for parameter in drafter.parameters():
        parameter.data.normal_()
    return drafter


def medusa_tensors(drafter: MedusaDrafter) -> Tensors:
    """As a ModuleList of Sequential(ResBlock, ..., Linear) names them."""
    blocks = drafter.config.medusa_layers
    named = {}
    for name, tensor in drafter.named_parameters():
        name = re.sub(r"^blocks\.(\d+)\.linear", r"\1.0.linear", name)
        name = re.sub(r"^blocks\.(\d+)\.(\d+)\.linear", r"\1.\2.linear", name)
        named[re.sub(r"^lm_heads\.(\d+)\.", rf"\1.{blocks}.", name)] = tensor.detach().clone()
    return named


def plain(drafter: Any) -> Tensors:
    return {name: tensor.detach().clone() for name, tensor in drafter.named_parameters()}


EMBEDDED = {"embed_tokens.weight": SHARED.embedding.clone()}
BIASED, BARE, FAR = eagle1(True), eagle1(False), eagle1(False, RopeSettings(theta=500_000.0))
HEADS5, SHARING = medusa(5, True), medusa(3, False, 2)
# Row of docs/formats.md -> the drafter, config.json, tensors, file.
LAYOUTS: dict[str, tuple[Any, dict[str, Any], Tensors, str]] = {
    "EAGLE-3, its authors": (EAGLE3, REDUCED, stored(EAGLE3), "pytorch_model.bin"),
    "EAGLE-3, its authors, whole vocabulary": (
        WHOLE, LLAMA | {"draft_vocab_size": V}, stored(WHOLE, maps=""), "pytorch_model.bin",
    ),
    "EAGLE-3, AngelSlim": (
        EAGLE3,
        REDUCED | {"architectures": ["Eagle3LlamaForCausalLM"], "tie_word_embeddings": True},
        stored(EAGLE3) | EMBEDDED,
        "pytorch_model.bin.index.json",
    ),
    "EAGLE-3, SpecForge": (
        EAGLE3, SERVED | {"eagle_config": {LIST: [1, 5, 8]}}, stored(EAGLE3), "model.safetensors",
    ),
    "EAGLE-3.1, SpecForge": (
        NORMED, SERVED | {"fc_norm": True, "norm_output": True}, stored(NORMED) | EMBEDDED, "model.safetensors",
    ),
    "EAGLE-3, speculators": (
        EAGLE3, SPECULATORS, stored(EAGLE3, layer="layers.0.") | EMBEDDED, "model.safetensors.index.json",
    ),
    "EAGLE-3, Model-Optimizer": (
        EAGLE3, OPTIMIZER, stored(EAGLE3, layer="layers.0.", maps="d2t"), "model.safetensors",
    ),
    "EAGLE-3 under another name": (
        EAGLE3, REDUCED | {"architectures": ["Eagle3AcornForCausalLM"]}, stored(EAGLE3), "model.safetensors",
    ),
    "EAGLE-1/2, its authors": (BIASED, LLAMA, plain(BIASED) | EMBEDDED, "pytorch_model.bin"),
    "EAGLE-1/2, its authors, no bias": (
        FAR, LLAMA | {"bias": False, "rope_theta": 500_000.0}, plain(FAR) | EMBEDDED, "pytorch_model.bin",
    ),
    "EAGLE-1/2, its authors, Mixtral": (BIASED, LLAMA | {"model_type": "mixtral"}, plain(BIASED) | EMBEDDED, "legacy"),
    "EAGLE-1/2, its authors, Vicuna 33B": (
        BIASED,
        {k: v for k, v in LLAMA.items() if k != "max_position_embeddings"} | {"max_sequence_length": 64},
        plain(BIASED) | EMBEDDED,
        "pytorch_model.bin",
    ),
    "HASS": (BARE, LLAMA | {"bias": False}, plain(BARE) | EMBEDDED, "pytorch_model.bin.index.json"),
    "EAGLE-1/2 under another name": (
        BARE, LLAMA | {"architectures": None}, plain(BARE), "model.safetensors",
    ),
    "Medusa, its authors": (HEADS5, MEDUSA, medusa_tensors(HEADS5), "medusa_lm_head.pt"),
    "Medusa, its authors, the target's LM head": (
        SHARING,
        MEDUSA | {"medusa_num_heads": 3, "medusa_num_layers": 2, "version": "2"},
        medusa_tensors(SHARING),
        "medusa_lm_head.safetensors",
    ),
}  # fmt: skip


def put(path: Path, body: dict[str, Any], tensors: Tensors, file: str) -> Path:
    """A folder in one file, or in two shards if ``file`` is an index."""
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(body))
    suffix = ".safetensors" if "safetensors" in file else ".bin"
    names = sorted(tensors)
    shards = {path / file: names}
    if file.endswith(".index.json"):
        stem = file.split(".")[0]
        shards = {path / f"{stem}-0000{i + 1}-of-00002{suffix}": names[i::2] for i in (0, 1)}
        table = {name: shard.name for shard, held in shards.items() for name in held}
        (path / file).write_text(json.dumps({"metadata": {}, "weight_map": table}))
    for shard, held in shards.items():
        part = {name: tensors[name] for name in held}
        if suffix == ".safetensors":
            save_file(part, shard, {"format": "pt"})
        elif file == "legacy":
            torch.save(part, path / "pytorch_model.bin", _use_new_zipfile_serialization=False)
        else:
            torch.save(part, shard)
    return path


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The configuration of a target: drafters share its tensors, ``SHARED``."""
    folder = tmp_path_factory.mktemp("target")
    sizes = {"hidden_size": H, "vocab_size": V, "num_attention_heads": HEADS, "intermediate_size": INNER}
    (folder / "config.json").write_text(json.dumps(TARGET | sizes))
    return folder


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_published_layout_is_read(name: str, target: Path, tmp_path: Path) -> None:
    drafter, body, tensors, file = LAYOUTS[name]
    path = put(tmp_path / "d", body, tensors, file)
    assert not is_draft_model(path)
    assert kind_of(path) == drafter.kind
    loaded, artifact = load_drafter(path, SHARED, target)
    assert artifact is None
    assert_same(loaded, drafter)


@pytest.mark.parametrize(
    "architecture",
    [None, "LlamaForCausalLM", "LlamaForCausalLMEagle", "LlamaForCausalLMEagle3", "MedusaModel"],
)
@pytest.mark.parametrize(
    "name", ["EAGLE-3, its authors", "EAGLE-3, its authors, whole vocabulary", "HASS", "Medusa, its authors"]
)
def test_names_do_not_matter(name: str, architecture: str | None, target: Path, tmp_path: Path) -> None:
    drafter, body, tensors, file = LAYOUTS[name]
    named = {"architectures": [architecture] if architecture else None}
    path = put(tmp_path / "d", body | named, tensors, file)
    assert not is_draft_model(path)
    assert kind_of(path) == drafter.kind
    assert_same(load_drafter(path, SHARED, target)[0], drafter)


def test_a_language_model_is_no_drafter(folder: Path) -> None:
    assert is_draft_model(folder)
    assert folder_layout(folder) is None


def test_the_guide_lists_what_is_tested() -> None:
    text = (ROOT / "docs/formats.md").read_text("utf-8")
    rows = re.findall(
        r"^\| ([^|]+) \|", text.split("## Published drafters")[1].split("\n## ")[0], re.MULTILINE
    )
    assert [row for row in rows if row not in ("layout", "---")] == list(LAYOUTS)


def test_what_is_told_by_tensors_is_said(target, tmp_path, capsys):
    for name, words in (
        ("EAGLE-3 under another name", "sglang-eagle3 by its tensors"),
        ("Medusa, its authors", "reads all 5 stored heads"),
        ("EAGLE-3, its authors", ""),
    ):
        _, body, tensors, file = LAYOUTS[name]
        load_drafter(put(tmp_path / name, body, tensors, file), SHARED, target)
        said = capsys.readouterr().err
        assert words in said if words else said == ""


def test_norms_of_q_and_k_are_told_by_their_tensors(target: Path, tmp_path: Path) -> None:
    drafter = drafter_of(config_of(**FORM, qk_norm=True))
    path = put(tmp_path / "d", REDUCED | {"architectures": ["Acorn"]}, stored(drafter), "pytorch_model.bin")
    assert_same(load_drafter(path, SHARED, target)[0], drafter)


QUERY = "layers.0.self_attn.q_proj.weight"


@pytest.mark.parametrize(
    ("name", "fields", "changes", "words"),
    [
        # no map, or none that was filled
        ("EAGLE-3, its authors", {}, {"d2t": None, "t2d": None}, "no d2t of its size"),
        ("EAGLE-3, SpecForge", {}, {"d2t": torch.zeros(ROWS).long(), "t2d": None}, "d2t is all zeros"),
        ("EAGLE-3, SpecForge", {}, {"d2t": torch.zeros(ROWS).long(), "t2d": torch.ones(V).bool()}, "different tokens"),
        # a head that would be another one
        ("EAGLE-3, AngelSlim", {"draft_vocab_size": V}, {"lm_head.weight": None}, "LM head is its embedding"),
        # another computation
        ("EAGLE-3, AngelSlim", {"rope_scaling": {"type": "mrope", "mrope_section": [1]}}, {}, "(?s)RoPE.*mrope"),
        ("EAGLE-3, its authors", {"target_hidden_size": 2 * H}, {}, "target_hidden_size 32"),
        ("EAGLE-3, Model-Optimizer", {"eagle_config": {"use_aux_hidden_state": False}}, {}, "use_aux_hidden_state"),
        (
            "EAGLE-3, Model-Optimizer",
            {},
            {"parallel_draft_heads.0.medusa_layers.0.linear.weight": torch.zeros(H, H)},
            "unexpected parallel_draft_heads",
        ),
        ("EAGLE-3, SpecForge", {"architectures": ["PEagleDraftModel"]}, {"mask_hidden": torch.ones(1, 1, H)},
         "unexpected mask_hidden"),
        (
            "EAGLE-3, Model-Optimizer",
            {"architectures": ["Eagle3DeepseekV2ForCausalLM"]},
            {QUERY: None, "layers.0.self_attn.q_a_proj.weight": torch.zeros(4, 2 * H)},
            r"missing midlayer\.self_attn\.q_proj\.weight",
        ),
        ("EAGLE-3, speculators", {"speculators_model_type": "eagle"}, {}, "speculators_model_type 'eagle'"),
        ("EAGLE-1/2, its authors", {"qkv_bias": True}, {"layers.0.self_attn.q_proj.bias": torch.zeros(H)},
         r"unexpected layers\.0\.self_attn\.q_proj\.bias"),
        ("Medusa, its authors", {"medusa_num_heads": 6}, {}, "(?s)contradicts its weights.*medusa_num_heads 6"),
        ("Medusa, its authors", {"medusa_num_layers": 2}, {}, "contradicts its weights"),
        ("Medusa, its authors", {}, {"2.3.weight": torch.zeros(V, H)}, r"unexpected 2\.3\.weight"),
        ("Medusa, its authors", {}, {"3.0.linear.bias": None}, r"missing blocks\.3\.linear\.bias"),
        ("Medusa, its authors", {}, {"model.norm.weight": torch.ones(H)}, r"unexpected model\.norm\.weight"),
        # tensors of two kinds
        ("EAGLE-1/2, its authors", {}, {"d2t": torch.zeros(ROWS).long()}, "(?s)sglang-eagle3: d2t; eagle: .*q_proj"),
        (
            "EAGLE-3 under another name",
            {},
            {"0.0.linear.weight": torch.zeros(H, H)},
            r"medusa: 0\.0\.linear\.weight; sglang-eagle3: d2t, ",
        ),
        # the reader of a known architecture names what does not belong to it
        ("EAGLE-3, SpecForge", {}, {"0.0.linear.weight": torch.zeros(H, H)}, r"unexpected 0\.0\.linear\.weight"),
    ],
)  # fmt: skip
def test_another_form_is_refused_by_name(name, fields, changes, words, target, tmp_path):
    _, body, tensors, file = LAYOUTS[name]
    tensors = {key: tensor for key, tensor in {**tensors, **changes}.items() if tensor is not None}
    path = put(tmp_path / "d", body | fields, tensors, file)
    with pytest.raises(VocabForgeError, match=words):
        load_drafter(path, SHARED, target)


class Bomb:
    def __reduce__(self) -> Any:
        return print, ("a pickle was run",)


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: -file.stat().st_size // 3])


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (
            lambda f: torch.save({"fc.weight": Bomb()}, f),
            "(?s)more than tensors.*GLOBAL.*print.*source.*pytorch_model",
        ),
        (
            lambda f: f.write_bytes(pickle.dumps({"fc.weight": Bomb()}, 2)),
            "(?s)more than tensors.*do not trust it",
        ),
        (
            lambda f: torch.save({"model": plain(BIASED), "step": 3}, f),
            "(?s)not a table.*model: dict.*step: int",
        ),
        (lambda f: torch.save([torch.ones(2)], f), "(?s)not a table of tensors.*list"),
        (lambda f: torch.save({}, f), "(?s)not a table of tensors.*no tensor"),
        (
            lambda f: torch.save({"fc.weight": torch.ones(1).expand(10**6, 10**6)}, f),
            "(?s)not a table.*fc.weight: Tensor",
        ),
        (
            lambda f: torch.save({"fc.weight": torch.ones(9, 9).to_sparse()}, f),
            "(?s)not a table.*fc.weight: Tensor",
        ),
        (
            lambda f: f.write_text("version https://git-lfs.github.com/spec/v1\n"),
            "(?s)cannot be read.*torch.save file",
        ),
        (lambda f: f.write_bytes(b""), "cannot be read"),
        (_cut, "(?s)cannot be read.*truncated"),
        (lambda f: zipfile.ZipFile(f, "w").close(), "cannot be read"),
    ],
)
def test_a_file_that_is_not_a_table_of_tensors_is_refused(spoil, words, target, tmp_path, capsys):
    _, body, tensors, file = LAYOUTS["EAGLE-1/2, its authors"]
    path = put(tmp_path / "d", body, tensors, file)
    spoil(path / file)
    for read in (lambda: load_drafter(path, SHARED, target), lambda: open_folder(path)):
        with pytest.raises(DataError, match=words) as error:
            read()
        assert "weights_only" not in str(error.value), "torch advises to load the file anyway"
    assert capsys.readouterr().out == ""


def test_shards_are_complete_and_disjoint(target: Path, tmp_path: Path) -> None:
    _, body, tensors, file = LAYOUTS["HASS"]
    path = put(tmp_path / "d", body, tensors, file)
    first, second = sorted(path.glob("*.bin"))
    held = torch.load(first, weights_only=True)
    torch.save(torch.load(second, weights_only=True) | held, second)
    with pytest.raises(DataError, match=r"(?s)stored in two files.*00001-of-00002\.bin and"):
        load_drafter(path, SHARED, target)
    second.unlink()
    with pytest.raises(DataError, match=r"(?s)shards of the checkpoint are missing.*00002-of-00002\.bin"):
        load_drafter(path, SHARED, target)
    index = path / "model.safetensors.index.json"  # an index of safetensors opens no pickle
    index.write_text(json.dumps({"weight_map": dict.fromkeys(held, first.name)}))
    with pytest.raises(DataError, match=rf"(?s)are missing.*{first.name}.*\.safetensors files"):
        load_drafter(path, SHARED, target)


def test_pickles_count_wherever_a_drafter_is_identified(tmp_path: Path) -> None:
    """A change in them makes another drafter; servers are shown the same tensors as from safetensors."""
    _, body, tensors, _ = LAYOUTS["EAGLE-3, its authors"]
    path = put(tmp_path / "bin", body, tensors, "pytorch_model.bin")
    digests = folder_digest(path), drafter_digest(path)
    shown = open_folder(path).tensors
    safe = open_folder(put(tmp_path / "safe", body, tensors, "model.safetensors")).tensors
    assert {name: t.tolist() for name, t in shown.items()} == {name: t.tolist() for name, t in safe.items()}
    put(path, body, tensors | {"norm.weight": torch.zeros(H)}, "pytorch_model.bin")
    assert not set(digests) & {folder_digest(path), drafter_digest(path)}
