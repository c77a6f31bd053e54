"""The table of ``docs/guides/serving.md``: the demo's drafter in real servers, the same prompts, accepted lengths.

``make servers-table`` runs it, after ``make demo`` and with the environments of ``make test-servers``. Greedy, fp32,
chains of three draft tokens. An answer's last cycle is left out: the servers count what a limit or an end token cuts
from it in different ways.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.cli.cli_support import invoke
from tests.models.targets_table import replaced
from tests.servers import test_llamacpp as llamacpp
from tests.servers import test_sglang as sglang
from tests.servers.world import NEW_TOKENS, Decoded, Served, ask_runner, prompts_of, python_of
from vocabforge.corpus.tokenizer.tokenizer import load_tokenizer

START, END = "<!-- made by `make servers-table` -->", "<!-- end -->"
DRAFTS = 3
HERE = Path(__file__).parent
HEADER = ("server", "`export`", "identical outputs", "equal cycles", "accepted length", "VocabForge's")
QUARTER = "--format sglang-eagle3 --vocab SUBSET"
GGUF = "--format gguf --vocab SUBSET --with-target"
CONTEXT = "--format vllm --vocab CORE --dynamic context:256"
CORE = 128  # tokens


@dataclass(frozen=True)
class Row:
    """A server's outputs of one exported folder, and our decoder's with the same draft vocabulary."""

    server: str
    export: str
    theirs: Decoded
    ours: Decoded

    def cells(self) -> tuple[str, ...]:
        pairs = list(zip(self.theirs.lengths, self.ours.lengths, strict=True))
        cycles = [pair for their, our in pairs for pair in zip(their[:-1], our[:-1])]
        count = sum(max(len(their), len(our)) - 1 for their, our in pairs)
        same = sum(their == our for their, our in zip(self.theirs.tokens, self.ours.tokens, strict=True))
        return (
            self.server,
            f"`{self.export}`",
            f"{same} of {len(pairs)}",
            f"{sum(their == our for their, our in cycles)} of {count}",
            *(f"{sum(side) / len(side):.3f}" for side in zip(*cycles)),
        )


def rows(world: Served, folder: Path) -> Iterator[Row]:
    quarter = world.ours(world.drafter("drafter"), levels=DRAFTS, vocab=world.vocab)
    core = folder / "core"
    words = ("--counts", world.root / "counts", "--target", world.target, "--size", CORE, "--output", core)
    assert invoke("select-vocab", *words).exit_code == 0
    context = world.ours(world.drafter("drafter"), levels=DRAFTS, vocab=core, dynamic="context:256")
    folders = {export: exported(world, export, folder) for export in (QUARTER, CONTEXT)}
    for export, their in zip(folders, of_vllm(world, list(folders.values()), folder)):
        yield Row("vLLM 0.32", export, their, quarter if export == QUARTER else context)
    yield Row("SGLang 0.5.23 (stand-ins)", QUARTER, of_sglang(world, folders[QUARTER], folder), quarter)
    gguf = exported(world, GGUF, folder)
    yield Row("llama.cpp 0.5.0-dev", GGUF, of_llamacpp(world, gguf, quarter, folder), quarter)


def exported(world: Served, options: str, folder: Path) -> Path:
    output = folder / options.replace(" ", "")
    vocabs = {"SUBSET": str(world.vocab), "CORE": str(folder / "core")}
    words = [vocabs.get(word, word) for word in options.split()]
    done = invoke(
        "export", "--drafter", world.drafter("drafter"), "--target", world.target, *words, "--output", output
    )
    assert done.exit_code == 0, done.output
    return output


def of_vllm(world: Served, folders: list[Path], folder: Path) -> list[Decoded]:
    common = {"model": world.target, "prompts": world.prompts, "new_tokens": NEW_TOKENS, "side_by_side": 4}
    drafting = {"method": "eagle3", "num_speculative_tokens": DRAFTS}
    jobs = {made.name: {**common, "speculative": {**drafting, "model": made}} for made in folders}
    found = ask_runner(python_of("vllm"), HERE / "vllm_runner.py", {"jobs": jobs}, folder)
    failed = [one["error"] for one in found.values() if "error" in one]
    assert not failed, failed[0]
    return [Decoded(found[name]["tokens"], found[name]["lengths"]) for name in jobs]


def of_sglang(world: Served, made: Path, folder: Path) -> Decoded:
    engines = {"drafting": sglang.told(made, "EAGLE3", DRAFTS, 1, DRAFTS + 1)}
    request = {"target": world.target, "prompts": world.prompts, "new_tokens": NEW_TOKENS, "engines": engines}
    found = ask_runner(python_of("sglang"), HERE / "sglang_runner.py", request, folder)["drafting"]
    return Decoded(found["tokens"], found["lengths"])


def of_llamacpp(world: Served, made: Path, ours: Decoded, folder: Path) -> Decoded:
    """Its cycles begin one token later than ours (``test_llamacpp``), so the first token is taken from ours."""
    if not llamacpp.PROGRAM.exists():
        raise SystemExit("llama.cpp is not built: make test-llamacpp builds it")
    tokenizer = load_tokenizer(world.target)
    tokens, lengths = [], []
    for prompt, wanted, counts in zip(world.prompts, ours.tokens, ours.lengths, strict=True):
        text = tokenizer.decode([*prompt, wanted[0]], skip_special=False)
        found = llamacpp.ask(made / "target.gguf", made / "drafter.gguf", text, folder / "llamacpp.log")
        tokens.append([wanted[0], *(token for cycle in found for token in cycle)][: len(wanted)])
        lengths.append([len(cycle) for cycle in found][: len(counts)])
    return Decoded(tokens, lengths)


def table(world: Served, folder: Path) -> str:
    """The table in Markdown; exports and logs lie in ``folder``."""
    cells = [HEADER, ["---"] * 3 + ["---:"] * 3, *(row.cells() for row in rows(world, folder))]
    return "\n".join([START, *(f"| {' | '.join(line)} |" for line in cells), END])


def main() -> None:
    demo, document = Path(sys.argv[1]), Path(sys.argv[2])
    world = Served(demo, prompts_of(demo))
    with tempfile.TemporaryDirectory() as folder:
        made = table(world, Path(folder))
    print(made)
    document.write_text(replaced(document.read_text("utf-8"), made, START, END), "utf-8")


if __name__ == "__main__":
    main()
