"""DFlash and DSpark in their servers' layout: written, read again, read from others, refused."""

from __future__ import annotations

import dataclasses
import json
import math
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.export.test_speculators_block import LAYERS, MASK, export_of
from tests.folders import edit_folder
from vocabforge.core.artifact import MANIFEST
from vocabforge.core.errors import ArtifactError, DataError, MismatchError
from vocabforge.decode.spec import MethodSpec
from vocabforge.export.card import model_card, readers
from vocabforge.export.checked import random_logits, write_checked
from vocabforge.export.request import ExportRequest
from vocabforge.export.run import run_export
from vocabforge.layouts.block import MASK_ROW, ServedBlock
from vocabforge.layouts.registry import load_drafter
from vocabforge.models.target.head import TargetTensors, load_target_tensors
from vocabforge.models.target.logits import LogitTransform

CASES = [
    (kind, head, mask, causal)
    for kind in ("dflash", "dspark")
    for head in ("reduced", "target", "own")
    for mask in (MASK, None)
    for causal in (False, True)
    if kind == "dflash" or mask is not None
]


def made(folder: Path, kind: str, head: str, mask: int | None, causal: bool = False) -> Any:
    export = export_of(folder, kind, head, mask_token_id=mask, aux_layers=(0, 2, 3))
    drafter: Any = export.drafter
    if causal:
        drafter.config = dataclasses.replace(drafter.config, causal=True)
    return export


@pytest.mark.parametrize(("kind", "head", "mask", "causal"), CASES)
def test_written_and_read_again(kind, head, mask, causal, folder, tmp_path):
    """All drafts of all blocks have equal logits; what a server looks for is there."""
    export = made(folder, kind, head, mask, causal)
    write_checked(ServedBlock, tmp_path / "out", export, LAYERS)
    (tmp_path / "out" / MANIFEST).unlink()  # as another tool leaves it
    drafter, artifact = load_drafter(tmp_path / "out", export.shared, folder)
    assert artifact is None
    assert drafter.config == export.drafter.config
    assert torch.equal(drafter.target_ids, export.drafter.target_ids)
    assert torch.equal(random_logits(drafter), random_logits(export.drafter))
    body = json.loads((tmp_path / "out" / "config.json").read_text("utf-8"))
    inner = body["dflash_config"]
    assert inner["target_layer_ids"] == [0, 2, 3]
    assert (inner["causal"], "is_causal" in body) == (causal, causal)
    assert "sample_from_anchor" not in inner, "vLLM refuses a true one there"
    assert inner["mask_token_id"] == (60 if mask is not None else body["vocab_size"] - 1)
    if kind == "dspark":
        assert body["sample_from_anchor"] is True
        assert (body["target_layer_ids"], body["mask_token_id"]) == ([0, 2, 3], MASK)
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    assert ("lm_head.weight" in tensors) is (head != "target")
    assert ("d2t" in tensors) is (head == "reduced")
    assert "embed_tokens.weight" not in tensors


