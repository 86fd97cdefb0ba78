"""`gpulease cancel`, `bump`, `release` and `forget`: what they say, and their exit codes."""

import gc
from types import SimpleNamespace

import pytest
from celery import Celery, signals
from click.testing import CliRunner

from celery_gpulease import GPULease, GPUTask
from celery_gpulease.ledger.checks import inconsistencies
from celery_gpulease.operate.cli import gpulease
from celery_gpulease.worker.remote import drain
from tests.integration.ledger.world import World

pytestmark = [
    # Celery's result backends leave their sockets to the garbage collector, and call what redis-py calls old.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:Call to deprecated setex"),
]


@pytest.fixture(autouse=True)
def _results_go_before_their_server():
    """An AsyncResult that goes says so to its backend."""
    yield
    gc.collect()


@pytest.fixture
def app(redis_url):
    made = Celery("proj", broker=redis_url, backend=redis_url, set_as_current=False)
    GPULease(made)

    @made.task(base=GPUTask, name="proj.render", shared=False)
    def render():
        pass

    yield made
    assert inconsistencies(made.gpulease.ledger) == []
    made.close()


@pytest.fixture
def world(app):
    made = World(app.gpulease.ledger)
    yield made
    made.close()
    made.client.close()


@pytest.fixture
def says(app):
    """The command's exit code, and all that it prints, in one line."""

    def run(*arguments):
        result = CliRunner().invoke(gpulease, arguments, obj=SimpleNamespace(app=app))
        assert result.output.count("\n") == 1 or result.exit_code == 2
        return result.exit_code, result.output

    return run


@pytest.fixture
def running(world):
    """The id of a task that runs on node:0."""
    worker = world.join()
    world.hold(task_id="one")
    worker.claim()
    worker.run()
    return "one"


def test_a_held_task_is_revoked_when_cancel_returns_and_a_signal_says_so(app, says):
    task, heard = app.tasks["proj.render"], []
    result = task.delay()

    @signals.task_revoked.connect(weak=False)
    def hear(sender, request, terminated, expired, **_):
        heard.append((sender, request.id, terminated, expired))

    try:
        assert says("cancel", result.id) == (0, f"task {result.id} is cancelled\n")
    finally:
        signals.task_revoked.disconnect(hear)
    assert result.state == "REVOKED"
    assert heard == [(task, result.id, False, False)]
    assert says("cancel", result.id) == (1, f"Error: task {result.id} has ended already: REVOKED\n")


def test_a_running_task_is_not_cancelled_and_it_is_said_what_would_stop_it(app, running, says):
    code, words = says("cancel", running)
    assert code == 1
    assert "runs already, on node:0" in words
    assert "AsyncResult.revoke(terminate=True)" in words
    assert app.AsyncResult(running).state == "PENDING"


@pytest.mark.parametrize("command", [("cancel", "nobody"), ("bump", "nobody", "--priority", "3")])
def test_a_task_that_nobody_holds_is_said_to_be_unknown(says, command):
    assert says(*command) == (1, "Error: no task nobody is held\n")


def test_an_end_that_cannot_be_stored_is_left_to_a_worker(app, world, says):
    render = app.tasks["proj.render"]
    task_id = render.delay().id
    with Celery("away", backend="redis://127.0.0.1:1", set_as_current=False) as away:
        away.conf.result_backend_transport_options = {"retry_policy": {"max_retries": 0}}
        render.backend = away.backend
        code, words = says("cancel", task_id)
        assert (code, "a GPU worker will store REVOKED" in words) == (1, True)
    assert world.ledger.end() is None
    assert 29 < world.ledger.agenda().ending <= 30


@pytest.mark.parametrize("wrong", [(), ("--all",), ("--pool", "default"), ("--all", "--pool", "default", "task")])
def test_cancel_takes_one_task_or_a_whole_pool(says, wrong):
    code, words = says("cancel", *wrong)
    assert (code, "name one TASK_ID, or a whole pool: --all --pool POOL" in words) == (2, True)


