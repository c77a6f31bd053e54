"""llama.cpp runs our drafters: tokens and cycles are ours, and its converter writes what ``export`` writes.

``make test-llamacpp`` builds llama.cpp's ``llama-speculative-simple``. What its sources (0.5.0-dev) do otherwise:

- It drafts before the last token of the prompt is through the target; our decoder takes the answer's first token from
  the prompt's pass. So each prompt goes there with our first token behind it.
- A cycle accepts no draft token after an end token, unless the end token is the chain's last
  (``common_sampler_sample_and_accept_n``). Our accepted lengths are counted before a stop cuts the tokens.
- Its logger is never freed: what the logging thread has not written is lost at the exit (``common_log_main``). So a run
  whose log ends too early is repeated, and tokens are read from the log: text on stdout goes the same way.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.cli_support import invoke
from tests.servers.world import NEW_TOKENS, ROOT, Decoded, Served, server_world
from tests.worlds import make_drafter, tiny_target
from vocabforge.corpus.tokenizer.tokenizer import load_tokenizer

gguf = pytest.importorskip("gguf", reason="the extra gguf is not installed")
pytestmark = pytest.mark.servers

FOLDER = ROOT / ".venv" / "servers" / "llamacpp"
SOURCES = FOLDER / "llama.cpp"
PROGRAM = SOURCES / "build" / "bin" / "llama-speculative-simple"
LEVELS = 3
DRAFTING = f"--spec-type draft-eagle3 --spec-draft-n-max {LEVELS}"
TRIES = 20
# A draft token, or what a cycle has made of them.
_CYCLE = re.compile(
    r"draft candidate +0, pos +\d+: +(\d+) |accepted (\d+)/\d+ draft tokens, the last target token is: \((\d+)\)"
)
# Its table of tokenizers goes by the ids of a text, so it cannot know one that was trained here.
_CONVERT = """
import runpy, sys
sys.argv = sys.argv[1:]
sys.path.insert(0, sys.argv[0])
from conversion.base import TextModel
TextModel.get_vocab_base_pre = lambda self, tokenizer: "qwen2"
runpy.run_path(sys.argv[0] + "/convert_hf_to_gguf.py", run_name="__main__")
"""
# name -> drafter of the world, whether its head is cut to the draft vocabulary
CASES = {"full": ("eagle3", False), "reduced": ("eagle3", True), "shared": ("shared", False)}


@pytest.fixture(scope="module")
def world() -> Served:
    if not PROGRAM.exists():
        pytest.skip("llama.cpp is not built: make test-llamacpp builds it")
    return server_world()


@pytest.fixture(scope="module")
def folders(world: Served, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every case as ``--format gguf``, the target beside the first, and as ``sglang-eagle3`` ("NAME hf")."""
    root = tmp_path_factory.mktemp("llamacpp")
    for name, (drafter, cut) in CASES.items():
        words = ["--drafter", world.drafter(drafter), "--target", world.target]
        words += ["--vocab", world.vocab] if cut else []
        beside = ["--with-target"] if name == "full" else []
        for ending, options in (("", ["gguf", *beside]), (" hf", ["sglang-eagle3"])):
            done = invoke("export", *words, "--output", root / f"{name}{ending}", "--format", *options)
            assert done.exit_code == 0, done.output
    return {path.name: path for path in root.iterdir()}


def convert(source: Path, output: Path, *more: object) -> Path:
    """What ``convert_hf_to_gguf.py`` makes of a folder."""
    command = [
        sys.executable,
        "-c",
        _CONVERT,
        SOURCES,
        source,
        "--outtype",
        "f32",
        "--outfile",
        output,
        *more,
    ]
    variables = os.environ | {"PYTHONPATH": str(FOLDER / "converter")}
    done = subprocess.run(list(map(str, command)), env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return output


def run(
    target: Path, drafter: Path, prompt: str, log: Path, until: str, *, drafting: str = DRAFTING
) -> tuple[int, str]:
    """The program's exit code and its log, from a run whose log came as far as ``until``."""
    options = (
        f"{drafting} --temp 0 -n {NEW_TOKENS + 32} -c 1024 -b 512 -ub 512 "
        "-fa off -t 1 -ctk f32 -ctv f32 -ctkd f32 -ctvd f32 --no-escape -fit off -v"
    )
    command = [str(PROGRAM), "-m", str(target), "-md", str(drafter), *options.split(), "-p", prompt]
    for _ in range(TRIES):
        with log.open("w") as stream:
            done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=stream, check=False)
        told = log.read_bytes().decode("utf-8", "replace")
        if until in told:
            return done.returncode, told
    raise AssertionError(f"{TRIES} logs without {until!r}; exit code {done.returncode}: {told[-4000:]}")


