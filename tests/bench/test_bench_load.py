"""``recipes/bench/load.py`` end to end on a tiny target: every load and method, the arms that its control ran."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from load import bench_load, shown

from tests.bench.rendered import rendered
from tests.worlds import byte_tokenizer, tiny_target


def test_every_load_and_method(tmp_path: Path) -> None:
    tiny_target(tmp_path / "t", vocab_size=261)
    byte_tokenizer(tmp_path / "t")
    rows = [{"question_id": n, "category": "x", "turns": [f"the {n} old men"]} for n in range(3)]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    methods = ["methods.both.proposer=n-gram+early-exit", "methods.n-gram.proposer=n-gram"]
    sizes = [f"prompts={tmp_path / 'q.jsonl'}", "max_new_tokens=24", "rows=[1,3]", "threads=1"]
    threads = torch.get_num_threads()
    line = [
        f"target={tmp_path / 't'}",
        *methods,
        "methods.n-gram.control=fixed",
        "methods.n-gram.tree=auto",
        *sizes,
    ]
    result = json.loads(json.dumps(bench_load(line, repeats=2)))
    assert torch.get_num_threads() == threads
    found = result["rows"]
    assert [(row["requests"], row["method"]) for row in found] == [
        (count, name) for count in (1, 3) for name in ("plain", "both", "n-gram")
    ]
    for row in found:
        assert row["tokens_per_s"] > 0
        assert row["equal"] == row["outputs"] == (3 if row["requests"] == 1 else 6)
        drafting = {name.split(" ")[0] for name in row["cycles"]}
        if row["method"] == "plain":
            assert (drafting, row["over_plain"], row["accepted_length"]) == ({"plain"}, 1, 1)
        elif row["method"] == "both":
            assert drafting <= {"plain", "n-gram", "early-exit"}
        else:
            assert list(row["cycles"]) == ["4 drafts"]
    text = rendered(shown(result))
    assert "requests" in text
    assert "n-gram" in text
