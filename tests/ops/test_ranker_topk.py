"""The ranker head in one op: reference, CPU implementation and emulated kernels agree with the definition in Python."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from bench.cases.ranker_topk import check, plain
from torch import Tensor

from vocabforge.core.errors import UsageError
from vocabforge.ops.draft_topk import draft_topk
from vocabforge.ops.fp8 import FP8, quantise_rows
from vocabforge.ops.indexed_logits import indexed_logits
from vocabforge.ops.ranker_select import ranker_select
from vocabforge.ops.ranker_topk import MOST_ANSWERS, ranker_topk, score_bins, shortlist

INF, NAN = float("inf"), float("nan")
HALVES = [torch.bfloat16, torch.float16]
Answer = tuple[Tensor, Tensor]


class Case(NamedTuple):
    """Arguments of one call."""

    hidden: Tensor
    down: Tensor
    vocab: Tensor
    weight: Tensor
    k: int
    topk: int
    scale: Tensor | None = None
    target_ids: Tensor | None = None

    def ask(self, backend: str) -> Answer:
        return ranker_topk(*self[:6], scale=self.scale, target_ids=self.target_ids, backend=backend)

    def to(self, device: str) -> Case:
        moved: dict[str, Any] = self._asdict()
        moved.update((name, one.to(device)) for name, one in moved.items() if isinstance(one, Tensor))
        return Case(**moved)

    def projected(self) -> Tensor:
        return (self.hidden.double() @ self.down.double().T).to(self.hidden.dtype)

    def scores(self) -> Tensor:
        """(N, V) fp64."""
        found = self.projected().double() @ self.vocab.double().T
        return found if self.scale is None else found * self.scale.double()


def bin_of(score: float, rows: int) -> tuple[int, ...]:
    """The bin by its definition, in the order of bins: sign, octave, and part of the octave; NaN as -inf."""
    parts = 16 if rows <= 32 else 8
    size = INF if math.isnan(score) else abs(score)
    place = (-7, 0) if size < 2.0**-6 else (10, 0)
    if 2.0**-6 <= size < 2.0**10:
        octave = math.frexp(size)[1] - 1
        place = octave, int((size / 2.0**octave - 1) * parts)
    place = min(place, (9, parts - 2))  # the last bin: the first one has taken the place of one
    return (1, *place) if score >= 0 else (-1, -place[0], -place[1])


def by_definition(case: Case) -> tuple[list[list[tuple[float, int]]], list[list[int]]]:
    """Answers and candidates, by Python's sort and exact sums."""
    answers, candidates = [], []
    logits = case.hidden.double() @ case.weight.double().T
    for scores, row in zip(case.scores().tolist(), logits.tolist()):
        bins = [bin_of(one, len(case.hidden)) for one in scores]
        border = sorted(bins, reverse=True)[case.k - 1]
        listed = [i for i in range(len(bins)) if bins[i] >= border]
        ids = range(len(bins)) if case.target_ids is None else case.target_ids.tolist()
        entries = sorted((-row[i], ids[i]) for i in listed if row[i] > -INF)
        top = -entries[0][0] if entries else 0.0
        total = math.fsum(math.exp(-value - top) for value, _ in entries) if top < INF else INF
        found = [
            (-value - top - math.log(total) if top < INF else -INF, one)
            for value, one in entries[: case.topk]
        ]
        answers.append(found + [(-INF, 0)] * (case.topk - len(found)))
        candidates.append(listed)
    return answers, candidates


def assert_answers(found: Answer, expected: list[list[tuple[float, int]]]) -> None:
    logprobs, ids = found
    assert logprobs.dtype == torch.float32
    assert ids.dtype == torch.int64
    assert ids.tolist() == [[one for _, one in row] for row in expected]
    wanted = torch.tensor([[value for value, _ in row] for row in expected])
    torch.testing.assert_close(logprobs, wanted, rtol=0, atol=1e-5)


