"""Write ``tests/goldens/files``: a small artefact of every kind, interrupted runs, and decoded tokens.

The files were made at the tag ``layout-1`` and are not made again; later code must read them. To see how, or to
freeze another state beside this one, run in a checkout of the tag::

    PYTHONPATH=. python tests/goldens/make.py FOLDER

Only the command line is used, with relative paths, in FOLDER. Interrupted runs are processes that end without any
clean-up once a named function has returned a few times. Afterwards the checkout's folder was taken out of the
files' texts, and their hashes were made again.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import load_file, save_file

ROWS, TOKENS, END = 264, 261, 257  # rows of the embedding, tokens of the byte tokenizer, its end token
SPECIALS = ("<|bos|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>")
TEMPLATE = (
    "{%- for message in messages %}{{- '<|' + message.role + '|>\n' + message.content + '<|end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|assistant|>\n' }}{%- endif %}"
)
NOUNS = ["cat", "dog", "house", "river", "garden", "mother", "kitchen", "window", "summer", "letter"]
VERBS = ["sees", "likes", "finds", "opens", "paints", "follows"]
DRAFT = ["--device", "cpu", "--prompt-format", "raw", "--warmup", "0"]


def vocabforge(*words: object) -> None:
    """A command, in a process of its own."""
    subprocess.run([sys.executable, "-m", "vocabforge", *map(str, words)], check=True)


def interrupted(place: str, calls: int, *words: object, how: Callable[[], None] | None = None) -> None:
    """A command that ends without clean-up after ``module:Class.function`` has returned so many times."""
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) != 1, words
        return
    try:
        _count_calls(place, calls, how or (lambda: os._exit(9)))
        sys.argv = ["vocabforge", *map(str, words)]
        importlib.import_module("vocabforge.cli").main()
    except (SystemExit, KeyboardInterrupt):
        os._exit(0)
    finally:
        os._exit(1)


def _count_calls(place: str, calls: int, end: Callable[[], None]) -> None:
    module, _, path = place.partition(":")
    *owners, name = path.split(".")
    owner: Any = importlib.import_module(module)
    for one in owners:
        owner = getattr(owner, one)
    real, count = getattr(owner, name), 0

    def counting(*given: Any, **named: Any) -> Any:
        nonlocal count
        result = real(*given, **named)
        count += 1
        if count == calls:
            end()
        return result

    setattr(owner, name, counting)


def terminate() -> None:
    """What a cluster sends before it takes the machine away: the run writes a checkpoint and ends."""
    os.kill(os.getpid(), signal.SIGTERM)


def sentences(seed: int, count: int) -> list[str]:
    draw = random.Random(seed)
    return [f"the {draw.choice(NOUNS)} {draw.choice(VERBS)} the {draw.choice(NOUNS)}." for _ in range(count)]


def write_rows(name: str, rows: list[Any]) -> None:
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


def write_texts() -> None:
    write_rows("texts.jsonl", [{"text": " ".join(sentences(n, 3))} for n in range(24)])
    write_rows("few.jsonl", [{"text": " ".join(sentences(n, 2))} for n in range(5)])
    pairs = [(f"What does {line[:-1]}?", line) for line in sentences(7, 4)]
    chats = [[{"role": "user", "content": a}, {"role": "assistant", "content": b}] for a, b in pairs]
    write_rows("chats.jsonl", [{"messages": chat} for chat in chats])
    asked = [" ".join(sentences(50 + n, 1))[: 9 + 3 * n] for n in range(4)]
    rows = [
        {"question_id": n, "category": "qa", "turns": [one, "the "][: 1 + n % 2]}
        for n, one in enumerate(asked)
    ]
    write_rows("questions.jsonl", rows)
    Path("part-a.txt").write_text("\n".join(sentences(1, 40)), "utf-8")
    Path("part-b.txt").write_text("\n".join(sentences(2, 40)), "utf-8")


def byte_tokenizer(folder: str) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({character: at for at, character in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(name, normalized=False) for name in SPECIALS])
    _save_tokenizer(folder, backend, TEMPLATE)


def word_tokenizer(folder: str) -> int:
    """Byte-level BPE with merges; returns its size."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|end|>"],
        show_progress=False,
    )
    backend.train_from_iterator(sentences(0, 200), trainer)
    _save_tokenizer(folder, backend, None)
    return backend.get_vocab_size()