def numbers(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_the_target_may_be_a_part_of_a_larger_model(folder: Path, tmp_path: Path) -> None:
    """The layout counts the target's layers, which a model for images has in ``text_config``."""
    export = made(folder, "dflash", "target", MASK)
    write_checked(ServedBlock, tmp_path / "out", export, LAYERS)
    (tmp_path / "out" / MANIFEST).unlink()
    target = tmp_path / "target"
    shutil.copytree(folder, target)
    text = json.loads((target / "config.json").read_text("utf-8"))
    (target / "config.json").write_text(json.dumps({"model_type": "llava", "text_config": text}))
    asked = ExportRequest(drafter=tmp_path / "out", format="block", output=tmp_path / "again", target=target)
    run_export(asked, MethodSpec(), quiet=True)
    assert json.loads((tmp_path / "again" / "config.json").read_text("utf-8"))["num_target_layers"] == LAYERS


H, HEADS, KV, D, MLP, V, DRAFT_LAYERS, ROWS = 32, 4, 2, 12, 40, 61, 2, 4


def others_folder(
    path: Path, *, markov: int | None = None, rows: int | None = None, **body: Any
) -> dict[str, Tensor]:
    """A folder with the names and keys that z-lab (DeepSpec: ``markov``) documents, without our writer."""
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (H, 2 * H),
        "hidden_norm.weight": (H,),
        "norm.weight": (H,),
    }
    for layer in range(DRAFT_LAYERS):
        own = {
            "input_layernorm": (H,),
            "post_attention_layernorm": (H,),
            "self_attn.q_proj": (HEADS * D, H),
            "self_attn.k_proj": (KV * D, H),
            "self_attn.v_proj": (KV * D, H),
            "self_attn.o_proj": (H, HEADS * D),
            "self_attn.q_norm": (D,),
            "self_attn.k_norm": (D,),
            "mlp.gate_proj": (MLP, H),
            "mlp.up_proj": (MLP, H),
            "mlp.down_proj": (H, MLP),
        }
        shapes |= {f"layers.{layer}.{name}.weight": shape for name, shape in own.items()}
    if markov:
        shapes |= {
            "markov_head.markov_w1.weight": (V, markov),
            "markov_head.markov_w2.weight": (rows or V, markov),
        }
        shapes |= {"confidence_head.proj.weight": (1, H + markov), "confidence_head.proj.bias": (1,)}
    if rows:
        shapes["lm_head.weight"] = (rows, H)
    tensors = {
        name: numbers(*shape, seed=seed) * (0.3 if len(shape) > 1 else 1.0)
        for seed, (name, shape) in enumerate(shapes.items())
    }
    path.mkdir(parents=True, exist_ok=True)
    offsets = {} if rows is None else {"d2t": torch.arange(rows)}  # target ids 0, 2, 4, ...
    save_file(tensors | offsets, path / "model.safetensors")
    named = {"mask_token_id": MASK, "target_layer_ids": [1, 3]}
    config: dict[str, Any] = {
        "architectures": ["DFlashDraftModel" if markov is None else "Qwen3DSparkModel"],
        "model_type": "qwen3",
        "block_size": ROWS,
        "num_target_layers": LAYERS,
        "num_hidden_layers": DRAFT_LAYERS,
        "layer_types": ["full_attention"] * DRAFT_LAYERS,
        "hidden_size": H,
        "intermediate_size": MLP,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV,
        "head_dim": D,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 1000.0,
        "rope_scaling": None,
        "max_position_embeddings": 128,
        "vocab_size": V,
        "tie_word_embeddings": False,
    }
    if markov is None:
        config["dflash_config"] = named
    else:
        config |= named | {"markov_rank": markov, "num_anchors": 512, "enable_confidence_head": markov > 0}
        config |= {"markov_head_type": "vanilla", "confidence_head_with_markov": True} if markov else {}
    if rows:
        config["draft_vocab_size"] = rows
    (path / "config.json").write_text(json.dumps(config | body), "utf-8")
    return tensors


def normed(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight


def rotated(x: Tensor, place: int) -> Tensor:
    """One head (D,) at a position: pairs (i, i + D/2) turned by place / theta^(2i/D)."""
    half = D // 2
    angle = [place / 1000.0 ** (2 * i / D) for i in range(half)]
    cos, sin = (torch.tensor([f(a) for a in angle]) for f in (math.cos, math.sin))
    first, second = x[:half], x[half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin])


def reference(w: dict[str, Tensor], features: Tensor, anchor: int, rows: Tensor, *, causal: bool) -> Tensor:
    """Normed states (b, H) of a block, position by position (DRAFTERS, section 2).

    Args:
        features: (T, 2 H) of positions 0, 1, ...; those before ``anchor`` are the context.
        rows: (b, H) embedded rows at positions anchor, anchor + 1, ...
    """
    context = normed(features[:anchor] @ w["fc.weight"].T, w["hidden_norm.weight"])
    x = rows
    for layer in range(DRAFT_LAYERS):

        def of(name: str, at: int = layer) -> Tensor:
            return w[f"layers.{at}.{name}.weight"]

        states = torch.cat([context, normed(x, of("input_layernorm"))])
        keys = normed((states @ of("self_attn.k_proj").T).unflatten(-1, (KV, D)), of("self_attn.k_norm"))
        values = (states @ of("self_attn.v_proj").T).unflatten(-1, (KV, D))
        queries = (states[anchor:] @ of("self_attn.q_proj").T).unflatten(-1, (HEADS, D))
        queries = normed(queries, of("self_attn.q_norm"))
        out = []
        for j in range(len(rows)):
            seen = anchor + (j + 1 if causal else len(rows))
            heads = []
            for head in range(HEADS):
                kv = head // (HEADS // KV)
                turned = torch.stack([rotated(keys[s, kv], s) for s in range(seen)])
                score = turned @ rotated(queries[j, head], anchor + j) / math.sqrt(D)
                heads.append(score.softmax(-1) @ values[:seen, kv])
            out.append(torch.cat(heads))
        x = x + torch.stack(out) @ of("self_attn.o_proj").T
        inner = normed(x, of("post_attention_layernorm"))
        gate = inner @ of("mlp.gate_proj").T
        x = x + (gate * gate.sigmoid() * (inner @ of("mlp.up_proj").T)) @ of("mlp.down_proj").T
    return normed(x, w["norm.weight"])


