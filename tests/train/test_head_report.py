"""The report on draft heads against figures counted row by row, and training that improves them."""

from __future__ import annotations

import json

import pytest
import torch

from tests.worlds import tiny_drafter, tiny_target
from vocabforge.models.heads.registry import HeadSizes, LowRankHead, RankerHead, RouterHead, base_of
from vocabforge.models.heads.scorer import LowRankScorer
from vocabforge.models.target.hf import HFTarget
from vocabforge.train.capture.online import CapturedBatch, OnlineCapture, RowBatch
from vocabforge.train.heads import report as module
from vocabforge.train.heads.report import head_report
from vocabforge.train.heads.states import drafting_rows
from vocabforge.train.metrics import expected_accepted_length
from vocabforge.train.ttt import shift_left

STEPS, LENGTH, VOCAB = 3, 24, 61


def captured(target: HFTarget, seed: int) -> CapturedBatch:
    """Two rows: one of two documents, one with padding; some tokens are not the assistant's."""
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, VOCAB, (2, LENGTH), generator=draw)
    document = torch.ones(2, LENGTH, dtype=torch.int64)
    document[0, 10:] = 2
    document[1, 18:] = 0
    position = torch.arange(LENGTH).repeat(2, 1)
    position[0, 10:] -= 10
    mask = (torch.rand(2, LENGTH, generator=draw) > 0.2) & (document > 0)
    rows = RowBatch(ids, mask, document, position)
    return OnlineCapture(target, 0)(rows, [("train", 0), ("train", 1)])


@pytest.fixture(scope="module")
def setup(tmp_path_factory):
    target = HFTarget.load(tiny_target(tmp_path_factory.mktemp("report") / "t", vocab_size=VOCAB))
    ids = torch.arange(3, VOCAB, 2)
    drafters = {
        "whole": tiny_drafter(target),
        "reduced": tiny_drafter(target, own_head=len(ids), target_ids=ids),
    }
    return target, drafters, [captured(target, seed) for seed in (1, 2)]


def make_heads(drafter) -> dict:
    torch.manual_seed(3)
    base, scorer = base_of(drafter), LowRankScorer(32, VOCAB, 5)
    scorer.init_from_head(drafter.target_head, 0)
    router = RouterHead.new_module(HeadSizes(32, VOCAB - 2, clusters=8, width=8, depth=1))
    router.init(0, 5)
    return {
        "ranker": RankerHead(base, scorer, 9),
        "low-rank": LowRankHead(base, scorer),
        "router": RouterHead(base, router, (4, 2), "own"),
    }


class Count:
    """One head's figures of one step, added row by row."""

    def __init__(self) -> None:
        self.rows = self.argmax = self.shortlist = self.correct = 0
        self.acceptance = 0.0


@torch.no_grad()
def brute_force(target, drafter, head, batches) -> tuple[list[Count], list[float]]:
    counts = [Count() for _ in range(STEPS)]
    chained = [[0, 0] for _ in range(STEPS)]
    for batch in batches:
        alive = {(b, t): True for b in range(2) for t in range(LENGTH)}
        for k, rows in enumerate(drafting_rows(drafter, batch, STEPS)):
            teacher = target.logits(shift_left(batch.hidden, k + 1)).softmax(-1)
            hit_places = set()
            for i, (b, t) in enumerate(zip(*(index.tolist() for index in rows.where))):
                row = head.log_probs(rows.hidden[i : i + 1], rows.state.part(slice(i, i + 1)))[0]
                q = {int(v): float(x.exp()) for v, x in zip(head.target_ids, row) if x.isfinite()}
                full = drafter.head_weight @ rows.hidden[i]
                scores = {int(v): float(x) for v, x in zip(drafter.target_ids, full)}
                best = min(scores, key=lambda v: (-scores[v], v))
                ours = min(q, key=lambda v: (-q[v], v))
                p, count = teacher[b, t], counts[k]
                count.rows += 1
                count.argmax += ours == best
                count.shortlist += len(q)
                hit = ours == int(p.argmax())
                count.correct += hit
                count.acceptance += sum(min(float(p[v]), q[v]) for v in q)
                chained[k][0] += alive[b, t]
                chained[k][1] += alive[b, t] and hit
                if hit:
                    hit_places.add((b, t))
            alive = {place: value and place in hit_places for place, value in alive.items()}
    return counts, [hits / max(rows, 1) for rows, hits in chained]


@pytest.mark.parametrize("kind", ["whole", "reduced"])
def test_every_figure_equals_a_count_row_by_row(setup, kind) -> None:
    target, drafters, batches = setup
    drafter = drafters[kind]
    heads = make_heads(drafter)
    report = head_report(drafter, target, heads, batches, STEPS)
    assert (report["vocab_size"], report["steps"], report["full"]) == (VOCAB, STEPS, "full")
    assert list(report["heads"]) == ["full", *heads]
    full = report["heads"]["full"]
    for name, head in heads.items():
        counts, conditional = brute_force(target, drafter, head, batches)
        entry = report["heads"][name]
        for k, (count, found) in enumerate(zip(counts, entry["steps"])):
            assert found["rows"] == count.rows > 20
            for key, value in (
                ("argmax_recall", count.argmax),
                ("shortlist", count.shortlist),
                ("accuracy", count.correct),
                ("acceptance", count.acceptance),
            ):
                assert found[key] == pytest.approx(value / count.rows, abs=1e-5), (name, k, key)
            assert found["conditional"] == pytest.approx(conditional[k])
            lost = full["steps"][k]["acceptance"] - found["acceptance"]
            assert found["acceptance_lost"] == pytest.approx(lost)
        overall, rows = entry["overall"], sum(count.rows for count in counts)
        assert overall["rows"] == rows
        assert overall["argmax_recall"] == pytest.approx(sum(c.argmax for c in counts) / rows)
        assert overall["shortlist_share"] == pytest.approx(sum(c.shortlist for c in counts) / rows / VOCAB)
        chain = expected_accepted_length(conditional)
        assert overall["chain_accepted_length"] == pytest.approx(chain)
        assert overall["chain_lost"] == pytest.approx(full["overall"]["chain_accepted_length"] - chain)
        assert (overall["average_precision"] is not None) == (name == "router")
    assert full["overall"]["argmax_recall"] == 1.0
    assert full["overall"]["chain_lost"] == full["overall"]["acceptance_lost"] == 0.0
    json.dumps(report, allow_nan=False)


def test_conditional_acceptance_asks_for_hits_at_all_earlier_steps(setup, monkeypatch) -> None:
    """Hits are given by the token fed, so that long chains occur, which a random drafter never makes."""
    target, drafters, batches = setup
    hits = module._hits

    def given(heads, target, batch, rows, *rest):
        found = hits(heads, target, batch, rows, *rest)
        found["full"][rows.where] = rows.state.tokens % 5 > 0
        return found

    monkeypatch.setattr(module, "_hits", given)
    report = head_report(drafters["whole"], target, {}, batches, STEPS)
    chained = [[0, 0] for _ in range(STEPS)]
    for batch in batches:
        counted = [rows.counted for rows in drafting_rows(drafters["whole"], batch, STEPS)]
        for b in range(2):
            for t in range(LENGTH):
                for k in range(STEPS):
                    if not counted[k][b, t]:
                        break
                    chained[k][0] += 1
                    if batch.input_ids[b, t + 1 + k] % 5 == 0:
                        break
                    chained[k][1] += 1
    found = [step["conditional"] for step in report["heads"]["full"]["steps"]]
    assert min(hits for _, hits in chained) > 3, "the test needs chains"
    assert found == pytest.approx([hits / rows for rows, hits in chained])