def test_a_whole_pool_is_cancelled_and_where_nothing_is_held_it_is_said_so(app, says):
    render = app.tasks["proj.render"]
    mine, others = [render.delay(), render.apply_async(countdown=60)], render.apply_async(pool="a100")
    code, words = says("cancel", "--all", "--pool", "default")  # nobody answers the question
    assert (code, "2 held tasks of pool default will be cancelled" in words) == (1, True)
    assert says("cancel", "--all", "--pool", "default", "-f") == (0, "2 tasks of pool default cancelled\n")
    assert says("cancel", "--all", "--pool", "default", "-f") == (0, "nothing is held of pool default\n")
    assert [one.state for one in (*mine, others)] == ["REVOKED", "REVOKED", "PENDING"]
    code, words = says("cancel", "--all", "--pool", "a 100", "-f")
    assert (code, "pool 'a 100'" in words) == (1, True)


def test_bump_says_the_new_position(app, says):
    render = app.tasks["proj.render"]
    first, second = render.apply_async(priority=5), render.apply_async(priority=5)
    later = render.apply_async(countdown=60)
    assert says("bump", second.id, "--priority", "4") == (
        0,
        f"task {second.id} has priority 4 now, and is number 1 in the line of default\n",
    )
    assert says("bump", first.id, "--priority", "255")[1].endswith("is number 2 in the line of default\n")
    assert says("bump", later.id, "--priority", "1")[1].endswith("is not due yet\n")


def test_what_runs_is_not_bumped(running, says):
    assert says("bump", running, "--priority", "0") == (
        1,
        f"Error: task {running} waits no more: a GPU has it already\n",
    )


@pytest.mark.parametrize("priority", ["-1", "256", "high"])
def test_a_priority_that_is_none_is_refused(app, says, priority):
    task_id = app.tasks["proj.render"].delay().id
    code, words = says("bump", task_id, "--priority", priority)
    assert code == 2
    assert "Invalid value for '--priority'" in words


def test_without_force_nothing_is_released(world, running, says):
    code, words = says("release", "node:0")
    assert (code, "--force" in words) == (1, True)
    assert world.lease()


def test_force_says_who_loses_the_lease(world, running, says):
    code, words = says("release", "node:0", "--force")
    assert code == 0
    assert words.startswith(f"GPU node:0: proj.render[{running}] (gpu@node) loses it: it is stopped")
    world.stranger_takes()
    assert says("release", "node:0", "--force") == (0, "GPU node:0: stranger loses it\n")


def test_where_there_is_nothing_to_take_it_is_said_so(world, says):
    world.join()
    assert says("release", "node:0", "--force") == (1, "Error: nobody has the lease of GPU node:0\n")
    code, words = says("release", "nobody:0", "--force")
    assert (code, "no GPU 'nobody:0' is registered" in words) == (1, True)


def test_a_gpu_that_is_gone_is_forgotten_and_what_goes_with_it_is_said(world, says):
    worker = world.join()
    worker.leave()
    world.drained()
    code, words = says("forget", "node:0")
    assert (code, words.startswith("removed GPU node:0 and its drain; the journal keeps what happened there.")) == (
        0,
        True,
    )
    code, words = says("forget", "node:0")
    assert (code, "no GPU 'node:0' is registered; `gpulease status` lists them" in words) == (1, True)


