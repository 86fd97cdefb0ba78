"""A row's environment: a venv with its pins, kept until something of it changes."""

import hashlib
import json
import shutil
import subprocess
from pathlib import Path

from tests.matrix.rows import PACKAGES, Row

ROOT = Path(__file__).parents[2]


class InstallError(Exception):
    """Pip cannot make the environment; its last words."""


def make(row: Row, python: str, folder: Path) -> Path:
    """The venv's interpreter.

    Raises:
        InstallError: These versions do not go together, or cannot be had.
    """
    binary, stamp, wanted = folder / "bin/python", folder / "made-of", _digest(row, python)
    if stamp.exists() and stamp.read_text() == wanted:
        return binary
    shutil.rmtree(folder, ignore_errors=True)
    _run(python, "-m", "venv", str(folder))
    pip = (str(binary), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    _run(*pip, "-e", f"{ROOT}[test]", *row.pins())
    stamp.write_text(wanted)
    return binary


def versions(binary: Path) -> dict[str, str]:
    """What is really there: python, celery, kombu, redis."""
    question = (
        "import json, platform; from importlib.metadata import version; "
        f"print(json.dumps({{'python': platform.python_version(), **{{n: version(n) for n in {PACKAGES}}}}}))"
    )
    return dict(json.loads(subprocess.run([binary, "-c", question], capture_output=True, check=True).stdout))


def _digest(row: Row, python: str) -> str:
    made_of = (ROOT / "pyproject.toml").read_text(), python, *row.pins()
    return hashlib.sha256("\n".join(made_of).encode()).hexdigest()


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        words = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("hint")]
        raise InstallError("; ".join(words[-3:]) or f"{command} failed")