def _save_tokenizer(folder: str, backend: Any, template: str | None) -> None:
    Path(folder).mkdir(parents=True)
    backend.save(f"{folder}/tokenizer.json", pretty=False)
    side = {"eos_token": "<|end|>", "chat_template": template}
    Path(folder, "tokenizer_config.json").write_text(json.dumps(side), "utf-8")


def train_model(folder: str, rows: int, end: int, layers: int, steps: int, width: int, tied: bool) -> None:
    """A Llama that has learnt the sentences a little."""
    from tokenizers import Tokenizer
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=rows,
        hidden_size=width,
        intermediate_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // 8,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=256,
        bos_token_id=None,
        eos_token_id=end,
        tie_word_embeddings=tied,
        initializer_range=0.1,
    )
    model, backend = LlamaForCausalLM(config), Tokenizer.from_file(f"{folder}/tokenizer.json")
    optimizer = torch.optim.AdamW(model.parameters(), lr=8e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, steps)
    for step in range(steps):
        lines = [backend.encode(" ".join(sentences(1000 + 16 * step + n, 3))).ids[:48] for n in range(16)]
        batch = torch.tensor([line + [end] * (48 - len(line)) for line in lines])
        loss = model(input_ids=batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    print(folder, "loss", float(loss))
    model.save_pretrained(folder)
    Path(folder, "generation_config.json").unlink(missing_ok=True)


def make_models() -> None:
    byte_tokenizer("target")
    train_model("target", ROWS, END, layers=4, steps=500, width=24, tied=False)
    shutil.copytree("target", "small", ignore=shutil.ignore_patterns("*.safetensors", "config.json"))
    train_model("small", ROWS, END, layers=1, steps=300, width=16, tied=True)
    size = word_tokenizer("other")
    train_model("other", size, 0, layers=1, steps=300, width=16, tied=True)


def make_vocabularies() -> None:
    count = ("count-freq", "--tokenizer", "target", "--domain", "a=part-a.txt", "--domain", "b=part-b.txt")
    vocabforge(*count, "--output", "counts")
    interrupted("vocabforge.vocab.counts.shards:PartialResults.save", 1, *count, "--output", "counting")
    vocabforge("count-freq", "--tokenizer", "target", "--input", "texts.jsonl", "--output", "runs/more")
    vocabforge("merge-freq", "counts", "runs/more", "--output", "merged")
    select = ("select-vocab", "--counts", "counts", "--target", "target", "--fill", "lowest-id")
    exports = [word for name in ("fr-spec", "d2t", "text", "counts-text") for word in ("--export", name)]
    vocabforge(*select, "--size", 40, "--output", "subset", *exports)
    schedule = ("--schedule", "decay", "--k-max", 40, "--k-min", 12, "--steps", 5)
    vocabforge(*select, *schedule, "--output", "scheduled")
    vocabforge("cluster-vocab", "--target", "target", "--clusters", 8, "--output", "clusters")
    vocabforge("compare-vocab", "target", "other", "--input", "part-a.txt", "--output", "overlap")


def make_data() -> None:
    vocabforge(
        *("prepare-data", "--target", "target", "--input", "chats.jsonl", "--length", 64),
        *("--heldout-documents", 1, "--output", "prepared"),
    )
    regenerate = ("regenerate", "--target", "target", "--input", "chats.jsonl", "--max-tokens", 8)
    local = ("--device", "cpu", "--empty", "keep", "--batch-size", 1)
    vocabforge(*regenerate, *local, "--output", "responses")
    log = "vocabforge.corpus.regenerate.log:AnswerLog.add"
    interrupted(log, 2, *regenerate, *local, "--output", "regenerating")


RECIPE: dict[str, Any] = {
    "target": "target",
    "data": {"train": ["texts.jsonl"], "heldout_documents": 3, "heldout_prompts": 2, "sequence_length": 64},
    "optim": {"steps": 120, "batch_size": 4, "lr": 6e-3},
    "ttt": {"steps": 3},
    "run": {
        "device": "cpu",
        "threads": 1,
        "mixed_precision": "no",
        "log_every": 40,
        "eval_every": 120,
        "checkpoint_every": 1000,
        "keep": 1,
        "live": {"prompts": 0},
        "trackers": [],
    },
}


def write_recipe(name: str, drafter: dict[str, Any], **sections: Any) -> str:
    values = {**RECIPE, "drafter": drafter}
    for section, changes in sections.items():
        values[section] = {**values.get(section, {}), **changes}
    Path(name).write_text(yaml.safe_dump(values), "utf-8")
    return name


def make_drafters() -> None:
    """The drafters of the runs; of the runs themselves only one that was interrupted stays."""
    eagle3 = {"aux_layers": [0, 1, 2], "intermediate_size": 24, "head": "own", "vocab": "subset"}
    full = {"aux_layers": [0, 1, 2], "intermediate_size": 24}
    heads = {"ranker": {"rank": 4, "shortlist": 16}, "low_rank": {"rank": 6}}
    recipes = {
        "eagle3": write_recipe("eagle3.yaml", full, heads=heads),
        "reduced": write_recipe("reduced.yaml", eagle3),
        "eagle1": write_recipe("eagle1.yaml", {"kind": "eagle1", "intermediate_size": 24}, ttt={"steps": 1}),
        "medusa": write_recipe("medusa.yaml", {"kind": "medusa", "medusa_heads": 2}, ttt={"steps": 1}),
    }  # fmt: skip
    for name, recipe in recipes.items():
        vocabforge("train-drafter", "--config", recipe, f"output=runs/{name}")
        shutil.copytree(f"runs/{name}/drafter", f"drafters/{name}")
    shutil.copytree("runs/eagle3/heads", "heads")
    step = "vocabforge.train.loop:take_step"
    interrupted(
        step, 3, "train-drafter", "--config", "eagle3.yaml", "output=training", "optim.steps=6", how=terminate
    )
    vocabforge(
        *("capture", "--config", "eagle3.yaml", "data.train=[few.jsonl]", "data.heldout_documents=1"),
        *("output=runs/unused", "--output", "captured", "--store-dtype", "bfloat16", "--yes"),
    )
    router = (
        *("train-router", "--target", "target", "--drafter", "drafters/eagle3", "--clusters", "clusters"),
        *("--input", "texts.jsonl", "data.heldout_documents=3", "data.sequence_length=64", "router.steps=3"),
        *("optim.batch_size=2", "run.device=cpu"),
    )
    vocabforge(*router, "optim.steps=40", "--output", "runs/router")
    shutil.copytree("runs/router/router", "heads/router")
    step = "vocabforge.train.heads.router:RouterTrainer.take_step"
    interrupted(step, 3, *router, "optim.steps=6", "--output", "routing", how=terminate)


def make_exports() -> None:
    export = ("export", "--target", "target")
    reduced, eagle1 = ("--drafter", "drafters/reduced"), ("--drafter", "drafters/eagle1")
    for name in ("sglang-eagle3", "speculators-eagle3"):
        vocabforge(*export, *reduced, "--format", name, "--output", f"exports/{name}")
    small = ("--dtype", "bfloat16", "--format")
    vocabforge(*export, *eagle1, *small, "eagle", "--output", "exports/eagle-sglang")
    vocabforge(*export, *eagle1, "--vocab", "subset", *small, "fr-spec", "--output", "exports/fr-spec")
    # vLLM has no place for fc's bias: the same drafter without one.
    shutil.copytree("exports/eagle-sglang", "runs/no-bias", ignore=shutil.ignore_patterns("manifest.json"))
    tensors = load_file("runs/no-bias/model.safetensors")
    save_file({**tensors, "fc.bias": torch.zeros_like(tensors["fc.bias"])}, "runs/no-bias/model.safetensors")
    no_bias = ("--drafter", "runs/no-bias", "--server", "vllm")
    vocabforge(*export, *no_bias, *small, "eagle", "--output", "exports/eagle-vllm")
    vocabforge(
        *export, "--drafter", "exports/sglang-eagle3", "--format", "native", "--output", "exports/native"
    )


def decoding_recipe(name: str, methods: dict[str, Any]) -> str:
    named = {label: {"control": "fixed", **method} for label, method in methods.items()}
    Path(name).write_text(yaml.safe_dump({"target": "target", "methods": named}, sort_keys=False), "utf-8")
    return name


def drafter_of(name: str) -> dict[str, str]:
    return {"drafter": f"drafters/{name}"}


TREE = {"depth": 2, "topk": 3, "total_nodes": 8}
STATIC = {"tree": "static", "tree_file": "tree.json"}
GREEDY: dict[str, Any] = {
    "eagle3": {**drafter_of("eagle3"), **TREE},
    "eagle3-chain": {**drafter_of("eagle3"), "tree": "chain", "depth": 2},
    "eagle3-static": {**drafter_of("eagle3"), **STATIC},
    "eagle3-adaptive": {**drafter_of("eagle3"), **TREE, "control": "adaptive"},
    "reduced": {**drafter_of("reduced"), **TREE},
    "static-head": {**drafter_of("eagle3"), **TREE, "vocab": "subset"},
    "scheduled": {**drafter_of("eagle3"), **TREE, "vocab": "scheduled"},
    "context": {**drafter_of("eagle3"), **TREE, "vocab": "scheduled", "dynamic": "context:20"},
    "hybrid": {
        **drafter_of("eagle3"),
        **TREE,
        "vocab": "scheduled",
        "head": "heads/ranker",
        "dynamic": "ranker:8",
    },
    "ranker": {**drafter_of("eagle3"), **TREE, "head": "heads/ranker", "shortlist": 12, "rows": "shared"},
    "low-rank": {**drafter_of("eagle3"), **TREE, "head": "heads/low-rank"},
    "router": {**drafter_of("eagle3"), **TREE, "head": "heads/router", "budget": "decay:6:2"},
    "eagle1": {**drafter_of("eagle1"), **TREE, "proposer": "eagle1"},
    "eagle2": {**drafter_of("eagle1"), **TREE, "proposer": "eagle2"},
    "medusa": {**drafter_of("medusa"), "proposer": "medusa", "tree": "static"},
    "n-gram": {"proposer": "n-gram", "ngram": "2:3"},
    "early-exit": {"proposer": "early-exit", "exit_layers": 3, "depth": 2},
    "draft-model": {"drafter": "small", "proposer": "draft-model", "depth": 2},
    "tli": {"drafter": "other", "proposer": "tli", "overlap": "overlap"},
    "slem": {"drafter": "other", "proposer": "slem"},
    "slrs": {"drafter": "other", "proposer": "slrs", "look_ahead": 2},
    "served": {"drafter": "exports/speculators-eagle3", **TREE},
}
CHAIN = {"tree": "chain", "depth": 2}
SAMPLED: dict[str, Any] = {
    "match": {**drafter_of("eagle3"), **TREE, "verifier": "match"},
    "point": {**drafter_of("eagle3"), **TREE, "verifier": "point"},
    "residual": {**drafter_of("eagle3"), **CHAIN, "draft_sampling": True, "verifier": "residual"},
    "residual-tree": {**drafter_of("eagle3"), **STATIC, "draft_sampling": True},
    "reduced-point": {**drafter_of("reduced"), **TREE, "verifier": "point"},
    "ranker-residual": {**drafter_of("eagle3"), **CHAIN, "head": "heads/ranker", "draft_sampling": True},
    "router-match": {**drafter_of("eagle3"), **TREE, "head": "heads/router", "budget": "4"},
    "draft-model-residual": {"drafter": "small", "proposer": "draft-model", **CHAIN, "draft_sampling": True},
    "medusa-match": {**drafter_of("medusa"), "proposer": "medusa", "tree": "static"},
    "n-gram-point": {"proposer": "n-gram", "ngram": "2:3", "verifier": "point"},
    "tli-residual": {
        "drafter": "other", "proposer": "tli", "overlap": "overlap", **CHAIN, "draft_sampling": True,
    },
    "slrs-sampled": {"drafter": "other", "proposer": "slrs"},
}  # fmt: skip
RUNS = {
    "greedy": ["--temperature", "0"],
    "sampled": ["--temperature", "0.8", "--top-p", "0.95", "--seed", "3"],
    "warm": ["--temperature", "1.2", "--sampling-top-k", "20", "--repetition-penalty", "1.1", "--seed", "5"],
}


def make_evaluations() -> None:
    Path("tree.json").write_text("[[0], [1], [0, 0], [0, 1], [0, 0, 0]]", "utf-8")
    recipes = {
        "greedy": decoding_recipe("greedy.yaml", GREEDY),
        "sampled": decoding_recipe("sampled.yaml", SAMPLED),
    }
    ask = ("eval", "--benchmark", "questions.jsonl", "--max-new-tokens", 24, *DRAFT)
    tokens = {}
    for name, options in RUNS.items():
        recipe = recipes["greedy" if name == "greedy" else "sampled"]
        vocabforge(*ask, "--recipe", recipe, *options, "--output", f"runs/eval-{name}")
        tokens[name] = {"recipe": recipe, "options": options, "methods": decoded(Path(f"runs/eval-{name}"))}
    text = json.dumps(tokens).replace('"questions": ', '\n"questions": ').replace('"turns": ', '\n "turns": ')
    Path("tokens.json").write_text(text + "\n", "utf-8")
    few = ("eval", "--benchmark", "questions.jsonl", "--max-new-tokens", 8, *DRAFT)
    pair = ("--target", "target", "--drafter", "drafters/reduced", "--dialect", "fr-spec")
    pair += ("--tree", "dynamic", "--control", "fixed")
    vocabforge(*few, *pair, "--output", "evaluation")
    interrupted("vocabforge.evaluate.run.journal:Journal.add", 3, *few, *pair, "--output", "evaluating")


def decoded(folder: Path) -> dict[str, Any]:
    """Method -> question -> token ids and accepted lengths of each turn."""
    found: dict[str, Any] = {}
    keys = ("token_ids", "accept_lengths")
    for file in sorted(folder.glob("details/*.jsonl")):
        rows = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
        found[file.stem] = {
            str(row["question_id"]): [*map(list, zip(*(row["choices"][0][key] for key in keys)))]
            for row in rows
        }
    return found


def make_tuned() -> None:
    vocabforge(
        *("tune", "--target", "target", "--drafter", "drafters/eagle3", "--prompts", "questions.jsonl"),
        *(
            "--vocab",
            "subset",
            "--head",
            "heads/ranker",
            "--depth",
            1,
            "--topk",
            2,
            "--total-nodes",
            6,
        ),
        *("--max-new-tokens", 8, "--seconds", 40, "--device", "cpu", "--prompt-format", "raw"),
        *("--output", "tuned"),
    )
    Path("tuned", "tune.json").unlink()
    shutil.rmtree("tuned/speeds")
    recipe = Path("tuned/recipe.yaml")
    recipe.write_text(recipe.read_text("utf-8").replace(f"{Path.cwd()}/", ""), "utf-8")


def _below(name: str) -> Path:
    Path(name).mkdir(exist_ok=True)
    return Path(name)


def main(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    os.chdir(folder)
    os.environ["OMP_NUM_THREADS"] = "1"
    steps = (write_texts, make_models, make_vocabularies, make_data, make_drafters, make_exports)
    for step in (*steps, make_evaluations, make_tuned):
        print("==", step.__name__, flush=True)
        step()
    shutil.rmtree("runs")
    for left in Path().glob(".*"):  # of the process that was killed: a lock and an unfinished output
        shutil.rmtree(left) if left.is_dir() else left.unlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
