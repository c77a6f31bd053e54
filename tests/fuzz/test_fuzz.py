"""Malformed inputs: one clear error each, no traceback, no hang, no blow-up of memory, nothing left behind."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.campaign import campaign
from tests.fuzz.cases import CASES, HARMLESS
from tests.fuzz.goods import copy_good, reseal
from tests.fuzz.readers import READERS
from tests.fuzz.watch import Outcome, watched
from vocabforge.core.errors import VocabForgeError
from vocabforge.corpus.chat.conversation import read_conversation, read_tools
from vocabforge.corpus.regenerate.server import read_answer
from vocabforge.decode.trees.shapes import from_paths
from vocabforge.evaluate.benchmarks.readers import question_of
from vocabforge.models.lean.config import LeanConfig

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="forks a child under limits")

SEED, EACH = 11, 1
CANARY = Path("/tmp/vocabforge-fuzz-was-here")


def test_good_examples_are_read(goods: Path, tmp_path: Path) -> None:
    tasks = []
    for name, reader in READERS.items():
        path = copy_good(goods / reader.good, tmp_path / name)
        tasks.append((path.parent, lambda read=reader.read, path=path: read(path, goods)))
    found = dict(zip(READERS, watched(tasks), strict=True))
    assert {name: one.said for name, one in found.items() if one.verdict != "accepted"} == {}


def test_every_malformed_input_is_one_clear_error(goods: Path, tmp_path: Path) -> None:
    tasks = []
    for number, case in enumerate(CASES):
        reader = READERS[case.reader]
        path = copy_good(goods / reader.good, tmp_path / str(number))
        case.change(path)
        if reader.sealed:
            reseal(path)
        tasks.append((path.parent, lambda read=reader.read, path=path: read(path, goods)))
    wrong = {}
    for case, outcome in zip(CASES, watched(tasks), strict=True):
        if problem := _problem(case.words, outcome):
            wrong[f"{case.reader}: {case.name}"] = problem
    assert wrong == {}
    assert not CANARY.exists(), "a pickle was run"


def _problem(words: str, outcome: Outcome) -> str | None:
    wanted = "accepted" if words.startswith(HARMLESS) else "rejected"
    said = " ".join(outcome.said.split())
    if outcome.verdict != wanted:
        return f"{outcome.verdict}, not {wanted}: {said[-400:]} {outcome.left}"
    return None if wanted == "accepted" or words in said else f"no {words!r} in {said}"


def test_inputs_spoilt_by_chance(goods: Path, tmp_path: Path) -> None:
    """A short campaign; the long one is `make test-fuzz`."""
    found = list(campaign(list(READERS), EACH * len(READERS), SEED, goods, tmp_path))
    wrong = {
        f"{one.reader} {one.number}: {one.change}": end.said for one, end in found if end.verdict == "wrong"
    }
    assert wrong == {}
    assert sum(end.verdict == "rejected" for _, end in found) > len(found) / 3


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
KEYS = st.sampled_from(
    ["messages", "conversations", "role", "from", "content", "value", "type", "text", "tool_calls", "function", "name",
     "arguments", "prompt", "response", "instruction", "output", "question_id", "category", "turns", "reference",
     "choices", "message", "usage", "architectures", "hidden_size", "num_attention_heads", "head_dim",
     "rope_parameters", "rope_type", "layer_types", "sliding_window", "rms_norm_eps", "vocab_size"]
)  # fmt: skip
WORDS = st.sampled_from(
    ["user", "assistant", "text", "function", "LlamaForCausalLM", "Qwen3ForCausalLM", "llama3"]
)
LIKELY = st.recursive(
    WORDS | st.integers(-2, 300) | ANYTHING,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=6),
    max_leaves=12,
)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.dictionaries(KEYS, LIKELY, max_size=8), ANYTHING)
def test_readers_of_values_take_anything(row: dict, value: object) -> None:
    """Hypothesis draws the parsed JSON: every reader gives a value or an error of ours."""
    for read in (
        lambda: read_conversation(row),
        lambda: read_tools(row.get("tool_calls", value)),
        lambda: read_answer(row, 0),
        lambda: question_of(row, "here"),
        lambda: LeanConfig.from_hf_config({"architectures": ["Qwen3ForCausalLM"], **row}),
        lambda: from_paths(value if isinstance(value, list) else [value]),
    ):
        with contextlib.suppress(VocabForgeError):
            read()
