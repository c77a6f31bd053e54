"""A real SGLang engine on a CPU reads our exports: same outputs, same accepted lengths.

Greedy and in fp32, one request at a time. SGLang's own: scheduler, cache, models and their loaders, draft worker, and
the attention backend for CPUs. Stand-ins in plain PyTorch (``sglang_stand_ins.py``): the compiled kernels that these
call (attention over the cache, building and verifying a tree, moving tokens and cache slots), and a torchvision stub.
Not proved here: those kernels, CUDA, CUDA graphs, several requests side by side, and temperatures above 0, which SGLang
verifies greedily on a CPU.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from tests.cli.cli_support import invoke
from tests.models.mtp_targets import make_target
from tests.servers.world import NEW_TOKENS, Decoded, Served, ask_runner, prompts_of, python_of, server_world
from tests.train.run_support import WORDS, make_place, write_config

pytestmark = pytest.mark.servers
TOKENS = 5


class Case(NamedTuple):
    """A folder for SGLang: options of ``export``, the drafter, whether it drafts over the world's draft vocabulary."""

    export: str
    drafter: str = "eagle3"
    reduced: bool = False
    algorithm: str = "EAGLE3"
    head: str = ""  # a trained draft head of the drafter
    ours: Mapping[str, Any] = MappingProxyType({})


EAGLE3 = "--format sglang-eagle3"
CASES = {
    "sglang-eagle3, full head": Case(EAGLE3),
    "sglang-eagle3, reduced head": Case(EAGLE3, reduced=True),
    "sglang-eagle3, shared head": Case(EAGLE3, "shared"),
    "eagle": Case("--format eagle --server sglang", "eagle1", algorithm="EAGLE"),
    "fr-spec": Case("--format fr-spec", "eagle1", reduced=True, algorithm="EAGLE"),
    "ranker": Case("--format vllm --shortlist 4", head="ranker", ours={"shortlist": 4}),
    "ranker, reduced head": Case(
        "--format vllm --shortlist 4", "reduced", head="ranker", ours={"shortlist": 4}
    ),
    "low-rank": Case("--format vllm", head="low-rank"),
}
CONTROL = "layer list changed"
TREES = {name: f"{name}, a tree" for name in ("sglang-eagle3, reduced head", "fr-spec", "ranker")}


@pytest.fixture(scope="module")
def world() -> Served:
    return server_world()


