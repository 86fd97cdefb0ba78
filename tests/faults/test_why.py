"""What an operator is told: by `why`, `journal` and `status`, by Celery's own tools, and by the log."""

import json
import signal

import pytest

from tests.faults.test_operate import says
from tests.faults.world import HOST, SOON
from tests.waiting import wait_until

pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated setex")  # by Celery's result backend

GPU = f"{HOST}:0"
LOG = "facts.jsonl"


def lines_of(world, task):
    """What the log says of a task to programs."""
    lines = map(json.loads, (world.folder / LOG).read_text().splitlines())
    return [line for line in lines if line["task_id"] == task]


def test_a_task_is_told_of_while_it_waits_and_runs_and_when_it_has_ended_and_so_is_what_died(world):
    world.worker(0, TEST_FACTS=LOG)
    running, waiting = world.send("wait_for", "go"), world.send("die")
    later = world.send("add", 1, 2, countdown=3600)
    world.started(running)
    told = says(world, "why", running)
    assert told.startswith(f"proj.wait_for[{running}] runs on GPU {GPU} (worker gpu0@{HOST}), for ")
    told = says(world, "why", waiting)
    assert "number 1 in the line of pool default: every GPU of pool 'default' is leased" in told
    assert "not due yet: in 3" in says(world, "why", later)
    assert says(world, "cancel", later)
    assert "has ended: REVOKED" in says(world, "why", later)
    assert "no task nobody is known" in says(world, "why", "nobody", code=1)
    assert "the journal tells of no trouble; the journal begins on 20" in says(world, "journal", "--trouble")
    inspected(world, running, waiting)
    world.open("go")
    world.succeeds(running)
    world.ends(waiting, "FAILURE")
    wait_until(lambda: "ended" in world.story(waiting), SOON, "the last word of the ledger")
    assert says(world, "why", running).startswith(f"proj.wait_for[{running}] has ended: SUCCESS; it ran on {GPU}\n")
    story = json.loads(says(world, "why", "--json", waiting))
    assert (story["state"], story["now"]) == ("FAILURE", [])
    assert [one["what"] for one in story["story"]] == [
        *("held", "claimed", "started", "requeued"),
        *("claimed", "started", "requeued", "promoted"),
        *("claimed", "started", "ending", "ended"),
    ]
    trouble = says(world, "journal", "--trouble")
    assert trouble.count("its process died") == 3
    assert "its process or its worker died too often (LeaseLost); the last time: " in trouble
    assert running not in trouble
    assert f"proj.die[{waiting}]" in trouble
    assert "the last time: its process died: signal 9 (SIGKILL)\n" in trouble
    assert says(world, "journal", "--trouble", "--gpu", GPU).count(waiting) == 3
    assert "has ended: FAILURE (LeaseLost: its process died: signal 9 (SIGKILL); it was given out 3 times)" in says(
        world, "why", waiting
    )
    assert "no GPU 'x:1' is registered" in says(world, "journal", "--gpu", "x:1", code=1)
    said = [(line["level"], line["gpu"], line["pool"], line["message"]) for line in lines_of(world, running)]
    assert said == [
        ("INFO", GPU, "default", f"proj.wait_for[{running}] starts on GPU {GPU} (delivery 1)"),
        ("INFO", GPU, "default", f"proj.wait_for[{running}] is over: GPU {GPU} is given back"),
    ]
    levels = [line["level"] for line in lines_of(world, waiting)]
    assert levels == ["INFO", "ERROR", "INFO"] * 3 + ["ERROR"]  # it starts, its process dies, it goes back; it fails
    assert len({line["token"] for line in lines_of(world, waiting) if line["token"]}) == 3


def inspected(world, running, waiting):
    """Celery's own tools see the GPU, and drain it."""
    (answer,) = json.loads(world.processes.run(*CELERY, "inspect", "gpulease", "-j").output).values()
    assert (answer["gpu"], answer["takes_work"], answer["pools"]) == (GPU, True, ["default"])
    assert [one["task_id"] for one in answer["running"]] == [running]
    assert f"{GPU} is draining" in world.processes.run(*CELERY, "control", "gpulease_drain", GPU).output
    assert world.row(0)["state"] == "draining"
    assert "every GPU of pool 'default' is drained" in says(world, "why", waiting)
    (answer,) = world.app.control.broadcast("gpulease_undrain", arguments={"gpu": GPU}, reply=True, timeout=5, limit=1)
    assert answer == {f"gpu0@{HOST}": {"ok": f"{GPU} takes work"}}
    (answer,) = world.app.control.broadcast("gpulease_drain", arguments={"gpu": "x:1"}, reply=True, timeout=5, limit=1)
    assert answer == {f"gpu0@{HOST}": {"error": f"no GPU 'x:1' is registered; {GPU} is"}}
    assert world.row(0)["state"] == "leased"


CELERY = ("celery", "-A", "proj")


def test_a_status_that_is_watched_in_a_pipe_goes_on_without_colours(world):
    process = world.processes.start(*CELERY, "gpulease", "status", "--watch", "--every", "0.2", name="watch")
    wait_until(lambda: process.output.count("POOL ") >= 3, SOON, "three looks")
    process.send(signal.SIGINT)
    assert process.wait() == 0
    assert "\x1b" not in process.output
    assert process.log == ""


def test_the_shell_is_offered_the_gpus_and_the_tasks(world):
    world.ledger.client.zadd("gpu:gpus", {GPU: 3000})
    task = world.send("add", 1, 2)

    def offered(*words):
        env = {"_CELERY_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words))}
        return world.processes.run("celery", **env).output.splitlines()

    assert offered(*CELERY, "gpulease", "drain") == [f"plain,{GPU}"]
    assert offered(*CELERY, "gpulease", "why") == [f"plain,{task}"]
    assert {"plain,status", "plain,doctor"} <= set(offered(*CELERY, "gpulease"))
    world.ledger.client.zrem("gpu:gpus", GPU)
    says(world, "cancel", task)


def test_a_worker_that_stops_while_its_task_runs_is_seen_to(world):
    worker = world.worker(0)
    running = world.send("wait_for", "go")
    world.started(running)
    waiting = world.send("add", 1, 2)
    worker.send(signal.SIGTERM)
    wait_until(lambda: world.row(0)["reason"], SOON, "a reason")
    (row,) = (line for line in says(world, "status").splitlines() if running in line)
    assert row.endswith(f" gpu0@{HOST}  its worker is stopping, or takes no new work")
    assert "every GPU of pool 'default' is leased, and takes nothing after that" in says(world, "why", waiting)
    assert f" runs on GPU {GPU} (worker gpu0@{HOST}), for " in says(world, "why", running)
    world.open("go")
    world.succeeds(running)
    assert worker.wait() == 0
    world.worker(0)
    world.succeeds(waiting)
