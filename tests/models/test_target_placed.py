"""Large targets and long rows: placement, dtype, checks by a forward pass, passes without masks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM

from tests.decode.test_architectures import known_drafts
from tests.models.architectures import make_architecture
from tests.processes import end, ranks, start
from tests.worlds import tiny_target
from vocabforge.core.errors import DataError, UsageError
from vocabforge.decode.engine import Decoder
from vocabforge.decode.request import Request
from vocabforge.models.backends import load_decoding_target
from vocabforge.models.target.documents import DocumentSpan, document_spans, plan_passes
from vocabforge.models.target.head import TargetHead
from vocabforge.models.target.hf import HFTarget, check_row_length
from vocabforge.models.target.load import decoding_dtype, dtype_of, multiplies_bf16

CPU = torch.device("cpu")


def rows(lengths: list[list[int]], length: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """ids, positions and document numbers (B, T) of random documents."""
    generator = torch.Generator().manual_seed(3)
    ids, position, document = (torch.zeros(len(lengths), length, dtype=torch.int64) for _ in range(3))
    for row, sizes in enumerate(lengths):
        start = 0
        for number, size in enumerate(sizes, 1):
            ids[row, start : start + size] = torch.randint(0, 61, (size,), generator=generator)
            position[row, start : start + size] = torch.arange(size)
            document[row, start : start + size] = number
            start += size
    return ids, position, document


def test_no_mask_of_the_rows_length_squared_is_made(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = HFTarget.load(folder)
    largest: list[int] = []
    attention = torch.nn.functional.scaled_dot_product_attention

    def watched(*tensors: Any, attn_mask: Any = None, **settings: Any) -> torch.Tensor:
        largest.append(0 if attn_mask is None else attn_mask.numel())
        return attention(*tensors, attn_mask=attn_mask, **settings)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watched)
    target.capture(*rows([[200, 30, 7], [256], [90, 90]], 256))
    assert largest
    assert not any(largest)


def test_a_rows_bits_do_not_depend_on_its_company(folder: Path) -> None:
    target = HFTarget.load(folder)
    batch = rows([[30, 5], [1, 1, 44], [17]], 48)
    one = [tensor[1:2] for tensor in batch]
    alone = target.capture(*one)
    again = target.capture(*one)
    assert torch.equal(alone.features, again.features)
    together = target.capture(*batch)
    torch.testing.assert_close(together.hidden[1:2], alone.hidden, rtol=0, atol=1e-5)


def test_positions_that_do_not_restart_are_refused(folder: Path) -> None:
    ids, position, document = rows([[9, 20]], 48)
    with pytest.raises(DataError, match="positions of packed rows"):
        HFTarget.load(folder).capture(ids, position + 1, document)


def test_spans_and_passes_by_hand() -> None:
    document = torch.tensor([[1, 1, 2, 0, 0], [0, 0, 0, 0, 0], [1, 2, 2, 2, 2]])
    spans = document_spans(document)
    assert spans == [
        DocumentSpan(0, 0, 2),
        DocumentSpan(0, 2, 3),
        DocumentSpan(2, 0, 1),
        DocumentSpan(2, 1, 5),
    ]
    passes = list(plan_passes(spans))
    assert passes == [
        [DocumentSpan(2, 1, 5), DocumentSpan(0, 0, 2), DocumentSpan(0, 2, 3), DocumentSpan(2, 0, 1)]
    ]


def test_passes_are_bounded_in_tokens_and_padding() -> None:
    generator = torch.Generator().manual_seed(0)
    sizes = [*torch.randint(1, 900, (200,), generator=generator).tolist(), 5000]
    spans = [DocumentSpan(row, 0, size) for row, size in enumerate(sizes)]
    passes = list(plan_passes(spans, 4096))
    assert sorted(span.row for group in passes for span in group) == list(range(len(sizes)))
    for group in passes:
        padded, real = len(group) * len(group[0]), sum(map(len, group))
        assert padded <= 4096 or len(group) == 1
        assert padded - real <= real // 8 + 128
    assert len(passes) < len(sizes) // 3


def test_layers_that_are_not_what_the_model_reports_are_refused(folder: Path) -> None:
    """As with a model that numbers its states otherwise: hidden_states[i] is then not layer i - 1's output."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    forward = model.forward

    def shifted(*args: Any, **kwargs: Any) -> Any:
        output = forward(*args, **kwargs)
        if output.hidden_states is not None:
            states = output.hidden_states
            output.hidden_states = (states[0], states[0], *states[1:-1])
        return output

    model.forward = shifted
    with pytest.raises(DataError, match="cannot be distinguished") as error:
        HFTarget(model, aux_layers=(1, 3))
    assert "layer 1's output is not hidden_states[2]" in str(error.value)


