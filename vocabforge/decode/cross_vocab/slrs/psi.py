"""The distribution of SLRS's target tokens: the probability that a draft model's text begins with a token.

String-level rejection sampling (Timor et al. 2025) drafts a text of n draft tokens and cuts it into target
tokens, with the longest match at each position. Its psi(t) is the sum over all draft texts that begin with
the target token t. Here that sum is a few products. P(b), the probability that the text begins with the bytes
b, only needs the distributions along b, because the draft tokens that begin with the rest of b are adjacent.
The probability that the cut gives t rather than a longer token is P(t) minus the P of the next longer tokens.
For several tokens, the P of all continuations that may not follow are subtracted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from .contexts import Path, RowContexts
from .trie import DraftWords, TargetTrie

Spellings = dict[Path, Any]  # draft tokens that spell some bytes -> their probability


class Streams:
    """Probabilities of the beginnings of a draft text of n tokens, or fewer if it ends.

    ``contexts`` are evaluated on demand, together for all texts of a call.
    """

    def __init__(self, words: DraftWords, contexts: RowContexts, length: int) -> None:
        self._words, self._contexts, self._length = words, contexts, length
        self._spellings: dict[bytes, Spellings] = {b"": {(): 1}}
        self._begins: dict[bytes, Any] = {b"": 1}
        self._ends: dict[bytes, Any] = {}

    def begins(self, texts: Sequence[bytes]) -> list[Any]:
        """Return the probability that the text begins with these bytes, for each of ``texts``."""
        self._solve(self._begins, self._try_begins, texts)
        return [self._begins[text] for text in texts]

    def ends(self, text: bytes) -> Any:
        """Return the probability that the text is exactly these bytes and then ends."""
        self._solve(self._ends, self._try_ends, [text])
        return self._ends[text]

    def _solve(
        self, known: dict[bytes, Any], attempt: Callable[[bytes, set[Path]], Any], texts: Sequence[bytes]
    ) -> None:
        """Evaluate missing contexts, level by level, until all texts are found."""
        waiting = {text for text in texts if text not in known}
        while waiting:
            missing: set[Path] = set()
            for text in list(waiting):
                lacking = set[Path]()
                value = attempt(text, lacking)
                if lacking:
                    missing |= lacking
                else:
                    known[text] = value
                    waiting.remove(text)
            self._contexts.evaluate(missing)

    def _try_begins(self, text: bytes, missing: set[Path]) -> Any:
        if len(text) > self._length * self._words.longest:
            return 0
        spellings = self._along(text, len(text) - 1, missing)
        total: Any = 0
        for size in range(1, min(len(text), self._words.longest) + 1):
            first, last = self._words.beginning(text[-size:])
            if first < last:
                for path, weight in spellings(len(text) - size).items():
                    distribution = self._contexts.known(path)
                    if distribution is None:
                        missing.add(path)
                    else:
                        total = total + weight * distribution.between(first, last)
        return total

    def _try_ends(self, text: bytes, missing: set[Path]) -> Any:
        if len(text) > self._length * self._words.longest:
            return 0
        total: Any = 0
        for path, weight in self._along(text, len(text), missing)(len(text)).items():
            distribution = self._contexts.known(path)
            if distribution is None:
                missing.add(path)
            else:
                total = total + weight * distribution.end
        return total

    def _along(self, text: bytes, end: int, missing: set[Path]) -> Callable[[int], Spellings]:
        """Return a function from a size, up to ``end``, to the spellings of the text's first bytes.

        Spellings are partial if distributions are missing.
        """
        start = end
        while text[:start] not in self._spellings:
            start -= 1
        partial: dict[int, Spellings] = {}

        def of(size: int) -> Spellings:
            return partial[size] if size in partial else self._spellings[text[:size]]

        for size in range(start + 1, end + 1):
            lacking = set[Path]()
            spellings = self._spell(text[:size], of, lacking)
            if partial or lacking:
                missing |= lacking
                partial[size] = spellings
            else:
                self._spellings[text[:size]] = spellings
        return of

    def _spell(self, text: bytes, before: Callable[[int], Spellings], missing: set[Path]) -> Spellings:
        """Return spellings of a text with at most n - 1 draft tokens: those of a prefix plus one token."""
        spellings: Spellings = {}
        for size in range(1, min(len(text), self._words.longest) + 1):
            first, last = self._words.same(text[-size:])
            for path, weight in before(len(text) - size).items() if first < last else ():
                if len(path) + 1 >= self._length:
                    continue
                distribution = self._contexts.known(path)
                if distribution is None:
                    missing.add(path)
                    continue
                for place in range(first, last):
                    share = distribution.between(place, place + 1)
                    if share > 0:
                        longer = (*path, self._words.ids[place])
                        spellings[longer] = weight * share
        return spellings


class Chain(NamedTuple):
    """The target tokens of a draft text, as far as they affect later tokens."""

    written: bytes = b""  # their bytes
    # Bytes that may not follow, because they would make one of the tokens longer; none is a prefix of another.
    forbidden: tuple[bytes, ...] = ()


def lengthen(trie: TargetTrie, chain: Chain, form: bytes) -> Chain | None:
    """Return the chain with one more token; None if that would make an earlier one longer."""
    if any(form.startswith(continuation) for continuation in chain.forbidden):
        return None
    size = len(form)
    waiting = [continuation[size:] for continuation in chain.forbidden if continuation.startswith(form)]
    waiting += [continuation[size:] for continuation in trie.longer(form)]
    forbidden: list[bytes] = []
    for continuation in sorted(waiting):
        if not forbidden or not continuation.startswith(forbidden[-1]):
            forbidden.append(continuation)
    return Chain(chain.written + form, tuple(forbidden))


class ChainDistributions:
    """Distributions of the target tokens of one draft; ``asked`` counts each probability once.

    ``eos`` is the target's end token for a drafter's end; None if there is none.
    """

    def __init__(self, trie: TargetTrie, streams: Streams, eos: int | None) -> None:
        self.trie, self.streams, self.eos = trie, streams, eos
        self.asked = 0
        self._weights: dict[bytes, Any] = {}  # by bytes: a text is cut in one way only

    def weight(self, chain: Chain) -> Any:
        """Return the probability that the tokens of the cut text begin with a chain."""
        if chain.written not in self._weights:
            whole = self.streams.begins([chain.written])[0]
            if whole > 0:
                longer = self.streams.begins(
                    [chain.written + continuation for continuation in chain.forbidden]
                )
                whole = max(whole - sum(longer), 0 * whole)
            self._weights[chain.written] = whole
        return self._weights[chain.written]

    def along(self, tokens: Sequence[int]) -> list[TokenDistribution]:
        """Return the distribution of each token of a drafted chain and, last, of the token after it."""
        chain, distributions = Chain(), [TokenDistribution(self, Chain())]
        for token in tokens:
            if token == self.eos:
                break
            longer = lengthen(self.trie, chain, self.trie.forms[token])
            assert longer is not None  # tokens are longest matches
            chain = longer
            distributions.append(TokenDistribution(self, chain))
        return distributions


class TokenDistribution:
    """Distribution psi(. | tokens before) of a drafted target token; a ``tree.LazyDistribution``."""

    def __init__(self, distributions: ChainDistributions, chain: Chain) -> None:
        self._distributions, self._chain = distributions, chain
        self._known: dict[int, Any] = {}

    def probability(self, token: int) -> Any:
        """Return the probability of a token; 0 if no draft text is cut into it."""
        if token not in self._known:
            self._distributions.asked += 1
            self._known[token] = self._evaluate(token)
        return self._known[token]

    def _evaluate(self, token: int) -> Any:
        distributions = self._distributions
        before = distributions.weight(self._chain)
        if not before > 0:
            return 0
        if token == distributions.eos:
            share = distributions.streams.ends(self._chain.written)
        else:
            form = distributions.trie.forms.get(token)
            longer = None if form is None else lengthen(distributions.trie, self._chain, form)
            share = 0 if longer is None else distributions.weight(longer)
        return share / before if share > 0 else 0  # not 0 / 1, which would turn fractions into a float