def whole(
    seed: int,
    n: int,
    size: int,
    rank: int,
    d: int,
    k: int,
    topk: int,
    dtype: torch.dtype = torch.bfloat16,
    *,
    fp8: bool = False,
    mapped: bool = False,
    largest: int = 2,
) -> Case:
    """Small integers: sums are exact in any order, and many scores and logits are equal."""
    stream = torch.Generator().manual_seed(seed)

    def some(*sizes: int) -> Tensor:
        return torch.randint(-largest, largest + 1, sizes, generator=stream).to(dtype)

    scale = 2.0 ** torch.randint(-2, 3, (size,), generator=stream).float() if fp8 else None
    ids = torch.randperm(3 * size, generator=stream)[:size].sort().values if mapped else None
    vocab = some(size, rank)
    return Case(
        some(n, d), some(rank, d), vocab.to(FP8) if fp8 else vocab, some(size, d), k, topk, scale, ids
    )


def columns(scores: list[float], logits: Tensor | None = None, n: int = 1, k: int = 1, topk: int = 4) -> Case:
    """A case with these scores and, if given, logits, the same for all rows."""
    vocab, weight = torch.zeros(len(scores), 8), torch.zeros(len(scores), 8)
    hidden, down = torch.zeros(n, 8), torch.zeros(8, 8)
    vocab[:, 0] = torch.tensor(scores)
    weight[:, 1] = torch.arange(len(scores)) % 100 / 8 if logits is None else logits
    hidden[:, :2], down[0, 0] = 1.0, 1.0
    return Case(hidden.bfloat16(), down.bfloat16(), vocab.bfloat16(), weight.bfloat16(), k, topk)


def test_the_reference_is_the_definition() -> None:
    for seed, (n, size, k, topk) in enumerate(
        [(1, 1, 1, 1), (3, 50, 20, 5), (5, 300, 300, 8), (33, 300, 7, 12)]
    ):
        case = whole(seed, n, size, 8, 16, k, topk, torch.float32, mapped=bool(seed % 2))
        assert_answers(case.ask("reference"), by_definition(case)[0])


@pytest.mark.parametrize("n", [1, 33])
@pytest.mark.parametrize("spread", [1e-3, 0.1, 1.0, 30.0, 1e4])
def test_candidates_are_the_k_best_and_the_rest_of_the_kth_s_bin(spread: float, n: int) -> None:
    stream = torch.Generator().manual_seed(0)
    scores = torch.randn(n, 700, generator=stream) * spread + torch.randn(n, 1, generator=stream) * spread
    for k in (1, 60, 350, 699, 700):
        found = shortlist(scores, k)
        best = torch.zeros_like(found).scatter_(1, scores.topk(k, 1).indices, True)
        assert (found | ~best).all()
        kth = scores.topk(k, 1).values[:, -1]
        for row, listed, border in zip(scores, found, kth.tolist()):
            expected = [bin_of(one, n) >= bin_of(border, n) for one in row.tolist()]
            assert listed.tolist() == expected
            inside = sum(bin_of(one, n) == bin_of(border, n) for one in row.tolist())
            assert k <= int(listed.sum()) <= k - 1 + inside


def test_bins_ascend_with_the_scores() -> None:
    edges = [
        -INF,
        -3e38,
        -1024.0,
        -1000.0,
        -1.0,
        -0.015,
        -1e-40,
        0.0,
        1e-40,
        0.02,
        1.0,
        1.0625,
        1.1,
        900.0,
        3e38,
        INF,
    ]
    for n in (1, 33):
        bins = score_bins(torch.tensor(edges).expand(n, -1))[0]
        assert (bins.diff() >= 0).all()
        assert int(bins[0]) == 0
        assert int(score_bins(torch.tensor([[NAN]]).expand(n, -1))[0]) == 0
        assert int(bins.max()) == (511 if n == 1 else 255)
        assert bins[edges.index(1.0)] + (1 if n == 1 else 0) == bins[edges.index(1.0625)]