@pytest.mark.parametrize("layer", range(5))
def test_every_layer_passes_the_check_the_last_one_behind_the_norm(folder: Path, layer: int) -> None:
    assert HFTarget.load(folder, aux_layers=(layer,)).aux_layers == (layer,)


def test_a_head_with_a_bias_is_refused(folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder)
    model.lm_head.bias = torch.nn.Parameter(torch.full((61,), 3.0))
    with pytest.raises(DataError, match="changes its logits"):
        HFTarget(model)


@pytest.mark.parametrize("tied", [False, True])
def test_a_mapped_target_gives_the_same_bits(tmp_path: Path, tied: bool) -> None:
    """Part of it offloaded to disk: its head is then loaded for the length of a forward pass only."""
    folder = tiny_target(tmp_path / "t", vocab_size=64, tie_word_embeddings=tied)
    plain = HFTarget.load(folder)
    names = ["model.embed_tokens", *(f"model.layers.{i}" for i in range(5)), "model.norm", "model.rotary_emb"]
    places = dict.fromkeys([*names, "lm_head"], "cpu")
    maps: list[dict[str, str]] = [{"": "cpu"}]
    if not tied:
        maps.append({**places, "model.layers.2": "disk", "lm_head": "disk"})
    batch = rows([[30, 5], [17]], 48)
    for device_map in maps:
        mapped = HFTarget.load(folder, device_map=device_map)
        assert torch.equal(mapped.head_weight, plain.head_weight)
        assert torch.equal(mapped.embedding, plain.embedding)
        assert (mapped.embedding is mapped.head_weight) is tied
        one, other = plain.capture(*batch), mapped.capture(*batch)
        assert torch.equal(one.features, other.features)
        assert torch.equal(mapped.logits(other.hidden), plain.logits(one.hidden))


@pytest.mark.parametrize("name", ["llama", "gemma-3", "qwen3.5"])
def test_a_mapped_target_decodes_as_on_one_device(name: str, tmp_path: Path) -> None:
    """Layers and LM head offloaded to disk: hooks of accelerate bring them in for the length of a pass."""
    make_architecture(name).save_pretrained(tmp_path / "t")
    plain = load_decoding_target(tmp_path / "t", "transformers")
    names = ["embed_tokens", *(f"layers.{i}" for i in range(4)), "norm", "rotary_emb"]
    device_map = {**{f"model.{one}": "cpu" for one in names}, "model.layers.2": "disk", "lm_head": "disk"}
    mapped = load_decoding_target(tmp_path / "t", device_map=device_map)
    assert mapped.model.lm_head.weight.is_meta
    assert torch.equal(mapped.lm_head_weight, plain.lm_head_weight)
    assert torch.equal(mapped.embedding, plain.embedding)
    assert drafted(mapped) == drafted(plain)


def drafted(target: Any) -> list[list[int]]:
    """What two requests give side by side, without drafts and with trees (or chains) of drafts."""
    asked = [Request([5, 11, 7, 3], 12, ()), Request([9, 60, 13, 21, 8], 12, ())]
    plain = [one.token_ids for one in Decoder(target, None, rows=2).generate_batch(asked)]
    texts = [[*one.prompt_ids, *text] for one, text in zip(asked, plain)]
    drafts = known_drafts(texts, chain=target.config.recurrent)
    drafted = Decoder(target, drafts, rows=2).generate_batch(asked)
    assert [one.token_ids for one in drafted] == plain
    assert sum(sum(one.accepted_by_depth) for one in drafted) > 4
    return plain


def test_lean_does_not_spread(folder: Path) -> None:
    with pytest.raises(UsageError, match="one device"):
        load_decoding_target(folder, "lean", device_map="auto")


def test_dtypes(tmp_path: Path) -> None:
    folder = tiny_target(tmp_path / "t", dtype="bfloat16")
    AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).save_pretrained(folder)
    assert HFTarget.load(folder, dtype="auto").dtype == torch.float32, "auto on a CPU"
    half = HFTarget.load(folder, dtype="bfloat16")
    assert half.dtype == torch.bfloat16
    states = half.capture(*rows([[5]], 8))
    assert states.features.dtype == states.hidden.dtype == torch.bfloat16
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert HFTarget.load(folder).capture(*rows([[5]], 8)).hidden.dtype == torch.float32
    assert dtype_of(folder, "auto", CPU) == torch.float32
    assert dtype_of(folder, "auto", torch.device("cuda")) == torch.bfloat16
    with pytest.raises(UsageError, match="no such dtype"):
        HFTarget.load(folder, dtype="int8")


