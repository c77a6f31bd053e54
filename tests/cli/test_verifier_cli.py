"""``--verifier``: by name, above temperature 0 only, and one that is not lossless says so wherever its figures go."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.worlds import byte_tokenizer, tiny_drafter, tiny_target
from vocabforge.cli.app import build_app
from vocabforge.cli.decode.eval import evaluate
from vocabforge.cli.decode.generate import generate
from vocabforge.cli.decode.report import report
from vocabforge.core.artifact import open_artifact
from vocabforge.corpus.tokenizer.tokenizer import load_tokenizer
from vocabforge.decode.build.recipe import DecodingRecipe, write_recipe
from vocabforge.decode.build.spec import MethodSpec
from vocabforge.decode.tree import RowTree, Verifier, walk_down
from vocabforge.decode.verify.registry import VERIFIERS
from vocabforge.export.measured import digests_of, measured_sections
from vocabforge.models.drafters.io import save_drafter
from vocabforge.models.target.fingerprint import target_fingerprint
from vocabforge.models.target.hf import HFTarget

COMMANDS = {"eval": evaluate, "generate": generate, "report": report}
MISTAKES = [
    (["--verifier", "mach", "--temperature", "1"], "did you mean match?"),
    (["--verifier", "point"], "temperature 0"),
    (["--verifier", "greedy", "--temperature", "1"], "takes the best token"),
]


def _first_child(row: RowTree, node: int, path_tokens: list[int]) -> tuple[int | None, int]:
    child = next(iter(row.children[node]), None)
    return (None, 65) if child is None else (child, row.tokens[child])


KEEPS_ALL = Verifier(lambda row: walk_down(row, _first_child), lossless=False)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``t``, ``d`` and questions."""
    place = tmp_path_factory.mktemp("verifiers")
    tiny_target(place / "t", vocab_size=261)
    byte_tokenizer(place / "t")
    meta = {
        "target_fingerprint": target_fingerprint(place / "t"),
        "tokenizer_fingerprint": load_tokenizer(place / "t").fingerprint,
    }
    save_drafter(place / "d", tiny_drafter(HFTarget.load(place / "t")), meta)
    rows = [{"question_id": n, "category": "qa", "turns": [f"Question {n}?"]} for n in range(3)]
    (place / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return place


@pytest.fixture
def keeps_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(VERIFIERS, "keeps-all", f"{__name__}:KEEPS_ALL")


def invoke(*words: object) -> Any:
    return CliRunner().invoke(build_app(COMMANDS, list(COMMANDS)), [str(word) for word in words])


def run_eval(place: Path, output: Path, *more: object) -> Any:
    base = ["eval", "--benchmark", place / "q.jsonl", "--max-new-tokens", 8, "--warmup", 0]
    return invoke(*base, "--prompt-format", "raw", "--device", "cpu", "--output", output, *more)


def drafted(place: Path) -> tuple[object, ...]:
    return ("--target", place / "t", "--drafter", place / "d", "--tree", "chain", "--depth", 2)


@pytest.mark.parametrize(("given", "told"), MISTAKES)
def test_a_verifier_without_a_part_in_the_run_is_refused(
    place: Path, tmp_path: Path, given: list[str], told: str
) -> None:
    result = run_eval(place, tmp_path / "out", *drafted(place), *given)
    assert result.exit_code == 2
    assert told in result.output
    assert not list(tmp_path.iterdir())
    words = ("--prompt", "Once", "--device", "cpu")
    assert told in invoke("generate", *drafted(place), *words, *given).output


def test_what_is_not_lossless_says_so_everywhere(place: Path, tmp_path: Path, keeps_all: None) -> None:
    distribution = ("--temperature", 1)
    shown = run_eval(place, tmp_path / "all", *drafted(place), *distribution, "--verifier", "keeps-all")
    assert shown.exit_code == 0, shown.output
    assert "NOT lossless: the verifier keeps-all" in shown.output.replace("\n", " ")
    results = json.loads((tmp_path / "all" / "results.json").read_text("utf-8"))
    plain, made = results["methods"]
    assert (plain["verifier"], plain["lossless"]) == (None, True)
    assert (made["verifier"], made["lossless"]) == ("keeps-all", False)
    assert made["description"].endswith("verifier keeps-all (not lossless)")
    assert "verifier keeps-all" in results["run_facts"]["recipe of d"]
    assert made["summary"]["outputs"] is None
    assert "4" in made["summary"]["accept_length_histogram"]  # three drafts and the last token: it was asked
    assert "Not lossless." in (tmp_path / "all" / "report.html").read_text("utf-8")

    drafter = open_artifact(place / "d")
    digests = digests_of(place / "d", drafter)
    (section,) = measured_sections([tmp_path / "all"], digests, results["target"]["fingerprint"])
    assert "| not lossless |" in section
    assert "verifier keeps-all (not lossless)" in section

    kept = run_eval(place, tmp_path / "point", *drafted(place), *distribution, "--verifier", "point")
    assert kept.exit_code == 0, kept.output
    assert "NOT lossless" not in kept.output
    assert "Not lossless" not in (tmp_path / "point" / "report.html").read_text("utf-8")
    compared = invoke("report", f"a={tmp_path / 'point'}", f"b={tmp_path / 'all'}", "--json")
    assert compared.exit_code == 0, compared.output
    warned = [line for line in json.loads(compared.stdout)["notes"] if "not lossless" in line]
    assert [line.partition(":")[0] for line in warned] == ["b"]


def test_methods_of_a_recipe_have_verifiers_of_their_own(
    place: Path, tmp_path: Path, keeps_all: None
) -> None:
    chain = {"drafter": place / "d", "tree": "chain", "depth": 1}
    ways = {name: MethodSpec(**chain, verifier=name) for name in ("point", "keeps-all")}
    recipe = DecodingRecipe(target=place / "t", methods={"usual": MethodSpec(**chain), **ways})
    write_recipe(tmp_path / "recipe.yaml", recipe)
    named = ("--recipe", tmp_path / "recipe.yaml")
    result = run_eval(place, tmp_path / "out", *named, "--temperature", 1, "--json")
    assert result.exit_code == 0, result.output
    methods = json.loads(result.stdout)["methods"]
    assert [(one["name"], one["verifier"], one["lossless"]) for one in methods] == [
        ("plain", None, True),
        ("usual", None, True),
        ("point", "point", True),
        ("keeps-all", "keeps-all", False),
    ]
    greedy = run_eval(place, tmp_path / "greedy", *named)
    assert greedy.exit_code == 2
    assert "method point: --verifier" in greedy.output
    beside = run_eval(place, tmp_path / "beside", *named, "--verifier", "point", "--temperature", 1)
    assert "--verifier beside --recipe" in beside.output.replace("\n", " ")
