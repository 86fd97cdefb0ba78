"""Canvas: what is built of GPU tasks, or of GPU tasks and plain ones, does what it does with plain tasks alone.

Each case is built of plain tasks, which shows what Celery does, of GPU tasks, and of both by turns.
"""

import gc
import json
import re
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path

import pytest
from celery import Celery, chain, chord, group, signature
from celery.result import GroupResult

from celery_gpulease import GPULease, GPURouter
from celery_gpulease.embedded import EmbeddedServer
from celery_gpulease.exceptions import LeaseLost
from celery_gpulease.ledger.checks import inconsistencies
from tests.faults.conftest import world_on
from tests.faults.world import HOST, LONG, SOON, overlaps
from tests.semantics.project.canvas import make
from tests.waiting import wait_until

PROJECT = Path(__file__).parent / "project"
GPUS = range(4)
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
#: A trace as OpenTelemetry's instrumentation sends it.
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Mixed:
    """A GPU task and a plain one by turns."""

    def __init__(self, app):
        self._roads = cycle((app.gpu, app.plain))

    def __getattr__(self, name):
        return getattr(next(self._roads), name)


def parents(result):
    """Those before it."""
    while result := result.parent:
        yield result


class Studio:
    """One server with the workers of four GPUs and a plain one, which the cases share."""

    def __init__(self, server_binary, folder):
        self._exit = ExitStack()
        server = self._exit.enter_context(EmbeddedServer(binary=server_binary))
        self.world = self._exit.enter_context(world_on(server.url, folder))
        self.app = make(server.url, self.world.conf)
        self._exit.callback(self.app.close)
        plain = self._start("-c", "1", "-n", "plain@h")
        for gpu in GPUS:
            self._start("--gpu", str(gpu))
        plain.wait_for_log(" ready.")
        wait_until(lambda: self.world.client.zcard("gpu:free:default") == len(GPUS), LONG, "four GPUs")

    def _start(self, *options):
        command = ("celery", "-A", "canvas", "worker", "-l", "info", *options)
        return self.world.processes.start(*command, cwd=PROJECT, PYTHONPATH=str(PROJECT))

    def close(self):
        gc.collect()  # results that are garbage speak to the server when they go
        self._exit.close()

    def roads(self):
        """What a case is built of, by name."""
        return {"plain": self.app.plain, "gpu": self.app.gpu, "mixed": Mixed(self.app)}

    def outcome(self, build, road):
        """What becomes of a case on a road, without ids; and its result."""
        result = build(self.roads()[road]).apply_async()
        # what get() raises depends on when it is called: before the first of its parents has failed, or after
        wait_until(lambda: result.ready() or any(one.failed() for one in parents(result)), LONG, "it to end")
        try:
            value = result.get(timeout=LONG)
        except Exception as error:  # noqa: BLE001
            value = f"{type(error).__name__}: {UUID.sub('ID', str(error))}"
        return value, result

    def until_noted(self, what, task):
        """The line of the journal that says this of a task."""

        def found():
            return [line for line in self.world.journal() if line["what"] == what and line["of"] == task]

        return wait_until(found, SOON, what)[0]

    def rest(self):
        """Nothing is left, and nothing overlapped."""
        client = self.world.client
        wait_until(lambda: not client.keys("gpu:lease:*"), SOON, "all leases to go")
        wait_until(lambda: not client.keys("gpu:ticket:*"), SOON, "all tickets to end")
        wait_until(lambda: not inconsistencies(self.world.ledger), SOON, "a consistent ledger")
        assert overlaps(self.world.runs()) == []


