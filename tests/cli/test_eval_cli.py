"""``vocabforge eval`` with a recipe and with ``--verifier``: nothing said twice, and what is not lossless says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer

from tests.cli.cli_support import assert_user_error, invoke, ok, succeeds
from tests.models.architectures import make_architecture
from tests.tune.support import make_place
from tests.worlds import byte_tokenizer
from vocabforge.cli.app import build_app
from vocabforge.cli.drafting.eval import evaluate
from vocabforge.cli.drafting.generate import generate
from vocabforge.cli.option_groups import signature
from vocabforge.core.artifact import open_artifact
from vocabforge.decode import caches
from vocabforge.decode.build.recipe import DecodingRecipe, write_recipe
from vocabforge.decode.spec import MethodSpec
from vocabforge.decode.tree import RowTree, Verifier, walk_down
from vocabforge.decode.verify.registry import VERIFIERS
from vocabforge.evaluate.results.schema import read_results
from vocabforge.evaluate.run import runner
from vocabforge.evaluate.run.journal import EvaluationJournal
from vocabforge.evaluate.run.side_by_side import answer_together
from vocabforge.export.measured import digests_of, measured_sections

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
    """``t``, ``d``, ``v``, questions, and ``recipe.yaml`` of a tree and a chain."""
    place = make_place(tmp_path_factory.mktemp("eval"), questions=3)
    tree = MethodSpec(drafter=place / "d", depth=1, topk=2, total_nodes=6)
    chain = MethodSpec(drafter=place / "d", vocab=place / "v", tree="chain", depth=1)
    write_recipe(
        place / "recipe.yaml", DecodingRecipe(target=place / "t", methods={"tree": tree, "chain": chain})
    )
    return place


@pytest.fixture
def keeps_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(VERIFIERS, "keeps-all", f"{__name__}:KEEPS_ALL")


def run_eval(place: Path, output: Path, *more: object) -> Any:
    base = ["eval", "--benchmark", place / "q.jsonl", "--max-new-tokens", 8, "--warmup", 0]
    return invoke(*base, "--prompt-format", "raw", "--device", "cpu", "--output", output, *more)


def drafted(place: Path) -> tuple[object, ...]:
    return ("--target", place / "t", "--drafter", place / "d", "--tree", "chain", "--depth", 2)


@pytest.mark.parametrize(("given", "told"), MISTAKES)
def test_a_verifier_without_a_part_in_the_run_is_refused(place, tmp_path, given, told):
    assert_user_error(run_eval(place, tmp_path / "out", *drafted(place), *given), 2, told)
    assert not list(tmp_path.iterdir())
    words = ("--prompt", "Once", "--device", "cpu")
    assert told in invoke("generate", *drafted(place), *words, *given).output


def test_what_is_not_lossless_says_so_everywhere(place: Path, tmp_path: Path, keeps_all: None) -> None:
    distribution = ("--temperature", 1)
    shown = ok(run_eval(place, tmp_path / "all", *drafted(place), *distribution, "--verifier", "keeps-all"))
    assert "NOT lossless: the verifier keeps-all" in shown.output.replace("\n", " ")
    results = json.loads((tmp_path / "all" / "results.json").read_text("utf-8"))
    plain, made = results["methods"]
    assert (plain["verifier"], plain["lossless"]) == (None, True)
    assert (made["verifier"], made["lossless"]) == ("keeps-all", False)
    assert made["description"].endswith("verifier keeps-all (not lossless)")
    assert "verifier keeps-all" in results["run_facts"]["recipe of d"]
    assert made["summary"]["outputs"] is None
    assert made["summary"]["depths"][2]["accepted"]  # three drafts at once: it was asked
    assert "Not lossless." in (tmp_path / "all" / "report.html").read_text("utf-8")

    drafter = open_artifact(place / "d")
    digests = digests_of(place / "d", drafter)
    (section,) = measured_sections([tmp_path / "all"], digests, results["target"]["fingerprint"])
    assert "| not lossless |" in section
    assert "verifier keeps-all (not lossless)" in section

    kept = ok(run_eval(place, tmp_path / "point", *drafted(place), *distribution, "--verifier", "point"))
    assert "NOT lossless" not in kept.output
    assert "Not lossless" not in (tmp_path / "point" / "report.html").read_text("utf-8")
    for name, noted in (("point", False), ("all", True)):
        compared = succeeds("report", tmp_path / name, "--json")
        assert any("not lossless" in line for line in json.loads(compared.stdout)["notes"]) == noted


def test_a_recipe_is_evaluated(place: Path, tmp_path: Path) -> None:
    ok(run_eval(place, tmp_path / "out", "--recipe", place / "recipe.yaml"))
    results = json.loads((tmp_path / "out" / "results.json").read_text("utf-8"))
    assert [one["name"] for one in results["methods"]] == ["plain", "tree", "chain"]
    manifest = open_artifact(tmp_path / "out", "evaluation").manifest
    roles = {"target", "drafter tree", "drafter chain", "vocabulary chain"}
    assert set(manifest["parents"]) == roles
    assert manifest["parents"]["drafter tree"] == manifest["parents"]["drafter chain"]
    assert manifest["config"]["recipe of tree"] == "depth 1, topk 2, total_nodes 6"
    assert manifest["config"]["recipe of chain"] == "tree chain, depth 1"


def test_some_of_a_recipe(place: Path, tmp_path: Path) -> None:
    recipe = ("--recipe", place / "recipe.yaml")
    result = ok(run_eval(place, tmp_path / "out", *recipe, "--method", "chain", "--json"))
    assert [one["name"] for one in json.loads(result.stdout)["methods"]] == ["plain", "chain"]
    assert_user_error(run_eval(place, tmp_path / "o", *recipe, "--method", "x"), 2, "tree, chain")


def test_a_recipe_on_another_target(place: Path, tmp_path: Path) -> None:
    """The recipe's own target is not even looked for."""
    text = (place / "recipe.yaml").read_text("utf-8")
    away = text.replace(f"target: {place / 't'}", "target: away/model.gguf@sha256:00")
    assert away != text
    (tmp_path / "away.yaml").write_text(away, "utf-8")
    result = ok(
        run_eval(place, tmp_path / "out", "--recipe", tmp_path / "away.yaml", "--target", place / "t")
    )
    assert "away" not in result.output
    assert_user_error(
        run_eval(place, tmp_path / "no", "--recipe", tmp_path / "away.yaml"), 1, "away/model.gguf"
    )


