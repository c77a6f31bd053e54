from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.evaluate.results_sample import sample_results
from vocabforge.core.errors import DataError
from vocabforge.evaluate.results.schema import RESULTS, read_results


@pytest.fixture(scope="module")
def content() -> dict[str, Any]:
    return json.loads(sample_results(methods=3, runs=2).model_dump_json())


def test_results_are_read_as_they_were_written(tmp_path: Path, content: dict[str, Any]) -> None:
    file = tmp_path / RESULTS
    file.write_text(json.dumps(content), "utf-8")
    assert read_results(file) == read_results(tmp_path) == sample_results(methods=3, runs=2)
    assert json.loads(read_results(file).model_dump_json()) == content


@pytest.mark.parametrize(
    ("spoil", "place"),
    [
        (
            lambda one: one["methods"][0]["summary"]["overall"].update(speed=1.0),
            "methods.0.summary.overall.speed",
        ),
        (lambda one: one.update(answered="480"), "answered"),
        (
            lambda one: one["methods"][1]["summary"]["depths"][0].pop("reached"),
            "methods.1.summary.depths.0.reached",
        ),
    ],
)
def test_mistakes_name_their_place(tmp_path, content, spoil, place):
    spoiled = json.loads(json.dumps(content))
    spoil(spoiled)
    file = tmp_path / RESULTS
    file.write_text(json.dumps(spoiled), "utf-8")
    with pytest.raises(DataError, match="does not fit its schema") as caught:
        read_results(file)
    assert str(caught.value.got).startswith(f"{place}: ")
    assert caught.value.source == file


@pytest.mark.parametrize("version", [1, 6, None, "2", [2]])
def test_other_versions_are_refused(tmp_path: Path, content: dict[str, Any], version: object) -> None:
    file = tmp_path / RESULTS
    file.write_text(json.dumps({**content, "schema_version": version}), "utf-8")
    with pytest.raises(DataError, match="another version") as caught:
        read_results(file)
    assert caught.value.expected == 5


SCORES = {
    "scorer": "gsm8k",
    "attempted": 960,
    "passed": 576,
    "rate": {"value": 0.6, "sd": None, "low": 0.5, "high": 0.7},
    "strict": 0.55,
    "same_as_baseline": None,
    "files": ["gsm8k/plain.jsonl"],
    "facts": {"rule": "exact match"},
}


@pytest.mark.parametrize("version", [2, 3, 4])
@pytest.mark.parametrize("scores", [None, SCORES])
def test_older_versions_are_read(tmp_path, content, version, scores):
    """Version 2 has no verifiers: its methods are lossless. Keys that were removed since are ignored."""
    old = json.loads(json.dumps({**content, "schema_version": version, "time_parts": ["verify"]}))
    for method in old["methods"]:
        method["summary"] |= {
            "quality": scores,
            "runs": [],
            "accept_length_histogram": {"1": 2},
            "finish": {},
        }
        method["summary"]["overall"]["seconds_per_step"] = {"value": 0.1}
        for row in method["summary"]["depths"]:
            row["conditional"] = 0.5
        if version == 2:
            del method["verifier"], method["lossless"]
    (tmp_path / RESULTS).write_text(json.dumps(old), "utf-8")
    read = read_results(tmp_path).model_dump(mode="json")
    assert {(one["verifier"], one["lossless"]) for one in read["methods"]} == {(None, True)}
    assert {**read, "schema_version": 5} == content