@pytest.fixture(scope="module")
def the_studio(server_binary, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPULEASE_HOST", HOST)
        studio = Studio(server_binary, tmp_path_factory.mktemp("canvas"))
        yield studio
        studio.close()


@pytest.fixture
def studio(the_studio):
    yield the_studio
    the_studio.rest()


def states(result):
    """The states of a result, its parts and those before it."""
    if result is None:
        return None
    own = [states(one) for one in result.results] if isinstance(result, GroupResult) else result.state
    return own, states(result.parent)


PAIRS = [(one, 10 * one) for one in range(5)]

WELL = {
    "a chain": lambda t: chain(t.add.s(1, 2), t.add.s(4), t.add.s(8)),
    "a group": lambda t: group(t.add.s(*pair) for pair in PAIRS),
    "an empty group": lambda _: group(),
    "a chord": lambda t: chord([t.add.s(*pair) for pair in PAIRS], t.total.s()),
    "a chord of one": lambda t: chord([t.add.s(1, 2)], t.total.s()),
    "map": lambda t: t.total.map([[1, 2], [3, 4]]),
    "starmap": lambda t: t.add.starmap(PAIRS),
    "chunks": lambda t: t.add.chunks(PAIRS, 2),
    "chunks as a group": lambda t: t.add.chunks(PAIRS, 2).group(),
    "a map in a chain": lambda t: chain(t.add.s(1, 2), t.total.map([[1, 2], [3]]), t.total.s()),
    "starmaps in a chord": lambda t: chord([t.add.starmap(PAIRS), t.add.starmap(PAIRS)], t.total.map([[1], [2]])),
    "a group in a chain": lambda t: chain(t.add.s(1, 2), group(t.add.s(1), t.add.s(2)), t.total.s(), t.add.s(1)),
    "a group of chains": lambda t: group(chain(t.add.s(1, one), t.add.s(one)) for one in range(3)),
    "a chord in a chord": lambda t: chord([chord([t.add.s(1, 1)] * 2, t.total.s()), t.add.s(3, 4)], t.total.s()),
    "chord after chord": lambda t: chain(group([t.add.s(1, 2)] * 2), t.total.s(), group(t.add.s(1), t.add.s(2))),
    "immutable signatures": lambda t: chain(t.add.s(1, 2), t.add.si(10, 20), t.add.s(5)),
    "replace": lambda t: chain(t.replace.s(1), t.add.s(4)),
    "replace by a group": lambda t: chain(t.replace_by_group.s(1), t.total.s()),
    "replace in a chord": lambda t: chord([t.replace.s(1), t.add.s(2, 2)], t.total.s()),
    "add_to_chord": lambda t: chord([t.enlarge.s(1), t.add.s(2, 2)], t.last.s()),
    "a task that asks to run again": lambda t: chain(t.reject_once.s(), t.add.s(" and again")),
    "ignore_result": lambda t: chain(t.add.s(1, 2).set(ignore_result=True), t.add.s(4)),
}  # fmt: skip


@pytest.mark.parametrize("road", ["gpu", "mixed"])
@pytest.mark.parametrize("case", WELL)
def test_results_are_as_in_plain_celery(studio, case, road):
    expected, _ = studio.outcome(WELL[case], "plain")
    assert studio.outcome(WELL[case], road)[0] == expected


BADLY = {
    "in the middle of a chain": lambda t: chain(t.add.s(1, 2), t.fail.s(), t.add.s(4)),
    "in a group": lambda t: group(t.add.s(1, 2), t.fail.s()),
    "in the header of a chord": lambda t: chord([t.add.s(1, 2), t.fail.s()], t.total.s()),
    "in the body of a chord": lambda t: chord([t.add.s(1, 2)] * 2, t.fail.s()),
    "in a chain in a chord": lambda t: chord([chain(t.fail.s(), t.add.s(1)), t.add.s(1, 2)], t.total.s()),
    "in a chord in a chain": lambda t: chain(t.add.s(1, 2), group(t.fail.s(), t.add.s(1)), t.total.s(), t.add.s(1)),
    "in a map": lambda t: t.fail.map([1, 2]),
    "in chunks": lambda t: chord(t.fail.chunks([(1,), (2,)], 1).group(), t.total.s()),
    "in what replaces": lambda t: chain(t.replace.s("text"), t.add.s(1)),
}


@pytest.mark.parametrize("road", ["gpu", "mixed"])
@pytest.mark.parametrize("case", BADLY)
def test_errors_are_as_in_plain_celery(studio, case, road):
    expected, theirs = studio.outcome(BADLY[case], "plain")
    value, ours = studio.outcome(BADLY[case], road)
    assert value == expected
    wait_until(lambda: states(ours) == states(theirs), SOON, f"the states {states(theirs)}, not {states(ours)}")


def test_a_group_of_200_over_four_gpus(studio):
    result = group(studio.app.gpu.device.s() for _ in range(200)).apply_async()
    devices = result.get(timeout=LONG)
    assert all(is_held for *_, is_held in devices)
    assert {gpu for gpu, *_ in devices} == {f"{HOST}:{gpu}" for gpu in GPUS}
    assert len({(gpu, fence) for gpu, fence, *_ in devices}) == 200


class TestMaps:
    """`map`, `starmap` and `chunks` send Celery's own tasks, which take the road of the task that they call."""

    @staticmethod
    def check_one_lease(devices):
        (one,) = {tuple(device) for device in devices}
        gpu, fence, visible, is_held = one
        assert (f"{HOST}:{visible}", is_held) == (gpu, True)
        assert fence > 0

    def test_a_map_of_gpu_tasks_runs_under_one_lease(self, studio):
        self.check_one_lease(studio.app.gpu.device.map([1, 2, 3]).delay().get(timeout=LONG))
        self.check_one_lease(studio.app.gpu.device.starmap([(1, 2), (3, 4)]).delay().get(timeout=LONG))

    def test_each_chunk_runs_under_a_lease_of_its_own(self, studio):
        chunks = studio.app.gpu.device.chunks([(one,) for one in range(6)], 2).delay().get(timeout=LONG)
        for chunk in chunks:
            self.check_one_lease(chunk)
        assert len({tuple(device) for chunk in chunks for device in chunk}) == 3

    def test_a_map_of_plain_tasks_stays_plain(self, studio):
        assert studio.app.plain.device.map([1]).delay().get(timeout=LONG) == [[None, None, None, False]]

    def test_a_map_takes_the_options_of_a_gpu_task(self, studio):
        devices = studio.app.gpu.device.map([1]).apply_async(gpu=f"{HOST}:2", priority=3).get(timeout=LONG)
        assert devices[0][0] == f"{HOST}:2"

    @pytest.mark.parametrize("how", ["routed", "named"])
    def test_a_map_of_a_task_that_the_sender_knows_by_name_only(self, studio, how):
        with Celery(broker=studio.world.url, backend=studio.world.url, set_as_current=False) as sender:
            GPULease(sender)
            if how == "routed":
                sender.conf.task_routes = (GPURouter({"gpu.*": "default"}),)
            options = {} if how == "routed" else {"pool": "default"}
            kwargs = {"task": signature("gpu.device", app=sender), "it": [1, 2]}
            self.check_one_lease(sender.send_task("celery.map", kwargs=kwargs, **options).get(timeout=LONG))

    def test_a_map_that_came_past_the_ledger_is_held(self, studio):
        with Celery(broker=studio.world.url, backend=studio.world.url, set_as_current=False) as sender:
            kwargs = {"task": signature("gpu.device", app=sender), "it": [1, 2]}
            self.check_one_lease(sender.send_task("celery.map", kwargs=kwargs).get(timeout=LONG))
            strayed = sender.send_task("celery.map", kwargs=kwargs, queue=f"gpu.{HOST}:1")
            self.check_one_lease(strayed.get(timeout=LONG))

    def test_a_map_whose_process_dies_is_given_out_again_if_its_task_is(self, studio):
        assert studio.app.gpu.die_once.map(["once"]).delay().get(timeout=LONG) == ["once"]
        with pytest.raises(LeaseLost):
            studio.app.gpu.die_only_once.map(["only-once"]).delay().get(timeout=LONG)


class TestCallbacks:
    def test_a_link_is_held_and_leased(self, studio):
        result = studio.app.gpu.add.apply_async((1, 2), link=[studio.app.gpu.device.s(), studio.app.plain.add.s(4)])
        assert result.get(timeout=LONG) == 3
        (callbacks,) = result.children
        device, added = callbacks.results
        assert device.get(timeout=LONG)[-1]
        assert added.get(timeout=LONG) == 7

    @pytest.mark.parametrize("road", ["plain", "gpu"])
    def test_an_error_callback_that_is_sent_is_held_and_leased(self, studio, road):
        failing = studio.roads()[road].fail.s().on_error(studio.app.gpu.told.s())
        result = chain(studio.app.gpu.add.si(1, 2), failing, studio.app.gpu.add.s(4)).apply_async().parent
        with pytest.raises(ValueError, match="no"):
            result.get(timeout=LONG)
        told = studio.until_noted("told", result.id)
        assert told["device"][-1]

    @pytest.mark.parametrize("road", ["plain", "gpu"])
    def test_an_error_callback_of_three_arguments_is_called_where_the_failure_is_recorded(self, studio, road):
        result = studio.roads()[road].fail.apply_async(link_error=studio.app.gpu.told_inline.s())
        assert studio.until_noted("told inline", result.id)["error"] == "no"

    def test_an_error_callback_of_a_chord_is_held_and_leased(self, studio):
        body = studio.app.gpu.total.s().on_error(studio.app.gpu.told.s())
        result = chord([studio.app.gpu.add.s(1, 2), studio.app.gpu.fail.s()], body).apply_async()
        result.get(timeout=LONG, propagate=False)
        assert studio.until_noted("told", result.id)["device"][-1]


def without_ids(told):
    """The same with ids by their order of appearance, without processes' numbers and roads."""
    names = {}
    text = UUID.sub(lambda found: names.setdefault(found[0], f"id {len(names)}"), json.dumps(told))
    return json.loads(re.sub(r"gen\d+@", "gen@", text).replace("gpu.", "plain."))


def lineage(result):
    """What each request of a chain with groups in it said, the last first."""
    told = []
    while result is not None:
        parts = result.results if isinstance(result, GroupResult) else [result]
        told += [part.get(timeout=LONG) for part in parts]
        result = result.parent
    return told


def family(result):
    """The ids of a result, of its children, and of theirs."""
    return [result.id, [family(child) for child in result.children or ()]]


BRANCHES = {
    "a chain": lambda t: chain(t.facts.si(), t.facts.si(1), t.facts.si(2)),
    "a chord": lambda t: chain(t.facts.si(), group(t.facts.si(1), t.facts.si(2)), t.facts.si(3)),
    "links": lambda t: t.facts.s().on_error(t.told.s()),
}
OPTIONS = {
    "headers": {"traceparent": TRACE, "customer": "7"},
    "time_limit": 60,
    "soft_time_limit": 50,
    "shadow": "other",
}


@pytest.mark.parametrize("options", [{}, OPTIONS], ids=["plainly", "with options"])
@pytest.mark.parametrize("case", BRANCHES)
def test_ids_headers_and_stamps_are_unchanged_by_holding(studio, case, options):
    def told_by(road):
        branch = BRANCHES[case](studio.roads()[road])
        branch.stamp(order="1234")
        result = branch.apply_async(**options)
        result.get(timeout=LONG)
        told = lineage(result)
        for request in told:  # what is held has our header besides
            assert bool(request["headers"] and request["headers"].pop("gpulease", None)) == (road == "gpu")
            request["headers"] = request["headers"] or None
        if isinstance(result.parent, GroupResult):
            # a chord's body is the child of whichever part ended last, with an older Celery of the first task
            parts = [part.id for part in result.parent.results]
            assert told[0].pop("parent_id") in [*parts, told[0]["root_id"]]
        first = told[-1]
        assert first["reply_to"] == studio.app.thread_oid
        assert first["traceparent"] == options.get("headers", {}).get("traceparent")
        root = result
        while root.parent is not None:
            root = root.parent
        return without_ids([told, family(root)])

    assert told_by("gpu") == told_by("plain")
