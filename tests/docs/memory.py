"""Peak memory of the commands at a large vocabulary, the table of docs/performance.md: ``python -m tests.docs.memory``.

The tokenizer, texts and a tiny target with random weights are made here; every command runs in a process of its own.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
from itertools import islice, product
from pathlib import Path
from string import ascii_lowercase

VOCAB, HIDDEN, LENGTH, CHATS = 262_144, 64, 512, 4_000
_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
# A process between: what Linux reports as a process's peak is at least its parent's when it was started.
_BETWEEN = """
import resource, subprocess, sys, time
began = time.monotonic()
with open("output.txt", "ab") as output:
    code = subprocess.call([sys.executable, "-m", "vocabforge", *sys.argv[1:]], stdout=output, stderr=output)
print(time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / 1e6, code)
"""


def measure(words: list[str], folder: Path) -> tuple[float, float, int]:
    """Wall seconds, peak resident MB and exit code of a command, whose output goes to ``folder/output.txt``."""
    program = [sys.executable, "-c", _BETWEEN, *words]
    seconds, megabytes, code = subprocess.check_output(program, cwd=folder, text=True).split()
    return float(seconds), float(megabytes), int(code)


def _commands(folder: Path) -> dict[str, list[str]]:
    """The command line of each row, in the order in which one needs another."""
    target, chats, data, drafter = (
        folder / name for name in ("target", "chats.jsonl", "data", "run/drafter")
    )
    made = {
        "count-freq": f"count-freq --tokenizer {target} --input {chats} --output {folder / 'counts'}",
        "count-freq --mode assistant": f"count-freq --tokenizer {target} --input {chats} --mode assistant "
        f"--output {folder / 'answers'}",
        "select-vocab": f"select-vocab --counts {folder / 'counts'} --target {target} --size {VOCAB // 8} "
        f"--fill lowest-id --output {folder / 'subset'}",
        "cluster-vocab": f"cluster-vocab --target {target} --output {folder / 'clusters'} --iterations 2",
        "prepare-data": f"prepare-data --target {target} --input {chats} --length {LENGTH} --output {data}",
        "train-drafter": f"train-drafter --config {folder / 'recipe.yaml'}",
        "export": f"export --drafter {drafter} --format sglang-eagle3 --vocab {folder / 'subset'} --target {target} "
        f"--output {folder / 'export'}",
        "eval": f"eval --target {target} --drafter {drafter} --benchmark {folder / 'questions.jsonl'} "
        f"--max-new-tokens 8 --warmup 0 --output {folder / 'eval'}",
    }
    return {name: words.split() for name, words in made.items()}


def _make_inputs(folder: Path) -> None:
    """``target/`` with its tokenizer, ``chats.jsonl``, ``questions.jsonl``, ``recipe.yaml``."""
    target, pick = folder / "target", random.Random(0)
    _make_target(target)

    def words(number: int) -> str:
        return " ".join("".join(pick.choices(ascii_lowercase, k=pick.randint(2, 9))) for _ in range(number))

    with (folder / "chats.jsonl").open("w", encoding="utf-8") as file:
        for _ in range(CHATS):
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
    (folder / "recipe.yaml").write_text(json.dumps(recipe), "utf-8")


def _make_target(folder: Path) -> None:
    import torch
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM

    # Tokens of two, three and four letters: a longer one is a shorter one and a letter.
    letters = ascii_lowercase
    made = ("".join(some) for size in (2, 3, 4) for some in product(letters, repeat=size))
    tokens = list(islice(made, VOCAB - 256 - len(_SPECIAL)))
    vocab = {token: at for at, token in enumerate([*sorted(pre_tokenizers.ByteLevel.alphabet()), *tokens])}
    backend = Tokenizer(models.BPE(vocab, [(token[:-1], token[-1]) for token in tokens]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in _SPECIAL])
    sizes = {"hidden_size": HIDDEN, "intermediate_size": 2 * HIDDEN, "num_hidden_layers": 8}
    heads = {"num_attention_heads": HIDDEN // 32, "num_key_value_heads": HIDDEN // 64}
    ends = {"eos_token_id": VOCAB - 1, "tie_word_embeddings": False}
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(vocab_size=VOCAB, **ends, **sizes, **heads)).save_pretrained(folder)
    backend.save(str(folder / "tokenizer.json"))
    side = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": _SPECIAL[-1],
        "chat_template": _TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(side), "utf-8")


def main() -> None:
    print("| command | peak, MB | seconds |\n|---|---:|---:|")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _make_inputs(folder)
        for title, words in _commands(folder).items():
            seconds, megabytes, code = measure(words, folder)
            if code != 0:
                raise SystemExit(f"{title} failed:\n{(folder / 'output.txt').read_text()[-2000:]}")
            print(f"| `{title}` | {megabytes:,.0f} | {seconds:.1f} |", flush=True)


if __name__ == "__main__":
    main()