@pytest.mark.parametrize("seed", range(6))
def test_against_exactly_k_candidates(seed: int) -> None:
    """The present form has a subset of the candidates; what both answer differs by the normaliser alone."""
    stream = torch.Generator().manual_seed(seed)
    hidden, down, vocab, weight = (
        torch.randn(size, generator=stream) for size in ((4, 32), (16, 32), (900, 16), (900, 32))
    )
    case = Case(hidden, down / 6, vocab, weight, 90, 6)
    projected = (hidden @ case.down.T).float()
    ids = ranker_select(projected, vocab, 90)
    scores = projected @ vocab.T
    listed = shortlist(scores, 90)
    exact = torch.zeros_like(listed).scatter_(1, ids.long(), True)
    assert not (exact & ~listed).any()
    assert (listed.sum(1) > 90).any(), "the case needs rows with more candidates"
    logits = (hidden @ weight.T).masked_fill(~listed, -INF)
    own = indexed_logits(hidden, weight, ids)
    torch.testing.assert_close(own, logits.gather(1, ids.long()), rtol=0, atol=1e-4)
    more = logits.logsumexp(1, True) - own.logsumexp(1, True)
    assert (more >= -1e-5).all()  # up to rounding
    before, found = draft_topk(own, 6, ids=ids), case.ask("reference")
    same = ~(logits.topk(6, 1).values > logits.masked_fill(~exact, -INF).topk(6, 1).values).any(1)
    assert torch.equal(before[1][same], found[1][same])
    torch.testing.assert_close(before[0][same], (found[0] + more)[same], rtol=0, atol=1e-4)
    # Where a further candidate is among the best, it stands before what it displaces: no answer is worse.
    assert (logits.gather(1, found[1]) >= logits.gather(1, before[1]) - 1e-4).all()


# Rows of 8, 16, 32 and 64; lines of 64 ids; slices of one line, of several, and of none.
SHAPES = [
    (1, 1, 8, 8, 1, 1),
    (1, 2049, 8, 16, 300, 10),
    (3, 63, 24, 40, 63, 5),
    (8, 130, 16, 72, 1, 7),
    (9, 1000, 16, 24, 40, 10),
    (17, 257, 40, 264, 30, 32),
    (33, 300, 16, 16, 77, 3),
    (64, 129, 8, 8, 5, 24),
]


