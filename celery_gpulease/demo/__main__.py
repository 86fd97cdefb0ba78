"""The command: `python -m celery_gpulease.demo`."""

from __future__ import annotations

import argparse
import importlib.util
import signal
import sys
from pathlib import Path
from typing import Final

BROKEN_PROMISE: Final = 1
CANNOT_START: Final = 2
INTERRUPTED: Final = 130


def main() -> int:
    """Runs the demo: 0 when every promise held in this run, else one of the numbers above."""
    parser = argparse.ArgumentParser(prog="python -m celery_gpulease.demo", description=__import__(__package__).__doc__)
    parser.add_argument(
        "--picture", type=Path, default=Path("gpulease-demo.png"), help="where to write it (%(default)s)"
    )
    parser.add_argument("--logs", type=Path, help="a folder in which to keep the processes' logs and the jobs' journal")
    options = parser.parse_args()
    if importlib.util.find_spec("rich") is None:
        print("The demo needs rich: pip install 'celery-gpulease[demo]'", file=sys.stderr)
        return CANNOT_START

    from celery_gpulease.demo.play import DemoError, interrupt, play  # noqa: PLC0415 - rich is there
    from celery_gpulease.embedded import EmbeddedServerError  # noqa: PLC0415

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    try:
        return 0 if play(options.picture, options.logs) else BROKEN_PROMISE
    except KeyboardInterrupt:
        print("\nInterrupted: the server, the workers and beat are stopped.", file=sys.stderr)
        return INTERRUPTED
    except (DemoError, EmbeddedServerError) as error:
        print(f"The demo cannot go on: {error}", file=sys.stderr)
        return CANNOT_START


if __name__ == "__main__":
    sys.exit(main())
