"""Measure ops, draft heads, drafting and full decode cycles against their byte or operation floors.

Uses real sizes on a GPU and small sizes on a CPU. `make gpu-check` runs all parts after the tests.

python kernels/measure.py parts=ops ops=draft_topk,ranker_select

Settings: device, parts (heads, cycle, ops, drafting, libraries), shapes (llama3-8b, qwen3-8b, small), rows,
ops, only (substring of figure names), backend, measure and budget (seconds for one measurement, for the whole
run).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "kernels")]  # nothing need be installed

from bench.run import bench_kernels  # noqa: E402
from bench.table import markdown  # noqa: E402

from vocabforge.core.errors import VocabForgeError  # noqa: E402
from vocabforge.core.files import atomic_write_json, check_output_file  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--repeats", type=int, default=3, help="rounds")
    parser.add_argument("--output", type=Path, help="also write the figures to this JSON file")
    asked = parser.parse_args()
    try:
        if asked.output is not None:
            check_output_file(asked.output)
        result = bench_kernels(asked.settings, repeats=asked.repeats)
        if asked.output is not None:
            atomic_write_json(asked.output, result)
    except VocabForgeError as error:
        sys.exit(error.render())
    print(markdown(result))


if __name__ == "__main__":
    main()
