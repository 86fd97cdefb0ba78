"""The examples do what their READMEs say: the commands are taken from there."""

import importlib.util
import json
import re
import shutil
import signal
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest
import redis
from celery import Celery

from celery_gpulease import GPULease, LeaseLost
from celery_gpulease.embedded import EmbeddedServer, free_port, is_free
from tests.faults.world import SOON, kill
from tests.pages import commands_of
from tests.processes import Processes
from tests.waiting import wait_until

EXAMPLES = Path(__file__).parents[2] / "examples"


@contextmanager
def example(name: str, server: EmbeddedServer, tmp_path: Path) -> Iterator[tuple[Path, Processes]]:
    """A copy of an example, where beat may leave its schedule, and what starts its processes."""
    project = tmp_path / name
    shutil.copytree(EXAMPLES / name, project, ignore=shutil.ignore_patterns("__pycache__", "celerybeat-schedule*"))
    with Processes(tmp_path, cwd=project, env={"REDIS_URL": server.url, "GPULEASE_HOST": "node7"}) as processes:
        yield project, processes


def test_basic_runs_as_its_readme_says(own_server, tmp_path):
    (zero, one, beat), (send, status, pending) = commands_of("basic")
    with example("basic", own_server, tmp_path) as (_, processes):
        workers = [processes.start(*command, name="worker") for command in (zero, one)]
        scheduler = processes.start(*beat, name="beat")
        for worker in workers:
            worker.wait_for_log(" ready.")
        scheduler.wait_for_log("beat: Starting...")

        printed = processes.run(*send).output.splitlines()
        assert [line.split()[0] for line in printed[:4]] == ["a.blend", "b.blend", "c.blend", "d.blend"]
        used = {re.search(r"on GPU node7:(\d), which is CUDA device (\d) ", line).groups() for line in printed[:4]}
        assert used == {("0", "0"), ("1", "1")}
        assert re.fullmatch(r"3 films joined on GPU node7:[01]", printed[4])

        table = processes.run(*status).output
        assert re.search(r"^node7:0 .* gpu0@node7 ", table, re.MULTILINE)
        assert re.search(r"^node7:1 .* gpu1@node7 ", table, re.MULTILINE)
        assert len(processes.run(*pending).output.splitlines()) == 1, "only the table's head: nobody waits"
        assert scheduler.exit_code is None, repr(scheduler)


def test_by_name_runs_as_its_readme_says(own_server, tmp_path):
    (gpu, plain), (send,) = commands_of("by_name")
    with example("by_name", own_server, tmp_path) as (project, processes):
        workers = [processes.start(*one, name="worker", cwd=project / "worker") for one in (gpu, plain)]
        for worker in workers:
            worker.wait_for_log(" ready.")

        first, second, mail = processes.run(*send, cwd=project / "sender").output.splitlines()
        fences = []
        for line, path in ((first, "a.blend"), (second, "b.blend")):
            found = re.fullmatch(rf"{path} on GPU node7:0 under lease (\d+)", line)
            assert found, line
            fences.append(int(found[1]))
        assert fences[0] < fences[1]
        assert mail == "sent: the film is ready"
        assert "mail.notify" not in workers[0].log.partition(" ready.")[2], "the GPU's worker takes GPU tasks only"


def module_of(example: str, name: str) -> ModuleType:
    """One of its modules, imported into this process."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / example / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def sender(own_server) -> Iterator[Celery]:
    """What sends the examples' tasks by their names."""
    app = Celery("sender", broker=own_server.url, backend=own_server.url, set_as_current=False)
    ledger = GPULease(app).ledger
    yield app
    ledger.client.close()
    app.close()


@pytest.fixture
def own_client(own_server) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(own_server.url, decode_responses=True) as client:
        yield client


# -- notebook ----------------------------------------------------------------------------------------------------------

LEASE, WANT = "gpu:lease:node7:0", "gpu:want:node7:0"


@pytest.fixture
def borrow(own_server, monkeypatch) -> ModuleType:
    """The example's module, as its notebook imports it."""
    module = module_of("notebook", "borrow")
    monkeypatch.setitem(sys.modules, "borrow", module)
    monkeypatch.setenv("REDIS_URL", own_server.url)
    return module


