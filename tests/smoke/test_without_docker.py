"""What the tests that need Docker do where there is none."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("required", "word", "code"),
    [("", "skipped", pytest.ExitCode.OK), ("1", "errors", pytest.ExitCode.TESTS_FAILED)],
)
def test_without_a_daemon_they_are_skipped_or_fail_where_it_is_required_and_say_why(required, word, code, tmp_path):
    env = {**os.environ, "DOCKER_HOST": f"unix://{tmp_path}/none", "REQUIRE_DOCKER": required}
    command = [sys.executable, "-m", "pytest", "tests/smoke", "-n", "0", "-m", "docker", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    assert "no Docker daemon answers" in done.stdout
    *_, summary = done.stdout.splitlines()
    assert f" {word}" in summary
    assert " passed" not in summary
