"""What people are shown is what is true, also of strangers, and showing it changes nothing."""

import pytest

from celery_gpulease.ledger.bare import bare_keys
from celery_gpulease.ledger.story import whereabouts
from celery_gpulease.ledger.views import gpu_rows, pending_rows, pool_rows

HOUR_MS = 3_600_000


def row(world):
    (found,) = gpu_rows(world.ledger)
    return found


def test_a_free_gpu(world):
    world.join(pools=("a", "b")).claim()
    found = row(world)
    assert (found.id, found.pools, found.state, found.reason) == ("node:0", ["a", "b"], "free", None)
    assert (found.task_id, found.worker, found.ttl_seconds, found.fence) == (None, "gpu@node", None, None)


def test_a_running_gpu(world):
    worker = world.join()
    ticket = world.hold()
    worker.claim()
    run = worker.run()
    found = row(world)
    assert (found.state, found.task, found.fence) == ("leased", "proj.render", run.fence)
    assert found.task_id == world.ticket(ticket)["task_id"]
    assert 0 <= found.held_seconds < 5
    assert 25 < found.ttl_seconds <= 30


def test_a_gpu_whose_lease_was_given_back_or_taken_by_force_while_its_task_still_runs(world):
    worker = world.join()
    ticket = world.hold()
    worker.claim()
    worker.run()
    world.ledger.force("node:0")
    waiting = world.hold()
    found = row(world)
    assert (found.state, found.reason) == ("free", "busy with a task that runs on without the lease")
    assert (found.task_id, found.fence) == (world.ticket(ticket)["task_id"], None)
    (pending,) = pending_rows(world.ledger, [found])
    assert pending.task_id == world.ticket(waiting)["task_id"]
    assert pending.reason == "every GPU of pool 'default' is busy with a task that runs on without the lease"


def test_a_strangers_gpu(world):
    world.join()
    world.stranger_takes()
    found = row(world)
    assert (found.state, found.task_id, found.reason) == ("leased", None, "leased by a foreign holder: stranger")
    assert found.held_seconds is None  # nobody has seen since when
    world.drained()
    assert (row(world).state, row(world).reason) == (
        "draining",
        "drained by order; leased by a foreign holder: stranger",
    )


def test_a_strangers_lease_is_shown_since_the_gpus_worker_has_seen_it(world):
    def see_long_ago():
        worker.claim()
        long_ago = {"stranger_ms": world.now_ms() - 100_000}
        assert not world.client.hset(world.key("device", "node:0"), mapping=long_ago)

    worker = world.join()
    worker.claim()
    world.stranger_takes()
    see_long_ago()
    worker.claim()
    assert 100 <= row(world).held_seconds < 110
    world.client.set(world.ledger.keys.lease("node:0"), "another", px=60_000)
    worker.claim()
    assert 0 <= row(world).held_seconds < 5
    see_long_ago()
    world.delete_lease()
    worker.claim()
    world.client.set(world.ledger.keys.lease("node:0"), "another", px=60_000)
    worker.claim()
    assert 0 <= row(world).held_seconds < 5


def test_a_lease_without_a_ttl_is_reported_and_respected(world):
    world.join("GPU-7")
    world.join("node:1")
    world.stranger_takes("node:1")
    world.client.set(world.ledger.keys.lease("GPU-7"), "stranger")
    assert list(bare_keys(world.ledger)) == [("lease", "GPU-7", "gpu:lease:GPU-7")]
    assert gpu_rows(world.ledger)[0].reason == "leased without a TTL by stranger"


def test_closed_gpus(world):
    for number in range(5):
        world.join(f"node:{number}")
    world.ledger.drain("node:0", drained=True)
    quarantine = {"quarantine": "unwell", "until_ms": world.now_ms() + 60_000}
    world.client.hset(world.key("closed", "node:1"), mapping=quarantine)
    world.worker("node:2").die()
    world.client.hset(world.key("closed", "node:3"), "closing", 1)
    world.deafen("node:2")
    world.lapse_presence("node:4")
    states = [(one.state, one.reason) for one in gpu_rows(world.ledger)]
    assert states == [
        ("draining", "drained by order"),
        ("quarantined", "unwell"),
        ("offline", "no living worker"),
        ("offline", "its worker is stopping, or takes no new work"),
        ("offline", "no living worker"),
    ]


def test_gpus_are_read_in_pages(world, monkeypatch):
    monkeypatch.setattr("celery_gpulease.ledger.views.PAGE", 2)
    names = [f"node:{number}" for number in range(5)]
    for name in names:
        world.worker(name).join()
    assert [one.id for one in gpu_rows(world.ledger)] == names