def cells_of(notebook: Path) -> list[str]:
    """Its code, cell by cell; it is stored without anybody's outputs."""
    content = json.loads(notebook.read_text())
    assert (content["nbformat"], content["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in content["cells"]}) == len(content["cells"])
    code = [cell for cell in content["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    return ["".join(cell["source"]) for cell in code]


def by_hand(client: redis.Redis, commands: list[tuple[str, ...]]) -> list:
    """What a server answers to commands that a README gives to redis-cli."""
    assert {command[0] for command in commands} == {"redis-cli"}
    return [client.execute_command(*command[1:]) for command in commands]


def test_notebook_runs_as_its_readme_says(own_server, own_client, sender, tmp_path):
    (worker,), (send, train), (take, give_back), (wish, take_too, unwish) = commands_of("notebook")
    with example("notebook", own_server, tmp_path) as (_, processes):
        processes.start(*worker, name="worker").wait_for_log(" ready.")

        films = processes.start(*send, name="send")
        wait_until(lambda: films.output, SOON, "a film")
        told = processes.run(*train, name="train").output
        assert films.wait() == 0, repr(films)
        mine = [float(one) for one in re.fullmatch(r"node7:0 was mine from (\S+) to (\S+)\n", told).groups()]
        lines = re.findall(r"^\d+\.blend on node7:0 from (\S+) to (\S+)$", films.output, re.MULTILINE)
        assert len(lines) == 10
        assert [one for one in lines if float(one[0]) < mine[1] and mine[0] < float(one[1])] == [], "both had the GPU"

        wait_until(lambda: not own_client.exists(LEASE), SOON, "the last film to give the GPU back")
        assert by_hand(own_client, [take]) == [True]
        film = sender.send_task("proj.render", ("by hand",), pool="default")
        assert by_hand(own_client, [take]) == [None], "it is mine already"
        assert by_hand(own_client, [give_back]) == [1]
        film.get(timeout=SOON)

        wait_until(lambda: not own_client.exists(LEASE), SOON, "the film to give the GPU back")
        assert by_hand(own_client, [wish, take_too, unwish, give_back, give_back]) == [True, True, 1, 1, 0]


def test_the_notebooks_cells_take_a_free_gpu_and_wait_for_a_busy_one(
    borrow, own_server, own_client, sender, tmp_path, monkeypatch
):
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):  # the first cell sets them
        monkeypatch.setenv(name, "")
    with example("notebook", own_server, tmp_path) as (project, processes):
        prepare, take, wait, work, give_back = cells_of(project / "notebook.ipynb")
        processes.worker("proj", 0)
        kernel: dict = {}
        exec(prepare, kernel)

        exec(take, kernel)
        film = sender.send_task("proj.render", ("while it is mine",), pool="default")
        exec(wait + "\n" + work, kernel)
        assert own_client.get(LEASE) == kernel["gpu"].me
        assert own_client.zcard("gpu:pending:default") == 1, "it did not wait for the notebook"
        ended = time.time()
        exec(give_back, kernel)
        assert film.get(timeout=SOON)["began"] >= ended

        films = [sender.send_task("proj.render", (number,), pool="default") for number in range(10)]
        exec(wait, kernel)
        began = time.time()
        assert own_client.zcard("gpu:pending:default") > 0, "its turn came after all others"
        assert not own_client.exists(WANT)
        exec(work, kernel)
        ended = time.time()
        exec(give_back, kernel)
        films = [film.get(timeout=SOON) for film in films]
        assert [film for film in films if film["began"] < ended and began < film["ended"]] == [], "both had the GPU"


@pytest.mark.parametrize("flags", ["Kgxe", ""], ids=["events", "no events"])
def test_who_waits_goes_on_waiting_when_another_program_is_quicker(flags, borrow, own_client):
    own_client.config_set("notify-keyspace-events", flags)
    own_client.set(LEASE, "a task", px=60000)
    gpu = borrow.BorrowedGPU("node7:0")
    waits = threading.Thread(target=gpu.wait, daemon=True)
    waits.start()
    wait_until(lambda: own_client.get(WANT) == gpu.me, SOON, "the wish")
    with own_client.pipeline() as quicker:
        quicker.delete(LEASE).set(LEASE, "somebody quicker", px=60000).execute()
    own_client.delete(WANT)
    wait_until(lambda: own_client.get(WANT) == gpu.me, SOON, "the wish to be there still")
    assert waits.is_alive()
    own_client.delete(LEASE)
    waits.join(SOON)
    assert not waits.is_alive(), "it waits for ever"
    assert own_client.get(LEASE) == gpu.me
    assert not own_client.exists(WANT)
    gpu.give_back()


def test_a_borrowed_gpu_is_renewed_and_what_went_to_another_is_left_alone(borrow, own_client, monkeypatch):
    monkeypatch.setattr(borrow, "RENEW_SECONDS", 0.01)
    gpu = borrow.BorrowedGPU("node7:0")
    with gpu.wait():
        own_client.pexpire(LEASE, 30_000)
        wait_until(lambda: own_client.pttl(LEASE) > 50_000, SOON, "a renewal")
        gpu.check()
        own_client.set(LEASE, "another", px=60_000)
        wait_until(lambda: gpu.lost, SOON, "it to be told")
        with pytest.raises(borrow.LostError, match="node7:0"):
            gpu.check()
    assert own_client.get(LEASE) == "another"
    assert not gpu.take()


# -- django ------------------------------------------------------------------------------------------------------------


def as_curl(command: tuple[str, ...], port: int) -> str:
    """What a web server answers to a command that a README gives to curl."""
    assert command[0] == "curl"
    data = command[command.index("-d") + 1].encode() if "-d" in command else None
    url = command[-1].replace("localhost:8000", f"localhost:{port}")
    with urllib.request.urlopen(url, data, timeout=SOON) as answer:
        return answer.read().decode()


@pytest.mark.skipif(not importlib.util.find_spec("django"), reason="Django is not installed")
def test_django_runs_as_its_readme_says(own_server, tmp_path):
    (migrate,), (zero, one, serve), (*orders, look, status), _ = commands_of("django")
    port = free_port()
    with example("django", own_server, tmp_path) as (_, processes):
        processes.run(*migrate)
        for command in (zero, one):
            processes.start(*command, name="worker").wait_for_log(" ready.")
        processes.start(*serve, str(port), "--noreload", name="web", PYTHONUNBUFFERED="1")
        wait_until(lambda: not is_free(port), SOON, "the web server")

        for number, order in enumerate(orders, 1):
            assert as_curl(order, port).count("\n") == number
        films = wait_until(
            lambda: found if "waits" not in (found := as_curl(look, port)) else None, SOON, "three films"
        )
        assert re.fullmatch(r"(?:[abc]\.blend: rendered on node7:[01]\n){3}", films)
        assert {"node7:0", "node7:1"} == set(re.findall(r"node7:\d", films))
        assert re.search(r"^node7:1 .* gpu1@node7 ", processes.run(*status).output, re.MULTILINE)


@pytest.mark.skipif(not importlib.util.find_spec("pytest_django"), reason="pytest-django is not installed")
@pytest.mark.parametrize("more", [(), ("-n", "2")], ids=["one process", "two"])
def test_djangos_own_tests_pass(more, own_server, tmp_path):
    *_, (run,) = commands_of("django")
    with example("django", own_server, tmp_path) as (_, processes):
        told = processes.run(*run, *more).output
    assert re.search(r"^=+ 5 passed\b", told, re.MULTILINE), told


# -- pytorch -----------------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="torch is not installed")
def test_pytorch_trains_goes_on_after_a_death_and_keeps_its_network(own_server, sender, tmp_path):
    (worker_command,), (send,) = commands_of("pytorch")
    with example("pytorch", own_server, tmp_path) as (project, processes):
        worker = processes.start(*worker_command, name="worker")
        worker.wait_for_log(" ready.")
        trained, first, second = processes.run(*send, seconds=120).output.splitlines()
        assert re.fullmatch(r"trained from step 0 to 100 on (cpu|cuda) of node7:0: loss 0\.\d+", trained)
        share = re.fullmatch(r"(\d+)% right on (cpu|cuda) of node7:0; loaded before: False", first)
        assert int(share[1]) > 80
        assert re.fullmatch(r"\d+% right on (cpu|cuda) of node7:0; loaded before: True", second)

        long = sender.send_task("tasks.train", (200,), pool="default")
        wait_until(lambda: list(project.glob(f"checkpoints/{long.id}.*.pt")), 60, "a checkpoint")
        for child in worker.children():
            kill(child, signal.SIGKILL)
        result = long.get(timeout=120)
        assert result["from_step"] >= 20, "it began anew"
        assert result["to_step"] == 200
        assert len(list(project.glob(f"checkpoints/{long.id}.*.pt"))) == 1, "the dead run's is left"


def test_a_late_writer_of_checkpoints_is_refused_and_cannot_spoil_them(tmp_path):
    checkpoints = module_of("pytorch", "checkpoints").Checkpoints
    early, late = checkpoints(tmp_path, "training", 1), checkpoints(tmp_path, "training", 2)
    early.write(lambda path: path.write_text("early"))
    late.write(lambda path: path.write_text("late"))
    with pytest.raises(LeaseLost, match="runs elsewhere"):
        early.write(lambda path: path.write_text("too late"))
    assert late.newest().read_text() == "late"

    def is_overtaken(path: Path) -> None:
        late.write(lambda path: path.write_text("late again"))
        path.write_text("checked just before")

    late.newest().unlink()
    early.write(is_overtaken)
    assert late.newest().read_text() == "late again"
