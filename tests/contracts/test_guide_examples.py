"""The guides' examples work: their code is executed, and the contracts of the tables hold for what it adds."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from bench.cases import OP_BENCHES
from bench.cases.types import ModelShape
from typer.testing import CliRunner

from tests.cli.cli_support import ok
from tests.contracts.guide_code import GUIDES, Guide, checks_of, fresh, install, read_guide, run
from tests.decode.proofs import TRANSFORMS, Case, Walker, exact_weights, proposer_for, reference_distribution
from tests.export.readers_support import IDS, changed, eagle3, make_tiny, write
from tests.ops.kernels_build import KERNELS, load_build
from tests.train.run_support import make_place, settings
from tests.worlds import ROOT, tiny_drafter
from vocabforge.cli.app import build_app
from vocabforge.cli.drafting.generate import generate
from vocabforge.core.config import parse_config
from vocabforge.core.journal import read_jsonl_log
from vocabforge.decode.proposers.registry import FITTING
from vocabforge.decode.verify.registry import VERIFIERS
from vocabforge.doctor.served_drafter import check_logits
from vocabforge.export.card import _READERS
from vocabforge.export.servers.registry import READERS, open_folder, read_as, reader_of
from vocabforge.layouts.registry import FORMATS, layout_of
from vocabforge.models.drafters.io import native_sizes, save_drafter
from vocabforge.models.drafters.registry import DRAFTERS
from vocabforge.models.heads.io import check_owner, load_head, owner_of
from vocabforge.models.heads.registry import HEADS, base_of, build_head
from vocabforge.models.lean.config import FAMILIES
from vocabforge.train.config import TrainConfig
from vocabforge.train.loop import train
from vocabforge.train.setup import build_trainer

pytestmark = pytest.mark.long


def test_the_guide_to_several_gpus_names_every_launcher() -> None:
    text = (GUIDES / "several-gpus.md").read_text("utf-8")
    recipes = {path.name for path in (ROOT / "recipes" / "accelerate").glob("*.yaml")}
    commands = set(re.findall(r"--config_file recipes/accelerate/(\S+)", text))
    assert set(re.findall(r"`(\w+\.yaml)`", text)) == recipes
    assert commands <= recipes
    assert len(commands) >= 5


@pytest.fixture
def int8_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The modules of the guide, and its row in the table."""
    guide = read_guide("add-a-draft-head")
    for name, value in guide.rows["HEADS"].items():
        monkeypatch.setitem(HEADS, name, value)
    return dict(install(guide, tmp_path, monkeypatch))


def test_the_draft_head_keeps_the_contract(int8_head, tmp_path, monkeypatch):
    contract = fresh("tests.contracts.test_head_contracts", monkeypatch)
    checks = list(checks_of(contract, "int8"))
    assert len(checks) > 20
    for number, check in enumerate(checks):
        run(check, tmp_path=tmp_path / str(number))


def test_the_draft_head_goes_from_a_drafter_to_the_disk_and_back(int8_head, folder, target, tmp_path):
    """The guide's script, then what ``--head`` does: the owner is checked, and the drafts are nearly the head's own."""
    drafter = tiny_drafter(target)
    prints = {"target_fingerprint": "t" * 64, "tokenizer_fingerprint": "k" * 64}
    save_drafter(tmp_path / "drafter", drafter, prints)
    int8_head["int8_head"].make(folder, tmp_path / "drafter", tmp_path / "int8")
    loaded = load_head(tmp_path / "int8", dtype=torch.bfloat16)
    owner = owner_of(loaded.artifact)
    assert (owner.target, owner.tokenizer) == ("t" * 64, "k" * 64)
    check_owner(loaded.artifact, owner, drafter="drafter")
    base = base_of(drafter)
    head = build_head(loaded.kind, base, loaded.module)
    assert {head.rows.dtype, head.scale.dtype} == {torch.int8, torch.float32}
    restored = head.rows.float() * (head.scale / 127)[:, None]
    allowed = base.weight.abs().amax(-1, keepdim=True) * (0.5 / 127 + 2**-8)
    assert bool(((restored - base.weight).abs() <= allowed).all())
    hidden = torch.randn(50, base.weight.shape[1], generator=torch.Generator().manual_seed(0))
    own = build_head("full", base)
    agreed = (head.topk(hidden, 1)[1] == own.topk(hidden, 1)[1]).float().mean()
    assert float(agreed) > 0.8


@pytest.fixture
def recurrent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Guide:
    """The guide's drafter in the tables."""
    guide = read_guide("add-a-drafter")
    for table, name in ((DRAFTERS, "DRAFTERS"), (FITTING, "FITTING")):
        for key, value in guide.rows[name].items():
            monkeypatch.setitem(table, key, value)
    install(guide, tmp_path, monkeypatch)
    return guide


def test_the_drafter_keeps_the_contract(recurrent, folder, target, tmp_path, monkeypatch):
    contract = fresh("tests.contracts.test_drafters", monkeypatch, "tests.decode.drafting")
    checks = list(checks_of(contract, "recurrent"))
    assert len(checks) > 12
    for number, check in enumerate(checks):
        run(check, folder=folder, target=target, tmp_path=tmp_path / str(number))


