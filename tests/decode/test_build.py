"""From folders to named methods, and ``vocabforge generate`` on top of them."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.decode.build_support import grid_methods
from tests.worlds import byte_tokenizer, tiny_drafter, tiny_target
from vocabforge.cli.app import build_app
from vocabforge.cli.export import export
from vocabforge.cli.generate import generate
from vocabforge.core.errors import MismatchError, UsageError
from vocabforge.corpus.tokenizer.tokenizer import load_tokenizer
from vocabforge.decode.engine import Decoder
from vocabforge.decode.interface import Plan
from vocabforge.models.drafters.io import save_drafter
from vocabforge.models.target.fingerprint import target_fingerprint
from vocabforge.models.target.hf import HFTarget
from vocabforge.vocab.subset.subset import VocabSubset, save_subset


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``t`` target with tokenizer, ``run/drafter``, ``v`` and ``w`` (of another tokenizer)."""
    place = tmp_path_factory.mktemp("place")
    tiny_target(place / "t", vocab_size=261)
    byte_tokenizer(place / "t")
    fingerprint = load_tokenizer(place / "t").fingerprint
    meta = {"target_fingerprint": target_fingerprint(place / "t"), "tokenizer_fingerprint": fingerprint}
    save_drafter(
        place / "run" / "drafter",
        tiny_drafter(HFTarget.load(place / "t")),
        meta,
        config={"target": str(place / "t")},
    )
    for name, owner in (("v", fingerprint), ("w", "another")):
        ids = np.arange(40, 120, 2, dtype=np.int64)
        save_subset(VocabSubset.from_ranked(ids, vocab_size=261, fingerprint=owner), place / name)
    return place


def test_methods_are_named_after_run_and_vocabulary(place: Path) -> None:
    methods = grid_methods(
        place / "t",
        [str(place / "run" / "drafter")],
        [f"small={place / 'v'}"],
        depth=1,
        topk=2,
        total_nodes=5,
    )
    assert [method.name for method in methods] == ["plain", "run", "run+small"]
    assert "261 tokens" in methods[1].description
    assert "40 tokens" in methods[2].description
    results = [m.generator.generate([72, 101], max_new_tokens=12, stop_ids=()).token_ids for m in methods]
    assert results[0] == results[1] == results[2]
    assert isinstance(methods[2].generator, Decoder)
    assert methods[2].generator.proposer is not None
    assert methods[2].generator.proposer.plan == Plan(2, 5)


def test_what_does_not_belong_together_is_refused(place: Path, tmp_path: Path) -> None:
    drafter = str(place / "run" / "drafter")
    with pytest.raises(MismatchError, match="tokenizer"):
        grid_methods(place / "t", [drafter], [str(place / "w")])
    tiny_target(tmp_path / "other", vocab_size=261, seed=4)
    byte_tokenizer(tmp_path / "other")
    with pytest.raises(MismatchError, match="another target"):
        grid_methods(tmp_path / "other", [drafter])
    tiny_target(tmp_path / "small", vocab_size=200)
    byte_tokenizer(tmp_path / "small")
    with pytest.raises(MismatchError, match="does not match the target"):
        grid_methods(tmp_path / "small")
    for arguments, words in (({"dtype": "int8"}, "no such dtype"), ({"device": "tpu9"}, "no such device")):
        with pytest.raises(UsageError, match=words):
            grid_methods(place / "t", **arguments)


def test_an_exported_folder_decodes_like_the_drafter_it_came_from(place: Path, tmp_path: Path) -> None:
    app = build_app({"export": export, "generate": generate}, ["export", "generate"])
    line = [
        "export",
        "--drafter",
        str(place / "run" / "drafter"),
        "--format",
        "sglang-eagle3",
        "--vocab",
        str(place / "v"),
    ]
    done = CliRunner().invoke(app, [*line, "--output", str(tmp_path / "served")])
    assert done.exit_code == 0, done.output
    shutil.copytree(tmp_path / "served", tmp_path / "foreign")
    (tmp_path / "foreign" / "manifest.json").unlink()
    own = grid_methods(place / "t", [str(place / "run" / "drafter")], [str(place / "v")], control="fixed")[2]
    expected = own.generator.generate([72, 101, 108], max_new_tokens=20, stop_ids=())
    for name in ("served", "foreign"):
        result = grid_methods(place / "t", [str(tmp_path / name)], control="fixed")[1].generator.generate(
            [72, 101, 108], max_new_tokens=20, stop_ids=()
        )
        assert (result.token_ids, result.accept_lengths) == (expected.token_ids, expected.accept_lengths)


def names_of(place: Path, *drafters: str, vocabs: Sequence[str] = (), **options: Any) -> dict[str, Any]:
    found = grid_methods(place / "t", drafters, vocabs, **{"control": "fixed", **options})
    return {method.name: method for method in found}


def test_proposers_without_a_drafter_are_methods_of_their_own(place: Path) -> None:
    asked = {"proposer": ["n-gram", "early-exit"], "exit_layers": 2, "depth": 3}
    found = names_of(place, vocabs=[str(place / "v")], **asked)
    assert list(found) == ["plain", "n-gram", "early-exit", "early-exit+v"]
    plain, *others = (
        one.generator.generate([72, 101] * 4, max_new_tokens=30, stop_ids=()) for one in found.values()
    )
    assert all(one.token_ids == plain.token_ids for one in others)
    assert all(one.drafted > 0 for one in others)
    with pytest.raises(UsageError, match=r"(?s)no such proposer.*eagle9.*early-exit"):
        names_of(place, proposer=["eagle9"])


def test_a_model_of_the_same_vocabulary_drafts(place: Path, tmp_path: Path) -> None:
    tiny_target(tmp_path / "small", vocab_size=261, seed=4)
    byte_tokenizer(tmp_path / "small")
    found = names_of(place, f"s={tmp_path / 'small'}", f"self={place / 't'}", vocabs=[f"v={place / 'v'}"])
    assert list(found) == ["plain", "s", "s+v", "self", "self+v"]
    results = {
        name: one.generator.generate([72, 101], max_new_tokens=30, stop_ids=()) for name, one in found.items()
    }
    assert all(one.token_ids == results["plain"].token_ids for one in results.values())
    assert min(results["self"].accept_lengths[:-1]) == 6, "a target that drafts for itself is always right"
    tiny_target(tmp_path / "other", vocab_size=200)
    with pytest.raises(MismatchError, match="vocabulary is not the target's"):
        names_of(place, str(tmp_path / "other"))


def test_the_proposer_must_fit_the_drafter(place: Path) -> None:
    drafter = str(place / "run" / "drafter")
    with pytest.raises(UsageError, match=r"(?s)no drafter that drafts so.*medusa with eagle3"):
        names_of(place, drafter, proposer=["medusa"])
    assert list(names_of(place, drafter, proposer=["eagle3", "n-gram"])) == ["plain", "n-gram", "run"]
