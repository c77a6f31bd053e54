"""Highest resident memory of the commands that count, prepare, train, export and measure, at a large vocabulary.

The tokenizer, texts and a tiny target with random weights are made here; every command runs in a process of its own.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import islice, product
from pathlib import Path
from string import ascii_lowercase
from typing import Annotated, Any

from pydantic import Field

from ..core.config import Positive, Size, StrictModel, apply_overrides, parse_config
from ..core.errors import VocabForgeError
from ..core.files import atomic_write_json
from ..core.progress import ProgressBar

_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_LEAST, _MOST = 256 + len(_SPECIAL) + 26, 256 + len(_SPECIAL) + 26**2 + 26**3 + 26**4
# A command in this process, and its own VmHWM: getrusage would count what its parent held at the fork.
_CHILD = """
import runpy, sys
from pathlib import Path
from vocabforge.core.provenance import peak_memory
peak = Path(sys.argv.pop(1))
try:
    if sys.argv[1:]:
        runpy.run_module("vocabforge", run_name="__main__", alter_sys=True)
    else:
        import torch, transformers
finally:
    peak.write_text(str(peak_memory()))
"""
IDLE = "torch and transformers"


class MemoryBenchConfig(StrictModel):
    """Settings of ``vocabforge bench memory``, given as ``key=value``.

    Attributes:
        vocab: V, entries of the tokenizer and rows of the target's tables.
        hidden: d of the target.
        length: tokens of a training row.
        chats: conversations that are counted, prepared and learnt.
    """

    vocab: Annotated[Size, Field(ge=_LEAST, le=_MOST)] = 262_144
    hidden: Annotated[int, Field(ge=64, multiple_of=64)] = 64
    length: Positive = 512
    chats: Annotated[int, Field(ge=100)] = 4_000


def bench_memory(settings: Sequence[str], *, repeats: int = 1) -> dict[str, Any]:
    """Run every command on inputs made here.

    Returns:
        plain JSON: the settings, ``table_mb`` (an embedding of V rows in fp32), ``row_mb`` (a row of logits in fp32),
        and ``commands``: by name ``peak_mb`` (highest resident memory), ``seconds``, of ``repeats`` the highest. The
        first is a process that does nothing but load torch and transformers.

    Raises:
        ConfigError: unknown settings.
        VocabForgeError: a command failed.
    """
    config = parse_config(MemoryBenchConfig, apply_overrides({}, settings), source="the command line")
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in _commands(Path(), config)}
    with ProgressBar("benchmark", repeats * len(runs), "runs") as bar:
        for _ in range(repeats):
            with tempfile.TemporaryDirectory() as folder:
                _make_inputs(Path(folder), config)
                for name, words in _commands(Path(folder), config).items():
                    runs[name].append(_in_a_process(name, words, Path(folder)))
                    bar.update(1, note=f"{name}: {runs[name][-1]['peak_mb']:,.0f} MB")
    return {
        **config.model_dump(),
        "table_mb": config.vocab * config.hidden * 4 / 1e6,
        "row_mb": config.vocab * 4 / 1e6,
        "commands": {
            name: {key: max(run[key] for run in found) for key in ("peak_mb", "seconds")}
            for name, found in runs.items()
        },
    }


def _commands(folder: Path, config: MemoryBenchConfig) -> dict[str, list[str]]:
    """The command line of each row, in the order in which one needs another."""
    target, chats, data, drafter = (
        folder / name for name in ("target", "chats.jsonl", "data", "run/drafter")
    )
    made = {
        IDLE: "",
        "count-freq": f"count-freq --tokenizer {target} --input {chats} --output {folder / 'counts'}",
        "count-freq --mode assistant": f"count-freq --tokenizer {target} --input {chats} --mode assistant "
        f"--output {folder / 'answers'}",
        "select-vocab": f"select-vocab --counts {folder / 'counts'} --target {target} --size {config.vocab // 8} "
        f"--fill lowest-id --output {folder / 'subset'}",
        "cluster-vocab": f"cluster-vocab --target {target} --output {folder / 'clusters'} --iterations 2",
        "prepare-data": f"prepare-data --target {target} --input {chats} --length {config.length} --output {data}",
        "train-drafter": f"train-drafter --config {folder / 'recipe.yaml'}",
        "export": f"export --drafter {drafter} --format sglang-eagle3 --vocab {folder / 'subset'} --target {target} "
        f"--output {folder / 'export'}",
        "eval": f"eval --target {target} --drafter {drafter} --benchmark {folder / 'questions.jsonl'} "
        f"--max-new-tokens 8 --warmup 0 --output {folder / 'eval'}",
    }
    return {name: words.split() for name, words in made.items()}


def _in_a_process(name: str, words: Sequence[str], folder: Path) -> dict[str, float]:
    peak, start = folder / "peak", time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, str(peak), *words], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise VocabForgeError(f"{name} failed", got=done.stderr.strip()[-2000:])
    return {"peak_mb": int(peak.read_text()) / 1e6, "seconds": time.monotonic() - start}


def _make_inputs(folder: Path, config: MemoryBenchConfig) -> None:
    """``target/`` with its tokenizer, ``chats.jsonl``, ``questions.jsonl``, ``recipe.yaml``."""
    target, pick = folder / "target", random.Random(0)
    _make_target(target, config)

    def words(number: int) -> str:
        return " ".join("".join(pick.choices(ascii_lowercase, k=pick.randint(2, 9))) for _ in range(number))

    with (folder / "chats.jsonl").open("w", encoding="utf-8") as file:
        for _ in range(config.chats):
            talk = [{"role": "user", "content": words(20)}, {"role": "assistant", "content": words(60)}]
            file.write(json.dumps({"messages": talk}) + "\n")
    question = {"question_id": 1, "category": "writing", "turns": [words(20)]}
    (folder / "questions.jsonl").write_text(json.dumps(question) + "\n", "utf-8")
    recipe = {
        "target": str(target),
        "output": str(folder / "run"),
        "data": {"prepared": str(folder / "data")},
        "optim": {"steps": 2, "batch_size": 1},
        "ttt": {"steps": 3},
        "run": {"eval_every": 2, "eval_rows": 2, "live": {"prompts": 1, "max_new_tokens": 8}},
    }
    atomic_write_json(folder / "recipe.yaml", recipe)


def _make_target(folder: Path, config: MemoryBenchConfig) -> None:
    import torch
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM

    # Tokens of two, three and four letters: a longer one is a shorter one and a letter.
    letters = ascii_lowercase
    made = ("".join(some) for size in (2, 3, 4) for some in product(letters, repeat=size))
    tokens = list(islice(made, config.vocab - 256 - len(_SPECIAL)))
    vocab = {token: at for at, token in enumerate([*sorted(pre_tokenizers.ByteLevel.alphabet()), *tokens])}
    backend = Tokenizer(models.BPE(vocab, [(token[:-1], token[-1]) for token in tokens]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in _SPECIAL])
    sizes = {"hidden_size": config.hidden, "intermediate_size": 2 * config.hidden, "num_hidden_layers": 8}
    heads = {"num_attention_heads": config.hidden // 32, "num_key_value_heads": config.hidden // 64}
    ends = {"eos_token_id": config.vocab - 1, "tie_word_embeddings": False}
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(vocab_size=config.vocab, **ends, **sizes, **heads)).save_pretrained(folder)
    backend.save(str(folder / "tokenizer.json"))
    side = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": _SPECIAL[-1],
        "chat_template": _TEMPLATE,
    }
    atomic_write_json(folder / "tokenizer_config.json", side)
