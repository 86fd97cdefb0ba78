"""`make bench`: prints the performance table, section by section, and leaves it in build/bench.md.

QUICK=1 does one short round of each.
"""

import os
import sys
from importlib import import_module
from pathlib import Path

from tests.benchmarks.machine import header

SECTIONS = ("gap", "sending", "idle_start", "idle_cost", "recovery", "heavy_tail", "simulation", "scale")
OUTPUT = Path("build/bench.md")


def main(names):
    """Runs these sections, or all."""
    quick = bool(os.environ.get("QUICK"))
    OUTPUT.parent.mkdir(exist_ok=True)
    with OUTPUT.open("w") as file:
        for text in _texts(names or SECTIONS, quick):
            print(text, flush=True)
            print(text, file=file, flush=True)


def _texts(names, quick):
    yield header(quick)
    for name in names:  # a section brings its own packages: one that is not asked for is not imported
        for table in import_module(f"tests.benchmarks.{name}").measure(quick):
            yield table.markdown()


if __name__ == "__main__":
    main(sys.argv[1:])
