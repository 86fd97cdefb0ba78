"""A grown project in which only `base=GPUTask` is new: each call ends as it does with Celery's own task class."""

import pytest

from celery_gpulease.embedded import EmbeddedServer
from tests.semantics.site import site_on


@pytest.fixture(scope="module")
def both(server_binary, tmp_path_factory):
    """What came of each call, and the project's journal: with Celery's own class, and with ours."""
    found = []
    for gpu in (False, True):
        with EmbeddedServer(binary=server_binary) as server:
            with site_on(server.url, tmp_path_factory.mktemp("site"), gpu=gpu) as site:
                site.plain_worker()
                if gpu:
                    site.processes.worker("grown.app", 0)
                found.append((site.calls(), site.journal()))
    return found


def test_all(both):
    (plain, pj), (ours, oj) = both
    import json
    for name in plain:
        a, b = dict(plain[name]), dict(ours[name])
        ia, ib = a.pop("id"), b.pop("id")
        if a != b: print("DIFF", name, json.dumps(a), json.dumps(b), sep="\n   ")
        ja = [l for l in pj[ia]]; jb = [l for l in oj[ib]]
        if ja != jb: print("JDIFF", name, *ja, "--", *jb, sep="\n      ")
    assert 0
