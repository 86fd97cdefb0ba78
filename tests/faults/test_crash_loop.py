"""A task that kills whatever runs it does not burn a GPU: others run while it waits."""

from celery_gpulease.exceptions import LeaseLost
from celery_gpulease.ledger.views import pending_rows
from tests.faults.world import SOON
from tests.waiting import wait_until


def test_between_its_deaths_others_run_and_pending_says_why_it_waits(world):
    world.worker(0)
    dying, other = world.send("die"), world.send("add", 1, 2)
    wait_until(
        lambda: any("its runs died 2 times" in row.reason for row in pending_rows(world.ledger, [])), SOON, "the reason"
    )
    assert isinstance(world.ends(dying, "FAILURE"), LeaseLost)
    world.succeeds(other)
    assert [run.task for run in world.runs()] == [dying, dying, other, dying]
