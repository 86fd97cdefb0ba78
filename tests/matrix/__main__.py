"""Runs rows of the matrix, one after the other, and prints what came of them.

::

    python -m tests.matrix                    # all
    python -m tests.matrix lowest highest     # these

What each row's tests said is in `build/matrix/<row>.log`. Exit code 1 if one has failed; one that cannot be had here
is skipped, with the reason.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.matrix import environment, interpreters, servers
from tests.matrix.rows import PACKAGES, ROWS, Row

BUILD = environment.ROOT / "build/matrix"
COLUMNS = ("row", "python", *PACKAGES, "server", "result", "seconds")
#: What looks for mistakes in the scripts themselves, and takes its time.
LEFT_OUT = ("tests/integration/ledger/test_state_machine.py", "tests/integration/ledger/test_mutations.py")
#: Seconds until a row's tests are given up.
LONGEST = 900


@dataclass
class Outcome:
    """What came of a row: 'ok', 'failed' or 'skipped', in words, each test that was unwell, and what the row had."""

    row: str
    word: str = "skipped"
    words: str = ""
    unwell: list[str] = field(default_factory=list)
    seconds: float = 0
    had: dict[str, str] = field(default_factory=dict)

    def cells(self) -> list[str]:
        """As the table shows it."""
        said = f"{self.word}: {self.words}" if self.words else self.word
        return [self.row, *(self.had.get(name, "-") for name in COLUMNS[1:-2]), said, f"{self.seconds:.0f}"]


def run(row: Row) -> Outcome:
    """Makes a row's environment and runs the tests in it."""
    began, outcome = time.monotonic(), Outcome(row.name)
    try:
        python, found = interpreters.nearest(row.python)
        if found != row.python:
            outcome.words = f"no Python {row.python} here"
            if row.is_about_python:
                return outcome
        server = servers.find(row.server, BUILD / "servers")
        binary = environment.make(row, python, BUILD / "venvs" / row.name)
        outcome.had = {**environment.versions(binary), "server": f"{Path(server).name} {servers.version_of(server)}"}
        _test(row, binary, server, outcome)
    except servers.MissingServerError as missing:
        outcome.words = str(missing)
    except environment.InstallError as error:
        outcome.word, outcome.words = "failed", str(error)
    outcome.seconds = time.monotonic() - began
    return outcome


def _test(row: Row, binary: Path, server: str, outcome: Outcome) -> None:
    """Tells the outcome how the tests went, in pytest's words. What other versions warn of is no failure here."""
    log = BUILD / f"{row.name}.log"
    which = (*row.tests, *(f"--ignore={left_out}" for left_out in LEFT_OUT), "-m", "not long")
    how = ("-n", "3", "--dist", "loadgroup", "-p", "no:cacheprovider", "-W", "default", "-vv", "--durations=0")
    path = os.pathsep.join([str(Path(server).parent), os.environ["PATH"]])
    env = {**os.environ, "PATH": path, "GPULEASE_TEST_SERVERS": servers.SERVERS[row.server].kind}
    with log.open("wb") as out:
        process = subprocess.Popen(
            [str(binary), "-m", "pytest", *which, *how],
            cwd=environment.ROOT, env=env, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            code = process.wait(LONGEST)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(process)
    lines = log.read_text(errors="replace").splitlines() or ["pytest said nothing"]
    told = [", ".join(re.findall(r"\d+ (?:passed|failed|errors?|skipped)", lines[-1]))]
    outcome.word = "ok"
    if code != 0:
        outcome.word = "failed"
        outcome.unwell = [line for line in lines if line.startswith(("FAILED ", "ERROR "))] or lines[-1:]
        told += [f"not done after {LONGEST} s" if code is None else "", f"see {log.relative_to(environment.ROOT)}"]
    outcome.words = "; ".join(filter(None, (*told, outcome.words)))


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Whatever interrupts us leaves no tests behind."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def table(outcomes: list[Outcome]) -> str:
    """Plain columns."""
    lines = [list(COLUMNS), *(one.cells() for one in outcomes)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
                     for line in lines)  # fmt: skip


def main() -> int:
    """Runs what the command line names; the exit code."""
    parser = argparse.ArgumentParser("make matrix")
    parser.add_argument("rows", nargs="*", metavar="row", help=f"one of {', '.join(ROWS)}; all, where none is named")
    names = parser.parse_args().rows or list(ROWS)
    if unknown := set(names) - ROWS.keys():
        parser.error(f"there is no row {', '.join(sorted(unknown))}; there are {', '.join(ROWS)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what runs is ended
    BUILD.mkdir(parents=True, exist_ok=True)
    outcomes = []
    for name in names:
        print(f"{name} ...", flush=True)
        outcomes.append(run(ROWS[name]))
    counts = {word: sum(one.word == word for one in outcomes) for word in ("ok", "failed", "skipped")}
    print(f"\n{table(outcomes)}\n")
    for one in outcomes:
        print(*(f"{one.row}: {line}" for line in one.unwell), sep="\n", end="\n" if one.unwell else "")
    print(f"matrix: {counts['ok']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
