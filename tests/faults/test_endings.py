"""However a task ends, in every pool: its GPU is free when the task is done with it and not before, it has one end, and
the next one starts.

The rows are those of Celery's life of a task. Each is sent with another behind it, on the same GPU; both must come to
their ends, and the lease of each run must have stayed until the run was over (of a process that was killed: until it
was gone). A row's end is Celery's own, but for the death of a process: that is no end of the task.
"""

import os
import signal
from collections.abc import Callable
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from itertools import count

import pytest
from celery import Task

from celery_gpulease import GPUTask
from celery_gpulease.embedded import EmbeddedServer
from celery_gpulease.ledger.checks import inconsistencies
from celery_gpulease.sending.destination import Destination
from celery_gpulease.sending.envelope import Finished, held
from tests.faults.conftest import world_on
from tests.faults.lease_watch import LeaseWatch
from tests.faults.world import HOST, SOON, frozen, kill, now, overlaps
from tests.waiting import wait_until

PREFORK, SOLO, THREADS = POOLS = ("prefork", "solo", "threads")
#: The signals that `make test` sends from outside; what they do to a process, the others do too.
SHOWN = ("SIGKILL", "SIGTERM")
#: Bodies that were ended with the process that ran them, or by it.
DEATHS = (None, "SystemExit", "KeyboardInterrupt")


class Lab:
    """One server, and a worker of each pool, which the rows share: GPU 0 prefork, 1 solo, 2 threads."""

    def __init__(self, server_binary, folder):
        self._exit = ExitStack()
        server = self._exit.enter_context(EmbeddedServer(binary=server_binary))
        self.world = self._exit.enter_context(world_on(server.url, folder))
        self._workers, self._unused = {}, count(len(POOLS))
        self._is_clean = True
        self.watch = LeaseWatch(server.url, folder / "journal.jsonl")
        self.watch.start()
        self._exit.callback(self.watch.stop)

    def close(self):
        self._exit.close()

    @contextmanager
    def row(self):
        """A row that failed leaves nothing to the next one."""
        if not self._is_clean:
            for worker in self._workers.values():
                worker.close()
            self._workers.clear()
            self.world.client.flushall()
        self._is_clean = False
        yield
        self.rest()
        self._is_clean = True

    def worker(self, pool):
        """The worker of this pool; a row must not end it."""
        if pool not in self._workers:
            self._workers[pool] = self.start(POOLS.index(pool), "-P", pool)
        return self._workers[pool]

    def unused_gpu(self):
        """For a worker that a test starts by itself."""
        return next(self._unused)

    def start(self, gpu, *options, **env):
        """A worker of the project of endings, known as alive."""
        process = self.world.processes.worker("endings", gpu, *options, **env)
        here = self.world.ledger.keys.here(f"{HOST}:{gpu}")
        wait_until(lambda: self.world.client.pubsub_numsub(here)[0][1], SOON, "a listener")
        return process

    def send(self, name, *args, gpu, **options):
        """Sends a task by its name, to one GPU."""
        return self.world.app.send_task(f"endings.{name}", args, gpu=f"{HOST}:{gpu}", **options).id

    def has_ended(self, task):
        """Does no ticket of this task remain?"""
        return not self.world.client.exists(f"gpu:task:{task}")

    def noted(self, task, what):
        """Waits until the task has noted this."""

        def found():
            return any(line["what"] == what and line.get("task") == task for line in self.world.journal())

        self.world.wait(found, SOON, task)

    def end_of(self, task):
        """Its state; of a failure its error."""
        found = self.world.app.AsyncResult(task)
        return type(found.result).__name__ if found.state == "FAILURE" else found.state

    def check_frees(self, task, pool):
        """The GPU of each run became free when the run was over, not before."""
        runs = self.world.runs(task)
        wait_until(lambda: len(self.watch.freed_of(task)) == len(runs), SOON, "all leases to be seen to go")
        for run in self.watch.freed_of(task):
            is_death = run.how in DEATHS or not run.is_done
            is_free = run.is_gone if pool == PREFORK and is_death else run.is_done or run.is_gone
            assert is_free, f"the GPU was given on while {run} was not over: {self.world.story(task)}"

    def rest(self):
        """Nothing is left."""
        wait_until(lambda: not self.world.client.keys("gpu:lease:*"), SOON, "all leases to go")
        wait_until(lambda: not self.world.client.keys("gpu:ticket:*"), SOON, "all tickets to end")
        wait_until(lambda: not inconsistencies(self.world.ledger), SOON, "a consistent ledger")
        assert overlaps(self.world.runs()) == []


