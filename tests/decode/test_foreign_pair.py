"""Two published models with two tokenizers (512 BPE tokens, 105 characters), each drafting for the other."""

from __future__ import annotations

import lzma
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.models.llama2c import convert
from tests.worlds import DATA, needs_data
from vocabforge.corpus.tokenizer.tokenizer import TextTokenizer, encode_prompt, load_tokenizer
from vocabforge.decode.engine import Decoder
from vocabforge.decode.proposers.registry import ProposerParts, make_proposer
from vocabforge.decode.spec import MethodSpec
from vocabforge.models.hf.model import load_transformers
from vocabforge.models.lean.model import LeanModel, load_target
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
