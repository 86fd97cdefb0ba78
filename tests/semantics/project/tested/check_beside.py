"""Beside Celery's own plugin: its plain worker, and ours, of one app."""

import proj
import pytest
from celery import chain
from celery.contrib.testing.worker import start_worker

SOON = 10


@pytest.fixture
def plain_worker(gpu_ledger):
    with start_worker(proj.app, perform_ping_check=False):
        yield


def test_a_chain_goes_through_both(plain_worker, gpu_worker):
    assert chain(proj.add.s(1, 2), proj.plain.s(), proj.add.s(1)).delay().get(timeout=SOON) == 5


def test_so_it_does_in_the_other_order(gpu_worker, plain_worker):
    assert chain(proj.add.s(1, 2), proj.plain.s(), proj.add.s(1)).delay().get(timeout=SOON) == 5
