"""The good examples, made once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.goods import make_goods


@pytest.fixture(scope="session")
def goods(every_kind: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_goods(tmp_path_factory.mktemp("goods"), every_kind)
