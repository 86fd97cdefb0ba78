"""Finds interpreters: our own, those on the PATH, pyenv's, and what somebody has put into `PYTHONS`."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

LOWEST, HIGHEST = (3, 10), (3, 14)
VERSIONS = [f"3.{minor}" for minor in range(LOWEST[1], HIGHEST[1] + 1)]
#: Folders of installed interpreters, `<folder>/*/bin/python3.14`, as pyenv has them.
PYTHONS = [os.environ.get("PYTHONS"), os.environ.get("PYENV_ROOT", "~/.pyenv") + "/versions"]


@cache
def interpreter(version: str) -> str | None:
    """The path of a Python of this minor version that has `venv`; None where there is none."""
    return next((path for path in _candidates(version) if _is(path, version)), None)


def nearest(version: str) -> tuple[str, str]:
    """The interpreter of this version, else of the nearest that there is; and its version."""
    wanted = VERSIONS.index(version)
    for found in sorted(VERSIONS, key=lambda one: abs(VERSIONS.index(one) - wanted)):
        if path := interpreter(found):
            return path, found
    raise RuntimeError(f"There is no Python of {VERSIONS[0]} to {VERSIONS[-1]} with venv")


def _candidates(version: str) -> Iterator[str]:
    if f"{sys.version_info.major}.{sys.version_info.minor}" == version:
        yield sys.executable
    if found := shutil.which(f"python{version}"):
        yield found
    for folder in filter(None, PYTHONS):
        yield from map(str, sorted(Path(folder).expanduser().glob(f"*/bin/python{version}"), reverse=True))


def _is(path: str, version: str) -> bool:
    """Does it start (pyenv's shims need not), and is it what its name says?"""
    question = "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2])"
    answer = subprocess.run([path, "-c", question], capture_output=True, text=True, check=False)
    return answer.stdout.strip() == version
