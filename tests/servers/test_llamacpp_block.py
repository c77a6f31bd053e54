"""llama.cpp drafts with DFlash and DSpark from ``export --format block``: every draft token of every cycle is ours.

Weights are random: nothing is accepted by chance, and nothing has to be trained. llama.cpp's own converter reads the
folder. Its program logs what it drafts and what it commits; the drafts are made again from the committed tokens.
"""

from __future__ import annotations

import dataclasses
import re
import string
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.decode.drafting import make_drafter
from tests.export.readers_support import write_tokenizer
from tests.servers.test_llamacpp import PROGRAM, convert, run
from tests.worlds import tiny_target
from vocabforge.layouts.block import ServedBlock
from vocabforge.layouts.interface import Export
from vocabforge.models.target.head import load_target_tensors
from vocabforge.models.target.hf import HFTarget
from vocabforge.models.target.load import read_target_config

pytest.importorskip("gguf", reason="the extra gguf is not installed")
pytestmark = pytest.mark.servers

V, MASK, END, LAYERS = 31, 29, 27, (0, 2, 5)
PROMPT = "thequickbrownfoxjumpsoverthelazydog"  # a token a letter: no two make "ab"
_EVENT = re.compile(
    r"draft candidate +0, pos +\d+: +(\d+) |accepted (\d+)/\d+ draft tokens, the last target token is: \((\d+)\)"
)
# name -> kind, LM head, mask row of the target, causal block
CASES = {
    "dflash": ("dflash", "target", MASK, False),
    "dflash, mask row": ("dflash", "target", None, False),
    "dflash, causal": ("dflash", "target", MASK, True),
    "dspark": ("dspark", "target", MASK, False),
    "dspark, draft vocabulary": ("dspark", "reduced", MASK, False),
}
VLLM_CASES = {**CASES, "dflash, draft vocabulary": ("dflash", "reduced", MASK, False)}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not PROGRAM.exists():
        pytest.skip("llama.cpp is not built: make test-llamacpp builds it")
    folder = tmp_path_factory.mktemp("block") / "target"
    return write_tokenizer(tiny_target(folder, vocab_size=V, num_hidden_layers=8, eos_token_id=END))


def folder_of(target: Path, case: str, path: Path, *, same_norms: bool = False) -> Any:
    """The drafter of a case, written to ``path``; ``same_norms``: its layers norm keys alike."""
    kind, head, mask, causal = VLLM_CASES[case]
    drafter = make_drafter(
        kind, target, HFTarget.load(target, aux_layers=LAYERS), head, aux_layers=LAYERS, mask_token_id=mask
    )
    drafter.config = dataclasses.replace(drafter.config, causal=causal)
    for layer in drafter.layers if same_norms else ():
        layer.self_attn.k_norm.load_state_dict(drafter.layers[0].self_attn.k_norm.state_dict())
    export = Export(
        drafter, read_target_config(target), load_target_tensors(target), str(target), torch.float32
    )
    ServedBlock.write(path, export)
    return drafter


def cycles_of(log: str) -> list[tuple[list[int], list[int]]]:
    """What each cycle drafted, and what it committed."""
    cycles, drafted = [], []
    for draft, accepted, last in _EVENT.findall(log):
        if draft:
            drafted.append(int(draft))
        else:
            cycles.append((drafted, [*drafted[: int(accepted)], int(last)]))
            drafted = []
    return cycles


def drafts_of(drafter: Any, features: Tensor, known: list[int]) -> list[int]:
    """Our greedy drafts behind the last of ``known``; features (1, T - 1, .) of those before it."""
    length = len(known)
    ids, position = torch.tensor([known]), torch.arange(length)[None]
    states = torch.cat([drafter.fuse(features), torch.zeros(1, 1, drafter.config.hidden_size)], 1)
    anchors = torch.tensor([[length - 2]])
    rows = drafter.draft_blocks(states, ids, position, torch.ones_like(ids), anchors, "eager")
    made, before = [], known[-1]
    for row in rows:
        if drafter.kind == "dspark":
            size = drafter.config.hidden_size
            row = torch.cat([row[..., :size], drafter.token_state(torch.tensor([[before]]))], -1)
        before = int(drafter.target_ids[drafter.logits(row).argmax()])
        made.append(before)
    return made


@torch.no_grad()
def compare(target: Path, drafter: Any, model: Path, file: Path, log: Path) -> tuple[int, int]:
    """Cycles, and cycles with all of our draft tokens; the committed tokens are the target's own."""
    kind, drafts = drafter.kind, drafter.max_steps
    drafting = f"--spec-type draft-{kind} --spec-draft-n-max {drafts} --spec-draft-p-min 0 --ignore-eos"
    code, told = run(model, file, PROMPT, log, "n_accept  =", drafting=drafting)
    assert code == 0, told[-4000:]
    hf, known, same = (
        HFTarget.load(target, aux_layers=LAYERS),
        [string.ascii_lowercase.index(c) for c in PROMPT],
        0,
    )
    cycles = cycles_of(told)
    for drafted, committed in cycles:
        ids = torch.tensor([[*known, *committed]])
        states, hidden = hf.forward(ids, LAYERS)
        logits = hf.logits(hidden)[0].float()
        logits[:, END] = -torch.inf
        assert logits[len(known) - 1 : -1].argmax(-1).tolist() == committed
        features = torch.cat([states[layer] for layer in LAYERS], -1)[:, : len(known) - 1]
        same += drafted == drafts_of(drafter, features, known)
        known += committed
    return len(cycles), same


@pytest.mark.parametrize("case", CASES)
def test_every_draft_token_is_ours(case: str, target: Path, tmp_path: Path) -> None:
    drafter = folder_of(target, case, tmp_path / "out")
    model = convert(target, tmp_path / "target.gguf")
    file = convert(tmp_path / "out", tmp_path / "drafter.gguf", "--target-model-dir", target)
    count, same = compare(target, drafter, model, file, tmp_path / "log")
    print(f"{case}: {same} of {count} cycles, {drafter.max_steps} drafts each")
    assert same == count
    assert count > 20


def test_wrong_layers_show(target: Path, tmp_path: Path) -> None:
    """The negative control."""
    import gguf

    drafter = folder_of(target, "dflash", tmp_path / "out")
    model = convert(target, tmp_path / "target.gguf")
    file = convert(tmp_path / "out", tmp_path / "drafter.gguf", "--target-model-dir", target)
    layers = gguf.GGUFReader(file, "r+").fields["dflash.target_layers"]
    assert layers.contents() == [1, 3, 6]
    for at in layers.data:
        layers.parts[at][0] += 1
    count, same = compare(target, drafter, model, file, tmp_path / "log")
    assert same < count / 2
