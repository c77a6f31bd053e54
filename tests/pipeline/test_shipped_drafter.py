"""The drafter that comes with the package: its form, and its cycles on the real model (`make test-smollm2`)."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from vocabforge.core.artifact import open_artifact
from vocabforge.core.hub import hub_name, model_folder
from vocabforge.models.target.fingerprint import norms_fingerprint

NAME = "smollm2-135m"
TARGET = os.environ.get("VOCABFORGE_SMOLLM2")
RECORDED = Path(__file__).with_name("smollm2_cycles.json")
QUESTIONS = (
    "Why do leaves change colour in autumn?",
    "Translate German to English: Der Zug nach Berlin fährt um acht Uhr ab.",
    "A baker sells 12 rolls an hour. How many rolls does she sell in 7 hours? Explain.",
    "Write a Python function that returns the largest number of a list.",
    "who invented the telephone",
    "Summarize: The town council met on Monday. It voted to repair the old bridge, which has been closed since "
    "spring. The work will cost two million euros and take a year. Until then, buses use the northern road.",
    "Write a short poem about the sea.",
    "List three differences between a frog and a toad.",
)


def test_it_is_small_and_says_where_it_comes_from():
    folder = model_folder(Path(NAME))
    artifact = open_artifact(folder)
    assert artifact.kind == "drafter"
    assert sum(file.stat().st_size for file in folder.iterdir()) <= 10_000_000
    tensors = load_file(folder / "drafter.safetensors")
    assert {tensor.dtype for name, tensor in tensors.items() if name != "target_ids"} == {torch.bfloat16}
    assert not any("lm_head" in name for name in tensors)
    assert len(tensors["target_ids"]) == 8192
    card = (folder / "README.md").read_text("utf-8")
    assert "license: apache-2.0" in card
    assert {"target_fingerprint", "target_norms", "tokenizer_fingerprint"} <= artifact.meta.keys()
    assert hub_name(folder) == NAME


@pytest.mark.skipif(TARGET is None, reason="VOCABFORGE_SMOLLM2 names no file: make test-smollm2 fetches it")
def test_its_cycles_on_the_real_model():
    """Outputs equal plain decoding's, and it accepts what it did when it was packed."""
    import vocabforge as vf

    meta = open_artifact(model_folder(Path(NAME)), verify=False).meta
    # What the Hub's model and other quantisations are recognised by.
    assert meta["target_norms"] == norms_fingerprint(model_folder(Path(TARGET)))
    target = vf.load_target(TARGET)
    spec = vf.MethodSpec(drafter=NAME, tree="chain", depth=3, control="fixed")
    plain, drafted = vf.TextDecoder(target, vf.MethodSpec()), vf.TextDecoder(target, spec)
    found = []
    for question in QUESTIONS:
        expected = plain.generate(question, max_new_tokens=48).generation.token_ids
        answer = drafted.generate(question, max_new_tokens=48).generation
        assert answer.token_ids == expected, question
        found.append({"tokens": len(expected), "accept_lengths": answer.accept_lengths})
    if os.environ.get("VOCABFORGE_RECORD"):
        RECORDED.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    recorded = json.loads(RECORDED.read_text("utf-8"))
    assert [one["tokens"] for one in found] == [one["tokens"] for one in recorded]
    cycles = [sum(len(one["accept_lengths"]) for one in rows) for rows in (found, recorded)]
    # Another processor rounds differently in the last bit: a near tie may move a cycle, not a fiftieth of them.
    assert abs(cycles[0] - cycles[1]) <= 0.02 * cycles[1]
