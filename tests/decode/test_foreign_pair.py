"""Two published models with two tokenizers (512 BPE tokens, 105 characters), each drafting for the other.

Greedy output is plain decoding's. At temperature 1 the first token behind a text has the target's own distribution,
exactly, and the distribution that a drafted token comes with is the one that it was drawn from.
"""

from __future__ import annotations

import lzma
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.decode.probability import holm_rejections, p_value
from tests.models.llama2c import convert
from tests.worlds import DATA, needs_data
from vocabforge.corpus.tokenizer.tokenizer import TextTokenizer, encode_prompt, load_tokenizer
from vocabforge.decode.engine import Decoder
from vocabforge.decode.interface import Draw
from vocabforge.decode.proposers.registry import ProposerParts, make_proposer
from vocabforge.decode.request import SamplingParams
from vocabforge.decode.sampling import SeededChance, TokenHistory
from vocabforge.decode.spec import MethodSpec
from vocabforge.decode.tree import DraftTree
from vocabforge.decode.verify.registry import RowVerification, verify
from vocabforge.models.hf.model import load_transformers
from vocabforge.models.kv_cache import KVCache
from vocabforge.models.lean.model import LeanModel, load_target
from vocabforge.models.target.interface import next_logits
from vocabforge.vocab.overlap.bridge import Bridge, make_bridge

pytestmark = [needs_data, pytest.mark.shared]

MODELS = DATA / "models"
NAMES = ("tli", "slem", "slrs")
TO_WORDS, TO_LETTERS = "characters draft for words", "words draft for characters"
WAYS = (TO_WORDS, TO_LETTERS)
PROMPTS = (
    "Once upon a time, there was a little girl named Lily. She loved to",
    "One day, a boy named Tom went to the park with his",
    "The little bird was sad because it could not",
    "Sara and Ben are friends. They like to play in the",
)
# Many tokens may follow: behind a word, and within one.
TEXTS = ("Lily and Tom played with the", "One day she saw a b")


@dataclass(frozen=True)
class Way:
    """A target, a draft model with another tokenizer, and what lies between them."""

    target: LeanModel
    drafter: LeanModel
    words: TextTokenizer
    drafter_words: TextTokenizer
    bridge: Bridge

    def proposer(self, name: str, **options: Any) -> Any:
        draft = MethodSpec(**options)
        return make_proposer(name, ProposerParts(self.target, self.drafter, None, draft, self.bridge))


@pytest.fixture(scope="module")
def ways(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Way]:
    place = tmp_path_factory.mktemp("pair")
    words, letters = place / "bitllama", place / "tok105"
    words.mkdir()
    packed = (MODELS / "bitllama-3M" / "model.safetensors.xz").read_bytes()
    (words / "model.safetensors").write_bytes(lzma.decompress(packed))
    shutil.copyfile(MODELS / "bitllama-3M" / "config.json", words / "config.json")
    source = MODELS / "babyllama-tok105"
    convert(source / "model5000.bin", source / "config.json", letters)
    for folder, tokenizer in ((words, MODELS / "tok512"), (letters, source)):
        shutil.copyfile(tokenizer / "tokenizer.json", folder / "tokenizer.json")
        (folder / "generation_config.json").write_text('{"bos_token_id": 1, "eos_token_id": [1, 2]}')
    return {TO_WORDS: _way(words, letters), TO_LETTERS: _way(letters, words)}


def _way(target: Path, drafter: Path) -> Way:
    models, tokenizers = [], []
    for folder in (target, drafter):
        models.append(load_target(folder))
        tokenizers.append(load_tokenizer(folder))
    rows = models[0].config.vocab_size, models[1].config.vocab_size
    return Way(*models, *tokenizers, make_bridge(*tokenizers, rows))


# Measured: mean tokens a cycle, four prompts of 20 tokens; the floors are seven tenths of what drafting adds.
MEASURED = {
    (TO_WORDS, "tli"): 1.56,
    (TO_WORDS, "slem"): 2.63,
    (TO_WORDS, "slrs"): 2.39,
    (TO_LETTERS, "tli"): 1.29,
    (TO_LETTERS, "slem"): 2.29,
    (TO_LETTERS, "slrs"): 2.29,
}