def test_the_drafter_is_lossless(recurrent, folder, tmp_path, monkeypatch):
    proof = fresh("tests.decode.test_lossless_drafters", monkeypatch, "tests.decode.drafting")
    checks = list(checks_of(proof, "recurrent"))
    assert {check.name for check in checks} > {"test_greedy_output_is_plain_decodings"}
    for number, check in enumerate(checks):
        run(
            check, folder=folder, tiny_folder=folder, tmp_path=tmp_path / str(number), monkeypatch=monkeypatch
        )


def test_the_drafter_is_trained_by_its_recipe_and_drafts(recurrent, int8_head, tmp_path):
    recipe = yaml.safe_load(recurrent.files["recipe.yaml"])
    parse_config(TrainConfig, {**recipe, "output": "run"}, source="the guide")
    place = make_place(tmp_path / "place")
    run_it, optim = {"live": {"prompts": 0}, "trackers": [], "eval_every": 24}, {"steps": 24}
    body = settings(place, "run", drafter=recipe["drafter"], ttt=recipe["ttt"], optim=optim, run=run_it)
    train(build_trainer(parse_config(TrainConfig, body, source="test")))
    assert native_sizes(place / "run" / "drafter").kind == "recurrent"
    rows = read_jsonl_log(place / "run" / "metrics.jsonl")
    losses = [row["ttt_loss"] for row in rows if row["kind"] == "train"]
    assert len(losses) == 24
    assert sum(losses[-6:]) < sum(losses[:6])
    # The other guide's head over this drafter, by the command that both guides give.
    int8_head["int8_head"].make(place / "target", place / "run" / "drafter", tmp_path / "int8")
    words = ["generate", "--target", place / "target", "--drafter", place / "run" / "drafter"]
    words += ["--prompt", "the cat", "--max-new-tokens", "12", "--device", "cpu", "--json"]
    outputs, app = [], build_app({"generate": generate}, ["generate"])
    for extra in ([], ["--head", tmp_path / "int8"]):
        done = ok(CliRunner().invoke(app, [str(word) for word in (*words, *extra)]))
        outputs.append(json.loads(done.stdout))
    assert "int8 head" in outputs[1]["description"]
    assert outputs[0]["token_ids"] == outputs[1]["token_ids"]


@pytest.fixture
def verifiers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The guide's verifiers in the table, and the proofs' checks as they then are; weights are fractions."""
    guide = read_guide("add-a-verifier")
    for name, value in guide.rows["VERIFIERS"].items():
        monkeypatch.setitem(VERIFIERS, name, value)
    install(guide, tmp_path, monkeypatch)
    exact_weights(monkeypatch)
    return fresh("tests.decode.proofs", monkeypatch)


def test_the_lossless_verifier_is_proved_and_the_other_left_out(verifiers: Any) -> None:
    assert "any-child" in verifiers.SAMPLERS
    assert "typical" not in verifiers.SAMPLERS
    cases = [Case(TRANSFORMS["temperature"]), Case(TRANSFORMS["all"])]
    for shape, kind in itertools.product(verifiers.TREES, ("zeros", "ties")):
        walker = Walker(verifiers.targets(kind), verifiers.FixedTree(*verifiers.TREES[shape]), "any-child")
        verifiers.check(walker, kind, cases)
        assert walker.accepted > 0
    target = verifiers.targets("zeros")
    drawn = proposer_for("eagle3", target, None, "siblings", sample=True)
    verifiers.check(Walker(target, drawn, "any-child"), "zeros", [Case(TRANSFORMS["plain"], length=2)])


def test_typical_acceptance_has_another_distribution(verifiers: Any) -> None:
    """Where a draft is likely enough nothing else is ever written; the lossless one on the same tree is exact."""
    target, case = verifiers.targets("plain"), Case(TRANSFORMS["plain"])
    tree, wanted = verifiers.TREES["the whole vocabulary"], reference_distribution(target, case)
    distributions = {
        name: Walker(target, verifiers.FixedTree(*tree), name).distribution(case)
        for name in ("typical", "any-child")
    }
    assert distributions["any-child"] == wanted
    assert sum(distributions["typical"].values()) == 1
    assert set(distributions["typical"]) < set(wanted)


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The guide's op in its four places, below a folder that has the kernels' common parts."""
    guide = read_guide("add-a-kernel")
    made = install(guide, tmp_path, monkeypatch)
    for name, value in guide.rows["OP_BENCHES"].items():
        module, function = value.split(".")
        monkeypatch.setitem(OP_BENCHES, name, getattr(made[f"bench.cases.{module}"], function))
    for shared in ("common", "emulator"):
        (tmp_path / "kernels" / shared).symlink_to(KERNELS / shared)
    return dict(made)


