"""A tiny world in which the documented commands are executed: models, texts, and what earlier commands would have made.

Everything is made when it is first asked for, by the commands themselves where there is one.
"""

from __future__ import annotations

import itertools
import json
import lzma
import shutil
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from click.testing import Result

from tests.cli.cli_support import in_this_process, invoke
from tests.docs.doc_tables import GIVEN, SMALLER
from tests.models.mtp_targets import make_target as make_mtp_target
from tests.pipeline.recipe_targets import make_chat
from tests.worlds import ROOT, byte_tokenizer, make_target, make_vocab

_STORY = "Once upon a time a small dog sat on a hill and saw the rain over the river. "
_LAYERS = 8


def run(*words: object) -> Result:
    """A command that has to succeed.

    Raises:
        AssertionError: it did not; the message holds what it said.
    """
    with in_this_process():
        done = invoke(str(words[0]), *words[1:])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise AssertionError(f"{words[0]}: {done.exception!r}") from done.exception
    assert done.exit_code == 0, f"exit code {done.exit_code}: {done.output[-1500:]}"
    return done


class World:
    """What the names of the documents stand for; each attribute is a path in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find(self, document: str, name: str) -> Path | None:
        """What a name stands for in a document, made now if it was not yet; None where it stands for nothing."""
        for wanted in (f"{document}:{name}", name):
            for thing, names in GIVEN.items():
                if wanted in names:
                    found: Path = getattr(self, thing)
                    return found
        return None

    @cached_property
    def target(self) -> Path:
        sizes = {"num_hidden_layers": _LAYERS, "max_position_embeddings": 2048}
        return make_target(self.folder / "target", **sizes)

    @cached_property
    def small_model(self) -> Path:
        return make_target(self.folder / "small", seed=3, num_hidden_layers=2)

    @cached_property
    def other_model(self) -> Path:
        """A draft model of another vocabulary, whose end token is ``</s>``."""
        from tests.worlds import merging_tokenizer, tiny_target

        folder = self.folder / "other"
        letters = "abcdefghijklmnopqrstuvwxyzĠ"
        size = merging_tokenizer(folder, letters, ("th", "the", "on", "in", "Ġa", "Ġthe"))
        return tiny_target(
            folder, seed=4, vocab_size=size, num_hidden_layers=2, bos_token_id=0, eos_token_id=1
        )

    @cached_property
    def chats(self) -> Path:
        return make_chat(self.folder / "chats.jsonl")

    @cached_property
    def chats_parquet(self) -> Path:
        import pyarrow
        import pyarrow.parquet

        rows = [json.loads(line) for line in self.chats.read_text("utf-8").splitlines()]
        file = self.folder / "chats.parquet"
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)
        return file

    @cached_property
    def packed(self) -> Path:
        import zstandard

        file = self.folder / "part.jsonl.zst"
        file.write_bytes(zstandard.compress((json.dumps({"text": _STORY}) + "\n").encode() * 20))
        return file

    @cached_property
    def text(self) -> Path:
        file = self.folder / "held_out.txt"
        letters = "".join(map(chr, range(33, 0x250)))  # most of the bytes have a count
        file.write_text("\n\n".join(f"{number}. {_STORY * 3}\n{letters}" for number in range(20)), "utf-8")
        return file

    @cached_property
    def texts(self) -> Path:
        folder = self.folder / "texts"
        folder.mkdir()
        (folder / "all.txt").write_text(self.text.read_text("utf-8"), "utf-8")
        return folder

    @cached_property
    def stories(self) -> Path:
        file = self.folder / "stories.txt.xz"
        stories = "<|endoftext|>".join(f"{number}. {_STORY}" for number in range(120))
        file.write_bytes(lzma.compress(stories.encode()))
        return file

    @cached_property
    def questions(self) -> Path:
        rows = [
            {"question_id": number, "category": "qa", "turns": [f"Who sat on hill {number}?", "And then?"]}
            for number in range(12)
        ]
        file = self.folder / "questions.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
        return file

    @cached_property
    def benchmarks(self) -> Path:
        """A data folder with the files of the named benchmarks that the documents use."""
        folder = self.folder / "benchmarks"
        (folder / "spec_bench").mkdir(parents=True)
        shutil.copy(self.questions, folder / "spec_bench" / "question.jsonl")
        (folder / "gsm8k").mkdir()
        row = {"question": "Two dogs and one cat, how many?", "answer": "2 + 1 = 3\n#### 3"}
        (folder / "gsm8k" / "test.jsonl").write_text((json.dumps(row) + "\n") * 3, "utf-8")
        return folder

    @cached_property
    def counts(self) -> Path:
        return self._counts("counts", "--input", self.text, self.chats)

    @cached_property
    def more_counts(self) -> Path:
        return self._counts("counts_b", "--input", self.stories)

    @cached_property
    def domain_counts(self) -> Path:
        return self._counts("domains", "--domain", f"english={self.text}", "--domain", f"code={self.chats}")

    def _counts(self, name: str, *inputs: object) -> Path:
        output = self.folder / name
        run("count-freq", "--tokenizer", self.target, *inputs, "--output", output)
        return output

    @cached_property
    def subset(self) -> Path:
        return make_vocab(self.folder / "subset", self.target, size=64)

    @cached_property
    def recipe(self) -> Path:
        """Says all that training needs, at the smallest sizes."""
        file = self.folder / "recipe.yaml"
        rows = "heldout_documents: 4, heldout_prompts: 2, sequence_length: 128"
        body = self.recipe_without_data.read_text("utf-8")
        file.write_text(f"{body}data: {{train: [{self.chats}], {rows}}}\n", "utf-8")
        return file

    @cached_property
    def recipe_without_data(self) -> Path:
        file = self.folder / "without.yaml"
        file.write_text(
            f"target: {self.target}\noutput: of-recipe\n"  # in the folder of the document
            "heads: {ranker: {rank: 4, shortlist: 16}}\noptim: {steps: 2, batch_size: 1}\nttt: {steps: 2}\n",
            "utf-8",
        )
        return file

    @cached_property
    def medusa_recipe(self) -> Path:
        file = self.folder / "medusa.yaml"
        file.write_text(
            f"data: {{train: [{self.chats}]}}\ndrafter: {{kind: medusa}}\noptim: {{steps: 2}}\n", "utf-8"
        )
        return file

    @cached_property
    def mtp_target(self) -> Path:
        return byte_tokenizer(make_mtp_target(self.folder / "mtp", "glm4_moe", vocab_size=264))

    @cached_property
    def mtp_recipe(self) -> Path:
        """As the guide has it, over this world's files."""
        file = self.folder / "mtp.yaml"
        file.write_text(
            f"target: {self.mtp_target}\noutput: mtp-run\ndata: {{train: [{self.chats}]}}\n"
            f"drafter: {{kind: mtp, init: {self.mtp_target}}}\n"
            "ttt: {decay: 0.6, loss: ce}\noptim: {steps: 2}\n",
            "utf-8",
        )
        return file

    @cached_property
    def run(self) -> Path:
        output = self.folder / "run"
        run("train-drafter", "--config", self.recipe, f"output={output}", *SMALLER["train-drafter"])
        return output

    @cached_property
    def drafter(self) -> Path:
        return self.run / "drafter"

    @cached_property
    def ranker(self) -> Path:
        return self.run / "heads" / "ranker"

    @cached_property
    def router(self) -> Path:
        clusters, output = self.folder / "clusters", self.folder / "router"
        run("cluster-vocab", "--target", self.target, "--output", clusters, *SMALLER["cluster-vocab"])
        given = (
            "--target",
            self.target,
            "--drafter",
            self.drafter,
            "--clusters",
            clusters,
            "--input",
            self.chats,
        )
        run("train-router", *given, "--output", output, *SMALLER["train-router"])
        return output / "router"

    @cached_property
    def results(self) -> Path:
        return self._results("results")

    @cached_property
    def more_results(self) -> Path:
        return self._results("results-2", "--proposer", "n-gram")

    def _results(self, name: str, *more: object) -> Path:
        output = self.folder / name
        given = ("--target", self.target, "--drafter", f"eagle3={self.drafter}")
        given = (*given, "--benchmark", "spec-bench", "--data", self.benchmarks)
        run("eval", *given, *more, "--output", output, *SMALLER["eval"])
        return output

    @cached_property
    def tuned(self) -> Path:
        output = self.folder / "tuned"
        given = ("--target", self.target, "--drafter", self.drafter, "--prompts", self.questions)
        run("tune", *given, "--output", output, *SMALLER["tune"])
        return output


def names_in(words: Sequence[str]) -> list[str]:
    """What in a command may be a path to read: words, values behind ``=``, entries of lists; no outputs."""
    found = []
    for before, word in zip(["", *words], words, strict=False):
        if before in ("--output", "-o", "--save") or word.startswith("output="):
            continue
        value = word.rpartition("=")[2]
        for text in (word, value, *value.strip("[]").split(",")):
            found.append(text.rstrip("/"))
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