@pytest.fixture(scope="module")
def shared() -> TargetTensors:
    return TargetTensors(numbers(V, H, seed=101) * 0.5, numbers(V, H, seed=102) * 0.3)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("rows", [None, 20])
@pytest.mark.parametrize(("markov", "mask_row"), [(None, False), (None, True), (6, False), (0, False)])
@torch.no_grad()
def test_others_folders_mean_what_is_documented(markov, rows, mask_row, causal, shared, tmp_path):
    inner = {"mask_token_id": MASK, "target_layer_ids": [1, 3], "causal": causal}
    w = others_folder(tmp_path, markov=markov, rows=rows, dflash_config=inner)
    mask = shared.embedding[MASK]
    if mask_row:
        mask = numbers(H, seed=7)
        torch.save({"embedding": mask, "mask_token_id": MASK} if causal else mask, tmp_path / MASK_ROW)
    drafter: Any = ServedBlock.read(tmp_path, shared, LAYERS)
    assert drafter.max_steps == (ROWS - 1 if markov is None else ROWS)
    length = 9
    features, ids = numbers(1, length, 2 * H, seed=8), torch.arange(3, 3 + length)[None]
    anchors = torch.tensor([[0, 3, 6]])
    position, document = torch.arange(length)[None], torch.ones(1, length, dtype=torch.int64)
    drafts = drafter.draft_blocks(drafter.fuse(features), ids, position, document, anchors, "eager")
    ours = torch.stack([drafter.logits(one)[0] for one in drafts], 1)  # (3, K, R)
    head = w.get("lm_head.weight", shared.head)
    for block, t in enumerate(anchors[0].tolist()):
        anchor = t + 1  # ours counts from the last position with features, theirs from the last known token
        embedded = torch.stack([shared.embedding[ids[0, anchor]], *[mask] * (ROWS - 1)])
        states = reference(w, features[0], anchor, embedded, causal=causal)
        theirs = states @ head.T
        if markov is None:
            theirs = theirs[1:]
        elif markov:  # the text's own tokens before each draft
            known = torch.stack([ids[0, min(anchor + k, length - 1)] for k in range(ROWS)])
            bias = w["markov_head.markov_w1.weight"][known] @ w["markov_head.markov_w2.weight"].T
            inside = [k for k in range(ROWS) if anchor + k < length]
            theirs, ours[block] = theirs + bias, ours[block]
            torch.testing.assert_close(ours[block][inside], theirs[inside], rtol=1e-4, atol=1e-4)
            continue
        torch.testing.assert_close(ours[block], theirs, rtol=1e-4, atol=1e-4)
    if rows:
        assert drafter.target_ids.tolist() == list(range(0, 2 * rows, 2))


def inside(**change: Any) -> Callable[[dict[str, Any]], object]:
    return lambda body: body["dflash_config"].update(change)


def top(**change: Any) -> Callable[[dict[str, Any]], object]:
    return lambda body: body.update(change)


