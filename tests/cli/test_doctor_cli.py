"""``vocabforge doctor`` on whole and on damaged targets, drafters and vocabularies."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.cli.cli_support import assert_user_error, invoke, succeeds, truncate
from tests.worlds import World, byte_tokenizer, make_target, make_vocab


def examine(*arguments: object) -> tuple[int, dict[str, dict]]:
    """Exit code and the rows by "group: check"; every row of a failure has words."""
    result = invoke("doctor", *arguments, "--json")
    assert isinstance(result.exception, (SystemExit, type(None))), repr(result.exception)
    body = json.loads(result.stdout)
    rows = {f"{row['group']}: {row['check']}": row for row in body["checks"]}
    assert body["counts"]["failed"] == sum(row["state"] == "failed" for row in rows.values())
    assert (result.exit_code == 1) == (body["counts"]["failed"] > 0)
    assert all(row["found"] for row in rows.values())
    return result.exit_code, rows


def states(rows: dict[str, dict], *keys: str) -> list[str]:
    return [rows[key]["state"] for key in keys]


def test_alone_it_examines_the_environment() -> None:
    code, rows = examine()
    assert code == 0
    names = {key.partition(": ")[2] for key in rows if key.startswith("environment")}
    assert names >= {"Python", "torch", "CUDA", "nvcc", "memory", "disk"}
    assert not [key for key in rows if not key.startswith("environment")]


def test_everything_that_belongs_together_is_well(pristine: World) -> None:
    code, rows = examine(
        "--target", pristine.target, "--drafter", pristine.drafter, "--vocab", pristine.vocab
    )
    assert code == 0
    ours = {key: row for key, row in rows.items() if not key.startswith("environment")}
    assert {key for key, row in ours.items() if row["state"] != "ok"} == set()
    assert "3 unused padding rows" in ours["target: tokenizer"]["found"]
    assert "'<|end|>'" in ours["target: end tokens"]["found"]
    assert "prefix-stable" in ours["target: chat template"]["found"]
    assert "within" in ours["target: logits"]["found"]
    assert "16 tokens as plain decoding" in ours["drafter: drafting"]["found"]
    assert "64 of 261 tokens" in ours["draft vocabulary: artefact"]["found"]
    assert "--format sglang-eagle3" in ours["servers: layout"]["found"]
    assert "by the lean decoder; drafts trees" in ours["what it can do: decodes"]["found"]
    assert "speculators-eagle3" in ours["what it can do: exports to"]["found"]
    assert "mtp" not in ours["what it can do: exports to"]["found"], "the target has no MTP module"
    assert len(ours) == 23


@pytest.mark.parametrize("option", ["--drafter", "--vocab", "--tokenizer"])
def test_a_target_is_needed(option: str, tmp_path: Path) -> None:
    assert_user_error(invoke("doctor", option, tmp_path), 2, "--target")


def test_a_missing_target_fails_and_the_rest_is_skipped(tmp_path: Path, pristine: World) -> None:
    code, rows = examine("--target", tmp_path / "none", "--drafter", pristine.drafter)
    assert code == 1
    assert states(rows, "target: configuration", "target: loads") == ["failed", "skipped"]
    assert states(rows, "drafter: artefact", "drafter: drafting") == ["ok", "skipped"]


def test_weights_that_are_not_finite(world: World) -> None:
    file = world.target / "model.safetensors"
    tensors = load_file(file)
    tensors["model.norm.weight"][3] = float("nan")
    save_file(tensors, file)
    _, rows = examine("--target", world.target)
    assert rows["target: loads"]["state"] == "failed"
    assert "norm" in rows["target: loads"]["found"]


def test_logits_that_differ_from_hugging_faces(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    from vocabforge.models.lean.model import LeanModel

    right = LeanModel.logits
    monkeypatch.setattr(LeanModel, "logits", lambda self, hidden: right(self, hidden) * 1.001)
    code, rows = examine("--target", world.target)
    assert (code, rows["target: logits"]["state"]) == (1, "failed")


def test_a_tokenizer_that_is_larger_than_the_target(tmp_path: Path) -> None:
    target = make_target(tmp_path / "small", vocab_size=200, eos_token_id=2, bos_token_id=1)
    code, rows = examine("--target", target)
    assert (code, rows["target: tokenizer"]["state"]) == (1, "failed")
    assert "261" in rows["target: tokenizer"]["found"]
    assert rows["target: logits"]["state"] == "ok", "the weights themselves are fine"


def test_end_tokens(world: World, tmp_path: Path) -> None:
    (world.target / "generation_config.json").write_text('{"eos_token_id": [257, 99999]}')
    _, rows = examine("--target", world.target)
    assert rows["target: end tokens"]["state"] == "failed"
    (world.target / "generation_config.json").write_text('{"eos_token_id": [257, 260]}')
    _, rows = examine("--target", world.target, "--tokenizer", byte_tokenizer(tmp_path / "tok"))
    assert rows["target: end tokens"]["state"] == "warning"
    assert "260" in rows["target: end tokens"]["found"]
    bare = byte_tokenizer(tmp_path / "bare", eos_token=None)
    (tmp_path / "bare" / "tokenizer.json").write_text(
        (bare / "tokenizer.json").read_text("utf-8").replace("<|end|>", "<|stop|>"), "utf-8"
    )
    _, rows = examine("--target", world.target, "--tokenizer", bare)
    assert rows["target: end tokens"]["state"] == "warning"


@pytest.mark.parametrize(
    ("template", "state"),
    [
        (None, "skipped"),
        ("{{ broken", "failed"),
        # drops every answer but the last, as templates do with thinking
        (
            "{%- for m in messages %}{%- if m.role == 'user' or loop.last %}"
            "{{- '<|' + m.role + '|>' + m.content + '<|end|>' }}{%- endif %}{%- endfor %}"
            "{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}",
            "warning",
        ),
    ],
)
def test_chat_templates(world: World, template: str | None, state: str) -> None:
    byte_tokenizer(world.target, template=template)
    _, rows = examine("--target", world.target)
    assert rows["target: chat template"]["state"] == state, rows["target: chat template"]


def test_a_drafter_for_another_target(world: World, tmp_path: Path) -> None:
    other = make_target(tmp_path / "other", seed=5)
    code, rows = examine("--target", other, "--drafter", world.drafter)
    assert code == 1
    assert states(rows, "drafter: artefact", "drafter: all other checks") == ["ok", "skipped"]
    # One fault, one finding: nothing that follows from it.
    assert [key for key, row in rows.items() if row["state"] == "failed"] == ["drafter: made for this target"]
    assert not [key for key in rows if key.startswith("served")]


@pytest.mark.parametrize("share", [0.0, 0.9])
def test_a_damaged_drafter(world: World, share: float) -> None:
    truncate(world.drafter / "drafter.safetensors", share)
    code, rows = examine("--target", world.target, "--drafter", world.drafter)
    assert code == 1
    assert states(rows, "drafter: artefact", "drafter: tensors") == ["failed", "skipped"]


def export(world: World, folder: Path) -> Path:
    succeeds(
        *("export", "--drafter", world.drafter, "--target", world.target, "--vocab", world.vocab),
        *("--format", "sglang-eagle3", "--output", folder),
    )
    return folder


def test_an_export_made_elsewhere_is_a_warning(pristine: World, tmp_path: Path) -> None:
    folder = export(pristine, tmp_path / "x")
    (folder / "manifest.json").unlink()
    code, rows = examine("--target", pristine.target, "--drafter", folder)
    assert (code, rows["drafter: artefact"]["state"]) == (0, "warning")
    assert rows["drafter: drafting"]["state"] == "ok"


@pytest.mark.parametrize("damage", ["t2d", "t2d shape", "d2t"])
def test_maps_that_disagree(pristine: World, tmp_path: Path, damage: str) -> None:
    folder = export(pristine, tmp_path / "x")
    (folder / "manifest.json").unlink()
    tensors = load_file(folder / "model.safetensors")
    if damage == "t2d":
        tensors["t2d"] = tensors["t2d"].roll(1)
    elif damage == "t2d shape":
        tensors["t2d"] = tensors["t2d"][:-3].clone()
    else:
        tensors["d2t"] = torch.arange(len(tensors["d2t"]))  # ids instead of offsets: beyond the vocabulary
        tensors["d2t"][-1] += 500
    save_file(tensors, folder / "model.safetensors")
    code, rows = examine("--target", pristine.target, "--drafter", folder)
    assert code == 1
    failed = [key for key, row in rows.items() if row["state"] == "failed"]
    here = {"drafter: tensors", "drafter: draft vocabulary"}
    assert set(failed) & here
    served = {f"served by {name}: draft tokens" for name in ("SGLang", "vLLM", "llama.cpp")}
    assert set(failed) - here == (served if damage == "d2t" else set()), "servers do not read t2d"


def test_end_tokens_outside_a_draft_vocabulary_are_a_warning(pristine: World, tmp_path: Path) -> None:
    vocab = make_vocab(tmp_path / "v", pristine.target, eos=False)
    code, rows = examine("--target", pristine.target, "--vocab", vocab)
    assert (code, rows["draft vocabulary: end tokens"]["state"]) == (0, "warning")
    assert "257" in rows["draft vocabulary: end tokens"]["found"]


def test_drafting_that_changes_the_output_is_found(pristine: World, monkeypatch: pytest.MonkeyPatch) -> None:
    from vocabforge.decode import cycle

    right = cycle.greedy_verdicts

    def wrong(path, numbers, rows):
        verdicts = right(path, numbers, rows)
        if path.shape[1] > 1:
            verdicts.tokens[0][-1] = (verdicts.tokens[0][-1] + 1) % 261
        return verdicts

    monkeypatch.setattr(cycle, "greedy_verdicts", wrong)
    code, rows = examine("--target", pristine.target, "--drafter", pristine.drafter)
    assert (code, rows["drafter: drafting"]["state"]) == (1, "failed")
    assert "token 2 differs" in rows["drafter: drafting"]["found"]


def test_a_folder_is_read_as_servers_read_it(pristine: World, tmp_path: Path) -> None:
    folder = export(pristine, tmp_path / "x")
    code, rows = examine("--target", pristine.target, "--drafter", folder)
    assert code == 0
    served = {key: row for key, row in rows.items() if key.startswith("served by")}
    assert {key.partition(": ")[0] for key in served} == {
        f"served by {name}" for name in ("SGLang", "vLLM", "llama.cpp")
    }
    untold = {key for key, row in served.items() if row["state"] != "ok" and "acceptance" not in key}
    assert untold == set(), "a random drafter hardly drafts, which is all there is to say"
    assert "4 draft steps" in served["served by SGLang: logits"]["found"]
    _, rows = examine("--target", pristine.target, "--drafter", folder, "--server", "vllm")
    assert "served by SGLang: logits" not in rows
    result = invoke("doctor", "--target", pristine.target, "--drafter", folder, "--keys")
    assert "norm.weight [32] float32" in " ".join(result.stdout.split())
