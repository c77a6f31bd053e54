"""``export``, ``doctor`` and ``generate`` with drafters that read and draft in different ways."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.cli_support import facts_of, invoke, succeeds
from tests.decode.build_support import check_drafts_alike
from tests.decode.drafting import make_drafter as random_drafter
from tests.worlds import World
from vocabforge.cli.drafting.generate import drafted_part
from vocabforge.core.artifact import open_artifact
from vocabforge.models.drafters.io import save_drafter
from vocabforge.models.target.hf import HFTarget


@pytest.fixture(scope="module", params=["eagle3", "medusa", "dflash", "mtp"])
def made(
    request: pytest.FixtureRequest, pristine: World, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path]:
    """A kind and a drafter artefact of it."""
    folder = tmp_path_factory.mktemp(request.param) / "drafter"
    drafter = random_drafter(request.param, pristine.target, HFTarget.load(pristine.target))
    meta = open_artifact(pristine.drafter).meta
    save_drafter(folder, drafter, dict(meta), config={"target": str(pristine.target)})
    return request.param, folder


def test_doctor_finds_all_well(made: tuple[str, Path], pristine: World) -> None:
    words = ("--target", pristine.target, "--drafter", made[1], "--vocab", pristine.vocab, "--json")
    checks = facts_of(invoke("doctor", *words))["checks"]
    rows = {f"{row['group']}: {row['check']}": row for row in checks}
    ours = {key: row for key, row in rows.items() if not key.startswith("environment")}
    assert {row["state"] for row in ours.values()} == {"ok"}, ours
    assert "16 tokens as plain decoding" in ours["drafter: drafting"]["found"]
    assert "16 tokens as plain decoding" in ours["draft vocabulary: drafting"]["found"]


def test_native_export_with_a_vocabulary_decodes(made, pristine, tmp_path):
    words = ("--drafter", made[1], "--format", "native", "--vocab", pristine.vocab)
    succeeds("export", *words, "--output", tmp_path / "small")
    check_drafts_alike(pristine.target, made[1], tmp_path / "small", [pristine.vocab])


def test_the_drafted_part_of_a_cycle_is_all_but_its_last_token() -> None:
    class Words:
        def decode(self, ids: list[int]) -> str:
            return "".join(" abcdefghij"[number] for number in ids)

    ids = [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert drafted_part("ghi", ids, Words()) == "gh"  # type: ignore[arg-type]
    assert drafted_part("i", ids, Words()) == ""  # type: ignore[arg-type]
    assert drafted_part("held back", ids, Words()) == ""  # type: ignore[arg-type]