REFUSED: list[tuple[int | None, Callable[[dict[str, Any]], object], str]] = [
    (None, inside(sample_from_anchor=True), "sample_from_anchor"),
    (None, top(sample_from_anchor=True), "sample_from_anchor"),
    (None, top(markov_rank=0), "markov_rank"),
    (None, inside(use_swa=True, swa_window_size=64), "use_swa"),
    (None, top(layer_types=["sliding_attention", "full_attention"]), "layer_types"),
    (None, top(is_neox_style=False), "is_neox_style"),
    (None, top(logit_scale=0.5), "logit_scale"),
    (None, inside(output_multiplier=0.5), "output_multiplier"),
    (None, inside(final_logit_softcapping=30.0), "final_logit_softcapping"),
    (None, inside(conv_kernel_size=2, conv_group_size=16), "conv_kernel_size"),
    (None, inside(projector_type="domino"), "projector_type"),
    (None, inside(block_size=8), "block_size"),
    (None, inside(target_layer_ids=[3, 1]), "[3, 1]"),
    (None, inside(target_layer_ids=["1", 3]), "'1'"),
    (None, inside(target_layer_ids=None), "None"),
    (None, inside(mask_token_id=None), "None"),
    (None, inside(mask_token_id=V), f"mask_token_id {V}"),
    (None, inside(causal="yes"), "'yes'"),
    (None, top(target_hidden_size=48), "target_hidden_size"),
    (None, top(num_target_layers=36), "num_target_layers"),
    (None, top(eagle_aux_hidden_state_layer_ids=[1, 3]), "eagle_aux"),
    (None, top(architectures=["DFlash2DraftModel"]), "DFlash2DraftModel"),
    (None, top(model_type="deepseek_v4"), "deepseek_v4"),
    (None, top(block_size="4"), "'4'"),
    (None, top(draft_vocab_size=9.0), "9.0"),
    (None, top(dflash_config=[1]), "[1]"),
    (6, top(sample_from_anchor=False), "sample_from_anchor"),
    (6, top(markov_head_type="gated"), "gated"),
    (6, top(confidence_head_with_markov=False), "confidence_head_with_markov"),
    (6, top(mask_token_id=3, dflash_config={"mask_token_id": 4}), "mask_token_id"),
    (6, top(markov_rank="6"), "'6'"),
]


@pytest.mark.parametrize(("markov", "change", "named"), REFUSED)
def test_what_is_not_computed_here_is_refused(markov, change, named, shared, tmp_path):
    """One error, which names the key."""
    others_folder(tmp_path, markov=markov)
    ServedBlock.read(tmp_path, shared, LAYERS)
    edit_folder(tmp_path, config=change)
    with pytest.raises(DataError) as raised:
        ServedBlock.read(tmp_path, shared, LAYERS)
    assert named in str(raised.value.got)
    assert raised.value.expected is not None


@pytest.mark.parametrize(
    "change",
    [
        {"colour": torch.zeros(2)},  # as a sink, a convolution or a selector would be
        {"hidden_norm.weight": None},
        {"layers.1.self_attn.q_norm.weight": None},
        {"fc.weight": torch.zeros(H, 3 * H)},
        {"d2t": None},  # vLLM would take tokens 0 to R - 1, without a word
        {"d2t": torch.arange(3)},
        {"lm_head.weight": None},
        {"embed_tokens.weight": torch.zeros(V, H)},
        {"norm.weight": torch.zeros(H, dtype=torch.int8)},
    ],
)
def test_spoilt_tensors_are_refused(change: dict[str, Any], shared: TargetTensors, tmp_path: Path) -> None:
    others_folder(tmp_path, rows=20)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path) | change
    save_file({name: one for name, one in tensors.items() if one is not None}, path)
    with pytest.raises((ArtifactError, MismatchError, DataError)):
        ServedBlock.read(tmp_path, shared, LAYERS)


@pytest.mark.parametrize(
    ("markov", "row"),
    [
        (None, {"embedding": torch.zeros(H), "mask_token_id": 3}),
        (None, {"embedding": torch.zeros(ROWS, H), "mask_token_id": MASK, "per_position": True}),
        (None, {"weight": torch.zeros(H)}),
        (None, torch.zeros(H - 1)),
        (None, "text"),
        (None, b"cut short"),
        (6, torch.zeros(H)),
    ],
)
def test_a_mask_row_of_another_token_or_shape_is_refused(markov, row, shared, tmp_path):
    others_folder(tmp_path, markov=markov)
    if isinstance(row, bytes):
        (tmp_path / MASK_ROW).write_bytes(row)
    else:
        torch.save(row, tmp_path / MASK_ROW)
    with pytest.raises(DataError, match="mask row"):
        ServedBlock.read(tmp_path, shared, LAYERS)


