"""A grown project in which only `base=GPUTask` is new.

The project (tests/semantics/project/grown) is run twice, with either class: serializers, compression, routers, queues,
own bases, hooks, signals, requests, transport options and settings as they pile up.
"""

from collections import Counter
from contextlib import ExitStack

import pytest

from celery_gpulease.embedded import EmbeddedServer
from tests.semantics.site import site_on

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def calls(server_binary, tmp_path_factory):
    """What came of each call with Celery's own class, and with ours."""
    with ExitStack() as stack:
        sites = []
        for gpu in (False, True):
            server = stack.enter_context(EmbeddedServer(binary=server_binary))
            sites.append(stack.enter_context(site_on(server.url, tmp_path_factory.mktemp("site"), gpu=gpu)))
        for site in sites:
            site.start_plain_worker()
        sites[1].processes.worker("grown.app", 0)
        plain, ours = (site.calls() for site in sites)
        yield {name: (plain[name], ours[name]) for name in plain}


def test_every_sender_sees_what_it_sees_with_celerys_own_class(calls):
    assert len(calls) > 25
    for name, (plain, ours) in calls.items():
        assert ours.outcome == plain.outcome, name


def test_every_hook_and_handler_is_called_as_with_celerys_own_class(calls):
    for name, (plain, ours) in calls.items():
        assert ours.run == plain.run, name
        assert Counter(ours.signals) == Counter(plain.signals), name
