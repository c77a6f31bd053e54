"""llama.cpp runs our drafters: texts and cycles are ours, and its converter writes what ``export`` writes.

``make test-llamacpp`` builds llama.cpp's ``llama-speculative-simple``. That program drafts before the last token of the
prompt is through the target; our decoder takes the answer's first token from the prompt's pass. So each prompt goes
there with our first token behind it: from then on the two do the same, cycle by cycle.
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
from vocabforge.corpus.tokenizer.tokenizer import load_tokenizer

gguf = pytest.importorskip("gguf", reason="the extra gguf is not installed")
pytestmark = pytest.mark.servers

FOLDER = ROOT / ".venv" / "servers" / "llamacpp"
SOURCES = FOLDER / "llama.cpp"
PROGRAM = SOURCES / "build" / "bin" / "llama-speculative-simple"
LEVELS = 3
_CYCLE = re.compile(r"accepted (\d+)/\d+ draft tokens")
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


def ask(target: Path, drafter: Path, prompt: str, log: Path) -> tuple[str, list[int]]:
    """What it prints, prompt and answer, and the tokens that each cycle committed, the target's own included."""
    options = (
        f"--spec-type draft-eagle3 --spec-draft-n-max {LEVELS} --temp 0 -n {NEW_TOKENS + 32} -c 1024 -b 512 -ub 512 "
        "-fa off -t 1 -ctk f32 -ctv f32 -ctkd f32 -ctvd f32 --no-escape -fit off -v"
    )
    command = [str(PROGRAM), "-m", str(target), "-md", str(drafter), *options.split(), "-p", prompt]
    with log.open("w") as stream:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=stream, check=False)
    printed, told = (text.decode("utf-8", "replace") for text in (done.stdout, log.read_bytes()))
    assert done.returncode == 0, (told + printed)[-4000:]
    return printed, [int(found) + 1 for found in _CYCLE.findall(told)]


def compare(world: Served, drafter: Path, target: Path, ours: Decoded, log: Path) -> tuple[int, int, int]:
    """Prompts with our text, prompts with our list of cycles, and the number of cycles."""
    tokenizer = load_tokenizer(world.target)
    same_text = same_cycles = count = 0
    for prompt, tokens, lengths in zip(world.prompts, ours.tokens, ours.lengths):
        # The first token comes from the prompt's pass; the last cycle may go beyond the end.
        assert sum(lengths[:-1]) + 1 < len(tokens) <= sum(lengths) + 1
        start = tokenizer.decode([*prompt, tokens[0]], skip_special=False)
        ended = tokens[-1] in tokenizer.eos_ids
        whole = tokenizer.decode([*prompt, *(tokens[:-1] if ended else tokens)], skip_special=False)
        printed, cycles = ask(target, drafter, start, log)
        found = printed[printed.index(start) :]
        same_text += found.rstrip("\n") == whole.rstrip("\n") if ended else found.startswith(whole)
        whole_cycles = lengths[:-1]
        same_cycles += cycles[: len(whole_cycles)] == whole_cycles
        count += len(whole_cycles)
    return same_text, same_cycles, count


@pytest.mark.parametrize("converted", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_texts_and_cycles_are_ours(
    world: Served, folders: dict[str, Path], name: str, converted: bool, tmp_path: Path
) -> None:
    target, drafter = folders["full"] / "target.gguf", folders[name] / "drafter.gguf"
    if converted:
        target = convert(world.target, tmp_path / "target.gguf")
        beside = ("--target-model-dir", world.target)
        drafter = convert(folders[f"{name} hf"], tmp_path / "drafter.gguf", *beside)
    ours = world.ours(folders[name], levels=LEVELS)
    texts, lists, cycles = compare(world, drafter, target, ours, tmp_path / "log")
    print(
        f"{name}, converted {converted}: {texts} texts, {lists} lists, {cycles} cycles, {ours.accepted_length:.3f}"
    )
    assert (texts, lists) == (len(world.prompts), len(world.prompts))
    assert ours.accepted_length > 1.1, "a drafter that is never right proves little"


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


def test_wrong_layers_show_in_the_cycles(world: Served, folders: dict[str, Path], tmp_path: Path) -> None:
    """The negative control: the texts stay, the cycles do not."""
    wrong = Path(shutil.copy(folders["full"] / "drafter.gguf", tmp_path))
    layers = gguf.GGUFReader(wrong, "r+").fields["eagle3.target_layers"]
    for at in layers.data:
        layers.parts[at][0] += 1
    ours = world.ours(folders["full"], levels=LEVELS)
    texts, lists, _ = compare(world, wrong, folders["full"] / "target.gguf", ours, tmp_path / "log")
    print(f"wrong layers: {texts} texts, {lists} lists")
    assert texts == len(world.prompts)
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
    with pytest.raises(AssertionError, match="exactly 3"):
        ask(folders["full"] / "target.gguf", file, "a", tmp_path / "log")
