"""The pool's rules, with servers that are plain objects."""

from __future__ import annotations

import time

import pytest

from vocabforge.core.errors import VocabForgeError
from vocabforge.corpus.regenerate.pool import PoolOptions, ServerPool
from vocabforge.corpus.regenerate.rows import ChatCompletion, ChatRequest
from vocabforge.corpus.regenerate.server import Refused, TryAgain, Unusable

OPTIONS = PoolOptions(concurrency=2, retries=2, first_wait=0.001, longest_wait=0.01)


class Plain:
    """Answers by a function; ``well`` is what a look at it finds."""

    def __init__(self, url, reply, *, well=True):
        self.url, self.reply, self.well = url, reply, well
        self.asked = []

    def complete(self, request):
        self.asked.append(request.key)
        self.reply(request)
        return ChatCompletion({"role": "assistant", "content": self.url}, "stop", request.seed)

    def alive(self):
        return self.well

    def close(self):
        return


def requests(count: int) -> list[ChatRequest]:
    return [ChatRequest(str(number), (), None, number) for number in range(count)]


def outcomes(servers, count, options=OPTIONS):
    with ServerPool(servers, options) as pool:
        for request in requests(count):
            pool.submit(request)
        return sorted((pool.next() for _ in range(count)), key=lambda outcome: int(outcome.request.key))


def slow(request):
    time.sleep(0.02)  # so that the other server gets its share


def away(request):
    raise TryAgain("connection refused")


@pytest.mark.parametrize(
    ("retries", "wanted", "low", "high"),
    [(1, None, 0.75, 1.25), (3, None, 3, 5), (5, None, 6, 10), (1, 7.0, 7, 7)],
)
def test_a_pause_doubles_up_to_a_limit_and_is_no_shorter_than_the_server_wants(
    monkeypatch, retries, wanted, low, high
):
    def busy(request):
        raise TryAgain("503", wanted)

    pauses = []
    options = PoolOptions(concurrency=1, retries=retries, first_wait=1.0, longest_wait=8.0)
    with ServerPool([Plain("a", busy)], options) as pool:
        monkeypatch.setattr(pool._stopped, "wait", pauses.append)
        pool.submit(requests(1)[0])
        assert pool.next().reason == "503"
    assert len(pauses) == retries
    assert low <= pauses[-1] <= high


@pytest.mark.parametrize("trouble", [TryAgain("connection refused"), Unusable("401 no key")])
def test_nobody_left(trouble):
    def reply(request):
        raise trouble

    servers = [Plain("a", reply, well=False), Plain("b", reply, well=False)]
    with pytest.raises(VocabForgeError, match="no server is left") as told:
        outcomes(servers, 9)
    assert f"a: {trouble}; b: {trouble}" in str(told.value)


def test_a_request_that_fails_everywhere_is_given_up_and_the_servers_stay():
    def picky(request):
        if request.key == "3":
            raise TryAgain("500 crash")
        if request.key == "5":
            raise Refused("400 too long")

    servers = [Plain("a", picky), Plain("b", picky)]
    found = outcomes(servers, 12)
    assert [outcome.request.key for outcome in found if outcome.answer is None] == ["3", "5"]
    assert (found[3].reason, found[5].reason) == ("500 crash", "400 too long")
    assert [server.asked.count("3") for server in servers] == [3, 3]
    assert sum(server.asked.count("5") for server in servers) == 1


def test_a_server_that_answers_nothing_beside_others_is_left_out(capsys):
    servers = [Plain("broken", away), Plain("sound", slow)]
    found = outcomes(servers, 60)
    assert all(outcome.answer is not None for outcome in found)
    assert "broken is left out" in capsys.readouterr().err