def test_pools_count_pinned_ones_too_and_what_is_scheduled_apart(world):
    world.hold()
    world.hold(pin="node:9")
    world.hold(eta_ms=world.now_ms() + HOUR_MS)
    world.hold(pool="later", eta_ms=world.now_ms() + HOUR_MS)
    world.join(pools=("served",))
    found = pool_rows(world.ledger, gpu_rows(world.ledger))
    assert {pool: (one.pending, one.scheduled) for pool, one in found.items()} == {
        "default": (2, 1),
        "later": (0, 1),
        "served": (0, 0),
    }
    assert 0 <= found["default"].oldest_seconds < 5


@pytest.mark.parametrize("first", [{"priority": 0}, {"priority": 255}, {"priority": 7}, {"pin": "node:9"}])
def test_the_oldest_is_who_came_first_whatever_its_priority(world, first):
    world.hold(**first)
    world.client.set(world.key("arrival"), (world.now_ms() + HOUR_MS) * 8)  # all others came an hour after it
    for priority in (0, 7, 7, 255):
        world.hold(priority=priority)
    world.hold(pin="node:9")
    (found,) = pool_rows(world.ledger, []).values()
    assert 0 <= found.oldest_seconds < 60


def test_who_waits_is_shown_in_order_with_the_reason(world):
    tickets = [world.hold(priority=5), world.hold(), world.hold(pin="node:9")]
    tickets.append(world.hold(eta_ms=world.now_ms() + HOUR_MS))
    tasks = [world.ticket(ticket)["task_id"] for ticket in tickets]
    found = list(pending_rows(world.ledger, gpu_rows(world.ledger)))
    assert [one.task_id for one in found] == [tasks[2], tasks[1], tasks[0], tasks[3]]
    assert [one.position for one in found] == [1, 1, 2, None]
    assert found[0].reason == "pinned to node:9, which no worker has ever served"
    assert found[1].reason == "no GPU serves pool 'default'"
    assert found[3].reason.startswith("not due yet")


def test_looking_changes_nothing(world):
    world.join().claim()
    world.hold()
    before = world.everything()
    rows = gpu_rows(world.ledger)
    pool_rows(world.ledger, rows)
    list(pending_rows(world.ledger, rows))
    world.ledger.inspect("node:0", change=False)
    world.ledger.agenda()
    assert world.everything() == before


def test_who_waits_names_the_gpu_that_it_is_pinned_to(world):
    world.hold(pin="node:9")
    world.hold()
    assert [(one.gpu, one.position) for one in pending_rows(world.ledger, [])] == [("node:9", 1), (None, 1)]


def test_what_is_not_due_yet_says_too_that_nobody_serves_its_pool(world):
    world.join()
    world.hold(eta_ms=world.now_ms() + HOUR_MS, pool="h100")
    world.hold(eta_ms=world.now_ms() + HOUR_MS)
    reasons = {one.pool: one.reason for one in pending_rows(world.ledger, gpu_rows(world.ledger))}
    assert reasons["h100"].endswith("; no GPU serves pool 'h100'")
    assert "serves" not in reasons["default"]


def age(world, task_id):
    (row,) = (row for row in pending_rows(world.ledger, []) if row.task_id == task_id)
    return row.age_seconds


def make_old(world, ticket, seconds):
    world.client.hset(world.key("ticket", ticket), "held_ms", world.now_ms() - 1000 * seconds)


def test_the_age_of_what_has_an_eta_counts_from_that_before_and_after_it_is_in_line(world):
    later = world.hold(task_id="later", eta_ms=world.now_ms() + 60_000)
    make_old(world, later, 100)
    assert (age(world, "later"), whereabouts(world.ledger, "later")[0].held_seconds) == (0, 0)
    world.make_due(later, world.now_ms() - 20_000)
    assert 20 <= age(world, "later") < 30
    world.ledger.promote()
    assert 20 <= age(world, "later") < 30
    assert 20 <= whereabouts(world.ledger, "later")[0].held_seconds < 30


def test_the_age_of_what_must_wait_once_more_counts_from_when_it_was_sent(world):
    make_old(world, world.hold(task_id="limited"), 100)
    worker = world.join()
    worker.claim()
    world.ledger.defer(worker.pop(), 60.0)
    assert 100 <= age(world, "limited") < 110


def test_a_gpu_whose_worker_stops_while_its_task_runs_says_so_and_so_does_who_waits_for_it(world):
    worker = world.join()
    world.hold()
    worker.claim()
    worker.run()
    worker.close()
    world.deafen("node:0")  # its listener is the first to stop
    world.hold(task_id="waiting")
    assert (row(world).state, row(world).reason) == ("leased", "its worker is stopping, or takes no new work")
    (pending,) = pending_rows(world.ledger, gpu_rows(world.ledger))
    assert pending.reason == "every GPU of pool 'default' is leased, and takes nothing after that"