@pytest.mark.parametrize("way", WAYS)
def test_greedy_output_is_plain_decodings(way: str, ways: dict[str, Way]) -> None:
    one = ways[way]
    prompts = [encode_prompt(one.words, text) for text in PROMPTS]
    plain = Decoder(one.target)
    expected = [plain.generate(prompt, max_new_tokens=20, stop_ids=()).token_ids for prompt in prompts]
    for name in NAMES:
        drafted = Decoder(one.target, one.proposer(name, depth=1 if name == "tli" else 4))
        made = [drafted.generate(prompt, max_new_tokens=20, stop_ids=()) for prompt in prompts]
        assert [each.token_ids for each in made] == expected, name
        cycles = sum(len(each.accept_lengths) for each in made)
        mean = sum(sum(each.accept_lengths) for each in made) / cycles
        assert mean >= 1 + 0.7 * (MEASURED[way, name] - 1), name


def test_a_draft_model_by_transformers_drafts_the_same(ways: dict[str, Way]) -> None:
    one = ways[TO_WORDS]
    own = replace(one, drafter=load_transformers(Path(one.drafter_words.source).parent))
    prompt = encode_prompt(one.words, PROMPTS[0])
    for name in NAMES:
        lean, theirs = (
            Decoder(one.target, way.proposer(name, depth=3)).generate(prompt, max_new_tokens=20, stop_ids=())
            for way in (one, own)
        )
        assert lean.accept_lengths == theirs.accept_lengths, name


class Bench:
    """Drafts behind one text, again and again: the same contexts, other random numbers.

    Args:
        rows: drafted side by side, each with a stream of its own.
    """

    def __init__(self, way: Way, proposer: Any, text: str, rows: int) -> None:
        self.way, self.proposer, self.rows = way, proposer, rows
        self._tree: DraftTree | None = None
        self.prompt = encode_prompt(way.words, text)
        with torch.inference_mode():
            self.logits = next_logits(way.target, self.prompt)
            proposer.allocate(rows, 256, KVCache(1, rows, 1, 1, 1))
            for row in range(rows):
                proposer.begin(row, self.prompt[:-1])
                proposer.prefill(row, torch.tensor(self.prompt[1:]), None)
        self.roots = torch.tensor([self.prompt[-1]] * rows)

    @torch.inference_mode()
    def draft(self, seed: int) -> tuple[DraftTree, list[RowVerification]]:
        """Trees of all rows, and who judges them with the streams that drew them; undrawn ones are always the same."""
        sampling = SamplingParams(1.0)
        chances = [SeededChance(seed * self.rows + row) for row in range(self.rows)]
        if self.proposer.samples or self._tree is None:
            draws = [Draw(sampling, chance) for chance in chances] if self.proposer.samples else None
            self._tree = self.proposer.propose(self.roots, self.proposer.plan, draws, lambda part: None)
        history = TokenHistory(self.prompt, self.way.target.config.vocab_size)
        return self._tree, [RowVerification(sampling, chance, history) for chance in chances]

    @torch.inference_mode()
    def first_tokens(self, rounds: int) -> Counter[int]:
        """The first committed tokens; what stands behind a draft does not matter to them."""
        seen: Counter[int] = Counter()
        for seed in range(rounds):
            tree, judges = self.draft(seed)
            logits = self.logits.expand(self.rows, tree.tokens.shape[1], -1)
            verdicts = verify(tree, logits, judges, self.proposer.plan.levels)
            seen.update(tokens[0] for tokens in verdicts.tokens)
        return seen

    def target_distribution(self) -> dict[int, float]:
        return dict(enumerate(torch.softmax(self.logits.double(), -1).tolist()))


def bench(way: Way, name: str, text: str, **options: Any) -> Bench:
    """TLI computes every row's drafting anew, so many rows go side by side; SLRS remembers its contexts."""
    if name == "tli":
        return Bench(way, way.proposer(name, draft_sampling=True, depth=0, **options), text, 32)
    if name == "slrs":
        return Bench(way, way.proposer(name, single_token=True, **options), text, 1)
    return Bench(way, way.proposer(name, depth=3, **options), text, 1)


def check_first_tokens(ways: Mapping[str, Way], texts: Sequence[str], draws: int) -> None:
    found: dict[tuple[str, str, str], float] = {}
    for way in WAYS:
        for name in NAMES:
            for text in texts:
                one = bench(ways[way], name, text)
                seen = one.first_tokens(draws // one.rows)
                assert sum(seen.values()) >= draws - one.rows
                assert len(seen) > 5
                found[way, name, text] = p_value(seen, one.target_distribution())
    assert not holm_rejections(list(found.values()), 1e-3), found


def test_the_first_token_has_the_targets_distribution(ways: dict[str, Way]) -> None:
    check_first_tokens(ways, TEXTS[1:], 1024)


@pytest.mark.proof
def test_the_first_token_has_the_targets_distribution_in_many_draws(ways: dict[str, Way]) -> None:
    check_first_tokens(ways, TEXTS, 6_144)
