"""The tokens of a request's text against a plain model of them."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from vocabforge.decode.proposers.context import ContextTokens

TOKENS = st.lists(st.integers(0, 9), max_size=12)
ACTIONS = st.lists(
    st.tuples(st.sampled_from(["begin", "add", "look"]), st.integers(0, 2), TOKENS), max_size=15
)


def last_distinct(text: list[int], size: int) -> list[int]:
    """The distinct tokens met last, the latest first."""
    found: list[int] = []
    for token in reversed(text):
        if token not in found:
            found.append(token)
    return found[:size]


@settings(max_examples=50, deadline=None)
@given(ACTIONS, st.integers(1, 11))
def test_it_holds_the_distinct_tokens_met_last(actions, size: int) -> None:
    context = ContextTokens(3, size, "cpu")
    texts: list[list[int]] = [[], [], []]
    for action, row, tokens in actions:
        if action == "begin":
            context.begin(row, tokens)
            texts[row] = list(tokens)
        elif action == "add":
            context.add(row, tokens)
            texts[row] += tokens
        else:
            assert context.tensor.shape == (3, size)
    for held, text in zip(context.tensor.tolist(), texts):
        expected = last_distinct(text, size)
        assert sorted(i for i in held if i >= 0) == sorted(expected)
        assert held.count(-1) == size - len(expected)
