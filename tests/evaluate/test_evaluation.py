from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from tests.evaluate.eval_fakes import ROWS, FakeGenerator, FakeMethod, make_benchmark, make_tokenizer
from vocabforge.core.artifact import open_artifact
from vocabforge.core.errors import ArtifactError, UsageError
from vocabforge.decode.request import SamplingParams
from vocabforge.evaluate.environment import describe_environment
from vocabforge.evaluate.evaluation import Provenance, evaluate_methods
from vocabforge.evaluate.runner import RunSettings
from vocabforge.evaluate.terminal import category_table, divergence_lines, overview_table


def evaluate(folder: Path, *extra: FakeMethod, temperature: float = 0.0, **options):
    methods = [
        FakeMethod("plain", FakeGenerator()),
        FakeMethod("eagle3", FakeGenerator((3, 1, 2))),
        *extra,
    ]
    provenance = Provenance(
        target="tiny-target",
        environment=describe_environment(device="cpu", dtype="float32"),
        parents={"target": "ab" * 32},
        command=["vocabforge", "eval", "--target", "a b"],
    )
    settings = RunSettings(32, SamplingParams(temperature), warmup=1)
    tokenizer = make_tokenizer(folder / "tokenizer")
    results = evaluate_methods(
        folder / "out", make_benchmark(ROWS), methods, tokenizer, settings, provenance, **options
    )
    return results, tokenizer


def upstream_score(path: Path, base: Path, task: str, tokenizer, *, recount: bool) -> tuple[float, float]:
    """The public scorer's arithmetic, written anew from its description: (accepted length, speed-up)."""
    mt_bench = ["writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"]

    def wanted(row: dict) -> bool:
        return task in ("overall", row["category"]) or (task == "mt_bench" and row["category"] in mt_bench)

    def rows(file: Path) -> list[dict]:
        return [row for row in map(json.loads, file.read_text("utf-8").splitlines()) if wanted(row)]

    speeds, speeds0, accepted = [], [], []
    for row in rows(path):
        choice = row["choices"][0]
        speeds.append(sum(choice["new_tokens"]) / sum(choice["wall_time"]))
        accepted.extend(choice["accept_lengths"])
    for row in rows(base):
        choice = row["choices"][0]
        tokens = 0
        for text, recorded in zip(choice["turns"], choice["new_tokens"], strict=True):
            tokens += len(tokenizer.encode(text, add_special=True)) - 1 if recount else recorded
        speeds0.append(tokens / sum(choice["wall_time"]))
    return float(np.mean(accepted)), float(np.mean(speeds) / np.mean(speeds0))


def test_the_upstream_scorer_gets_the_summarys_figures_from_our_rows(tmp_path: Path) -> None:
    results, tokenizer = evaluate(tmp_path)
    answers = tmp_path / "out" / "answers"
    summary = results["methods"][1]["summary"]
    for task in ("overall", "mt_bench", "translation", "qa", "writing", "math"):
        section = {"overall": summary, "writing": summary["categories"], "math": summary["categories"]}
        group = section.get(task, summary["tasks"])[task]
        for figure, recount in (("speedup", False), ("speedup_retokenised", True)):
            accepted, speedup = upstream_score(
                answers / "eagle3.jsonl", answers / "plain.jsonl", task, tokenizer, recount=recount
            )
            assert group["mean_accepted_length"] == pytest.approx(accepted)
            assert group[figure] == pytest.approx(speedup)
    # 8 recorded tokens with the EOS, 7 words of text: the two countings must differ.
    ratio = summary["overall"]["speedup_retokenised"] / summary["overall"]["speedup"]
    assert ratio == pytest.approx(8 / 7)


def test_the_folder_is_a_verified_artefact(tmp_path: Path) -> None:
    results, _ = evaluate(tmp_path)
    artifact = open_artifact(tmp_path / "out", "evaluation")
    assert set(artifact.manifest["files"]) == {
        "answers/plain.jsonl",
        "answers/eagle3.jsonl",
        "details/plain.jsonl",
        "details/eagle3.jsonl",
        "results.json",
        "report.html",
    }
    stored = json.loads((tmp_path / "out" / "results.json").read_text("utf-8"))
    assert stored == results
    assert stored["schema_version"] == 1
    assert stored["environment"]["dtype"] == "float32"
    assert stored["environment"]["threads"] >= 1
    assert stored["command"] == "vocabforge eval --target 'a b'"
    assert stored["parents"] == {"target": "ab" * 32}
    with pytest.raises(UsageError, match="exists already"):
        evaluate(tmp_path)
    evaluate(tmp_path, overwrite=True)


