"""A real Django project: its settings, its namespace, its apps' tasks, its transactions."""

import json

import pytest

from tests.processes import Processes
from tests.semantics.site import PROJECT

pytest.importorskip("django")


def test_a_django_project_needs_one_line_and_base_gputask(redis_url, tmp_path):
    env = {"TEST_URL": redis_url, "TEST_DATABASE": str(tmp_path / "db.sqlite3"), "PYTHONPATH": str(PROJECT)}
    env["DJANGO_SETTINGS_MODULE"] = "djangosite.settings"
    with Processes(tmp_path, cwd=PROJECT, env=env) as processes:
        worker = processes.worker("djangosite", 0)
        found = json.loads(processes.run("python", "-m", "djangosite.send").output)
        assert found == {"held in the transaction": 0, "value": ["djangohost:0", 2, True]}
        assert "gpu0@djangohost" in worker.log