@pytest.fixture(scope="module")
def lab(server_binary, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPULEASE_HOST", HOST)
        lab = Lab(server_binary, tmp_path_factory.mktemp("endings"))
        yield lab
        lab.close()


# how a row is sent, and what is done to it: `send(lab, gpu)` answers the task's id, `act(lab, gpu, task)` follows


def a(name, *args, **options):
    """This task."""
    return lambda lab, gpu: lab.send(name, *args, gpu=gpu, **options)


def held_back(send):
    """What is sent waits in the line, since a stranger has the GPU; its `act` ends that."""

    def send_behind_a_stranger(lab, gpu):
        lab.world.take(gpu)
        return send(lab, gpu)

    return send_behind_a_stranger


def let_in_after_its_end(lab, gpu, task):
    lab.world.ends(task, "REVOKED")
    lab.world.give(gpu)


def revoke(lab, gpu, task):
    """Revokes it; its worker has heard of it."""
    lab.world.app.control.revoke(task, destination=[f"gpu{gpu}@{HOST}"], reply=True, timeout=SOON)


def revoke_and_let_in(lab, gpu, task):
    revoke(lab, gpu, task)
    lab.world.give(gpu)


def revoked_before(lab, gpu):
    """The worker has heard of it before it comes."""
    task = f"known-{gpu}-{now()}"
    revoke(lab, gpu, task)
    return lab.send("end", "SIGKILL", gpu=gpu, task_id=task)


def terminate(word, *, at="start", opened=False):
    """Revokes what runs; where that cannot stop it, it ends when its gate opens.

    Only its worker hears of it: of others Celery 5.7 stores REVOKED, a moment after looking, maybe over the task's end.
    """

    def revoke_when_it_runs(lab, gpu, task):
        lab.noted(task, at)
        lab.world.app.control.revoke(task, terminate=True, signal=word, destination=[f"gpu{gpu}@{HOST}"])
        if opened:
            lab.world.open(task)

    return revoke_when_it_runs


def strike(word, *, at="start"):
    """A signal hits the process that runs it, once; should it run on, or again, its gate is open then."""

    def kill_what_runs(lab, _gpu, task):
        lab.noted(task, at)
        kill(lab.world.started(task).pid, signal.Signals[word])
        lab.world.open(task)

    return kill_what_runs


def routed_until_it_expires(lab, gpu):
    """Its worker sleeps from the claim until after it has expired."""
    worker = lab.worker(POOLS[gpu])
    lab.world.until_free(gpu)
    with frozen(worker):
        task = lab.send("end", "SIGKILL", gpu=gpu, expires=0.2)
        assert lab.world.client.hget(f"gpu:claim:{HOST}:{gpu}", "state") == "claimed"
        sent = now()
        wait_until(lambda: now() > sent + 0.25, SOON, "it to expire")
        return task


def message(change=("", ""), body=b"[[], {}, {}]", kind="application/json", task=None):
    """A held message that no honest sender makes: the body, or the stored envelope, is not as it should be."""

    def hold_it(lab, gpu):
        known, ticket = task or f"odd-{gpu}-{now()}", os.urandom(16).hex()
        headers = {"lang": "py", "task": "endings.end", "id": known, "root_id": known, "argsrepr": "()"}
        finished = Finished(body, kind, "utf-8", headers, {"correlation_id": known})
        one = held(lab.world.app, "endings.end", finished, Destination("default", f"{HOST}:{gpu}"), ticket)
        lab.world.ledger.hold(replace(one, message=one.message.replace(*change, 1)))
        return known

    return hold_it


@dataclass(frozen=True)
class Row:
    """One way to end.

    Attributes:
        name: Of the test.
        send: How the task is sent.
        end: SUCCESS, REVOKED, PENDING for no end, else the error of its FAILURE; one of these, with a bar between.
        runs: How often it ran.
        act: What is done to it then.
        is_long: It takes its time, or is much like another row.
    """

    name: str
    send: Callable
    end: str
    runs: int = 1
    act: Callable = lambda *_: None
    is_long: bool = False


#: Its process stores that it has failed, its worker that it is revoked: in Celery the last one counts.
BY_USR1 = "SoftTimeLimitExceeded|REVOKED"

EVERYWHERE = [
    # the task's own end
    Row("success", a("end", "ValueError", 0), "SUCCESS"),
    Row("success-with-acks-early", a("end_once", "ValueError", 0), "SUCCESS"),
    Row("work-after-return", a("return_slowly"), "SUCCESS"),
    Row("due-later", a("end", "ValueError", 0, countdown=0.5), "SUCCESS"),
    Row("before-start-raises", a("fail_before_it_starts", "ValueError"), "ValueError", runs=0),
    Row("on-success-raises", a("fail_on_success", "ValueError", 0), "SUCCESS"),
    Row("result-not-serialisable", a("end", "unserialisable"), "EncodeError"),
    Row("exception", a("end", "ValueError"), "ValueError"),
    Row("exception-with-acks-early", a("end_once", "ValueError"), "ValueError"),
    Row("wrong-arguments", a("end"), "TypeError", runs=0),
    Row("retry", a("retry", 2, 3), "SUCCESS", runs=3),
    Row("retries-exhausted", a("retry", 9, 1), "MaxRetriesExceededError", runs=2),
    Row("autoretry", a("end_by_autoretry", "ValueError", 1), "SUCCESS", runs=2),
    Row("autoretries-exhausted", a("end_by_autoretry", "ValueError"), "ValueError", runs=4),
    Row("replace", a("replace"), "SUCCESS", runs=2),
    Row("ignore", a("end", "Ignore"), "PENDING"),
    Row("reject", a("end", "Reject"), "Reject"),
    Row("reject-and-requeue", a("end", "Reject and requeue", 5), "SUCCESS", runs=6),
    Row("reject-and-requeue-with-acks-early", a("end_once", "Reject and requeue", 5), "SUCCESS", runs=6),
    Row("rate-limit", a("end_at_a_rate", "Reject and requeue", 2), "SUCCESS", runs=3),
    Row("memory-error", a("end", "MemoryError"), "MemoryError"),
    Row("memory-error-with-acks-early", a("end_once", "MemoryError"), "MemoryError"),
    # it never comes to a run
    Row("expired-while-held", held_back(a("end", "SIGKILL", expires=0.2)), "REVOKED", 0, let_in_after_its_end),
    Row("expired-while-routed", routed_until_it_expires, "REVOKED", 0),
    Row("revoked-while-held", held_back(a("end", "SIGKILL")), "REVOKED", 0, revoke_and_let_in),
    Row("revoked-while-scheduled", a("end", "SIGKILL", countdown=1), "REVOKED", 0, revoke),
    Row("revoked-before-it-is-received", revoked_before, "REVOKED", 0),
    Row("unknown-task", a("nowhere"), "NotRegistered", 0),
    Row("body-is-no-json", message(body=b"{no"), "PENDING", 0),
    Row("content-type-refused", message(kind="application/x-python-serialize"), "PENDING", 0),
    Row("eta-is-no-time", message(('"eta": null', '"eta": "soon"')), "PENDING", 0),
    Row("expires-is-no-time", message(('"lang"', '"expires": "soon", "lang"')), "PENDING", 0),
    Row("body-is-no-list", message(body=b'"no"'), "PENDING", 0),
    Row("body-is-null", message(body=b"null"), "PENDING", 0),
    Row("args-are-no-list", message(body=b'["SIGKILL", {}, {}]'), "PENDING", 0),
    Row("kwargs-are-no-mapping", message(body=b"[[], [], {}]"), "PENDING", 0),
    Row("embed-is-no-mapping", message(body=b'[[], {}, "no"]'), "PENDING", 0),
]

RETRIED_ON_WORKER_LOST = [
    Row("retry-on-worker-lost", a("end_and_retry", "SIGKILL", 1), "SUCCESS", runs=2),
    Row("retry-on-worker-lost-with-acks-early", a("end_once_and_retry", "SIGKILL", 1), "SUCCESS", runs=2, is_long=True),
    Row("retry-on-worker-lost-exhausted", a("end_and_retry_one_time", "SIGKILL"), "WorkerLostError", runs=2),
] * hasattr(Task, "retry_on_worker_lost")  # from Celery 5.7

IN_PREFORK = [
    # it is stopped
    Row("terminated", a("wait"), "REVOKED", act=terminate("SIGTERM")),
    Row("terminated-with-acks-early", a("wait_once"), "REVOKED", act=terminate("SIGTERM")),
    Row("terminated-by-kill", a("wait"), "REVOKED", act=terminate("SIGKILL")),
    Row("terminated-by-usr1", a("wait"), BY_USR1, act=terminate("SIGUSR1")),
    Row("terminated-in-c", a("compute", 1.5), "REVOKED", act=terminate("SIGTERM", at="computes")),
    Row("terminated-by-kill-in-c", a("compute", 1.5), "REVOKED", act=terminate("SIGKILL", at="computes")),
    Row("terminated-by-usr1-in-c", a("compute", 1), BY_USR1, act=terminate("SIGUSR1", at="computes")),
    Row("soft-limit", a("wait", soft_time_limit=0.5), "SoftTimeLimitExceeded"),
    Row("soft-limit-caught", a("catch_soft_limit", soft_time_limit=0.5), "SUCCESS"),
    Row("soft-limit-in-c", a("compute", 1, soft_time_limit=0.5), "SoftTimeLimitExceeded"),
    Row("hard-limit", a("wait", time_limit=0.5), "TimeLimitExceeded"),
    Row("hard-limit-with-acks-early", a("wait_once", time_limit=0.5), "TimeLimitExceeded"),
    Row("hard-limit-in-c", a("compute", 2, time_limit=0.5), "TimeLimitExceeded"),
    Row("hard-limit-not-acknowledged", a("compute_again", 2, 1, time_limit=0.5), "SUCCESS", runs=2),
    Row("hard-limit-not-acknowledged-early", a("compute_again_once", 2, time_limit=0.5), "TimeLimitExceeded"),
    # its process dies
    Row("killed-once", a("end", "SIGKILL", 1), "SUCCESS", runs=2),
    Row("killed-always", a("end", "SIGKILL"), "LeaseLost", runs=3),
    Row("killed-with-acks-early", a("end_once", "SIGKILL"), "LeaseLost"),
    *(
        Row(f"{word}-from-outside", a("wait"), "SUCCESS", runs=2, act=strike(word), is_long=word not in SHOWN)
        for word in ("SIGKILL", "SIGTERM", "SIGSEGV", "SIGABRT", "SIGBUS", "SIGHUP", "SIGQUIT")
    ),
    Row("SIGTERM-from-outside-in-c", a("compute", 1, 1), "SUCCESS", 2, strike("SIGTERM", at="computes")),
    Row("SIGINT-from-outside", a("wait"), "SUCCESS", act=strike("SIGINT")),  # Celery's children ignore it
    Row("SIGUSR1-from-outside", a("wait"), "SoftTimeLimitExceeded", act=strike("SIGUSR1")),
    *(
        row
        for how in ("os._exit(0)", "os._exit(3)", "sys.exit", "KeyboardInterrupt", "segfault")
        for row in (
            Row(f"{how}-once", a("end", how, 1), "SUCCESS", runs=2),
            Row(f"{how}-always", a("end", how), "LeaseLost", runs=3, is_long=True),
            Row(f"{how}-with-acks-early", a("end_once", how), "LeaseLost", is_long=True),
        )
    ),
    Row("other-BaseException", a("end", "BaseException"), "Unheard"),
    Row("dies-on-success", a("die_on_success"), "SUCCESS"),
    Row("dies-on-success-with-acks-early", a("die_on_success_once"), "SUCCESS"),
    Row("dies-after-return", a("die_after_return"), "SUCCESS"),
    Row("reject-on-worker-lost", a("end_and_reject", "SIGKILL", 1), "SUCCESS", runs=2),
    Row("reject-on-worker-lost-always", a("end_and_reject", "SIGKILL"), "LeaseLost", runs=3, is_long=True),
    Row("reject-on-worker-lost-with-acks-early", a("end_once_and_reject", "SIGKILL"), "LeaseLost", is_long=True),
    *RETRIED_ON_WORKER_LOST,
]

IN_MAIN = [
    Row("terminated-in-vain", a("wait"), "SUCCESS", act=terminate("SIGTERM", opened=True)),
    Row("limits-in-vain", a("compute", 1.2, soft_time_limit=0.5, time_limit=1), "SUCCESS"),
    *(
        row
        for how in ("sys.exit", "KeyboardInterrupt", "BaseException")
        for row in (
            Row(f"{how}-once", a("end", how, 1), "SUCCESS", runs=2),
            Row(f"{how}-always", a("end", how), "LeaseLost", runs=3),
            Row(f"{how}-with-acks-early", a("end_once", how), "LeaseLost"),
        )
    ),
]

TABLE = {PREFORK: EVERYWHERE + IN_PREFORK, SOLO: EVERYWHERE + IN_MAIN, THREADS: EVERYWHERE + IN_MAIN}
CASES = [
    pytest.param(
        pool, row, id=f"{pool}-{row.name}", marks=[pytest.mark.xdist_group(pool), *[pytest.mark.long] * row.is_long]
    )
    for pool, rows in TABLE.items()
    for row in rows
]


@pytest.mark.parametrize(("pool", "row"), CASES)
def test_the_gpu_is_free_when_the_task_is_over_and_the_task_has_one_end(lab, pool, row):
    with lab.row():
        gpu, worker = POOLS.index(pool), lab.worker(pool)
        task = row.send(lab, gpu)
        following = lab.send("end", "ValueError", 0, gpu=gpu)
        row.act(lab, gpu, task)
        lab.world.succeeds(following, seconds=SOON)
        lab.world.wait(lambda: lab.has_ended(task), SOON, task)
        assert lab.end_of(task) in row.end.split("|"), lab.world.story(task)
        assert len(lab.world.runs(task)) == row.runs, lab.world.story(task)
        lab.check_frees(task, pool)
        assert worker.exit_code is None, repr(worker)


@pytest.mark.parametrize("name", ["end", "end_and_retry"])
def test_a_death_is_not_taken_for_the_revocation_of_the_task_before(lab, name):
    with lab.row():
        lab.worker(PREFORK)
        revoked = lab.send("wait", gpu=0)
        terminate("SIGUSR1")(lab, 0, revoked)
        task = lab.send(name, "SIGKILL", 1, gpu=0)
        lab.world.succeeds(task)
        first, second = lab.world.runs(task)
        assert first.pid == lab.world.runs(revoked)[0].pid != second.pid
        assert lab.end_of(revoked) in BY_USR1.split("|")
        lab.check_frees(task, PREFORK)


# rows that need a worker of their own


@pytest.mark.long
@pytest.mark.parametrize("name", ["end", "end_once"])
@pytest.mark.parametrize("how", ["os._exit(3)", "segfault", "SIGKILL"])
@pytest.mark.parametrize("pool", [SOLO, THREADS])
def test_where_a_task_dies_with_its_worker_it_runs_again_on_the_next_or_fails(lab, pool, how, name):
    with lab.row():
        gpu = lab.unused_gpu()
        lab.worker(PREFORK)  # it notices, and writes the end
        with closing(lab.start(gpu, "-P", pool)) as worker:
            task = lab.send(name, how, 1, gpu=gpu)
            following = lab.send("end", "ValueError", 0, gpu=gpu)
            worker.wait()
        with closing(lab.start(gpu, "-P", pool)):
            lab.world.succeeds(following)
            lab.world.wait(lambda: lab.has_ended(task), SOON, task)
            assert lab.end_of(task) == ("SUCCESS" if name == "end" else "LeaseLost"), lab.world.story(task)
            assert len(lab.world.runs(task)) == (2 if name == "end" else 1)
            lab.check_frees(task, pool)
            lab.rest()


@pytest.mark.long
@pytest.mark.parametrize("limit", [("--max-tasks-per-child", "1"), ("--max-memory-per-child", "1")])
def test_where_each_task_has_a_child_of_its_own_the_next_one_starts(lab, limit):
    with lab.row():
        gpu = lab.unused_gpu()
        with closing(lab.start(gpu, *limit)):
            tasks = [lab.send("end", how, 1, gpu=gpu) for how in ("ValueError", "SIGKILL", "sys.exit")]
            tasks += [lab.send("end", "ValueError", 0, gpu=gpu) for _ in range(3)]
            for task in tasks:
                lab.world.ends(task, "FAILURE" if task == tasks[0] else "SUCCESS")
            runs = [run for task in tasks for run in lab.world.runs(task)]
            assert [len(lab.world.runs(task)) for task in tasks] == [1, 2, 2, 1, 1, 1]
            assert len({run.pid for run in runs}) == len(runs)
            for task in tasks:
                lab.check_frees(task, PREFORK)
            lab.rest()


# no message, no lease


def test_called_in_place_a_task_has_no_lease(lab):
    app = lab.world.app

    @app.task(base=GPUTask, bind=True, name="endings.here")
    def here(self):
        assert not lab.world.client.keys("gpu:lease:*")
        self.lease.check()
        self.lease.release()
        return self.gpu.id, self.lease.fence, self.lease.lost

    nothing = (None, None, False)
    with lab.row():
        assert here() == nothing
        assert here.apply().get() == nothing
        app.conf.task_always_eager = True
        try:
            assert here.delay().get() == nothing
        finally:
            app.conf.task_always_eager = False
        assert not lab.world.client.keys("gpu:ticket:*")