@pytest.mark.parametrize(
    "beside",
    [
        ("--drafter", "d"),
        ("--dtype", "float32"),  # though it is the recipe's own
        ("--control", "fixed"),
        ("--depth", "2"),
        ("--vocab", "v"),
        ("--shortlist", "3"),
        ("--proposer", "n-gram"),
        ("--single-token",),
    ],
)
def test_what_a_recipe_says_is_not_said_again(place: Path, tmp_path: Path, beside: tuple[str, ...]) -> None:
    result = run_eval(place, tmp_path / "out", "--recipe", place / "recipe.yaml", *beside)
    assert_user_error(result, 2, f"{beside[0]} and --recipe")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", [evaluate, generate])
def test_every_field_of_a_method_is_an_option(command) -> None:
    """One declaration: a new field is an option of both commands, and refused beside a recipe."""
    options = signature(command).parameters
    assert set(MethodSpec.model_fields) <= set(options)
    given = typer.main.get_command(build_app({"it": command}, ["it"])).commands["it"]
    helps = {one.name: getattr(one, "help", "") for one in given.params}
    for name, field in MethodSpec.model_fields.items():
        assert str(field.description) in helps[name]


def test_without_a_target_it_says_what_to_give(place: Path, tmp_path: Path) -> None:
    result = run_eval(place, tmp_path / "out", "--drafter", place / "d")
    assert_user_error(result, 2, "--target DIR, or --recipe FILE")