def ask(target: Path, drafter: Path, prompt: str, log: Path) -> list[list[int]]:
    """The tokens that each cycle committed, the target's own included."""
    code, told = run(target, drafter, prompt, log, "n_accept  =")  # a line behind the last cycle
    assert code == 0, told[-4000:]
    cycles, drafted = [], []
    for draft, accepted, last in _CYCLE.findall(told):
        if draft:
            drafted.append(int(draft))
        else:
            cycles.append([*drafted[: int(accepted)], int(last)])
            drafted = []
    return cycles


def compare(world: Served, drafter: Path, target: Path, ours: Decoded, log: Path) -> tuple[int, int, int]:
    """Prompts with our tokens, prompts with our list of accepted lengths, and the number of cycles."""
    tokenizer = load_tokenizer(world.target)
    same_tokens = same_lengths = count = 0
    for prompt, tokens, lengths in zip(world.prompts, ours.tokens, ours.lengths):
        found = ask(target, drafter, tokenizer.decode([*prompt, tokens[0]], skip_special=False), log)
        ended, wanted = tokens[-1] in tokenizer.eos_ids, list(lengths)
        kept = len(tokens) - 1 - sum(lengths[:-1])  # of our last cycle
        if ended and kept < LEVELS:
            wanted[-1] = kept
        same_tokens += [token for cycle in found for token in cycle][: len(tokens) - 1] == tokens[1:]
        if not ended:  # by our limit; its own comes later
            found = found[: len(wanted)]
            if found[-1][-1] in tokenizer.eos_ids:  # an end token behind the limit: what ours accepted is cut
                wanted[-1] = len(found[-1])
        same_lengths += [len(cycle) for cycle in found] == wanted
        count += len(wanted)
    return same_tokens, same_lengths, count