def test_the_op_stands_in_four_places(kernel, tmp_path, monkeypatch):
    places = fresh("tests.ops.test_four_places", monkeypatch)
    monkeypatch.setattr(places, "ROOT", tmp_path)
    monkeypatch.setattr(places, "OPS", tmp_path / "vocabforge" / "ops")
    monkeypatch.setattr(places, "KERNELS", tmp_path / "kernels")
    monkeypatch.setattr(places, "OP_BENCHES", {"int8_logits": OP_BENCHES["int8_logits"]})
    places.test_kernels_and_interfaces_name_the_same_ops()
    assert list(places.defined()) == ["int8_logits"]
    places.test_an_op_stands_in_all_places("int8_logits")
    places.test_interface_and_library_agree_on_their_arguments("int8_logits")
    kernel["tests.ops.test_int8_logits"].test_known_numbers()
    kernel["tests.ops.test_int8_logits"].test_wrong_inputs_are_refused()


def test_the_ops_benchmark_runs(kernel: dict[str, Any]) -> None:
    shape = ModelShape("tiny", 32, 64, 3, 48, 1, 2, 1, 16, small=True)
    (case,) = OP_BENCHES["int8_logits"](shape)
    inputs = case.inputs(torch.device("cpu"), torch.bfloat16, 0)
    found = case.run(inputs, "reference")
    assert found.shape == (3, 64)
    assert torch.equal(found, case.reference(inputs))


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
def test_the_kernel_is_right_on_the_emulator(kernel, tmp_path, monkeypatch):
    """Built from the guide's text; then the guide's own test, under two orders of threads."""
    build = load_build()
    monkeypatch.setattr(build, "ROOT", tmp_path / "kernels")
    monkeypatch.setattr(build, "BUILD", tmp_path / "build")
    for library in build.build_emulated(["int8_logits"]):
        torch.ops.load_library(str(library))
    checks = [one for one in checks_of(kernel["tests.ops.test_int8_logits"], None) if "emulated" in one.name]
    assert len(checks) == 8
    for seed in (1, 2):
        monkeypatch.setenv("VOCABFORGE_EMULATOR_SEED", str(seed))
        for check in checks:
            run(check, emulated=lambda name: None, schedule=seed)


@pytest.mark.proof
@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
def test_the_cpu_implementation_is_right(kernel, tmp_path, monkeypatch):
    build = load_build()
    monkeypatch.setattr(build, "ROOT", tmp_path / "kernels")
    monkeypatch.setattr(build, "BUILD", tmp_path / "build")
    library = tmp_path / "build" / "libint8_logits_cpu.so"
    build._make(library, build._units("cpu", build.op_folders()), {"variant": "cpu"}, None, None)
    torch.ops.load_library(str(library))
    module = kernel["tests.ops.test_int8_logits"]
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        given = module.inputs(5, 33, 7, dtype)
        expected = module.int8_logits(*given, backend="reference")
        torch.testing.assert_close(torch.ops.vocabforge.int8_logits(*given), expected, rtol=1e-5, atol=1e-4)


def test_the_target_family_computes_what_transformers_computes(tmp_path, monkeypatch):
    """The guide's row and cases: logits and layer outputs of named and of random configurations."""
    guide = read_guide("add-a-target-family")
    for name, traits in guide.rows["FAMILIES"].items():
        monkeypatch.setitem(FAMILIES, name, traits)
    families = fresh("tests.models.test_lean_families", monkeypatch, "tests.models.lean_support")
    families.CASES.update(guide.rows["CASES"])
    names = [name for name, (kind, _) in families.CASES.items() if kind == "seed_oss"]
    assert len(names) == 5
    for name in names:
        families.test_logits_and_layer_outputs_equal_hugging_face(name, tmp_path / name)
    families.test_tree_nodes_see_their_path_only("seed-oss", tmp_path / "tree")


@pytest.mark.parametrize("rows", [IDS, None], ids=["draft vocabulary", "the target's head"])
def test_the_server_reads_what_its_layout_writes(rows, tmp_path, monkeypatch):
    guide = read_guide("add-a-server")
    tables = {"FORMATS": FORMATS, "READERS": READERS, "_READERS": _READERS}
    assert set(guide.rows) == set(tables)
    for table, values in guide.rows.items():
        for name, value in values.items():
            monkeypatch.setitem(tables[table], name, value)
    install(guide, tmp_path, monkeypatch)
    tiny = make_tiny(tmp_path / "target")
    drafter = eagle3(tiny, rows=rows)
    path = write(tiny, drafter, "acorn-eagle3", tmp_path / "served")
    back = layout_of("acorn-eagle3").read(path, tiny.shared, 8)
    assert back.config == drafter.config
    for (name, one), (other, two) in zip(drafter.named_parameters(), back.named_parameters(), strict=True):
        assert name == other
        assert torch.equal(one, two)
    folder = open_folder(path)
    assert [name for name in READERS if reader_of(name).matches(folder)] == ["acorn"]
    served = read_as("acorn", folder, tiny.side)
    assert served.problems == []
    assert check_logits(served, back, tiny.texts()[0], "Acorn").state == "ok"
    cut = changed(path, tmp_path / "cut", tensors=lambda stored: stored.pop("merge.weight"))
    problem = read_as("acorn", open_folder(cut), tiny.side).problems[0]
    assert (problem.state, problem.check) == ("failed", "tensors")
    assert "model.fc.weight" in problem.message