@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_emulated_kernels_equal_the_definition(
    emulated: Callable[[str], None], schedule: int, shape: tuple[int, ...], fp8: bool
) -> None:
    emulated("ranker_select")
    n, size, rank, d, k, topk = shape
    rank = -(-rank // 16) * 16 if fp8 else rank
    case = whole(schedule, n, size, rank, d, k, topk, HALVES[schedule % 2], fp8=fp8, mapped=schedule == 2)
    assert_answers(case.ask("emulated"), by_definition(case)[0])


@pytest.mark.parametrize("multiprocessors", ["1", "3", "100"])
@pytest.mark.parametrize("n", [1, 12, 40])
def test_any_number_of_slices(
    emulated: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, multiprocessors: str, n: int
) -> None:
    """One slice holds all the vocabulary, or each a few ids: tiles of both heights, and blocks without a candidate."""
    emulated("ranker_select")
    monkeypatch.setenv("VOCABFORGE_EMULATED_SMS", multiprocessors)
    case = whole(n, n, 900, 8, 136, 60, 10)
    assert_answers(case.ask("emulated"), by_definition(case)[0])


def test_the_most_that_a_block_keeps(
    emulated: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All answers of 64 rows, and lines as of 2^20 ids on 108 multiprocessors, fit on compute capability 8.0."""
    emulated("ranker_select")
    monkeypatch.setenv("VOCABFORGE_EMULATED_SMS", "1")
    case = whole(0, 64, 152 * 64, 8, 520, 3, MOST_ANSWERS // 64)
    found, expected = case.ask("emulated"), case.ask("reference")
    assert torch.equal(found[1], expected[1])
    torch.testing.assert_close(found[0], expected[0], rtol=0, atol=1e-4)


def test_cpu_implementation_equals_the_definition(native_cpu: None) -> None:
    for seed, dtype in enumerate([torch.float32, *HALVES]):
        for n, fp8 in ((1, False), (5, True), (40, False)):
            case = whole(seed, n, 200, 16, 24, 30, 6, dtype, fp8=fp8, mapped=bool(seed))
            assert_answers(case.ask("native"), by_definition(case)[0])


def odd_cases() -> list[Case]:
    """Scores that bins cut badly, and logits that are no numbers."""
    tail = torch.randn(700, generator=torch.Generator().manual_seed(1)).tolist()
    found = [
        columns([1.0] * 1500, k=1, topk=10),  # all are candidates
        columns([0.0, -0.0] * 100, n=3, k=5),
        columns([one * 1e-9 for one in tail], n=2, k=3),
        columns([one * 1e9 for one in tail], k=400),
        columns([-33.0 - one for one in tail], n=9, k=50),
        columns([NAN] * 40 + [1.0, NAN, -INF, -INF, 0.0] + [NAN] * 40, k=3),
        columns([INF, -INF, INF, 3e38, -3e38, 0.0, -0.0, 1e-40, -1e-40, 5.0] * 30, k=60),
    ]
    scores = [float(i % 7) for i in range(300)]
    for value in (NAN, -INF, INF):
        logits = torch.arange(300) % 50 / 4
        logits[::3] = value
        found += [columns(scores, logits, n=n, k=100, topk=5) for n in (1, 2)]
    logits = torch.full((300,), NAN)
    logits[6::70] = 1.0
    found.append(columns(scores, logits, k=40, topk=9))  # fewer than are asked for
    found.append(columns(scores, torch.full((300,), NAN), n=2, k=40, topk=9))
    return found


@pytest.mark.parametrize("number", range(len(odd_cases())))
def test_odd_numbers(emulated: Callable[[str], None], native_cpu: None, number: int) -> None:
    emulated("ranker_select")
    case = odd_cases()[number]
    expected, _ = by_definition(case)
    for backend in ("reference", "native", "emulated"):
        assert_answers(case.ask(backend), expected)


def noise(
    seed: int, n: int, size: int, rank: int, d: int, k: int, topk: int, dtype: torch.dtype, fp8: bool
) -> Case:
    """Gaussian numbers; scores and logits with a standard deviation of 3."""
    stream = torch.Generator().manual_seed(seed)
    hidden, down, vocab, weight = (
        (torch.randn(rows, width, generator=stream) * spread).to(dtype)
        for rows, width, spread in (
            (n, d, 1.0),
            (rank, d, d**-0.5),
            (size, rank, 3 / rank**0.5),
            (size, d, 3 / d**0.5),
        )
    )
    rows, scale = quantise_rows(vocab) if fp8 else (vocab, None)
    return Case(hidden, down, rows, weight, k, topk, scale)


def problem(case: Case, found: Answer) -> str | None:
    expected = plain(case.hidden, case.down, case.vocab, case.weight, case.scale)
    return check(case.k, {}, found, expected)


@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize("n", [1, 10])
def test_noise_gives_the_same_bits_again(
    emulated: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, n: int, fp8: bool
) -> None:
    emulated("ranker_select")
    case = noise(n, n, 1500, 32, 64, 150, 10, torch.bfloat16, fp8)
    answers = []
    for seed in ("4", "5"):
        monkeypatch.setenv("VOCABFORGE_EMULATOR_SEED", seed)
        answers.append(case.ask("emulated"))
    assert all(torch.equal(*both) for both in zip(*answers))
    assert problem(case, answers[0]) is None
    assert problem(case, case.ask("reference")) is None


def test_the_check_of_noise_finds_faults() -> None:
    case = noise(0, 4, 800, 16, 32, 80, 6, torch.bfloat16, False)
    logprobs, ids = case.ask("reference")
    ask = partial(problem, case)
    assert ask((logprobs, ids)) is None
    assert "outside of 0.01" in str(ask((logprobs - 0.2, ids)))
    assert "outside of 0.01" in str(ask((logprobs + 0.02, ids)))
    assert "twice" in str(ask((logprobs, ids[:, :1].expand(-1, 6))))
    assert "outside of the vocabulary" in str(ask((logprobs, ids + 800)))
    second = Case(*case[:5], 7).ask("reference")
    assert "missed" in str(ask((second[0][:, 1:], second[1][:, 1:])))
    worst = case.scores().argmin(1)
    assert "not a candidate" in str(ask((logprobs, torch.cat([ids[:, :5], worst[:, None]], 1))))
    fewer = Case(*case[:4], 40, 6).ask("reference")
    assert ask(fewer) is not None


def test_wrong_inputs_are_refused() -> None:
    case = whole(0, 4, 50, 16, 16, 10, 5)
    for wrong, match in (
        (case._replace(down=case.down[:12], vocab=case.vocab[:, :12]), "rank"),
        (case._replace(vocab=case.vocab[:-1]), "vocab"),
        (case._replace(vocab=case.vocab.to(FP8)), "dtype"),
        (case._replace(k=51), "k is out of range"),
        (case._replace(topk=33), "topk is out of range"),
        (case._replace(target_ids=torch.arange(49)), "target_ids"),
        (case._replace(weight=case.weight.float()), "dtype"),
    ):
        with pytest.raises(UsageError, match=match):
            wrong.ask("reference")
    many = whole(0, 64, 50, 16, 16, 10, MOST_ANSWERS // 64)
    many.ask("reference")
    with pytest.raises(UsageError, match="topk"):
        many._replace(topk=many.topk + 1).ask("reference")


@pytest.mark.proof
@pytest.mark.parametrize("fp8", [False, True])
def test_emulated_kernels_answer_everything(
    emulated: Callable[[str], None], schedule: int, fp8: bool
) -> None:
    emulated("ranker_select")
    stream = torch.Generator().manual_seed(schedule)
    for number in range(8):
        n, size = (
            int(torch.randint(1, most, (), generator=stream)) for most in (9 if number % 4 else 49, 1500)
        )
        k, topk = (int(torch.randint(1, most + 1, (), generator=stream)) for most in (size, 32))
        rank, d = 16 * (1 + number % 3), 8 * (1 + number * 5)
        dtype = HALVES[number % 2]
        case = whole(
            number, n, size, rank, d, k, topk, dtype, fp8=fp8, mapped=number % 3 == 0, largest=1 + number % 3
        )
        assert_answers(case.ask("emulated"), by_definition(case)[0])
        topk = min(topk, k)
        case = noise(number, n, size, rank, d, k, topk, dtype, fp8)
        assert problem(case, case.ask("emulated")) is None


@pytest.mark.proof
def test_a_vocabulary_beyond_the_counters(
    emulated: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One multiprocessor would count more than 16 bits hold: scores then come in parts."""
    emulated("ranker_select")
    monkeypatch.setenv("VOCABFORGE_EMULATED_SMS", "1")
    scores = torch.ones(70_000)
    scores[69_900:] = 2.0
    case = columns(scores.tolist(), n=2, k=90, topk=5)
    assert_answers(case.ask("emulated"), by_definition(case)[0])


@pytest.mark.gpu
@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize("dtype", HALVES)
def test_cuda_kernels_answer(native_cuda: None, dtype: torch.dtype, fp8: bool) -> None:
    for seed, (n, size, rank, d, k, topk) in enumerate(
        [
            (1, 151_936, 512, 4096, 2048, 10),
            (10, 128_256, 256, 4096, 4096, 10),
            (60, 128_256, 256, 2048, 512, 16),
            (48, 1 << 20, 64, 264, 1000, 32),
            (3, 50, 16, 16, 50, 5),
        ]
    ):
        case = noise(seed, n, size, rank, d, k, topk, dtype, fp8).to("cuda")
        found = case.ask("native")
        assert all(torch.equal(*both) for both in zip(found, case.ask("native")))
        assert problem(case, found) is None
        case = whole(seed, n, size, min(rank, 128), min(d, 264), k, topk, dtype, fp8=fp8, mapped=True).to(
            "cuda"
        )
        found, expected = case.ask("native"), case.ask("reference")
        assert torch.equal(found[1], expected[1])
        torch.testing.assert_close(found[0], expected[0], rtol=0, atol=1e-4)
    for case in odd_cases():
        found = case.to("cuda").ask("native")
        assert_answers((found[0].cpu(), found[1].cpu()), by_definition(case)[0])