def test_what_others_write_beside_it_is_read(shared: TargetTensors, tmp_path: Path) -> None:
    """Names with a prefix, the target's embedding and head repeated (DeepSpec), SpecForge's architecture, both
    numberings of the layers, the target's own cap."""
    w = others_folder(tmp_path / "a", markov=6, architectures=["DSparkDraftModel"], dtype="float32")
    plain = ServedBlock.read(tmp_path / "a", shared, LAYERS)
    others_folder(tmp_path / "b", markov=6, eagle_aux_hidden_state_layer_ids=[2, 4], sample_from_anchor=True)
    whole = w | {"embed_tokens.weight": shared.embedding, "lm_head.weight": shared.head}
    prefixed = {
        f"model.{name}".replace("model.lm_head", "lm_head"): one.bfloat16() for name, one in whole.items()
    }
    save_file(prefixed, tmp_path / "b" / "model.safetensors")
    other = ServedBlock.read(tmp_path / "b", shared, LAYERS)
    assert other.config == plain.config
    assert not other.has_own_head
    for name, one in plain.named_parameters():
        assert torch.equal(dict(other.named_parameters())[name], one.bfloat16().float()), name
    others_folder(tmp_path / "c", final_logit_softcapping=30.0)
    capped = dataclasses.replace(shared, transform=LogitTransform(softcap=30.0))
    assert ServedBlock.read(tmp_path / "c", capped, LAYERS).kind == "dflash"


@pytest.mark.parametrize(
    ("kind", "wishes", "message"),
    [
        ("dspark", {"mask_token_id": None}, "trained mask row"),
        ("peagle", {}, "kind peagle"),
        ("eagle3", {"mask_token_id": None}, "kind eagle3"),
        ("dflash", {"aux_layers": (3, 1)}, "[3, 1]"),
    ],
)
def test_what_it_cannot_express_is_refused(kind, wishes, message, folder, tmp_path):
    with pytest.raises(MismatchError, match="layout block cannot express") as raised:
        ServedBlock.write(tmp_path / "out", export_of(folder, kind, **wishes))
    assert message in str(raised.value.got)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("kind", "head", "mask", "expected"),
    [
        ("dflash", "target", MASK, ("sglang", "vllm", "llama.cpp")),
        ("dspark", "target", MASK, ("sglang", "vllm", "llama.cpp")),
        ("dflash", "reduced", MASK, ("vllm",)),
        ("dspark", "reduced", MASK, ("vllm", "llama.cpp")),
        ("dspark", "own", MASK, ("vllm",)),
        ("dflash", "target", None, ("vllm", "llama.cpp")),
    ],
)
def test_the_card_names_the_servers_that_compute_it(kind, head, mask, expected, folder):
    export = made(folder, kind, head, mask)
    assert readers("block", export) == expected
    card = model_card("served", "block", export)
    commands = [shlex.split(part.strip().replace("\\\n", " ")) for part in card.split("```")[1::2]]
    drafts = export.drafter.max_steps
    vllm = next(words for words in commands if words[0] == "vllm")
    asked = json.loads(vllm[vllm.index("--speculative-config") + 1])
    assert asked == {"method": kind, "model": "served", "num_speculative_tokens": drafts}
    sglang = [words for words in commands if "sglang.launch_server" in words]
    assert len(sglang) == ("sglang" in expected)
    for words in sglang:
        assert words[words.index("--speculative-algorithm") + 1] == kind.upper()
        assert words[words.index("--speculative-num-draft-tokens") + 1] == str(drafts + 1)
        assert "--speculative-num-steps" not in words
    assert (f"--spec-type draft-{kind} --spec-draft-n-max {drafts}" in card) is ("llama.cpp" in expected)
    assert ("convert_hf_to_gguf.py" in card) is ("llama.cpp" in expected)


def test_sglang_is_not_named_for_the_last_layer(folder: Path) -> None:
    export = export_of(folder, "dflash", "target", aux_layers=(1, LAYERS - 1))
    assert readers("block", export) == ("vllm",)
    shared = load_target_tensors(folder)
    assert shared.embedding.shape == export.shared.embedding.shape
