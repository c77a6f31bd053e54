"""SmolLM2-135M-Instruct and the shipped drafter in every server, in turns with our decoder.

``make smollm2-servers`` runs it: ``python -m tests.servers.smollm2 FOLDER MODEL.gguf [DOCUMENT]``. Eight questions, 48
tokens each, greedy, fp32 (llama.cpp also at the model file's own quantisation): plain, and chains of 2 and 4 draft
tokens. Each group of decoders answers question by question, in rotated order, and every group has our decoder in it, so
that a ratio is of answers given next to each other. A finished group is kept in FOLDER and not asked again.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.cli.cli_support import invoke
from tests.models.targets_table import replaced
from tests.pipeline.test_shipped_drafter import NAME, QUESTIONS
from tests.servers import test_llamacpp as llamacpp
from tests.servers.world import ROOT, python_of
from vocabforge.core.files import atomic_write
from vocabforge.core.hub import model_folder
from vocabforge.corpus.tokenizer.tokenizer import encode_prompt, load_tokenizer

START, END = "<!-- made by `make smollm2-servers` -->", "<!-- end -->"
NEW_TOKENS, DRAFTS = 48, (0, 2, 4)
HERE = Path(__file__).parent
LLAMACPP = llamacpp.PROGRAM.parent
OURS = "VocabForge"
COLUMNS = ("decoder", "draft tokens", "our output", "its plain output", "accepted length", "ours", "tokens/s")
COLUMNS = (*COLUMNS, "ours", "ratio (lowest to highest)")
Told = dict[str, Any]
Rows = dict[str, list[dict[str, Any]]]


class Worker:
    """A decoder in a process of its own (``in_turns.py``)."""

    def __init__(self, kind: str, told: Told, log: Path) -> None:
        python = python_of(kind) if kind in ("vllm", "sglang") else Path(sys.executable)
        environment = {name: os.environ[name] for name in ("PATH", "HOME")}
        environment |= {"OMP_NUM_THREADS": str(told["threads"]), "PYTHONPATH": str(ROOT)}
        self._log = log.open("w")
        self._process = subprocess.Popen(
            [str(python), str(HERE / "in_turns.py"), kind],
            env=environment | {"HF_HUB_OFFLINE": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        self.ask(told)

    def ask(self, line: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            print(json.dumps(line), file=self._process.stdin, flush=True)
            return json.loads(self._process.stdout.readline())
        except (BrokenPipeError, json.JSONDecodeError):
            self.close()
            raise SystemExit(
                f"{self._log.name}:\n{Path(self._log.name).read_text('utf-8')[-4000:]}"
            ) from None

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._log.close()


def groups(folder: Path, model: Path) -> Iterator[tuple[str, str, Told]]:
    """Title, kind and settings of each rival."""
    target = str(model_folder(model))
    served, files = folder / "sglang-eagle3", folder / "gguf"
    for made, words in ((served, ["sglang-eagle3"]), (files, ["gguf", "--with-target"])):
        if not made.is_dir():
            told = ("--drafter", NAME, "--target", model, "--dtype", "float32", "--output", made)
            done = invoke("export", *told, "--format", *words)
            assert done.exit_code == 0, done.output
    drafter, kind = files / "drafter.gguf", model.stem.rsplit(".", 1)[-1]
    small = files / f"drafter.{kind}.gguf"
    if not small.is_file():
        subprocess.run([LLAMACPP / "llama-quantize", drafter, small, kind], check=True, capture_output=True)
    yield "transformers (prompt lookup)", "transformers", {"target": target}
    yield "vLLM 0.32", "vllm", {"target": target, "drafter": str(served)}
    yield "SGLang 0.5.23 (stand-ins)", "sglang", {"target": target, "drafter": str(served)}
    program = {"program": str(LLAMACPP / "llama-server")}
    for title, one, other in (
        ("fp32", files / "target.gguf", drafter),
        (f"{kind}, drafter fp32", model.absolute(), drafter),
        (f"{kind}, drafter {kind}", model.absolute(), small),
    ):
        yield (
            f"llama.cpp 0.5.0-dev, {title}",
            "llamacpp",
            program | {"target": str(one), "drafter": str(other)},
        )


@contextmanager
def workers(title: str, kind: str, told: Told, ours: Told, folder: Path) -> Iterator[dict[str, Worker]]:
    """The rival and our decoder, each with every length of draft."""
    made: dict[str, Worker] = {}
    with ExitStack() as stack:
        for drafts in DRAFTS:
            for name, one, settings in ((OURS, "vocabforge", ours), (title, kind, told)):
                begin, log = time.perf_counter(), folder / f"{kind if name == title else 'ours'}-{drafts}.log"
                server = {"drafts": drafts, "log": str(log.with_suffix(".server.log"))}
                worker = made[f"{name} {drafts}"] = Worker(one, ours | settings | server, log)
                stack.callback(worker.close)
                print(
                    f"{name}, {drafts} draft tokens: ready after {time.perf_counter() - begin:.0f} s",
                    flush=True,
                )
        yield made


def asked(title: str, kind: str, told: Told, ours: Told, prompts: list[list[int]], folder: Path) -> Rows:
    """Answers by decoder, question by question; one untimed question first. Taken from FOLDER if they are there."""
    stored = folder / f"{title.replace(' ', '-').replace(',', '')}.json"
    identity = json.loads(json.dumps({"told": told, "ours": ours, "prompts": prompts, "drafts": DRAFTS}))
    if stored.is_file() and (kept := json.loads(stored.read_text("utf-8")))["identity"] == identity:
        return kept["rows"]
    with workers(title, kind, told, ours, folder) as made:
        rows: Rows = {name: [] for name in made}
        for number, prompt in enumerate([prompts[0], *prompts]):
            names = list(made)
            for name in names[number % len(names) :] + names[: number % len(names)]:
                answer = made[name].ask(prompt)
                rows[name] += [answer] if number else []
            print(f"{title}: question {number} of {len(prompts)}", end="\r", flush=True)
        print(flush=True)
    atomic_write(stored, json.dumps({"identity": identity, "rows": rows}).encode())
    return rows


def cells(title: str, drafts: int, rows: Rows, ends: list[int]) -> tuple[str, ...]:
    """A row of the table: a rival with one length of draft."""

    def outputs(name: str) -> list[list[int]]:
        return [before_end(one["tokens"], ends) for one in rows[name]]

    def accepted(name: str) -> str:
        passes = [one["passes"] or 0 for one in rows[name]]
        tokens = sum(len(one["tokens"]) - 1 for one in rows[name])
        return f"{tokens / sum(passes):.2f}" if drafts else "–"

    def rates(name: str) -> list[float]:
        return [len(one["tokens"]) / one["seconds"] for one in rows[name]]

    def speed(name: str) -> str:
        return (
            f"{sum(len(one['tokens']) for one in rows[name]) / sum(one['seconds'] for one in rows[name]):.1f}"
        )

    name, ours = f"{title} {drafts}", f"{OURS} {drafts}"
    their, mine, plain = outputs(name), outputs(f"{OURS} 0"), outputs(f"{title} 0")
    assert outputs(ours) == mine, "our chains must answer as our plain decoding"
    same = [sum(map(list.__eq__, their, other)) for other in (mine, plain)]
    each = [one / other for one, other in zip(rates(ours), rates(name), strict=True)]
    return (
        title,
        str(drafts) if drafts else "plain",
        *(f"{count} of {len(their)}" for count in same),
        accepted(name),
        # Plain, or with drafts of another kind: no comparison.
        accepted(ours) if drafts and not title.startswith("transformers") else "–",
        speed(name),
        speed(ours),
        f"{statistics.median(each):.2f} ({min(each):.2f}–{max(each):.2f})",
    )


def before_end(tokens: list[int], ends: list[int]) -> list[int]:
    """An answer without its end token, which decoders return or leave out."""
    return tokens[: next((at for at, token in enumerate(tokens) if token in ends), NEW_TOKENS)]


def made_table(folder: Path, model: Path, threads: int) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = load_tokenizer(model_folder(model))
    prompts = [encode_prompt(tokenizer, [{"role": "user", "content": one}]) for one in QUESTIONS]
    ends = sorted(tokenizer.eos_ids)
    folders = {"target": str(model_folder(model)), "drafter": str(model_folder(Path(NAME)))}
    ours: Told = {**folders, "threads": threads, "ends": ends}
    ours |= {"new_tokens": NEW_TOKENS}
    lines: list[tuple[str, ...]] = [COLUMNS, ("---",) * 2 + ("---:",) * (len(COLUMNS) - 2)]
    for title, kind, told in groups(folder, model):
        rows = asked(title, kind, told, ours, prompts, folder)
        lines += [cells(title, drafts, rows, ends) for drafts in DRAFTS]
    return "\n".join([START, *(f"| {' | '.join(line)} |" for line in lines), END])


def main() -> None:
    parser = argparse.ArgumentParser(description="SmolLM2 and the shipped drafter in every server.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("model", type=Path, help="the GGUF file")
    parser.add_argument("document", type=Path, nargs="?", help="a page whose table is replaced")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    told = parser.parse_args()
    begin = time.perf_counter()
    made = made_table(told.folder, told.model, told.threads)
    print(f"{made}\n{told.threads} threads, {time.perf_counter() - begin:.0f} s")
    if told.document is not None:
        told.document.write_text(replaced(told.document.read_text("utf-8"), made, START, END), "utf-8")


if __name__ == "__main__":
    main()
