"""``recipes/bench/decoding.py`` end to end on tiny models, eager; what it says of outputs that differ."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from decoding import bench_decoding, remarks, shown
from decoding_settings import PROMPTS
from decoding_sides import OurRun, TheirRun
from tokenizers import pre_tokenizers

from tests.bench.rendered import rendered
from tests.worlds import byte_tokenizer, merging_tokenizer, tiny_drafter, tiny_target
from vocabforge.core.errors import ConfigError, UsageError
from vocabforge.corpus.tokenizer.prompt_format import resolve_format
from vocabforge.corpus.tokenizer.tokenizer import load_tokenizer
from vocabforge.decode.request import Generation
from vocabforge.evaluate.identity.rounding import next_logits
from vocabforge.evaluate.run.prompts import PromptBuilder
from vocabforge.models.drafters.io import save_drafter
from vocabforge.models.lean.model import load_target
from vocabforge.models.target.fingerprint import target_fingerprint
from vocabforge.models.target.hf import HFTarget

pytestmark = pytest.mark.long

NEW = 12
SMALL = [f"max_new_tokens={NEW}", "questions=2", "compile=false", "their_threads=[1]", "tune_prompts=1"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """``key=value`` of a target, then of methods: with a draft model, with a drafter, and without either."""
    place = tmp_path_factory.mktemp("bench")
    tiny_target(place / "t", vocab_size=261)
    byte_tokenizer(place / "t")
    tiny_target(place / "small", vocab_size=261, num_hidden_layers=1, seed=3)
    byte_tokenizer(place / "small")
    meta = {
        "target_fingerprint": target_fingerprint(place / "t"),
        "tokenizer_fingerprint": load_tokenizer(place / "t").fingerprint,
    }
    save_drafter(place / "drafter", tiny_drafter(HFTarget.load(place / "t")), meta, config={})
    return [
        f"target={place / 't'}",
        f"methods.draft-model.drafter={place / 'small'}",
        "methods.n-gram.proposer=n-gram",
        "methods.early-exit.proposer=early-exit",
        f"methods.eagle3.drafter={place / 'drafter'}",
    ]


def test_every_mode_is_measured_on_both_sides(folders: list[str]) -> None:
    threads = torch.get_num_threads()
    result = bench_decoding([*folders, *SMALL], repeats=2)
    assert torch.get_num_threads() == threads
    assert json.loads(json.dumps(result)) == result
    assert result["settings"]["repeats"] == 2
    rows = {row["mode"]: row for row in result["modes"]}
    assert list(rows) == ["plain", "draft-model", "n-gram", "early-exit", "eagle3"]
    for name, row in rows.items():
        ours, theirs = row["ours"], row["theirs"]
        assert ours["tokens"] == 2 * NEW
        assert ours["tokens_per_s"]["lowest"] <= ours["tokens_per_s"]["median"]
        assert row["as_plain"] == {"equal": 2, "compared": 2, "divergences": []}
        assert row["over_plain"]["median"] > 0
        assert (theirs is None) == (name == "eagle3")
        if theirs is not None:
            assert row["theirs_as_plain"] == {"equal": 2, "compared": 2, "divergences": []}
            assert theirs["tokens"] == ours["tokens"]
            assert theirs["settings"] in [one["settings"] for one in theirs["tried"]]
            best = max(theirs["tried"], key=lambda one: float(one["tokens_per_s"]))
            assert best["settings"] == theirs["settings"]
    plain = rows["plain"]
    for side in (plain["ours"], plain["theirs"]):
        assert side["target_forwards"] == 2 * NEW
        assert side["accepted_length"] == 1
    assert rows["plain"]["over_plain"]["median"] == 1
    assert rows["early-exit"]["theirs"]["target_forwards"] <= 2 * NEW, "drafting passes were counted"


def foreign(folder: Path, words: list[str], *ways: str) -> list[str]:
    """Methods of these names over a model with a tokenizer of bytes and these words."""
    letters = "".join(sorted(pre_tokenizers.ByteLevel.alphabet()))
    size = merging_tokenizer(folder, letters, words)
    tiny_target(folder, vocab_size=size, num_hidden_layers=1, seed=4)
    return [f"methods.{way}.{item}" for way in ways for item in (f"drafter={folder}", f"proposer={way}")]


def test_a_drafter_with_another_tokenizer(folders: list[str], tmp_path: Path) -> None:
    methods = foreign(tmp_path, ["th", "the", "\u0120t", "an"], "tli", "slem", "slrs")
    asked = [folders[0], *methods, *SMALL, "methods.slem.depth=1"]
    result = bench_decoding(asked, repeats=1)
    rows = {row["mode"]: row for row in result["modes"]}
    assert list(rows) == ["plain", "tli", "slem", "slrs"]
    same = {"equal": 2, "compared": 2, "divergences": []}
    for name in ("tli", "slem", "slrs"):
        row = rows[name]
        assert row["as_plain"] == row["theirs_as_plain"] == same
        assert row["theirs"] == rows["tli"]["theirs"], "transformers is measured once"
        assert row["theirs"]["target_forwards"] <= 2 * NEW
        assert all("tokens_per_s" in one for one in row["theirs"]["tried"])
    assert rows["slem"]["ours"]["settings"]["depth"] == 1
    assert "common to target" in rows["tli"]["ours"]["settings"]["is"]
    assert rows["slrs"]["ours"]["counts"]["drafted"] > 0
    assert rows["slrs"]["ours"]["counts"]["psi"] == 0, "greedy drafts need no distribution"
    json.dumps(result)


def test_drawn_tokens_are_measured_on_one_side(folders: list[str], tmp_path: Path) -> None:
    methods = foreign(tmp_path, ["th", "the", "\u0120t", "an"], "tli", "slrs")
    asked = [folders[0], *methods, *SMALL, "temperature=1", "methods.tli.draft_sampling=true"]
    asked.append("methods.tli.verifier=residual")
    result = bench_decoding(asked, repeats=1)
    rows = {row["mode"]: row for row in result["modes"]}
    for row in rows.values():
        assert row["theirs"] is None
        assert row["as_plain"] is None
        assert row["over_plain"]["median"] > 0
    assert rows["slrs"]["ours"]["counts"]["psi"] > 0
    settings = rows["tli"]["ours"]["settings"]
    assert (settings["verifier"], settings["lossless"]) == ("residual", True)
    text = rendered(shown(result))
    assert "temperature 1" in text
    assert "psi_contexts" in text


def test_what_transformers_refuses_is_told(folders: list[str], tmp_path: Path) -> None:
    """It takes vocabularies of one size for one vocabulary."""
    methods = foreign(tmp_path, ["th", "the", "an"], "tli")  # 261 tokens, as the target
    _, row = bench_decoding([folders[0], *methods, *SMALL], repeats=1)["modes"]
    assert row["theirs"] is None
    assert {"settings", "threads", "error"} == set(row["refused"][0])
    shown = remarks({"modes": [row]})
    assert any("transformers refused every setting: ValueError" in line for line in shown)


def test_ratios_are_of_the_same_round(folders: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that only generation moves: VocabForge needs 1 second a prompt, transformers 4."""
    import time

    now = [0.0]

    def taking(seconds: float) -> Any:
        def generate(self: Any, prompt: Any, new: int) -> Generation:
            now[0] += seconds
            return Generation([5] * new, target_forwards=new)

        return generate

    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(OurRun, "generate", taking(1.0))
    monkeypatch.setattr(TheirRun, "generate", taking(4.0))
    row, _ = bench_decoding([*folders[:2], *SMALL], repeats=2)["modes"]
    assert row["ratio"] == {"median": 4.0, "lowest": 4.0, "highest": 4.0}
    assert row["ours"]["tokens_per_s"]["median"] == NEW
    assert row["theirs"]["tokens_per_s"]["median"] == NEW / 4


