"""``recipes/study/study.py``: methods of a decoding recipe replayed; figures equal those of decoding."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.tune.support import make_place
from tests.worlds import ROOT
from vocabforge.corpus.tokenizer.tokenizer import load_tokenizer
from vocabforge.decode.build.methods import recipe_methods
from vocabforge.decode.build.recipe import read_recipe
from vocabforge.decode.request import Request

TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
NEW = 16


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = make_place(tmp_path_factory.mktemp("study"), questions=6)
    config = json.loads((place / "t" / "tokenizer_config.json").read_text("utf-8"))
    config["chat_template"] = TEMPLATE
    (place / "t" / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")
    tokenizer = load_tokenizer(place / "t")
    methods = {
        "full head": {},
        "half": {"vocab": str(place / "v")},
        "ranker": {"head": str(place / "r"), "shortlist": 16},
    }
    body = {
        "target": str(place / "t"),
        "methods": {name: {"drafter": str(place / "d"), **spec} for name, spec in methods.items()},
    }
    (place / "study.yaml").write_text(yaml.safe_dump(body), "utf-8")
    # A token of one answer becomes an end token, so that some answers end before the limit.
    plain = recipe_methods(read_recipe(place / "study.yaml"), device="cpu")[0].generator
    prompt = tokenizer.encode(json.loads((place / "q.jsonl").read_text("utf-8").splitlines()[0])["turns"][0])
    answer = plain.generate_batch([Request(prompt, NEW)])[0].token_ids
    ends = [*tokenizer.eos_ids, answer[NEW // 2]]
    (place / "t" / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}), "utf-8")
    return place


def run(place: Path, *more: object) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, ROOT / "recipes/study/study.py", "--recipe", place / "study.yaml", "--levels", 3]
    words += ["--benchmark", place / "q.jsonl", "--max-new-tokens", NEW, "--output", place / "out", *more]
    return subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False)


def test_the_replay_of_a_recipe_is_what_decoding_accepts(place: Path) -> None:
    done = run(place, "--nodes", 8, "--width", 3)
    assert done.returncode == 0, done.stderr
    results = json.loads((place / "out" / "results.json").read_text("utf-8"))
    assert list(results["methods"]) == ["full head", "half", "ranker"]
    assert results["methods"]["half"]["exact_logits"] == 50
    assert "| half | 50 |" in done.stdout
    recipe = read_recipe(place / "study.yaml")
    changed: dict[str, Any] = {"tree": "chain", "depth": 2, "control": "fixed"}
    specs = {name: spec.model_copy(update=changed) for name, spec in recipe.methods.items()}
    tokenizer = load_tokenizer(place / "t")
    prompts = [
        tokenizer.encode(json.loads(line)["turns"][0])
        for line in (place / "q.jsonl").read_text("utf-8").splitlines()
    ]
    for method in recipe_methods(recipe.model_copy(update={"methods": specs}), device="cpu")[1:]:
        committed = cycles = ended = 0
        for prompt in prompts:
            made = method.generator.generate_batch([Request(prompt, NEW, tokenizer.eos_ids)])[0]
            left = len(made.token_ids) - 1
            stopped = made.token_ids[-1] in tokenizer.eos_ids
            ended += stopped
            for length in made.accept_lengths:
                # As the study counts: no cycle that the limit may have cut.
                if stopped or left > 3:
                    committed, cycles = committed + min(length, left), cycles + 1
                left -= length
        assert 0 < ended < len(prompts)
        found = results["methods"][method.name]["temperatures"]["0"]["chain of 3"]["all"]["accepted"]["value"]
        assert found == pytest.approx(committed / cycles), method.name


def test_answers_are_kept_and_a_method_without_a_drafter_is_refused(place: Path) -> None:
    before = (place / "out" / "answers-0.json").stat().st_mtime_ns
    assert run(place).returncode == 0
    assert (place / "out" / "answers-0.json").stat().st_mtime_ns == before
    body = yaml.safe_load((place / "study.yaml").read_text("utf-8"))
    body["methods"]["n-gram"] = {"proposer": "n-gram"}
    (place / "wrong.yaml").write_text(yaml.safe_dump(body), "utf-8")
    done = run(place, "--recipe", place / "wrong.yaml")
    assert done.returncode == 1
    assert "only methods with a trained EAGLE drafter can be replayed" in done.stderr
    assert "Traceback" not in done.stderr