def test_outputs_that_agree_and_a_method_that_lies(tmp_path: Path) -> None:
    # Prompts longer than 8 tokens: the second turns of questions 3 and 5.
    wrong = FakeMethod("broken", FakeGenerator((2,), corrupt=4, corrupt_from=8))
    results, _ = evaluate(tmp_path, wrong)
    good, bad = (method["summary"]["outputs"] for method in results["methods"][1:])
    assert (good["identical"], good["compared"], good["first"]) == (4, 4, None)
    assert (bad["identical"], bad["compared"]) == (2, 4)
    assert bad["divergent"] == [3, 5]
    assert bad["first"]["question_id"] == 3
    assert (bad["first"]["turn"], bad["first"]["position"]) == (1, 4)
    assert bad["first"]["expected"] != bad["first"]["got"]
    assert divergence_lines(results) == [
        "broken differs from plain decoding in 2 of 4 questions, first at question 3, turn 2, token 4"
    ]
    report = (tmp_path / "out" / "report.html").read_text("utf-8")
    assert "differs from plain decoding in 2 questions" in report
    assert "question 3, turn 2, token 4" in report


def test_sampled_outputs_are_not_compared(tmp_path: Path) -> None:
    results, _ = evaluate(tmp_path, temperature=0.8)
    assert [method["summary"]["outputs"] for method in results["methods"]] == [None, None]


def test_an_interrupt_leaves_nothing(tmp_path: Path) -> None:
    class Interrupted(FakeGenerator):
        def generate(self, prompt_ids, **options):
            if len(self.prompts) > 3:
                raise KeyboardInterrupt
            return super().generate(prompt_ids, **options)

    with pytest.raises(KeyboardInterrupt):
        evaluate(tmp_path, FakeMethod("slow", Interrupted()))
    assert [path.name for path in tmp_path.iterdir()] == ["tokenizer"]
    with pytest.raises(ArtifactError):
        open_artifact(tmp_path / "out")


class _Loads(HTMLParser):
    """Everything a browser would fetch, ids, and whether tags are balanced."""

    VOID = ("meta", "link", "br", "path", "use", "rect", "circle", "line")

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.ids: list[str] = []
        self.tags: list[str] = []
        self.svgs = 0

    def handle_starttag(self, tag, attributes) -> None:
        found = dict(attributes)
        assert tag not in ("script", "iframe", "object", "embed", "img"), tag
        self.loads += [found[name] for name in ("src", "href", "xlink:href", "data") if found.get(name)]
        self.ids += [found["id"]] if "id" in found else []
        self.svgs += tag == "svg"
        if tag not in self.VOID:
            self.tags.append(tag)

    def handle_startendtag(self, tag, attributes) -> None:
        self.handle_starttag(tag, attributes)
        if tag not in self.VOID:
            self.tags.pop()

    def handle_endtag(self, tag) -> None:
        if tag not in self.VOID:
            assert self.tags.pop() == tag


def test_the_report_names_every_method_and_loads_nothing(tmp_path: Path) -> None:
    other = FakeMethod("restricted <32k>", FakeGenerator((4, 2)), "a & b")
    results, _ = evaluate(tmp_path, other)
    text = (tmp_path / "out" / "report.html").read_text("utf-8")
    parser = _Loads()
    parser.feed(text)
    parser.close()
    assert parser.tags == []
    assert all(link.startswith(("#", "data:,")) for link in parser.loads)
    assert {link[1:] for link in parser.loads if link.startswith("#")} <= set(parser.ids)
    assert len(parser.ids) == len(set(parser.ids))
    assert not re.search(r"https?:|@import|url\((?!#)", text)
    assert parser.svgs == 6
    for method in results["methods"]:
        escaped = method["name"].replace("<", "&lt;").replace(">", "&gt;")
        assert text.count(escaped) >= 3
    assert "a &amp; b" in text
    assert "4 of 4" in text
    # No placeholder colour of the charts is left.
    assert not re.search(r"#0000[0-9a-f]{2}\b", text)
    assert "prefers-color-scheme: dark" in text


def test_a_run_of_plain_decoding_alone_has_a_report(tmp_path: Path) -> None:
    provenance = Provenance("tiny", describe_environment(device="cpu", dtype="float32"))
    evaluate_methods(
        tmp_path / "out",
        make_benchmark(ROWS),
        [FakeMethod("plain", FakeGenerator())],
        make_tokenizer(tmp_path / "tokenizer"),
        RunSettings(4, warmup=0),
        provenance,
    )
    assert "plain decoding" in (tmp_path / "out" / "report.html").read_text("utf-8")


def test_questions_left_out_stand_in_results_and_report(tmp_path: Path) -> None:
    results, _ = evaluate(tmp_path, FakeMethod("short", FakeGenerator(too_long=16)))
    assert results["answered"] == 3
    assert [failure["question_id"] for failure in results["failures"]] == [5]
    report = (tmp_path / "out" / "report.html").read_text("utf-8")
    assert "Questions left out" in report
    assert "does not fit the cache" in report


def test_the_terminal_tables_show_every_method(tmp_path: Path) -> None:
    results, _ = evaluate(tmp_path)
    console = Console(width=80, record=True, file=(tmp_path / "log").open("w"))
    console.print(overview_table(results))
    console.print(category_table(results))
    text = console.export_text()
    assert "4 of 4" in text
    assert "2.00" in text  # 8 tokens in steps of 3, 1, 2, 2
    assert text.count("eagle3") == 2
    for name in ("overall", "mt_bench", "translation", "· writing"):
        assert name in text
