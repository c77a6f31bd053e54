"""``recipes/bench/decoding.py`` end to end on tiny models."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import decoding
import pytest
from decoding import OurSide, TheirSide, bench_decoding, shown
from rich.console import Console

from tests.worlds import byte_tokenizer, merging_tokenizer, tiny_drafter, tiny_target
from vocabforge.core.errors import ConfigError, UsageError
from vocabforge.corpus.tokenizer.tokenizer import load_tokenizer
from vocabforge.models.drafters.io import save_drafter
from vocabforge.models.target.fingerprint import target_fingerprint
from vocabforge.models.target.hf import HFTarget

pytestmark = pytest.mark.long

NEW = 12


def rendered(parts: Iterable[object]) -> str:
    """What the benchmark prints, on one line."""
    console = Console(width=240, file=io.StringIO())
    for part in parts:
        console.print(part, markup=False)
    return " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target, a draft model of its vocabulary and one of another, a drafter, and two questions."""
    place = tmp_path_factory.mktemp("bench")
    for name, changes in (("t", {}), ("small", {"num_hidden_layers": 1, "seed": 3})):
        tiny_target(place / name, vocab_size=261, **changes)
        byte_tokenizer(place / name)
    size = merging_tokenizer(place / "foreign", "".join(map(chr, range(97, 123))), ["th", "the", "an"])
    tiny_target(place / "foreign", vocab_size=size, num_hidden_layers=1, seed=4)
    meta = {
        "target_fingerprint": target_fingerprint(place / "t"),
        "tokenizer_fingerprint": load_tokenizer(place / "t").fingerprint,
    }
    save_drafter(place / "drafter", tiny_drafter(HFTarget.load(place / "t")), meta, config={})
    rows = [
        {"question_id": n, "category": "x", "turns": [text]}
        for n, text in enumerate(("the old man", "a dog and a cat"))
    ]
    (place / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return place


def measured(place: Path, *methods: str, repeats: int = 1) -> dict[str, Any]:
    asked = [f"target={place / 't'}", f"prompts={place / 'q.jsonl'}", f"max_new_tokens={NEW}"]
    return bench_decoding([*asked, *methods], repeats=repeats)


def test_every_mode_is_measured_on_both_sides(place: Path) -> None:
    methods = [
        f"methods.draft-model.drafter={place / 'small'}",
        f"methods.eagle3.drafter={place / 'drafter'}",
    ]
    result = measured(place, *methods, "methods.n-gram.proposer=n-gram", repeats=2)
    assert json.loads(json.dumps(result)) == result
    rows = {row["method"]: row for row in result["methods"]}
    assert set(rows) == {"plain", "draft-model", "n-gram", "eagle3"}
    for name, row in rows.items():
        assert row["over_plain"]["lowest"] <= row["over_plain"]["median"]
        assert (row["theirs"] is None) == (name == "eagle3")
        for side in filter(None, (row["ours"], row["theirs"])):
            assert (side["equal"], side["outputs"]) == (2, 2)
            assert side["tokens_per_s"]["median"] > 0
            assert 1 <= side["accepted_length"] <= NEW
    assert rows["plain"]["ours"]["accepted_length"] == rows["plain"]["theirs"]["accepted_length"] == 1
    assert "transformers for n-gram: prompt_lookup_num_tokens" in rendered(shown(result))


def test_a_drafter_with_another_tokenizer_is_assisted_generation_over_two(place: Path) -> None:
    methods = [
        f"methods.{way}.{item}"
        for way in ("tli", "slem")
        for item in (f"drafter={place / 'foreign'}", f"proposer={way}")
    ]
    rows = {row["method"]: row for row in measured(place, *methods)["methods"]}
    for way in ("tli", "slem"):
        assert rows[way]["ours"]["equal"] == rows[way]["theirs"]["equal"] == 2
        assert rows[way]["theirs"] == rows["tli"]["theirs"], "transformers is measured once"


def test_what_transformers_refuses_is_told(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: TheirSide, prompts: object) -> None:
        raise ValueError("not these models")

    monkeypatch.setattr(TheirSide, "round", refuse)
    result = measured(place, "methods.n-gram.proposer=n-gram")
    assert [row["theirs"] for row in result["methods"]] == [None, None]
    assert "transformers refused every setting: ValueError: not these models" in rendered(shown(result))


def test_ratios_are_of_the_same_round(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """VocabForge needs 1 second for all prompts, transformers 4."""

    def seconds_of(call: Any, prompts: Any) -> float:
        call(prompts)
        return 1.0 if isinstance(call.__self__, OurSide) else 4.0

    monkeypatch.setattr(decoding, "seconds_of", seconds_of)
    row, _ = measured(place, "methods.n-gram.proposer=n-gram", repeats=2)["methods"]
    assert row["ratio"] == {"median": 4.0, "lowest": 4.0, "highest": 4.0}
    assert row["ours"]["tokens_per_s"]["median"] == 2 * NEW
    assert row["theirs"]["tokens_per_s"]["median"] == 2 * NEW / 4


def test_a_wrong_token_is_counted(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = TheirSide.round

    def wrong(self: TheirSide, prompts: Any) -> None:
        right(self, prompts)
        self.outputs[0][3] = (self.outputs[0][3] + 1) % 261

    monkeypatch.setattr(TheirSide, "round", wrong)
    assert "2 of 2 / 1 of 2" in rendered(shown(measured(place)))


def test_loads_are_measured_side_by_side(place: Path) -> None:
    """Every load and method, the plans that its control ran; transformers only plainly."""
    methods = ["methods.both.proposer=n-gram+early-exit", "methods.n-gram.proposer=n-gram"]
    methods += ["methods.n-gram.control=fixed", "methods.n-gram.tree=auto", "rows=[1,3]", "stop=true"]
    result = measured(place, *methods)
    rows = {(row["requests"], row["method"]): row for row in result["methods"]}
    assert list(rows) == [(count, name) for count in (1, 3) for name in ("plain", "both", "n-gram")]
    for (count, name), row in rows.items():
        drafting = {plan.split(" ")[0] for plan in row["cycles"]}
        assert row["ours"]["equal"] == row["ours"]["outputs"] == (2 if count == 1 else 6)
        if name == "plain":
            assert (drafting, row["over_plain"]["median"]) == ({"plain"}, 1)
            assert row["theirs"]["equal"] == row["theirs"]["outputs"]
        elif name == "both":
            assert drafting <= {"plain", "n-gram", "early-exit"}
        else:
            assert list(row["cycles"]) == ["4 drafts"]
            assert (row["theirs"] is None) == (count == 3)
    assert "4 drafts 100%" in rendered(shown(result))


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        (["methods.x.proposer=eagle9"], UsageError, "eagle9"),
        (["methods.n-gram.proposer=n-gram", "max_new_tokens=250"], UsageError, "does not fit"),
        (["methods.n-gram.proposer=n-gram", "speed=11"], ConfigError, "speed"),
    ],
)
def test_user_errors(place: Path, settings: list[str], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        measured(place, *settings)