def test_a_gpu_that_may_be_in_use_is_not_forgotten_and_it_is_said_by_whom(app, world, running, says):
    code, words = says("forget", "node:0")
    assert code == 1
    assert words.startswith(
        "Error: GPU node:0 is not removed: worker gpu@node serves it. Stop that worker, then forget the GPU; "
    )
    world.lapse_presence()
    code, words = says("forget", "node:0")
    assert (code, words.startswith(f"Error: GPU node:0 is not removed: proj.render[{running}] has it, and may")) == (
        1,
        True,
    )
    world.lapse()
    world.ledger.reap("node:0")
    world.stranger_takes()
    code, words = says("forget", "node:0")
    assert (code, words.startswith("Error: GPU node:0 is not removed: a foreign holder, stranger, has its lease")) == (
        1,
        True,
    )
    assert says("release", "node:0", "--force")[0] == 0
    waiting = app.tasks["proj.render"].apply_async(gpu="node:0")
    code, words = says("forget", "node:0")
    assert (code, "node:0 is not removed: 1 task waits for it and for no other GPU" in words) == (1, True)
    assert says("cancel", waiting.id)[0] == 0
    assert says("forget", "node:0")[1].startswith("removed GPU node:0; the journal")


@pytest.mark.parametrize("command", [["why", ""], ["bump", "", "--priority", "1"], ["cancel", ""]])
def test_an_empty_task_id_is_a_mistake_of_the_caller(says, command):
    assert says(*command)[0] == 2


@pytest.mark.parametrize("seconds", ["nan", "inf", "-1"])
def test_a_time_that_cannot_be_waited_for_is_refused(says, seconds):
    code, said = says("run", "--timeout", seconds, "--", "true")
    assert (code, "Invalid value for '--timeout'" in said) == (2, True)


@pytest.mark.parametrize(
    ("command", "key", "kind"),
    [
        ("status", "gpus", "zset"),
        ("pending", "lines", "set"),
        ("why one", "lease:node:0", "string"),
        ("why one", "journal", "stream"),
        ("run true", "names", "hash"),
    ],
)
def test_a_key_that_somebody_has_put_in_the_place_of_ours_is_named_with_the_cure(app, world, command, key, kind):
    world.join()
    world.drained()
    world.hold(task_id="one")
    key = f"gpu:{key}"
    kept = world.client.dump(key)
    world.client.delete(key)
    world.client.lpush(key, "x")
    result = CliRunner().invoke(gpulease, command.split(), obj=SimpleNamespace(app=app))
    world.client.delete(key)
    if kept:
        world.client.restore(key, 0, kept)
    assert isinstance(result.exception, SystemExit)
    assert f"somebody has written something else in the place of our keys: {key} is no {kind} any more" in result.output
    assert f"DEL {key}" in result.output


def test_what_anybody_has_written_is_no_order_to_the_terminal(app, world):
    world.hold(task="proj\x1b[2Jrender", task_id="o\x07ne")
    for command in (["pending"], ["why", "o\x07ne"], ["journal"]):
        result = CliRunner().invoke(gpulease, command, obj=SimpleNamespace(app=app))
        assert (result.exit_code, "\x1b" in result.output, "\x07" in result.output) == (0, False, False)
        assert "o?ne" in result.output
    world.join()
    world.client.set("gpu:lease:node:0", "\x1b[2J", px=60_000)
    assert (
        "\x1b"
        not in CliRunner().invoke(gpulease, ["release", "node:0", "--force"], obj=SimpleNamespace(app=app)).output
    )
    world.ledger.drain("node:0", drained=True)
    world.ledger.cancel("o\x07ne")
    while ending := world.ledger.end():
        world.ledger.finish(ending.ticket)


def test_the_journal_names_tasks_and_says_who_did_what(app, world):
    world.join()
    world.hold(task_id="one")
    world.drained()
    for _ in "two orders":
        world.stranger_takes()
        world.ledger.force("node:0")
    lines = CliRunner().invoke(gpulease, ["journal"], obj=SimpleNamespace(app=app)).output.splitlines()
    assert lines[0].split() == ["TIME", "WHAT", "GPU", "TASK", "MEANING"]
    assert lines[1].endswith("  held     -       proj.render[one]  it joined the line of pool default")
    assert lines[2].endswith("  drained  node:0  -                 an operator drained this GPU: it gets no new work")
    taken = "an operator took the lease (`gpulease release --force`) from a foreign holder, stranger"
    assert [line.endswith(taken) for line in lines[3:5]] == [True, True]


