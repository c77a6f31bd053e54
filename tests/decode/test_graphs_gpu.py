"""CUDA graphs: the same requests as on the CPU in fp32, and in bf16 the same as the same kernels one by one."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("pydantic", reason="drafting is declared with pydantic, which is not installed")

from tests.decode.recording import SAMPLED, outcome, requests
from vocabforge.core.registry import resolve
from vocabforge.decode.accelerate.graphs import GraphCapture, capture_passes
from vocabforge.decode.device_cycle import DeviceCycle
from vocabforge.decode.engine import Decoder
from vocabforge.decode.proposers.registry import ProposerParts, make_proposer
from vocabforge.decode.request import SamplingParams
from vocabforge.models.drafters.eagle3 import Eagle3Config, Eagle3Drafter
from vocabforge.models.heads.registry import HEADS, DraftHead, HeadOptions, HeadSizes, base_of, build_head
from vocabforge.models.lean.config import LeanConfig
from vocabforge.models.lean.model import LeanModel

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a CUDA device"),
]

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 384,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,  # one that the attention kernel is made for
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
}


def drafting(tree: str, depth: int, **sizes: int) -> Any:
    """What proposers read of a MethodSpec, which needs pydantic: GPU machines may lack it."""
    unset = dict.fromkeys(("tree_file", "topk", "total_nodes", "exit_layers"))
    return SimpleNamespace(**{**unset, "tree": tree, "depth": depth, "draft_sampling": False, **sizes})


METHODS: dict[str, Any] = {
    "plain": None,
    "eagle3": drafting("dynamic", 3, topk=4, total_nodes=20),
    "draft-model": drafting("dynamic", 2, topk=3, total_nodes=12),
    "early-exit": drafting("chain", 3, exit_layers=2),
}


class RunsAgain:
    """A recorder that records nothing: the same passes and kernels, started one by one."""

    def warm_up(self, run: Callable[[], Any]) -> None:
        """There is nothing to be warm for."""

    def record(self, function: Callable[..., Any], inputs: Sequence[Tensor | None]) -> Callable[[], Any]:
        return lambda: function(*inputs)


def random_target() -> LeanModel:
    """fp32 on the CPU, as sure of its tokens as a trained one."""
    torch.manual_seed(0)
    model = LeanModel(LeanConfig.from_hf_config(CONFIG))
    for name, weight in model.named_parameters():
        if "norm" in name:
            weight.uniform_(0.5, 1.5)
        else:
            weight.normal_(0.0, 1.5 * weight.shape[-1] ** -0.5)
    return model


def random_drafter(target: LeanModel) -> Eagle3Drafter:
    sizes = {name: CONFIG[name] for name in ("hidden_size", "intermediate_size", "head_dim", "vocab_size")}
    config = Eagle3Config(
        **sizes,
        num_heads=4,
        num_kv_heads=2,
        draft_vocab_size=None,
        aux_layers=(0, 1, 2),
        max_position_embeddings=512,
    )
    drafter = Eagle3Drafter(config, target.embedding, target.lm_head_weight)
    with torch.no_grad():
        for weight in drafter.parameters():
            if weight.dim() > 1:
                weight.normal_(0.0, weight.shape[-1] ** -0.5)
    return drafter.eval()


def noisy(target: LeanModel) -> LeanModel:
    """A draft model that agrees often, not always."""
    other = copy.deepcopy(target)
    for weight in other.parameters():
        weight.add_(torch.randn_like(weight) * 0.003)
    return other


def moved(model: LeanModel, device: str, dtype: torch.dtype) -> LeanModel:
    other = LeanModel(model.config, dtype=dtype, device=device)  # rotary frequencies stay fp32
    other.load_state_dict(model.state_dict())
    return other


def head_of(kind: str, drafter: Eagle3Drafter) -> DraftHead:
    """A draft head with random weights, the same every time."""
    torch.manual_seed(3)
    sizes = HeadSizes(CONFIG["hidden_size"], CONFIG["vocab_size"], rank=32, clusters=16, width=64, depth=1)
    module = resolve(HEADS, kind.split()[0], "draft head").new_module(sizes)
    options = {
        "context": HeadOptions(ranked=tuple(range(32)), context=16),
        "router": HeadOptions(budgets=(6, 3)),
        "ranker": HeadOptions(shortlist=64),
    }
    weight = drafter.head_weight
    return build_head(
        kind.split()[0], base_of(drafter), module and module.to(weight.device, weight.dtype), options[kind]
    )


def make(name: str, device: str, dtype: torch.dtype, head: str | None = None) -> tuple[LeanModel, Any]:
    """Target and proposer, with a draft head of a kind; the same weights every time."""
    source, options = random_target(), METHODS[name]
    target, drafter = moved(source, device, dtype), None
    if name == "eagle3":
        drafter = random_drafter(source).to(device=device, dtype=dtype)
    if name == "draft-model":
        drafter = moved(noisy(source), device, dtype)
    if options is None:
        return target, None
    built = None if head is None or drafter is None else head_of(head, drafter)
    return target, make_proposer(name, ProposerParts(target, drafter, built, options))


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("name", METHODS)
def test_graphs_equal_the_cpu_in_fp32(name: str, rows: int, sampled: bool) -> None:
    asked = requests(5, *(SAMPLED if sampled else ()))
    expected = outcome(Decoder(*make(name, "cpu", torch.float32), rows=rows).generate_batch(asked))
    capture = capture_passes("cuda")
    decoder = Decoder(*make(name, "cuda", torch.float32), rows=rows, wrap=capture)
    assert outcome(decoder.generate_batch(asked)) == expected
    assert outcome(decoder.generate_batch(asked)) == expected, "what was captured has changed"
    assert isinstance(decoder._cycles, DeviceCycle)
    assert len(capture.done) == len({one.name for one in capture.done}) > 0


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("name", METHODS)
def test_graphs_equal_their_kernels_in_bf16(name: str, rows: int) -> None:
    asked = requests(5, *SAMPLED)
    stepped = Decoder(*make(name, "cuda", torch.bfloat16), rows=rows, wrap=GraphCapture(RunsAgain))
    expected = outcome(stepped.generate_batch(asked))
    decoder = Decoder(*make(name, "cuda", torch.bfloat16), rows=rows, wrap=capture_passes("cuda"))
    for _ in range(2):
        assert outcome(decoder.generate_batch(asked)) == expected


@pytest.mark.parametrize("kind", ["context", "ranker", "router"])
def test_heads_that_choose_their_rows(kind: str) -> None:
    """A router's clusters are scored in a stream of their own, which a recording must join."""
    asked = requests(4)
    captures = GraphCapture(RunsAgain), capture_passes("cuda")
    decoders = [Decoder(*make("eagle3", "cuda", torch.bfloat16, kind), rows=2, wrap=one) for one in captures]
    stepped, replayed = (outcome(decoder.generate_batch(asked)) for decoder in decoders)
    assert stepped == replayed
    assert all(isinstance(decoder._cycles, DeviceCycle) for decoder in decoders)
    states = [decoder.proposer.backend.device_state() for decoder in decoders]
    torch.testing.assert_close(*states)


@pytest.mark.parametrize("name", ["eagle3", "draft-model"])
def test_cycles_in_parts(name: str) -> None:
    """Penalties keep the walk on the host; drafting and target pass are graphs of their own."""
    asked = requests(3, SamplingParams(0.0, repetition_penalty=1.3))
    expected = outcome(Decoder(*make(name, "cpu", torch.float32), rows=2).generate_batch(asked))
    capture = capture_passes("cuda")
    decoder = Decoder(*make(name, "cuda", torch.float32), rows=2, wrap=capture)
    assert outcome(decoder.generate_batch(asked)) == expected
    assert {"target", "cycle"} & {one.name.split()[0] for one in capture.done} == {"target"}


def test_caches_grow_between_requests() -> None:
    short, long = requests(2), [type(one)(one.prompt_ids * 40, 20, ()) for one in requests(2)]
    decoder = Decoder(*make("eagle3", "cuda", torch.float32), rows=2, wrap=capture_passes("cuda"))
    decoder._caches.allocate(64)
    eager = Decoder(*make("eagle3", "cpu", torch.float32), rows=2)
    for asked in (short, long, short):
        assert outcome(decoder.generate_batch(asked)) == outcome(eager.generate_batch(asked))