def test_dtype_of_decoding(tmp_path: Path) -> None:
    """``auto`` follows the checkpoint on a GPU and is fp32 on a CPU; a name is taken as it is."""
    half, full = (tiny_target(tmp_path / name, dtype=name) for name in ("bfloat16", "float32"))
    assert decoding_dtype(half, "auto", torch.device("cuda")) == "bfloat16"
    assert decoding_dtype(full, "auto", torch.device("cuda")) == "float32"
    assert decoding_dtype(half, "auto", CPU) == "float32"
    assert decoding_dtype(half, "bfloat16", CPU) == "bfloat16"


@pytest.mark.parametrize("flag", ["avx512_bf16", "amx_bf16", None])
def test_bf16_of_the_processor(monkeypatch: pytest.MonkeyPatch, flag: str | None) -> None:
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: f"flags : fpu avx2 {flag or 'avx512f'} sse2")
    assert multiplies_bf16() == (flag is not None)


def test_the_head_alone_gives_the_targets_logits(folder: Path, tmp_path: Path) -> None:
    target, head = HFTarget.load(folder), TargetHead.load(folder)
    assert (head.vocab_size, head.hidden_size, head.aux_layers) == (61, 32, target.aux_layers)
    hidden = target.capture(*rows([[5]], 8)).hidden
    assert torch.equal(head.logits(hidden), target.logits(hidden))
    assert torch.equal(head.embedding, target.embedding)
    tied = TargetHead.load(tiny_target(tmp_path / "tied", tie_word_embeddings=True), dtype=torch.bfloat16)
    assert tied.embedding is tied.head_weight
    assert tied.dtype == torch.bfloat16


def test_placements_that_do_not_suit_the_launch(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="one process for each GPU"):
        HFTarget.load(folder, tp_plan="auto")
    with pytest.raises(UsageError, match="no JSON"):
        HFTarget.load(folder, device_map="{model: 0}")
    assert HFTarget.load(folder, device_map='{"": "cpu"}').spread
    with pytest.raises(UsageError, match="not by both"):
        HFTarget.load(folder, tp_plan="auto", device_map="auto")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(UsageError, match="its own process"):
        HFTarget.load(folder, device_map="auto")


def test_rows_longer_than_the_context() -> None:
    check_row_length({"model_type": "mistral", "max_position_embeddings": 64}, 64, source="c")
    with pytest.raises(UsageError, match="longer than the target's context"):
        check_row_length({"model_type": "mistral", "max_position_embeddings": 63}, 64, source="c")
    check_row_length(
        {"model_type": "mistral", "max_position_embeddings": 256, "sliding_window": 32}, 64, source="c"
    )


def parallel(place: Path) -> None:
    """One of the processes."""
    from vocabforge.train.capture.online import OnlineCapture, RowBatch

    target = HFTarget.load(place, tp_plan="auto")
    plain = HFTarget.load(place)
    assert type(target.model.model.layers[0].self_attn.q_proj.weight).__name__ == "DTensor"
    assert torch.equal(target.head_weight, plain.head_weight)
    assert torch.equal(target.embedding, plain.embedding)
    ids, position, document = rows([[30, 5], [17, 9, 2]] if dist.get_rank() else [[1, 40]], 48)
    batch = RowBatch(ids, document != 0, document, position)
    ours = OnlineCapture(target, 1 << 20)(batch, [("train", i) for i in range(len(ids))])
    whole = plain.capture(ids, position, document)
    for one, other in ((ours.features, whole.features), (ours.hidden, whole.hidden)):
        assert one.shape == other.shape
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5 * float(other.abs().max()))
    decoding = load_decoding_target(place, tp_plan="auto")
    assert torch.equal(decoding.lm_head_weight, plain.head_weight)
    assert drafted(decoding) == drafted(load_decoding_target(place, "transformers"))
    dist.barrier()
    print("equal", dist.get_rank())
    dist.destroy_process_group()


@pytest.mark.long
def test_tensor_parallel_over_two_processes_equals_one(tmp_path: Path) -> None:
    """Each process has rows of its own, and both compute all of them; decoding runs the same passes in both."""
    make_architecture("llama").save_pretrained(tmp_path)
    said = tmp_path / "said"
    codes = end([start(parallel, tmp_path, said=said, **rank) for rank in ranks()])
    text = said.read_text("utf-8")
    assert codes == [0, 0], text[-3000:]
    assert "equal 0" in text
    assert "equal 1" in text
