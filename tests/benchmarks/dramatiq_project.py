"""The project under Dramatiq."""

import os

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend
from jobs import sleep_and_tell

URL = os.environ["BENCH_URL"]
broker = RedisBroker(url=URL)
broker.add_middleware(Results(backend=RedisBackend(url=URL)))
dramatiq.set_broker(broker)


@dramatiq.actor(store_results=True)
def work(seconds):
    """The worker is this process."""
    return sleep_and_tell(os.getpid(), seconds)


def run_all(jobs, seconds):
    """What the jobs told, once all have ended."""
    sent = [work.send(seconds) for _ in range(jobs)]
    return [one.get_result(block=True, timeout=120_000) for one in sent]
