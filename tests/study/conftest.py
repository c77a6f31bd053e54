"""The scripts of recipes/study are imported as they are when they run: from their own folder."""

from __future__ import annotations

import sys

from tests.worlds import ROOT

sys.path.insert(0, str(ROOT / "recipes" / "study"))
