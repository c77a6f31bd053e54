"""A tiny world in which the documented commands are executed: models, texts, and what earlier commands would have made.

Everything is made when it is first asked for, by the commands themselves where there is one (``doc_tables.py``).
"""

from __future__ import annotations

import itertools
import json
import lzma
import shutil
from collections.abc import Sequence
from pathlib import Path
from string import Template

from click.testing import Result

from tests.cli.cli_support import in_this_process, invoke
from tests.docs.doc_tables import COMMANDS, GIVEN, RECIPES, SMALLER
from tests.models.mtp_targets import make_target as make_mtp_target
from tests.pipeline.recipe_targets import make_chat
from tests.worlds import ROOT, byte_tokenizer, make_target, merging_tokenizer, tiny_target

_STORY = "Once upon a time a small dog sat on a hill and saw the rain over the river. "


def run(*words: object) -> Result:
    """A command that has to succeed."""
    with in_this_process():
        done = invoke(str(words[0]), *words[1:])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise AssertionError(f"{words[0]}: {done.exception!r}") from done.exception
    assert done.exit_code == 0, f"exit code {done.exit_code}: {done.output[-1500:]}"
    return done


class World:
    """What the names of the documents stand for: ``world["run/drafter"]`` is a path, made when it is asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._made: dict[str, Path] = {}

    def find(self, document: str, name: str) -> Path | None:
        """What a name stands for in a document; None where it stands for nothing."""
        for wanted in (f"{document}:{name}", name):
            for thing, names in GIVEN.items():
                if wanted in names:
                    return self[thing]
        return None

    def __getitem__(self, name: str) -> Path:
        thing, _, inside = name.partition("/")
        if thing not in self._made:
            self._made[thing] = self._make(thing)
        return self._made[thing] / inside

    def _make(self, thing: str) -> Path:
        place = self.folder / thing
        if thing in COMMANDS:
            words = Template(COMMANDS[thing]).substitute(self).split()  # type: ignore[arg-type]
            output = [f"output={place}"] if words[0] == "train-drafter" else ["--output", place]
            run(*words, *output, *SMALLER.get(words[0], ()))
            return place
        if thing in RECIPES:
            place = place.with_suffix(".yaml")
            place.write_text(Template(RECIPES[thing]).substitute(self), "utf-8")  # type: ignore[arg-type]
            return place
        made: Path = getattr(self, f"_{thing}")(place)
        return made

    def _target(self, place: Path) -> Path:
        return make_target(place, num_hidden_layers=8, max_position_embeddings=2048)

    def _small_model(self, place: Path) -> Path:
        return make_target(place, seed=3, num_hidden_layers=2)

    def _other_model(self, place: Path) -> Path:
        """A draft model of another vocabulary, whose end token is ``</s>``."""
        words = ("th", "the", "on", "in", "Ġa", "Ġthe")
        size = merging_tokenizer(place, "abcdefghijklmnopqrstuvwxyzĠ", words)
        return tiny_target(
            place, seed=4, vocab_size=size, num_hidden_layers=2, bos_token_id=0, eos_token_id=1
        )

    def _mtp_target(self, place: Path) -> Path:
        return byte_tokenizer(make_mtp_target(place, "glm4_moe", vocab_size=264))

    def _chats(self, place: Path) -> Path:
        return make_chat(place.with_suffix(".jsonl"))

    def _chats_parquet(self, place: Path) -> Path:
        import pyarrow
        import pyarrow.parquet

        rows = [json.loads(line) for line in self["chats"].read_text("utf-8").splitlines()]
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), place)
        return place

    def _packed(self, place: Path) -> Path:
        import zstandard

        file = place.with_suffix(".jsonl.zst")
        file.write_bytes(zstandard.compress((json.dumps({"text": _STORY}) + "\n").encode() * 20))
        return file

    def _text(self, place: Path) -> Path:
        letters = "".join(map(chr, range(33, 0x250)))  # most of the bytes have a count
        paragraphs = (f"{number}. {_STORY * 3}\n{letters}" for number in range(20))
        place.with_suffix(".txt").write_text("\n\n".join(paragraphs), "utf-8")
        return place.with_suffix(".txt")

    def _texts(self, place: Path) -> Path:
        place.mkdir()
        shutil.copy(self["text"], place / "all.txt")
        return place

    def _stories(self, place: Path) -> Path:
        file = place.with_suffix(".txt.xz")
        stories = "<|endoftext|>".join(f"{number}. {_STORY}" for number in range(120))
        file.write_bytes(lzma.compress(stories.encode()))
        return file

    def _questions(self, place: Path) -> Path:
        rows = [
            {"question_id": number, "category": "qa", "turns": [f"Who sat on hill {number}?", "And then?"]}
            for number in range(12)
        ]
        file = place.with_suffix(".jsonl")
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
        return file

    def _benchmarks(self, place: Path) -> Path:
        """A data folder with the files of the named benchmarks that the documents use."""
        (place / "spec_bench").mkdir(parents=True)
        shutil.copy(self["questions"], place / "spec_bench" / "question.jsonl")
        (place / "gsm8k").mkdir()
        row = {"question": "Two dogs and one cat, how many?", "answer": "2 + 1 = 3\n#### 3"}
        (place / "gsm8k" / "test.jsonl").write_text((json.dumps(row) + "\n") * 3, "utf-8")
        return place


def names_in(words: Sequence[str]) -> list[str]:
    """What in a command may be a path to read: words, values behind ``=``, entries of lists; no outputs."""
    found = []
    for before, word in zip(["", *words], words, strict=False):
        if before in ("--output", "-o", "--save") or word.startswith("output="):
            continue
        value = word.rpartition("=")[2]
        found += [text.rstrip("/") for text in (word, value, *value.strip("[]").split(","))]
    return list(dict.fromkeys(found))


def outputs_in(words: Sequence[str]) -> list[str]:
    """What a command is to write."""
    named = [word for before, word in itertools.pairwise(words) if before in ("--output", "-o", "--save")]
    return named + [word.partition("=")[2] for word in words if word.startswith("output=")]


def provide(world: World, document: str, words: Sequence[str], place: Path) -> None:
    """Put what the command reads, and nothing has made yet, into ``place``; take away what it is to write."""
    if not (place / "recipes").exists():
        (place / "recipes").symlink_to(ROOT / "recipes")
    for name in outputs_in(words):
        old = place / name.rstrip("/")
        if old.is_symlink() or old.is_file():
            old.unlink()
        elif old.is_dir():
            shutil.rmtree(old)
    for name in names_in(words):
        file = name.replace("**", "a").replace("*", "part")
        # `tuned/recipe.yaml` is in `tuned`, which the world may have.
        parents = ["/".join(file.split("/")[:end]) for end in range(1, file.count("/") + 1)]
        for wanted in [name, *parents]:
            here = place / wanted.replace("**", "a").replace("*", "part")
            if (place / file).exists() or here.exists():
                continue
            thing = world.find(document, wanted)
            if thing is not None:
                here.parent.mkdir(parents=True, exist_ok=True)
                here.symlink_to(thing)
