"""All who use a ledger mean the same by its keys: versions of two layouts never meet in it."""

import pytest

from celery_gpulease import ConfigurationError
from celery_gpulease.ledger import Ledger, scripts
from celery_gpulease.ledger.layout import LAYOUT
from celery_gpulease.version import __version__


@pytest.fixture
def newcomer(ledger):
    """Another process at the same ledger, which has not asked yet."""
    made = Ledger(ledger.settings)
    yield made
    made.client.close()


def say(world, number, version="99.0.0"):
    """Somebody else's version has given the ledger its layout."""
    world.client.hset(world.key("layout"), mapping={"number": number, "version": version})


def told(world):
    return world.client.hgetall(world.key("layout"))


OURS = {"number": str(LAYOUT), "version": __version__}


@pytest.mark.parametrize("act", ["hold", "join"])
def test_the_first_who_changes_something_says_of_which_layout_it_is(world, act):
    getattr(world, act)()
    assert told(world) == OURS


def test_whoever_looks_changes_nothing(world):
    world.ledger.look()
    assert world.client.keys() == []


def test_who_comes_later_leaves_the_word_of_the_first(world, newcomer):
    say(world, LAYOUT, "0.0.9")
    newcomer.hold(world.held())
    assert told(world) == {"number": str(LAYOUT), "version": "0.0.9"}


@pytest.mark.parametrize("act", [lambda world: world.hold(), lambda world: world.worker().join()])
def test_a_newer_layout_is_refused_with_both_versions_and_the_cure_and_nothing_is_changed(world, act):
    say(world, LAYOUT + 1)
    refused = (
        rf"'gpu:' is of layout {LAYOUT + 1}, which celery_gpulease 99\.0\.0 made so; "
        rf"this is celery_gpulease {__version__}, of layout {LAYOUT}\. Install that version here.*gpulease_key_prefix"
    )
    for _ in range(2):  # it stays so
        with pytest.raises(ConfigurationError, match=refused):
            act(world)
    with pytest.raises(ConfigurationError, match=refused):
        world.ledger.look()
    assert world.client.keys() == [world.key("layout")]


def claimed(world):
    world.join()
    world.hold()
    world.client.delete(world.key("worker", "node:0"))  # its worker is dead, and its task not


def ending(world):
    ticket = world.hold(task_id="task")
    world.ledger.cancel("task")
    assert world.state(ticket) == "ending"


IN_USE = {
    "a worker lives": lambda world: world.join(),
    "a task waits": lambda world: world.hold(),
    "a task waits for a GPU": lambda world: world.hold(pin="node:9"),
    "a task is not due": lambda world: world.hold(eta_ms=1 << 42),
    "a task is claimed": claimed,
    "an end is to be written": ending,
}


@pytest.mark.parametrize("what", IN_USE)
def test_an_older_layout_is_refused_while_it_is_in_use(world, newcomer, what):
    IN_USE[what](world)
    say(world, LAYOUT - 1, "0.0.9")
    with pytest.raises(ConfigurationError, match=r"celery_gpulease 0\.0\.9 made so, and in use.*Stop its senders"):
        newcomer.hold(world.held())
    assert told(world)["number"] == str(LAYOUT - 1)


def test_an_older_layout_that_nobody_uses_any_more_becomes_ours(world, newcomer):
    worker = world.join()
    world.hold()
    worker.claim()
    world.ledger.release(worker.run())
    worker.leave()
    say(world, LAYOUT - 1)
    newcomer.hold(world.held())
    assert told(world) == OURS


def test_who_goes_on_when_the_layout_has_become_another_ones_is_refused(world, newcomer):
    """The one that takes a ledger over makes the server forget all scripts, so that everybody asks again."""
    script = world.ledger._script("hold").sha
    world.hold()
    world.client.flushdb()
    say(world, LAYOUT - 1)
    assert world.client.script_exists(script) == [True]
    newcomer.agree()
    assert world.client.script_exists(script) == [False]
    say(world, LAYOUT + 1)
    with pytest.raises(ConfigurationError, match="Install that version here"):
        world.hold()


def test_a_ledger_that_has_no_number_yet_is_of_the_first_layout(world, newcomer):
    world.hold()
    world.client.delete(world.key("layout"))
    newcomer.hold(world.held())
    assert told(world) == OURS


def test_where_redis_was_emptied_its_workers_say_it_again(world):
    worker = world.join()
    world.client.flushdb()
    assert worker.report() == "unregistered"
    assert worker.join() == ["joined"]
    assert told(world) == OURS


def test_a_process_asks_once(world, monkeypatch):
    world.hold()
    monkeypatch.setattr("celery_gpulease.ledger.agreement.agree", None)
    world.hold()


def test_scripts_of_two_layouts_are_never_taken_for_each_other():
    assert all(scripts.source(name).text.startswith(f"-- Layout {LAYOUT}.\n") for name in scripts.names())