def test_a_wrong_token_is_reported_with_its_margin(
    folders: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    generate = OurRun.generate

    def wrong(self: OurRun, prompt: Any, new: int) -> Generation:
        done = generate(self, prompt, new)
        done.token_ids[3] = (done.token_ids[3] + 1) % 261
        return done

    monkeypatch.setattr(OurRun, "generate", wrong)
    result = bench_decoding([*folders[:2], *SMALL], repeats=1)
    text = rendered(shown(result))
    assert "0 of 2" in text
    assert "at token 4" in " ".join(text.split())
    assert "WRONG" in text

    row, _ = result["modes"]
    folder = Path(folders[0].removeprefix("target="))
    model, tokenizer = load_target(folder), load_tokenizer(folder)
    ids = PromptBuilder(tokenizer, resolve_format(tokenizer, "auto")).ask(PROMPTS[0])
    with torch.inference_mode():
        for _ in range(3):
            ids.append(int(next_logits(model, ids).argmax()))
        best = next_logits(model, ids).topk(2).values
    first = row["theirs_as_plain"]["divergences"][0]
    assert (first["prompt"], first["token"], first["tie"]) == (0, 3, False)
    assert first["margin"] == pytest.approx(float(best[0] - best[1]), abs=1e-4)


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        (["methods.x.proposer=eagle9"], UsageError, "eagle9"),
        (["temperature=-1"], ConfigError, "temperature"),
        (
            ["methods.n-gram.proposer=n-gram", "methods.n-gram.verifier=point"],
            UsageError,
            "this run is greedy",
        ),
        (["max_new_tokens=250"], UsageError, "does not fit"),
        (["speed=11"], ConfigError, "speed"),
    ],
)
def test_user_errors(folders: list[str], settings: list[str], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        bench_decoding([folders[0], *SMALL, *settings])
