"""The Qwen3 tokenizer, unpacked and loaded once."""

from __future__ import annotations

import lzma
import shutil
from pathlib import Path

import pytest

from tests.worlds import DATA
from vocabforge.corpus.tokenizer.tokenizer import TextTokenizer, load_tokenizer


@pytest.fixture(scope="session")
def qwen3_folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("qwen3")
    packed = DATA / "tokenizers" / "qwen3" / "tokenizer.json.xz"
    (folder / "tokenizer.json").write_bytes(lzma.decompress(packed.read_bytes()))
    shutil.copyfile(DATA / "tokenizers/qwen3/tokenizer_config.json", folder / "tokenizer_config.json")
    return folder


@pytest.fixture(scope="session")
def qwen3(qwen3_folder) -> TextTokenizer:
    return load_tokenizer(qwen3_folder)


@pytest.fixture(scope="session")
def qwen3_elsewhere(qwen3_folder):
    """The same tokenizer as the transformers library loads it."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(qwen3_folder)