def test_requests_side_by_side(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``--rows``: throughput by load, tokens as one by one, conversations turn by turn; a killed run goes on."""
    rows = [json.loads(line) for line in (place / "q.jsonl").read_text("utf-8").splitlines()]
    rows[0]["turns"] = [*rows[0]["turns"], "And then"]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    asked = (*drafted(place), "--benchmark", tmp_path / "q.jsonl", "--rows", "2,3", "--control", "fixed")
    made: list[int] = []

    def cut(questions: Any, *more: Any) -> Any:
        for one in answer_together(questions, *more):
            if len(made) == 2:
                raise KeyboardInterrupt
            made.append(one[0].question_id)
            yield one

    monkeypatch.setattr(runner, "answer_together", cut)
    assert run_eval(place, tmp_path / "out", *asked).exit_code != 0
    monkeypatch.setattr(runner, "answer_together", answer_together)
    ok(run_eval(place, tmp_path / "out", *asked))
    results = read_results(tmp_path / "out")
    assert results.resumed == 1
    assert [(one.method, one.concurrency) for one in results.load] == [
        (name, level) for level in (1, 2, 3) for name in ("plain", "d")
    ]
    turns = sum(len(row["turns"]) for row in rows)
    for one in results.load:
        assert one.identical == len(rows)
        assert (one.turns, one.new_tokens) == (turns, results.load[0].new_tokens)
        if (one.method, one.concurrency) == ("plain", 2):  # was interrupted: lost answers took time as well
            assert one.tokens_per_s > one.new_tokens / one.seconds
        else:
            assert one.tokens_per_s == pytest.approx(one.new_tokens / one.seconds)
    drafts = [one for one in results.load if one.method == "d"]
    assert len({(one.verifications, one.accepted_length) for one in drafts}) == 1, "fixed control"
    assert "requests at once" in (tmp_path / "out" / "report.html").read_text("utf-8")


def test_a_target_of_one_row_is_told_before_the_first_question(place: Path, tmp_path: Path) -> None:
    target = byte_tokenizer(tmp_path / "t")
    make_architecture("llama-4", vocab_size=264).save_pretrained(target)
    asked = ("--target", target, "--proposer", "n-gram")
    assert_user_error(run_eval(place, tmp_path / "out", *asked, "--rows", 2), 2, "1 row", "--rows")
    assert not (tmp_path / "out.partial").exists()
    assert run_eval(place, tmp_path / "out", *asked).exit_code == 0


def test_a_load_that_was_not_measured_has_no_speed(place, tmp_path, monkeypatch):
    """A process may be killed between its last answer and the journal's line about the load."""
    asked = (*drafted(place), "--rows", 2)
    kept = EvaluationJournal.add_window

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(EvaluationJournal, "add_window", killed)
    for _ in range(2):  # plain decoding, then the drafter
        assert run_eval(place, tmp_path / "out", *asked).exit_code == 130
    monkeypatch.setattr(EvaluationJournal, "add_window", kept)
    assert run_eval(place, tmp_path / "out", *asked).exit_code == 0
    load = read_results(tmp_path / "out").load
    assert [one.tokens_per_s is None for one in load] == [False, False, True, True]
    assert {one.identical for one in load} == {3}


def test_caches_are_as_large_as_a_load_needs_before_it_is_measured(place, tmp_path, monkeypatch):
    """Growing drops captured passes."""
    monkeypatch.setattr(caches, "FIRST_POSITIONS", 16)
    grown: list[str] = []
    allocate, together = caches.Caches.allocate, answer_together

    def noted(self: Any, positions: int) -> None:
        grown.append("allocated")
        allocate(self, positions)

    def measured(*given: Any) -> Any:
        grown.append("measured")
        yield from together(*given)
        grown.append("done")

    monkeypatch.setattr(caches.Caches, "allocate", noted)
    monkeypatch.setattr(runner, "answer_together", measured)
    assert run_eval(place, tmp_path / "out", *drafted(place), "--rows", 2).exit_code == 0
    starts = [at for at, name in enumerate(grown) if name == "measured"]
    assert len(starts) == 2
    assert all(grown[at + 1] == "done" for at in starts)


def test_a_question_that_does_not_fit_is_left_out_at_every_load(place: Path, tmp_path: Path) -> None:
    rows = [json.loads(line) for line in (place / "q.jsonl").read_text("utf-8").splitlines()]
    rows[1]["turns"] = ["word " * 3000]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    ok(run_eval(place, tmp_path / "out", *drafted(place), "--benchmark", tmp_path / "q.jsonl", "--rows", 2))
    results = read_results(tmp_path / "out")
    assert {row.question_id for row in results.failures} == {rows[1]["question_id"]}
    assert {one.identical for one in results.load} == {len(rows) - 1}