@pytest.fixture(scope="module")
def theirs(world: Served, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Decoded]:
    """Every case through one SGLang process that forks an engine each."""
    python, folder = python_of("sglang"), tmp_path_factory.mktemp("sglang")
    engines: dict[str, dict[str, Any]] = {"plain": {}}
    for name, case in CASES.items():
        output = folder / name.replace(" ", "-").replace(",", "")
        words = [*case.export.split(), *(("--vocab", world.vocab) if case.reduced else ())]
        words += ["--head", world.head(case.head, case.drafter)] if case.head else []
        run("export", "--drafter", world.drafter(case.drafter), *words, "--output", output)
        engines[name] = told(output, case.algorithm, TOKENS, 1, TOKENS + 1)
        if name in TREES:
            engines[TREES[name]] = told(output, case.algorithm, 4, 3, 12)
    wrong = folder / "control"
    shutil.copytree(engines["sglang-eagle3, full head"]["speculative_draft_model_path"], wrong)
    body = json.loads((wrong / "config.json").read_text("utf-8"))
    layers = body["eagle_config"]["eagle_aux_hidden_state_layer_ids"]
    body["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [layer + 1 for layer in layers]
    (wrong / "config.json").write_text(json.dumps(body), "utf-8")
    engines[CONTROL] = told(wrong, "EAGLE3", TOKENS, 1, TOKENS + 1)
    return ask(python, world.target, world.prompts, engines, folder)


def run(*words: object) -> None:
    done = invoke(*map(str, words))
    assert done.exit_code == 0, done.output


def ask(
    python: Path, target: Path, prompts: list[list[int]], engines: Mapping[str, Any], folder: Path
) -> dict[str, Decoded]:
    """What the engines make of all prompts."""
    request = {"target": target, "prompts": prompts, "new_tokens": NEW_TOKENS, "engines": engines}
    ours_too = {"SGLANG_EXTERNAL_MODEL_PACKAGE": "vocabforge.serve.sglang"}
    found = ask_runner(python, Path(__file__).with_name("sglang_runner.py"), request, folder, **ours_too)
    return {name: Decoded(one["tokens"], one["lengths"]) for name, one in found.items()}


def told(folder: Path, algorithm: str, steps: int, topk: int, size: int) -> dict[str, Any]:
    """What SGLang is told of a drafter, as its server's options are named."""
    tree = {"num_steps": steps, "eagle_topk": topk, "num_draft_tokens": size}
    settings = {"algorithm": algorithm, "draft_model_path": folder, **tree}
    for token_map in folder.glob("freq_*.pt"):
        settings["token_map"] = token_map
    return {f"speculative_{key}": value for key, value in settings.items()}


def ours(case: Case, world: Served) -> Decoded:
    settings = {**case.ours, **({"vocab": world.vocab} if case.reduced else {})}
    settings |= {"head": world.head(case.head, case.drafter)} if case.head else {}
    return world.ours(world.drafter(case.drafter), levels=TOKENS, **settings)


def agreeing(theirs: Decoded, ours: Decoded) -> list[bool]:
    """For each prompt, whether all cycles committed as many tokens; SGLang counts the last one beyond the end."""
    return [
        their[:-1] == our[:-1] and len(their) == len(our)
        for their, our in zip(theirs.lengths, ours.lengths, strict=True)
    ]


@pytest.mark.parametrize("name", CASES)
def test_sglang_drafts_as_we_do(name: str, theirs: dict[str, Decoded], world: Served) -> None:
    mine, their = ours(CASES[name], world), theirs[name]
    print(f"{name}: SGLang {their.accepted_length:.3f}, ours {mine.accepted_length:.3f} tokens a cycle")
    assert their.tokens == theirs["plain"].tokens == mine.tokens
    assert all(agreeing(their, mine)), [
        pair for pair in zip(their.lengths, mine.lengths) if pair[0] != pair[1]
    ]
    assert mine.accepted_length > 1.1, "drafts are accepted, so that equal lengths say something"


@pytest.mark.parametrize("name", TREES)
def test_a_tree_leaves_outputs_as_they_are(name: str, theirs: dict[str, Decoded]) -> None:
    """Outputs alone: from the second level on, SGLang's branches read keys by their rank, not by their ancestors."""
    tree = theirs[TREES[name]]
    assert tree.tokens == theirs["plain"].tokens
    assert tree.accepted_length > 1.1


def test_a_wrong_layer_list_shows(theirs: dict[str, Decoded], world: Served) -> None:
    mine = ours(CASES["sglang-eagle3, full head"], world)
    assert theirs[CONTROL].tokens == mine.tokens
    assert not all(agreeing(theirs[CONTROL], mine))


def test_sglang_drafts_with_a_tuned_mtp_module(tmp_path: Path) -> None:
    """Over all tokens and over a draft vocabulary. Every layer of this Qwen3.5 has full attention."""
    python, place = python_of("sglang"), make_place(tmp_path)
    target, questions, answers = place / "target", place / "question.jsonl", place / "answers"
    (target / "model.safetensors").unlink()
    full = {"layer_types": ["full_attention"] * 3, "full_attention_interval": 1, "partial_rotary_factor": 0.5}
    make_target(target, "qwen3_5_text", vocab_size=261, eos_token_id=257, max_position_embeddings=512, **full)
    draw = random.Random(0)
    rows = [{"question_id": n, "category": "c", "turns": [" ".join(draw.sample(WORDS, 3))]} for n in range(8)]
    questions.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    run(
        *("regenerate", "--target", target, "--input", questions, "--output", answers),
        *("--temperature", 0, "--max-tokens", NEW_TOKENS),
    )
    texts = answers / "responses.jsonl"
    run("count-freq", "--tokenizer", target, "--input", texts, "--output", place / "counts")
    run("select-vocab", "--counts", place / "counts", "--size", 48, "--output", place / "subset")
    recipe = write_config(
        place,
        "run",
        data={"train": [str(texts)], "heldout_documents": 1, "sequence_length": 160},
        drafter={"kind": "mtp", "init": str(target)},
        ttt={"steps": 3, "loss": "ce"},
        optim={"steps": 300, "lr": 5e-3},
        run={"eval_every": 300, "checkpoint_every": 300},
    )
    run("train-drafter", "--config", recipe)
    served, drafter = Served(place, prompts_of(place)), place / "run" / "drafter"
    options = ("--drafter", drafter, "--format", "mtp", "--with-target", "--vocab", served.vocab)
    run("export", *options, "--output", place / "out")
    reduced = told(place / "out", "NEXTN", 3, 1, 4)
    del reduced["speculative_draft_model_path"]  # the target's own folder
    whole = {key: value for key, value in reduced.items() if "token_map" not in key}
    theirs = ask(
        python, place / "out", served.prompts, {"plain": {}, "whole": whole, "reduced": reduced}, place
    )
    for name, mine in {
        "whole": served.ours(drafter, levels=3),
        "reduced": served.ours(place / "out", levels=3),
    }.items():
        print(
            f"{name}: SGLang {theirs[name].accepted_length:.3f}, ours {mine.accepted_length:.3f} tokens a cycle"
        )
        assert theirs[name].tokens == theirs["plain"].tokens == mine.tokens
        assert all(agreeing(theirs[name], mine)), (name, theirs[name].lengths, mine.lengths)
        assert mine.accepted_length > 1.1, name
    assert theirs["whole"].lengths != theirs["reduced"].lengths, "the list restricts"
