"""Redirects, malformed addresses, and keys that must not leak."""

from __future__ import annotations

from typing import Any

import pytest

from tests.corpus.chat_server import FakeServer
from vocabforge.core.errors import UsageError
from vocabforge.corpus.regenerate.rows import ChatRequest, GenerationSettings
from vocabforge.corpus.regenerate.server import ChatServer, Unusable, base_url

KEY = "sk-very-secret"


def ask(url: str) -> Any:
    generation = GenerationSettings(backend={"kind": "server"}, model="tiny")
    server = ChatServer(base_url(url), generation, key=KEY, timeout=30.0)
    try:
        return server.complete(ChatRequest("00", ({"role": "user", "content": "hi"},), None, 0))
    finally:
        server.close()


@pytest.mark.parametrize("status", [301, 302, 307, 308])
@pytest.mark.parametrize("place", ["{other}/v1/chat/completions", "file:///etc/passwd"])
def test_no_redirect_is_followed_and_no_key_goes_elsewhere(status: int, place: str) -> None:
    with FakeServer() as other:
        where = place.format(other=other.url)
        moved = FakeServer(lambda body: (status, {"error": "moved"}, {"Location": where}))
        with moved as server, pytest.raises(Unusable, match=str(status)):
            ask(server.url)
        assert other.headers == []


def test_a_key_that_a_server_repeats_is_not_shown() -> None:
    for status in (400, 401, 500):
        with FakeServer(lambda body, status=status: (status, {"error": f"bad key {KEY}"})) as server:
            with pytest.raises(Exception, match=str(status)) as raised:
                ask(server.url)
            assert KEY not in str(raised.value)
            assert "***" in str(raised.value)


@pytest.mark.parametrize(
    "url", [f"http://user:{KEY}@host", f"http://host/?key={KEY}", f"http://{KEY}@host:1/v1"]
)
def test_no_key_in_an_address(url: str) -> None:
    with pytest.raises(UsageError, match="no user, key or query") as raised:
        base_url(url)
    assert KEY not in str(raised.value)