def test_why_names_the_exception_by_which_a_task_has_ended(app, world):
    worker = world.join()
    world.hold(task_id="one")
    worker.claim()
    world.ledger.release(worker.run())
    app.backend.mark_as_failure("one", ValueError("no such scene\nin the file"))
    result = CliRunner().invoke(gpulease, ["why", "one"], obj=SimpleNamespace(app=app))
    assert "proj.render[one] has ended: FAILURE (ValueError: no such scene); it ran on node:0" in result.output


def test_the_journal_tells_of_a_gpu_that_is_forgotten(app, world, says):
    world.join().leave()
    world.drained()
    assert says("forget", "node:0")[0] == 0
    result = CliRunner().invoke(gpulease, ["journal", "--gpu", "node:0"], obj=SimpleNamespace(app=app))
    assert (result.exit_code, " drained " in result.output, " removed " in result.output) == (0, True, True)
    code, words = says("journal", "--gpu", "node:1")
    assert (code, "no GPU 'node:1' is registered" in words) == (1, True)


def test_a_gpu_that_is_called_by_its_index_is_offered_by_name(world, says):
    world.join("node:0")
    world.join("node:1")
    assert says("drain", "0")[1].endswith("; `gpulease status` lists them. Did you mean node:0?\n")
    for host in ("b", "c", "d"):
        world.join(f"{host}:0")
    assert says("journal", "--gpu", "0")[1].endswith(" Did you mean b:0 or c:0 or d:0?\n")
    assert says("drain", "7")[1].endswith("lists them\n")


def told_by(app, *arguments):
    result = CliRunner().invoke(gpulease, arguments, obj=SimpleNamespace(app=app))
    assert result.exit_code == 0, result.output
    return result.output


def test_why_says_of_what_runs_for_how_long_so_far(app, world, running):
    assert "proj.render[one] runs on GPU node:0 (worker gpu@node), for 0." in told_by(app, "why", running)


def dies(world, worker, *, acks_late=True):
    worker.claim()
    world.ledger.requeue(worker.run(acks_late=acks_late), "its process died", counted=True)


def end_all(world):
    while ending := world.ledger.end():
        world.ledger.finish(ending.ticket)


def test_why_tells_a_wait_after_a_death_and_a_task_that_died_too_often(app, world):
    worker = world.join()
    ticket = world.hold(task_id="one")
    dies(world, worker)
    dies(world, worker)
    waits = "it waits a while, then goes back to its old place in the line: its process died"
    assert told_by(app, "why", "one").count(waits) == 1
    world.end_delay(ticket)
    dies(world, worker)
    often = "its process or its worker died too often (LeaseLost)"
    assert f"is about to end: {often}" in told_by(app, "why", "one")
    end_all(world)
    for told in (told_by(app, "why", "one"), told_by(app, "journal")):
        assert (told.count(waits), told.count(" back at its old place in the line: its process died")) == (1, 1)
        assert f"it ends without running (again): {often}; the last time: its process died\n" in told


def test_why_tells_a_task_that_may_run_only_once(app, world):
    world.hold(task_id="one")
    dies(world, world.join(), acks_late=False)
    once = "its process or its worker died, and it may run only once (LeaseLost)"
    assert f"is about to end: {once}" in told_by(app, "why", "one")
    end_all(world)
    assert f"(again): {once}; its process died\n" in told_by(app, "why", "one")


def test_an_unknown_gpu_that_is_to_be_drained_is_told_the_known_ones(app, world):
    def answer():
        return drain(SimpleNamespace(app=app), "x:1")["error"]

    assert answer() == "no GPU 'x:1' is registered; none is"
    world.join("node:0")
    assert answer() == "no GPU 'x:1' is registered; node:0 is"
    world.join("node:1")
    assert answer() == "no GPU 'x:1' is registered; node:0, node:1 are"