@pytest.mark.parametrize("converted", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_tokens_and_cycles_are_ours(
    world: Served, folders: dict[str, Path], name: str, converted: bool, tmp_path: Path
) -> None:
    target, drafter = folders["full"] / "target.gguf", folders[name] / "drafter.gguf"
    if converted:
        target = convert(world.target, tmp_path / "target.gguf")
        beside = ("--target-model-dir", world.target)
        drafter = convert(folders[f"{name} hf"], tmp_path / "drafter.gguf", *beside)
    ours = world.ours(folders[name], levels=LEVELS)
    tokens, lists, cycles = compare(world, drafter, target, ours, tmp_path / "log")
    print(f"{name}, converted {converted}: {tokens=} {lists=} {cycles=} {ours.accepted_length:.3f}")
    assert (tokens, lists) == (len(world.prompts), len(world.prompts))
    assert ours.accepted_length > 1.1, "a drafter that is never right proves little"


def test_a_qwen3_target_answers_as_ours(world: Served, tmp_path: Path) -> None:
    """Of random weights, as is its drafter: of the drafts hardly any is right."""
    target = tiny_target(tmp_path / "target", kind="qwen3", vocab_size=4096, num_hidden_layers=8)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(world.target / name, target)
    make_drafter(tmp_path / "drafter", target)
    words = ("--drafter", tmp_path / "drafter", "--format", "gguf", "--with-target")
    done = invoke("export", *words, "--output", tmp_path / "out")
    assert done.exit_code == 0, done.output
    random = Served(tmp_path, world.prompts)
    ours = random.ours(tmp_path / "out", levels=LEVELS)
    files = tmp_path / "out" / "drafter.gguf", tmp_path / "out" / "target.gguf"
    tokens, lists, cycles = compare(random, *files, ours, tmp_path / "log")
    print(f"qwen3: {tokens=} {lists=} {cycles=} {ours.accepted_length:.3f}")
    assert (tokens, lists) == (len(world.prompts), len(world.prompts))


def test_its_converter_writes_the_same(world: Served, folders: dict[str, Path], tmp_path: Path) -> None:
    """Tensor for tensor, key for key; only names and sizes in words, for people, differ."""
    pairs = [(folders["full"] / "target.gguf", convert(world.target, tmp_path / "target.gguf"))]
    for name in CASES:
        made = convert(folders[f"{name} hf"], tmp_path / f"{name}.gguf", "--target-model-dir", world.target)
        pairs.append((folders[name] / "drafter.gguf", made))
    for ours, theirs in pairs:
        mine, other = gguf.GGUFReader(ours), gguf.GGUFReader(theirs)
        assert settings(mine) == settings(other)
        found, wanted = ({one.name: one for one in file.tensors} for file in (mine, other))
        assert set(found) == set(wanted)
        for name, one in wanted.items():
            assert found[name].tensor_type == one.tensor_type
            assert np.array_equal(found[name].data, one.data), name


def settings(reader: Any) -> dict[str, Any]:
    for_people = (
        "general.name",
        "general.basename",
        "general.size_label",
        "general.finetune",
        "general.version",
    )
    left_out = (*for_people, "general.base_model", "general.tags", "general.license", "GGUF.")
    fields = {name: field.contents() for name, field in reader.fields.items()}
    return {name: value for name, value in fields.items() if not name.startswith(left_out)}


def test_llama_server_drafts_with_an_untrained_drafter(
    world: Served, folders: dict[str, Path], tmp_path: Path
) -> None:
    """``train-drafter --dry-run``: its counts of draft tokens are read from ``timings``."""
    command = (
        f"{PROGRAM.with_name('llama-server')} -m {folders['full'] / 'target.gguf'} -md {{gguf}}/drafter.gguf "
        f"--host 127.0.0.1 --port {{port}} {DRAFTING} -np 1 -c 512 -t 1 -td 1 -fit off --no-ui"
    )
    data = f"data.train=[{world.root / 'responses' / 'responses.jsonl'}]"
    words = ("--config", "tiny/demo", f"target={world.target}", data, f"output={tmp_path / 'run'}")
    done = invoke("train-drafter", *words, "--json", "--dry-run", command)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["server"]["kind"] == "llamacpp"
    assert found["drafted"] >= LEVELS


def test_wrong_layers_show_in_the_cycles(world: Served, folders: dict[str, Path], tmp_path: Path) -> None:
    """The negative control: the tokens stay, the cycles do not."""
    wrong = Path(shutil.copy(folders["full"] / "drafter.gguf", tmp_path))
    layers = gguf.GGUFReader(wrong, "r+").fields["eagle3.target_layers"]
    for at in layers.data:
        layers.parts[at][0] += 1
    ours = world.ours(folders["full"], levels=LEVELS)
    tokens, lists, _ = compare(world, wrong, folders["full"] / "target.gguf", ours, tmp_path / "log")
    print(f"wrong layers: {tokens=} {lists=}")
    assert tokens == len(world.prompts)
    assert lists < len(world.prompts)


def test_two_layers_are_converted_and_not_loaded(
    world: Served, folders: dict[str, Path], tmp_path: Path
) -> None:
    """What the doctor warns of."""
    folder = shutil.copytree(folders["shared hf"], tmp_path / "two")
    body = json.loads((folder / "config.json").read_text("utf-8"))
    body["eagle_aux_hidden_state_layer_ids"] = body["eagle_aux_hidden_state_layer_ids"][:2]
    (folder / "config.json").write_text(json.dumps(body), "utf-8")
    file = convert(folder, tmp_path / "two.gguf", "--target-model-dir", world.target)
    code, _ = run(folders["full"] / "target.gguf", file, "a", tmp_path / "log", "requires exactly 3")
    assert code != 0
